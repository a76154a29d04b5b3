"""Train as a program of MPI, on workers that are ranks of it.

    mpirun -n 5 --bind-to none python examples/mpi.py
    mpirun --host node1:2,node2:2,node3:2 --bind-to none python examples/mpi.py --interface ib0 --actors 3

dask-mpi makes the first rank a Dask scheduler, the second goes on with this program, and all others become
workers: one for the learner, and one for each actor. MPI only starts them; it carries nothing of the run.
"""

from __future__ import annotations

import argparse

from dask_mpi import initialize
from distributed import Client

import seedflow


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on ranks of MPI.")
    parser.add_argument("--interface", help="network of the hosts, such as ib0; default: Dask's choice")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200_000, help="agent steps of the training")
    parser.add_argument("--run-dir", help="on a file system that all hosts see; default: below runs/")
    arguments = parser.parse_args()

    # Only the second rank returns from this.
    initialize(interface=arguments.interface, nthreads=1, memory_limit=0, dashboard=False)

    config = seedflow.load_config(
        "cartpole_vtrace",
        {
            "actor.count": arguments.actors,
            "train.total_agent_steps": arguments.steps,
            "metrics.console": "plain",
        },
    )
    with Client() as client:  # dask-mpi has said where the scheduler is
        seedflow.train(config, client=client, run_dir=arguments.run_dir)


if __name__ == "__main__":
    main()
