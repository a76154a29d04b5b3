"""The actor role: steps environments and asks the learner for their actions.

`seedflow.actor.stepping` alternates between groups of environments over any connection,
`seedflow.actor.session` finds the learner, registers, and does so again when it was lost, and
``python -m seedflow.actor`` is the process. Nothing here loads torch, numba or dask, and this file imports
nothing at all: the process limits its threads before numpy is loaded.
"""
