"""Prioritized sequence replay, compressed in memory.

====================  =================================================================
`layout.ReplaySpec`   what a chunk holds and how chunks make up a sequence
`codec`               a chunk's arrays as bytes, the same in memory and in a Zarr array
`chunks`              `Chunk` and the store that counts who refers to it
`snapshot.Snapshot`   all that a checkpoint writes and a restored replay begins with
====================  =================================================================

The four above need numpy alone. Nothing is imported here, so that a program that only reads a checkpoint
loads neither torch nor numba.
"""
