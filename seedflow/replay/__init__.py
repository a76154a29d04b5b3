"""Prioritized sequence replay, compressed in memory.

=========================  ====================================================================
`layout.ReplaySpec`        what a chunk holds and how chunks make up a sequence
`codec`, `zstd`            a chunk's arrays as bytes, the same in memory and in a Zarr array
`chunks`                   `Chunk` and the store that counts who refers to it
`snapshot.Snapshot`        all that a checkpoint writes and a restored replay begins with
`lanes`, `limiter`         state machines: which sequences a chunk completes; samples per insert
`priorities`, `table`      the sum tree; the ring of sequences, first in, first out
`contents`                 all of these as one state machine without threads
`encoding`, `sampling`     chunks checked and encoded; `SequenceBatch`, and decoding into it
`memory`                   bytes expected and allowed
`replay.Replay`            the whole, safe to use from several threads
`arrival`                  chunk buffers that inference writes to, and the loop that inserts them
=========================  ====================================================================

The first four need numpy alone. Nothing is imported here, so that a program that only reads a checkpoint
loads neither torch nor numba.
"""
