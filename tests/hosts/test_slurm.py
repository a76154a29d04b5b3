"""Runs as jobs of a real Slurm whose hosts are network namespaces: ended, requeued, crashed, scaled.

Nothing of a job is left on its hosts after any of these.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from seedflow.checkpoints import open_store
from seedflow.config import load_config
from seedflow.replay.disk.health import describe_replay
from tests.hosts.slurm_lab import INTERFACE, KILL_WAIT, SlurmLab, command_line, environment_of, slurm_lab
from tests.runs.rig import ENDLESS, metrics, progress, steps, until

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs the superuser, for hosts that are namespaces"),
]

SHORT = [
    "cartpole_masked_r2d2",
    "replay.min_size=100",
    "replay.samples_per_insert=4",
    "metrics.every_seconds=1",
    "metrics.tensorboard=false",
    "train.runs_in=thread",
]
"""Learns from its replay after seconds."""
PATIENCE = 300.0
GONE_SECONDS = KILL_WAIT + 60.0


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    with slurm_lab() as lab:
        yield lab


class Place:
    """A directory from which jobs are submitted, and a run in it.

    Attributes
    ----------
    scratch
        Each host's disk; nothing is left there by a job that ends in order.
    """

    def __init__(self, lab: SlurmLab, directory: Path) -> None:
        self.lab, self.directory = lab, directory
        self.run_dir = directory / "run"
        self.scratch = lab.directory / f"scratch-{directory.name}"
        self.scratch.mkdir()

    def submit(self, *arguments: str, time: str = "10m") -> list[str]:
        """`seedflow batch slurm`, submitted; returns the ids of the jobs."""
        said = self.lab.run(
            sys.executable, "-m", "seedflow.cli", "batch", "slurm", *SHORT, *arguments,
            "--time", time, "--grace", "60s", "--interface", INTERFACE, "--run-dir", str(self.run_dir),
            "--scratch", str(self.scratch), "--submit",
            cwd=self.directory,
        )  # fmt: skip
        return said.rpartition("Submitted: ")[2].strip().split(", ")

    def out(self, job: str) -> str:
        """What a job has printed so far, in all its attempts."""
        path = self.directory / f"seedflow-{job}.out"
        return path.read_text() if path.exists() else ""

    def until(self, condition: object, what: str, job: str, seconds: float = PATIENCE) -> None:
        """Poll until a condition holds; shows what the job has printed if it never does."""
        assert callable(condition)
        try:
            until(condition, what, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.lab.job(job)}\n{self.out(job)}") from None

    def until_steps(self, count: float, job: str) -> None:
        self.until(lambda: steps(self.run_dir) >= count, f"{count:g} steps", job)

    def check_gone(self, cancelled: bool = False) -> None:
        """No process of a job is left on any host, nothing on their disks, and no key in the run.

        What ends a job that is cancelled kills its steps, which may then leave their scratch directories.
        """
        until(
            lambda: not self.lab.of_jobs(), f"the jobs' processes to end: {self.lab.of_jobs()}", GONE_SECONDS
        )
        assert cancelled or list(self.scratch.iterdir()) == []
        assert list(self.run_dir.rglob("*.pem")) == []


@pytest.fixture
def place(lab: SlurmLab, tmp_path: Path) -> Iterator[Place]:
    yield Place(lab, tmp_path)
    lab.cancel_all()  # what a test that fails has left; others have ended their jobs


def roles(lab: SlurmLab, part: str) -> dict[int, list[int]]:
    """Processes of a role, by their nodes."""
    wanted = f" -m seedflow.{part} "
    found = {k: [pid for pid in lab.on_node(k) if wanted in command_line(pid)] for k in lab.numbers}
    return {number: pids for number, pids in found.items() if pids}


def dask_workers(lab: SlurmLab, number: int) -> list[int]:
    """Of a node, the learner's included."""
    return [pid for pid in lab.on_node(number) if " -m dask worker " in command_line(pid)]


def actors(lab: SlurmLab) -> int:
    """How many there are on all nodes."""
    return sum(len(pids) for pids in roles(lab, "actor").values())


def sequences(run_dir: Path) -> int:
    """How many the newest checkpoint's replay holds."""
    return describe_replay(open_store(str(run_dir))).sequences


def check_goes_on(run_dir: Path) -> None:
    """Every counter goes on from where it was, and returns are reported all along."""
    records = metrics(run_dir)
    for name in ("steps/agent", "steps/env_frames", "steps/trained", "train/updates", "replay/inserted"):
        values = [record[name] for record in records if name in record]
        assert len(values) > 2, name
        assert values == sorted(values), name
    assert sum("episode/return" in record for record in records) > 2


def test_a_job_over_three_nodes_is_told_that_its_time_ends_and_goes_on_when_requeued(
    lab: SlurmLab, place: Place
) -> None:
    """And once it is cancelled it has saved and does not come again."""
    (job,) = place.submit("actor.count=3", ENDLESS, "--nodes", "3", time="2m")
    place.until_steps(1000, job)
    assert roles(lab, "learner").keys() == {1}
    assert roles(lab, "actor").keys() == {2, 3}
    reported = len(metrics(place.run_dir))

    # Slurm's own signal: a minute before the end, and up to another one earlier.
    place.until(lambda: lab.job(job)["Restarts"] == "1", "Slurm to requeue it", job)
    out = place.out(job)
    assert "SIGUSR1 for the run" in out
    assert "the run ended with code 75" in out
    saved, held = progress(place.run_dir), sequences(place.run_dir)
    assert saved["agent_steps"] >= 1000
    assert held > 100

    place.until(lambda: "resumed generation" in place.out(job), "the second attempt", job)
    told = re.search(r"resumed generation \d+: (\d+) agent steps, (\d+) updates, (\d+) seq", place.out(job))
    assert told is not None
    assert [int(number) for number in told.groups()] == [saved["agent_steps"], saved["updates"], held]
    place.until_steps(saved["agent_steps"] + 1000, job)
    assert len(metrics(place.run_dir)) > reported
    check_goes_on(place.run_dir)

    lab.run("scancel", job)
    assert lab.until_over(job, PATIENCE) == "CANCELLED"
    place.check_gone(cancelled=True)
    assert progress(place.run_dir)["agent_steps"] >= saved["agent_steps"] + 1000
    assert lab.job(job)["Restarts"] == "1"


def test_a_node_that_crashes_takes_its_actors_along_and_the_run_goes_on(lab: SlurmLab, place: Place) -> None:
    (job,) = place.submit("actor.count=3", ENDLESS, "--nodes", "3", "--cpus-per-node", "3", "--no-requeue")
    place.until(lambda: actors(lab) == 3, "three actors", job)
    place.until_steps(1000, job)
    victim = max(roles(lab, "actor"))
    assert victim > 1  # where the learner is
    (worker,) = dask_workers(lab, victim)
    os.kill(worker, signal.SIGKILL)
    place.until(lambda: dask_workers(lab, victim) not in ([worker], []), "another Dask worker", job)
    place.until(lambda: actors(lab) == 3, "three actors again", job)
    assert "the ACTOR worker on node" in place.out(job)

    lab.crash(victim)
    try:
        place.until(lambda: actors(lab) == 3, "its actors elsewhere", job)
        place.until(lambda: "down" in lab.node_states()[victim - 1], "Slurm to notice", job)
        before = steps(place.run_dir)
        place.until_steps(before + 1000, job)
        assert lab.state(job) == "RUNNING"
        assert lab.job(job)["NodeList"] in ("node[1-2]", "node[1,3]")
        lab.run("scancel", "--batch", "--signal=USR1", job)
        assert lab.until_over(job, PATIENCE) == "FAILED"
        assert lab.exit_code(job) == 75  # saved; requeueing is off
        check_goes_on(place.run_dir)
        check_gone(lab)
    finally:
        lab.revive(victim)


def test_a_chain_of_jobs_ends_with_the_one_that_finishes_the_run(lab: SlurmLab, place: Place) -> None:
    total = "train.total_agent_steps=10000"
    first, second, third = place.submit("actor.count=2", total, "--cpus-per-node", "4", "--chain", "3")
    assert [lab.state(job) for job in (second, third)] == ["PENDING", "PENDING"]
    place.until_steps(1000, first)
    lab.run("scancel", "--batch", "--signal=USR1", first)
    assert lab.until_over(first, PATIENCE) == "FAILED"
    assert lab.exit_code(first) == 75
    saved = progress(place.run_dir)
    assert 1000 <= saved["agent_steps"] < 10000
    assert lab.until_over(second, PATIENCE) == "COMPLETED"
    assert f"resumed generation 1: {saved['agent_steps']} agent steps" in place.out(second)
    assert progress(place.run_dir)["agent_steps"] >= 10000
    check_goes_on(place.run_dir)
    assert lab.until_over(third, PATIENCE) == "CANCELLED"  # before it began
    assert place.out(third) == ""
    place.check_gone()


def test_an_array_trains_each_seed_in_a_directory_of_its_own(lab: SlurmLab, place: Place) -> None:
    (job,) = place.submit("actor.count=1", "train.total_agent_steps=2000", "--seeds", "1-2")
    for seed in (1, 2):
        task = f"{job}_{seed}"
        assert lab.until_over(task, PATIENCE) == "COMPLETED", place.out(task)
        assert load_config(place.run_dir / f"seed-{seed}").seed == seed
        assert progress(place.run_dir / f"seed-{seed}")["agent_steps"] >= 2000
    place.check_gone()


def test_only_the_learner_of_a_heterogeneous_job_sees_the_gpu(lab: SlurmLab, place: Place) -> None:
    (job,) = place.submit("actor.count=2", ENDLESS, "--nodes", "2", "--gpus", "1", "--no-requeue")
    place.until_steps(1000, job)
    ((learner,),) = roles(lab, "learner").values()
    assert roles(lab, "learner").keys() == {1}
    assert environment_of(learner)["CUDA_VISIBLE_DEVICES"] == "0"
    actors = [pid for pids in roles(lab, "actor").values() for pid in pids]
    assert len(actors) == 2
    assert [environment_of(pid)["CUDA_VISIBLE_DEVICES"] for pid in actors] == ["", ""]
    lab.run("scancel", job)
    assert lab.until_over(job, PATIENCE) == "CANCELLED"
    place.check_gone(cancelled=True)


def check_gone(lab: SlurmLab) -> None:
    """No process of a job is left, or soon is not."""
    try:
        until(lambda: not lab.of_jobs(), "the jobs' processes to end", GONE_SECONDS)
    except AssertionError as error:
        raise AssertionError(f"{error}: {lab.of_jobs()}") from None


def test_actors_in_jobs_of_their_own_come_and_go(lab: SlurmLab, place: Place) -> None:
    (job,) = place.submit("actor.count=3", ENDLESS, "--nodes", "2", "--cpus-per-node", "1", "--elastic")

    def jobs() -> int:
        return len(lab.run("squeue", "-h", "-t", "RUNNING", "-n", "seedflow-actors", "-o", "%i").split())

    place.until_steps(500, job)
    assert (actors(lab), jobs()) == (1, 1)
    for wanted in (3, 1):
        (place.run_dir / "actor_jobs").write_text(str(wanted))
        place.until(lambda n=wanted: (actors(lab), jobs()) == (n, n), f"{wanted} jobs of actors", job)
        place.until_steps(steps(place.run_dir) + 500, job)
    lab.run("scancel", job)
    assert lab.until_over(job, PATIENCE) == "CANCELLED"
    until(lambda: lab.run("squeue", "-h").split() == [], "the actors' jobs to end", GONE_SECONDS)
    check_gone(lab)
    assert progress(place.run_dir)["agent_steps"] >= 1500
    check_goes_on(place.run_dir)


RUNNER = """
import sys
import seedflow
from dask_jobqueue.slurm import SLURMRunner
from distributed import Client

options = {"interface": "eth0"}
scheduler = {**options, "dashboard_address": ":0"}
with SLURMRunner(scheduler_file="scheduler-{job_id}.json", scheduler_options=scheduler,
                 worker_options={**options, "nthreads": 1}) as runner, Client(runner) as client:
    client.wait_for_workers(runner.n_workers, timeout=120)
    config = seedflow.load_config("cartpole_vtrace", sys.argv[1:])
    seedflow.train(config, client=client, run_dir="run")
"""


def test_every_rank_of_a_runner_script_ends_with_0(lab: SlurmLab, tmp_path: Path) -> None:
    """The scheduler's rank, the client's and the workers' end by themselves once the run is finished."""
    (tmp_path / "runner.py").write_text(RUNNER)
    settings = ["actor.count=2", "train.total_agent_steps=10000", "train.runs_in=thread"]
    rank = f'{sys.executable} runner.py "$@"; code=$?; echo $code > code-$SLURM_PROCID; exit $code'
    srun = ["srun", "--nodes=3", "--ntasks=5", "--cpus-per-task=1", "--kill-on-bad-exit=0"]
    said = lab.run(*srun, "bash", "-c", rank, "bash", *settings, cwd=tmp_path, timeout=PATIENCE)
    assert {int(path.read_text()) for path in tmp_path.glob("code-*")} == {0}, said
    assert len(list(tmp_path.glob("code-*"))) == 5
    assert progress(tmp_path / "run")["agent_steps"] >= 10000
    check_gone(lab)


def test_what_slurm_has_is_told_by_the_doctor(lab: SlurmLab) -> None:
    said = lab.run(sys.executable, "-m", "seedflow.cli", "doctor", "--json", check=False)
    found = {finding["name"]: finding for finding in json.loads(said)["findings"]}
    assert (found["requeue"]["value"], found["kill_wait_seconds"]["value"]) == (True, KILL_WAIT)
    assert re.match(r"slurm-wlm \d+", found["slurm"]["value"])


def python_of_all() -> tuple[str, str]:
    """A Python of this version that every user may run, and where it finds what is installed for this one."""
    packages = [str(Path(__file__).parents[2]), *(path for path in sys.path if path.endswith("-packages"))]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (os.path.realpath(sys.executable), f"/usr/bin/{version}"):
        places = [*Path(python).parents]
        places += [place for path in packages for place in (Path(path), *Path(path).parents)]
        if Path(python).exists() and all(place.stat().st_mode & 0o001 for place in places):
            return python, os.pathsep.join(packages)
    raise AssertionError(f"no {version} and checkout that other users may read: apt-get install {version}")


STRANGER = """
import sys
from distributed import Client
from distributed.security import Security

for security in (None, Security.temporary()):
    try:
        Client(sys.argv[1], security=security, timeout=10, set_as_default=False)
    except (OSError, TypeError, ValueError, RuntimeError):
        print("refused")
    else:
        print("let in")
"""


def test_two_users_jobs_on_one_node_do_not_meet(lab: SlurmLab) -> None:
    python, packages = python_of_all()
    users = {name: lab.add_user(name) for name in ("seedflow-ada", "seedflow-bob")}
    jobs = {}
    for name, user in users.items():
        user["env"] |= {"PYTHONPATH": packages}
        said = lab.run(
            python, "-m", "seedflow.cli", "batch", "slurm", *SHORT, "actor.count=1", ENDLESS,
            "--cpus-per-node", "2", "--learner-cpus", "1", "--directive=--nodelist=node1", "--time", "30m",
            "--interface", INTERFACE, "--run-dir", "run", "--no-requeue", "--submit",
            **user,
        )  # fmt: skip
        jobs[name] = said.split()[-1]
    runs = {name: Path(user["cwd"]) / "run" for name, user in users.items()}
    for name, run_dir in runs.items():
        until(lambda place=run_dir: steps(place) > 200, f"steps of {name}", 2 * PATIENCE)
    assert [lab.job(job)["NodeList"] for job in jobs.values()] == ["node1", "node1"]
    assert [lab.state(job) for job in jobs.values()] == ["RUNNING", "RUNNING"]

    found = [pid for pid, command in lab.of_jobs().items() if "python" in command]
    owners = [Path(f"/proc/{pid}").stat().st_uid for pid in found]
    counts = [owners.count(user["user"]) for user in users.values()]
    assert counts[0] == counts[1] >= 6
    assert sum(counts) == len(found)
    files = {name: next(run_dir.glob("batch/*/scheduler.json")) for name, run_dir in runs.items()}
    addresses = {name: json.loads(file.read_text())["address"] for name, file in files.items()}
    assert len(set(addresses.values())) == 2
    for name, other in (("seedflow-ada", "seedflow-bob"), ("seedflow-bob", "seedflow-ada")):
        assert lab.run("cat", str(files[other]), check=False, **users[name]) == ""
        assert lab.run(python, "-c", STRANGER, addresses[other], **users[name]).split() == ["refused"] * 2

    for job in jobs.values():
        lab.run("scancel", "--batch", "--signal=USR1", job)
        assert (lab.until_over(job, PATIENCE), lab.exit_code(job)) == ("FAILED", 75)
    check_gone(lab)
    assert all(progress(run_dir)["agent_steps"] > 0 for run_dir in runs.values())
    left = [path for place in ("/dev/shm", "/tmp") for path in Path(place).iterdir()]
    assert not [path for path in left if path.lstat().st_uid in [user["user"] for user in users.values()]]


def test_slurms_wrapper_for_pbs_accepts_the_script(lab: SlurmLab, place: Place) -> None:
    lab.run(
        sys.executable, "-m", "seedflow.cli", "batch", "pbs", *SHORT, "--time", "1h",
        "--directive=-h", "-o", "job.sh",
        cwd=place.directory,
    )  # fmt: skip
    job = lab.run("qsub", "job.sh", cwd=place.directory).strip()
    shown = lab.job(job)
    assert (shown["JobState"], shown["JobName"], shown["TimeLimit"]) == ("PENDING", "seedflow", "01:00:00")
    lab.run("qdel", job)
    assert lab.until_over(job, PATIENCE) == "CANCELLED"
