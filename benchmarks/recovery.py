"""How soon a run heals, and what it loses: ``python -m benchmarks.recovery [--json]``, as root.

CartPole trains on a Dask cluster of three hosts of their own (network namespaces), with the settings of
`cartpole_vtrace` and a checkpoint every few seconds. One fault after the other; for each:

- *noticed*: seconds from the fault until Dask has dropped the worker; none where no worker is lost;
- *recovery*: seconds from then until every actor is connected and training goes on, as the metrics say;
- *steps lost*: agent steps that the run has to take once more, which only a lost learner costs.

Reports come every half second, so recoveries are up to that much too long.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from seedflow.driver_record import DriverRecord
from seedflow.run_dir import in_use
from tests.hosts.lab import lab, until
from tests.hosts.training import Training, trained


@dataclass(frozen=True)
class Recovery:
    """What one fault has cost."""

    fault: str
    noticed_seconds: float | None
    recovery_seconds: float
    steps_lost: int


def measure(run: Training, fault: str, break_it: Callable[[], float], lost: str | None = None) -> Recovery:
    """Let something break and wait until the run is whole again.

    Parameters
    ----------
    break_it
        Does it, and returns when Dask has noticed (Unix seconds); 0 where there is nothing to notice.
    lost
        The role that is lost and started again, if one is.
    """
    counts = run.counts()
    assert counts is not None
    generation = None if lost is None else run.generation(lost)
    begun = time.time()
    noticed = break_it()
    if lost is not None and generation is not None:
        until(lambda: run.generation(lost) > generation, f"{lost} to be started again")
    learner_restarts = run.generation("learner-0")
    whole = run.until_whole(fault, learner_restarts=learner_restarts)
    resumed = [r["step"] for r in run.records() if r.get("event") == "resumed" and r["time"] >= begun]
    before = max(
        record["steps/agent"]
        for record in run.records()
        if "steps/agent" in record and record["time"] <= (noticed or begun) + 0.5
    )
    return Recovery(
        fault,
        round(noticed - begun, 1) if noticed else None,
        round(whole.time - (noticed or begun), 1),
        max(0, int(before) - resumed[-1]) if resumed else 0,
    )


def all_faults(run: Training) -> list[Recovery]:
    """Every kind of fault, one after the other."""

    def kill_worker(role: str) -> float:
        address = run.worker_of(role)
        run.kill_worker(address)
        return run.until_gone(address)

    def kill_gateway() -> float:
        (gateway,) = run.lab.family("seedflow.rpc.gateway")
        os.kill(gateway, signal.SIGKILL)
        return 0.0

    def kill_learner() -> float:
        (learner,) = run.lab.family("seedflow.learner")
        os.kill(learner, signal.SIGKILL)
        return 0.0

    def restart_worker() -> float:
        address = run.worker_of("actor-1")
        run.client.restart_workers([address], timeout=120, raise_for_error=False)
        return run.until_gone(address)

    def retire() -> float:
        address = run.worker_of("learner-0")
        host = run.host_of(address)
        run.client.retire_workers([address], close_workers=True, remove=True)
        gone = run.until_gone(address)
        host.worker()
        return gone

    def cut(role: str) -> float:
        address = run.worker_of(role)
        host = run.host_of(address)
        host.cut()
        gone = run.until_gone(address)
        host.heal()
        host.worker()  # those that were cut off have ended for good
        return gone

    def kill_driver() -> float:
        record = DriverRecord.read(run.dir)
        assert record is not None
        os.kill(record.pid, signal.SIGKILL)
        until(lambda: not in_use(run.dir), "the driver to be gone")
        run.background("attach", str(run.dir))
        until(lambda: in_use(run.dir), "another driver")
        return 0.0

    found = [
        measure(run, "actor's worker killed", lambda: kill_worker("actor-0"), "actor-0"),
        measure(run, "gateway killed", kill_gateway),
        measure(run, "learner process killed", kill_learner, "learner-0"),
        measure(run, "learner's worker killed", lambda: kill_worker("learner-0"), "learner-0"),
        measure(run, "nanny restarts an actor's worker", restart_worker, "actor-1"),
        measure(run, "learner's worker retired", retire, "learner-0"),
        measure(run, "driver killed, run attached to again", kill_driver),
        measure(run, "learner's host cut off", lambda: cut("learner-0"), "learner-0"),
    ]
    run.program("stop", str(run.dir))
    run.check_history()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("it makes network namespaces, which only root may")
    with (
        tempfile.TemporaryDirectory(prefix="recovery-") as directory,
        lab(Path(directory)) as hosts,
        trained(hosts) as run,
    ):
        found = all_faults(run)
    if arguments.json:
        print(json.dumps({"faults": [asdict(one) for one in found]}))
        return
    print("| fault | noticed by Dask (s) | recovery (s) | steps lost |\n|---|---|---|---|")
    for one in found:
        noticed = "-" if one.noticed_seconds is None else f"{one.noticed_seconds:g}"
        print(f"| {one.fault} | {noticed} | {one.recovery_seconds:g} | {one.steps_lost:,} |")


if __name__ == "__main__":
    main()
