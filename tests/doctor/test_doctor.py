"""`seedflow doctor`: what it finds, what it says is wrong, and what it tells people to type."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from distributed import Client

from seedflow.cli import cli
from seedflow.doctor import batch_system as batch
from seedflow.doctor import gpu as gpu_module
from seedflow.doctor import machine as machine_module
from seedflow.doctor.batch_system import look_at_batch
from seedflow.doctor.examine import examine
from seedflow.doctor.finding import Finding
from seedflow.doctor.gpu import look_at_gpu
from seedflow.doctor.machine import look_at_machine, usable_cores
from seedflow.doctor.packages import look_at_packages

pytestmark = pytest.mark.timeout(600)  # torch is loaded in a process of its own
Programs = Callable[..., None]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Puts programs that print something on a PATH that has nothing else."""
    place = tmp_path / "bin"
    place.mkdir()
    monkeypatch.setenv("PATH", str(place))

    def make(**printed: str) -> None:
        for name, text in printed.items():
            program = place / name.replace("_", "-")
            program.write_text(f"#!/bin/sh\n/bin/cat <<'EOF'\n{text}\nEOF\n")
            program.chmod(0o755)

    return make


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", *arguments], catch_exceptions=False)


def by_name(findings: object) -> dict[str, Finding]:
    assert hasattr(findings, "__iter__")
    return {finding.name: finding for finding in findings}


def test_a_machine_that_runs_the_tests_is_healthy(programs: Programs) -> None:
    programs()
    result = invoke("--json")
    report = json.loads(result.output)
    topics = list(dict.fromkeys(finding["topic"] for finding in report["findings"]))
    assert topics == ["packages", "machine", "gpu", "batch"]
    assert report["healthy"], [f for f in report["findings"] if f["level"] == "problem"]
    assert result.exit_code == 0
    values = {finding["name"]: finding["value"] for finding in report["findings"]}
    assert values["cores"] >= 1
    assert values["memory_bytes"] > 2**30


def test_people_read_one_line_for_each_thing_and_what_to_type_below(programs: Programs) -> None:
    programs()
    lines = [line.strip() for line in examine().lines()]
    assert {"packages", "machine", "gpu", "batch"} <= set(lines)
    at = next(i for i, line in enumerate(lines) if line.startswith("- systems"))
    assert lines[at + 1].startswith("-> ")
    assert lines[-1] == "no problem found"


def test_an_extra_that_is_missing_comes_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import seedflow.doctor.packages as packages

    real = packages.version
    monkeypatch.setattr(packages, "version", lambda name: None if name in ("ale-py", "zarr") else real(name))
    found = by_name(look_at_packages())
    assert (found["atari"].level, found["atari"].remedy) == ("missing", "pip install 'seedflow[atari]'")
    assert (found["zarr"].level, found["zarr"].remedy) == ("problem", "pip install zarr")


def test_few_file_descriptors_are_told_with_the_command_that_allows_more() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        found = by_name(look_at_machine())["file_descriptors"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (found.level, found.value, found.remedy) == ("missing", 256, "ulimit -n 1024")


def test_a_long_tmpdir_is_found_by_making_the_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("seedflow.rpc.listener._default_parents", lambda: [long])
    found = by_name(look_at_machine())["control_socket"]
    assert found.level == "problem"
    assert "export TMPDIR" in found.remedy


def test_shared_memory_that_is_not_there_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine_module, "SHARED_MEMORY", tmp_path / "none")
    found = by_name(look_at_machine())["shared_memory_bytes"]
    assert (found.level, found.value) == ("problem", None)


@pytest.mark.parametrize(("quota", "cores"), [("150000 100000", 1.5), ("max 100000", None)])
def test_a_quota_of_the_cgroup_counts(tmp_path: Path, quota: str, cores: float | None) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/slurm/job_7\n")
    group = tmp_path / "sys/fs/cgroup/slurm/job_7"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text(f"{quota}\n")
    everything = usable_cores(tmp_path / "elsewhere")
    assert usable_cores(tmp_path) == (min(cores, everything) if cores else everything)


def test_a_gpu_that_torch_cannot_use_is_a_problem(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(nvidia_smi="NVIDIA H100")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    seen = {"cuda": None, "devices": [], "lacks": ""}
    monkeypatch.setattr(gpu_module, "_ask_torch", lambda: seen)
    found = by_name(look_at_gpu())
    assert found["gpus"].value == ["NVIDIA H100"]
    assert (found["torch"].level, found["torch"].text) == ("problem", "built for CPUs, sees no GPU")
    seen |= {"cuda": "13.0", "devices": ["NVIDIA H100"]}
    assert by_name(look_at_gpu())["torch"].level == "ok"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert by_name(look_at_gpu())["visible"].level == "missing"


SLURM = """Configuration data as of 2026-01-01T00:00:00
JobRequeue              = {requeue}
KillWait                = {wait} sec
"""


@pytest.mark.parametrize(
    ("requeue", "wait", "levels"), [(1, 30, ("ok", "ok")), (0, 5, ("missing", "missing"))]
)
def test_slurm_is_asked_whether_it_requeues_and_how_long_it_waits(
    programs: Programs, requeue: int, wait: int, levels: tuple[str, str]
) -> None:
    programs(sbatch="slurm-wlm 22.05.8", scontrol=SLURM.format(requeue=requeue, wait=wait))
    found = by_name(look_at_batch({}))
    assert found["slurm"].value == "slurm-wlm 22.05.8"
    assert (found["requeue"].level, found["kill_wait_seconds"].level) == levels
    assert found["kill_wait_seconds"].value == wait
    assert ("--chain" in found["requeue"].remedy) == (requeue == 0)
    assert "job" not in found


def test_a_controller_that_is_silent_is_a_problem(programs: Programs) -> None:
    programs(sbatch="slurm-wlm 22.05.8")
    assert by_name(look_at_batch({}))["controller"].level == "problem"


def test_other_systems_are_known_by_their_commands(programs: Programs) -> None:
    programs(qsub="", qstat="pbs_version = 23.06.06", bsub="", lsid="IBM Spectrum LSF 10.1.0.14")
    found = by_name(look_at_batch({}))
    assert found["pbs"].value == "pbs_version = 23.06.06"
    assert found["lsf"].value == "IBM Spectrum LSF 10.1.0.14"
    programs(qsub="# this comes with Slurm")
    assert "pbs" not in by_name(look_at_batch({}))


@pytest.mark.parametrize("system", batch.JOBS)
def test_the_job_around_it_is_named(programs: Programs, system: str) -> None:
    programs()
    job, hosts = batch.JOBS[system]
    found = by_name(look_at_batch({job: "4711", hosts: "node1 node2"}))["job"]
    assert found.value == {"system": system, "job": "4711", "hosts": "node1 node2"}


def test_a_cluster_is_looked_at_with_its_workers(user_client: Client) -> None:
    assert user_client.scheduler is not None
    result = invoke("--scheduler", user_client.scheduler.address, "--json")
    findings = [f for f in json.loads(result.output)["findings"] if f["topic"] == "dask"]
    workers = [f for f in findings if f["name"].startswith("tcp://")]
    assert [worker["value"]["threads"] for worker in workers] == [1, 1, 1]
    named = {finding["name"]: finding for finding in findings}
    assert named["places"]["value"] == 2  # the third is the learner's
    assert named["versions"]["text"] == "agree everywhere"
    assert len(named["seedflow"]["value"]) == 3
    assert {finding["level"] for finding in findings} == {"ok"}


def test_a_scheduler_that_is_not_there_ends_with_1() -> None:
    result = invoke("--scheduler", "tcp://127.0.0.1:1")
    assert result.exit_code == 1
    assert "! scheduler" in result.output
    assert "no Dask scheduler answered at tcp://127.0.0.1:1" in result.output


def test_two_schedulers_are_one_too_many() -> None:
    assert invoke("--scheduler", "a", "--scheduler-file", "b").exit_code == 2
