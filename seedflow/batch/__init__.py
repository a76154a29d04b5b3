"""Scripts for batch systems: one job, actors as jobs, a GPU for the learner, an array over seeds.

A script is put together of directives and settings, which a `Request` decides (`slurm`, `pbs`, `lsf`,
`script`), and of the parts in ``parts/``, which are the same in every script of their kind.
"""
