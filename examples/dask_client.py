"""Train on a Dask cluster through a client, and watch the run meanwhile.

    python examples/dask_client.py                                   # a local cluster of three workers
    python examples/dask_client.py --scheduler tcp://10.0.0.1:8786   # a cluster that is there already

One worker takes the learner, the others the actors. The client stays the caller's: it can be used for
other work during the run, and it is open afterwards.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from distributed import Client, LocalCluster

import seedflow


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on a Dask cluster.")
    parser.add_argument("--scheduler", help="address; default: start a local cluster")
    parser.add_argument("--steps", type=int, default=200_000, help="agent steps of the training")
    parser.add_argument("--run-dir", help="default: a new directory below runs/")
    arguments = parser.parse_args()

    config = seedflow.load_config(
        "cartpole_vtrace",
        {"actor.count": 2, "train.total_agent_steps": arguments.steps, "metrics.console": "off"},
    )
    with ExitStack() as stack:
        scheduler = arguments.scheduler
        if scheduler is None:
            scheduler = stack.enter_context(
                LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=None)
            )
        client = stack.enter_context(Client(scheduler))
        run = stack.enter_context(
            seedflow.train(config, client=client, run_dir=arguments.run_dir, block=False)
        )
        for role in run.status().roles:
            print(f"{role.role} is {role.state} on {role.worker}")
        while not run.wait(timeout=5.0):
            metrics = run.status().metrics
            print(f"{metrics.get('steps/agent', 0)} steps, return {metrics.get('episode/return', 0.0):.1f}")

        # The cluster is free for other tasks again.
        print(f"{client.submit(sum, range(10)).result()} is what the client computed after the run")
    result = seedflow.evaluate(run.dir, episodes=10)
    print(f"mean return {result.return_mean:.1f} over {result.episodes} episodes")


if __name__ == "__main__":
    main()
