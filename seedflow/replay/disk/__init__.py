"""The replay in a checkpoint: Zarr v3 groups, written from and read into encoded bytes.

===========  ================================================================================
`zarr`       what a Zarr group of ours consists of: documents, arrays, shards
`archive`    zip archives that only store, written as a stream and read with suspicion
`group`      one group as one archive or as a directory of files
`segments`   immutable groups of chunks
`part`       the replay as a part of a generation: what the manifest says, the table of sequences
`save`       `ReplaySaver`: writes what is new in a snapshot
`places`     which sequences the chunks of several segments make up
`load`       `load_replay`: reads a snapshot, every checksum verified
`health`     what is in a checkpoint and whether it is whole, for people
`export`     whole episodes as a Minari dataset
===========  ================================================================================

The format is specified in ``docs/replay_format.md``. All of this needs numpy and the codecs alone.
"""
