"""What a machine, its batch system and a Dask cluster have, what they lack, and what to type.

One module for each thing that is looked at; each yields `Finding`s. `examine` asks them all. Nothing is
changed anywhere, and torch is only loaded in a child process.
"""
