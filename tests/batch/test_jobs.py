"""Scripts for PBS and LSF, run as these systems run them: with their variables, host files and commands.

The systems themselves are played by programs that stand first on PATH. Two hosts are one machine that goes by
two names; what is started on another one gets no variable of the job's, as through ssh.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs.rig import ENDLESS, PROGRAM, Launched, Launcher, launcher, progress, steps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LONG = 600.0
HEAD, OTHER = "hosta", "hostb.cluster"
ON_HOST = """#!/bin/bash
export PLAYED_HOST=$1
shift
unset ${!DASK_@} ${!PBS_@} ${!LSB_@} ${!LS_@}
cd /
exec "$@"
"""
PROGRAMS = {
    "hostname": f'#!/bin/bash\necho "${{PLAYED_HOST:-{HEAD}}}"\n',
    "pbs_tmrsh": ON_HOST,
    "blaunch": ON_HOST,
    "qsub": '#!/bin/bash\necho "$@" >> "$SUBMISSIONS"\necho 13.server\n',
}


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launcher]:
    with launcher(tmp_path) as started:
        yield started


def environment(system: str, directory: Path) -> dict[str, str]:
    """What a job of two hosts finds around it."""
    programs = directory / "bin"
    programs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    hosts = directory / "hosts"
    hosts.write_text(f"{HEAD}\n{OTHER}\n{OTHER}\n")
    common = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SUBMISSIONS": str(directory / "submissions"),
        "TMPDIR": str(directory),
    }
    job = {
        "pbs": {"PBS_JOBID": "12[3].server", "PBS_NODEFILE": str(hosts), "PBS_O_WORKDIR": str(directory)},
        "lsf": {"LSB_JOBID": "12", "LSB_DJOB_HOSTFILE": str(hosts), "LS_SUBCWD": str(directory)},
        "lsf, without a file": {
            "LSB_JOBID": "12",
            "LSB_JOBINDEX": "0",
            "LSB_MCPU_HOSTS": f"{HEAD} 2 {OTHER} 2",
            "LS_SUBCWD": str(directory),
        },
    }
    return {**common, **job[system]}


def start(launch: Launcher, system: str, *settings: str, **edits: int) -> Launched:
    """Write a script, edit numbers at its top, and run it as a job."""
    directory = launch.directory
    options = ["--nodes", "2", "--time", "1h", "--interface", "lo", "--run-dir", "run", "-o", "job.sh"]
    options += ["--scratch", str(directory / "scratch")]
    (directory / "scratch").mkdir()
    command = [
        str(PROGRAM),
        "batch",
        system[:3],
        "tiny.yaml",
        "rpc.path=auto",
        "train.total_agent_steps=300",
        *settings,
        *options,
    ]
    written = launch(*command)
    assert written.wait() == 0, written.err
    script = directory / "job.sh"
    for name, value in edits.items():
        script.write_text(re.sub(rf"^{name}=\d+", f"{name}={value}", script.read_text(), flags=re.MULTILINE))
    return launch("bash", "job.sh", env=environment(system, directory))


def check_cleared(directory: Path) -> None:
    assert list((directory / "scratch").iterdir()) == []
    assert list(directory.rglob("*.pem")) == []


@pytest.mark.parametrize("system", ["pbs", "lsf", "lsf, without a file"])
def test_a_job_of_two_hosts_trains_to_its_end(launch: Launcher, system: str) -> None:
    job = start(launch, system)
    assert job.end(LONG) == 0, job.out + job.err
    run_dir = launch.directory / "run"
    assert progress(run_dir)["agent_steps"] >= 300
    (attempt,) = (run_dir / "batch").iterdir()
    assert {path.name for path in attempt.glob("[AL]*.log")} == {f"LEARNER-{HEAD}.log", f"ACTOR-{OTHER}.log"}
    check_cleared(launch.directory)


def test_pbs_does_not_announce_the_end_so_the_script_watches_the_time(launch: Launcher) -> None:
    job = start(launch, "pbs", ENDLESS, WALLTIME=150)  # 120 of them are for saving
    run_dir = launch.directory / "run"
    job.until(lambda: steps(run_dir), "some steps")
    assert job.end(LONG) == 75, job.out + job.err
    assert progress(run_dir)["agent_steps"] > 0
    assert (launch.directory / "submissions").read_text() == f"{launch.directory}/job.sh\n"
    check_cleared(launch.directory)


def test_a_second_attempt_waits_for_the_first_and_does_not_meet_it(launch: Launcher) -> None:
    (launch.directory / "run").mkdir()
    with (launch.directory / "run" / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        job = start(launch, "lsf", LOCK_SECONDS=1)
        assert job.end(LONG) == 1
    assert "run/.lock since more than 1 s" in job.out
    assert not list((launch.directory / "run" / "batch").glob("*/scheduler.json"))


def test_lsf_sends_its_signal_to_every_process_and_starts_code_75_again(launch: Launcher) -> None:
    job = start(launch, "lsf", ENDLESS)
    run_dir = launch.directory / "run"
    job.until(lambda: steps(run_dir), "some steps")
    os.killpg(job.process.pid, signal.SIGUSR1)
    assert job.end(LONG) == 75, job.out + job.err
    assert progress(run_dir)["agent_steps"] > 0
    check_cleared(launch.directory)


def test_a_job_that_is_cancelled_has_saved_and_does_not_come_again(launch: Launcher) -> None:
    job = start(launch, "pbs", ENDLESS)
    run_dir = launch.directory / "run"
    job.until(lambda: steps(run_dir), "some steps")
    os.killpg(job.process.pid, signal.SIGTERM)
    assert job.wait(LONG) == 143, job.out + job.err
    job.check_gone(60.0)
    assert progress(run_dir)["agent_steps"] > 0
    assert not (launch.directory / "submissions").exists()
    check_cleared(launch.directory)
