"""`seedflow batch`: what it writes, what it submits, what it refuses."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from distributed.security import Security

from seedflow.batch.actors import wanted_jobs
from seedflow.batch.credentials import security_of, write_credentials
from seedflow.cli import cli
from seedflow.cluster.credentials import tls_of


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def batch(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["batch", *arguments], catch_exceptions=False)


def stand_in(directory: Path, name: str, body: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in front of the others on PATH; it writes its arguments down, one call a line."""
    place = directory / "bin"
    place.mkdir(exist_ok=True)
    calls = directory / f"{name}.calls"
    program = place / name
    program.write_text(f'#!/bin/bash\necho "$@" >> {calls}\n{body}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")
    return calls


@pytest.mark.parametrize("system", ["slurm", "pbs", "lsf"])
def test_a_script_is_written_beside_the_run(system: str, tmp_path: Path) -> None:
    options = ["--nodes", "2", "--time", "2h", "--run-dir", "runs/first", "--setup", "module load python"]
    result = batch(system, "cartpole_vtrace", "actor.count=3", *options)
    assert result.exit_code == 0, result.output
    assert result.output == "Script: runs/first.sh\nRun directory: runs/first\n"
    script = tmp_path / "runs" / "first.sh"
    text = script.read_text()
    assert script.stat().st_mode & stat.S_IXUSR
    assert f"RUN_DIR={tmp_path}/runs/first " in text
    assert "SETTINGS=(actor.count=3 train.torch_threads=1)" in text
    assert f"PYTHON={sys.executable} " in text
    assert "    module load python\n" in text
    assert not (tmp_path / "runs" / "first").exists()


def test_a_file_is_named_in_full(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(json.dumps({"env": {"id": "CartPole-v1"}}))
    batch("slurm", "own.yaml", "--time", "1h", "-o", "job.sh")
    assert f"CONFIG={tmp_path}/own.yaml " in (tmp_path / "job.sh").read_text()


ANSWERS = {
    "slurm": ("sbatch", 'n=$(wc -l < "$0.n" 2> /dev/null || echo 0); echo >> "$0.n"; echo $((40 + n))'),
    "pbs": ("qsub", 'n=$(wc -l < "$0.n" 2> /dev/null || echo 0); echo >> "$0.n"; echo $((40 + n)).server'),
    "lsf": (
        "bsub",
        "head -n 1 | grep -q bash || exit 1\n"
        'n=$(wc -l < "$0.n" 2> /dev/null || echo 0); echo >> "$0.n"; echo "Job <$((40 + n))> is submitted."',
    ),
}


@pytest.mark.parametrize(
    ("system", "calls"),
    [
        (
            "slurm",
            [
                "--parsable {script}",
                "--parsable --dependency=afternotok:40 --kill-on-invalid-dep=yes {script}",
                "--parsable --dependency=afternotok:41 --kill-on-invalid-dep=yes {script}",
            ],
        ),
        (
            "pbs",
            [
                "{script}",
                "-W depend=afternotok:40.server {script}",
                "-W depend=afternotok:41.server {script}",
            ],
        ),
        ("lsf", ["", "-w exit(40) -ti", "-w exit(41) -ti"]),
    ],
)
def test_each_job_of_a_chain_waits_for_the_one_before(
    system: str, calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, body = ANSWERS[system]
    noted = stand_in(tmp_path, name, body, monkeypatch)
    result = batch(system, "cartpole_vtrace", "--time", "1h", "-o", "job.sh", "--chain", "3", "--submit")
    assert result.exit_code == 0, result.output
    script = tmp_path / "job.sh"
    assert noted.read_text().splitlines() == [call.format(script=script) for call in calls]
    suffix = ".server" if system == "pbs" else ""
    assert f"Submitted: {', '.join(f'{number}{suffix}' for number in (40, 41, 42))}" in result.output
    assert "REQUEUE=no" in script.read_text()  # the chain is in place of it


def test_what_the_batch_system_refuses_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, "sbatch", "echo 'error: invalid account' >&2; exit 1", monkeypatch)
    result = batch("slurm", "cartpole_vtrace", "--time", "1h", "-o", "job.sh", "--submit")
    assert result.exit_code == 1
    assert "ended with code 1: error: invalid account" in result.stderr


def test_without_a_batch_system_the_script_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = batch("lsf", "cartpole_vtrace", "--time", "1h", "-o", "job.sh", "--submit")
    assert result.exit_code == 2
    assert "bsub is not found on this host" in result.stderr
    assert (tmp_path / "job.sh").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--time", "1h"], "Missing CONFIG"),
        (["cartpole_vtrace"], "Missing option '--time'"),
        (["cartpole_vtrace", "--time", "soon"], "--time = soon: expected HH:MM:SS"),
        (["cartpole_vtrace", "seed", "--time", "1h"], "Unexpected argument 'seed'"),
        (["cartpole_vtrace", "train.bach=3", "--time", "1h"], "did you mean train.batch?"),
        (["cartpole_vtrace", "runtime=inline", "--time", "1h"], "runtime = 'inline' is one process"),
        (["cartpole_vtrace", "--time", "1h", "--chain", "2"], "--chain needs --submit"),
        (["cartpole_vtrace", "--time", "1h", "--seeds", "3"], "--seeds 3: expected FIRST-LAST"),
        (
            ["cartpole_vtrace", "--time", "1h", "--chain", "2", "--submit", "--seeds", "1-2"],
            "--chain and --seeds exclude each other",
        ),
    ],
)
def test_bad_usage_writes_nothing(arguments: list[str], said: str, tmp_path: Path) -> None:
    result = batch("slurm", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_credentials_are_for_the_owner_alone_and_fit_dask_and_grpc(tmp_path: Path) -> None:
    for path in write_credentials(tmp_path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    security = security_of(tmp_path)
    assert isinstance(security, Security)
    assert security.get_connection_args("client")["ssl_context"] is not None
    assert security.get_listen_args("scheduler")["ssl_context"] is not None
    assert tls_of(security).name
    with pytest.raises(FileExistsError):  # another attempt has a directory of its own
        write_credentials(tmp_path)


@pytest.mark.parametrize(("text", "wanted"), [("3\n", 3), ("0", 0), ("-2", 0), ("many", 7), (None, 7)])
def test_a_file_says_how_many_jobs_of_actors_there_should_be(
    tmp_path: Path, text: str | None, wanted: int
) -> None:
    if text is not None:
        (tmp_path / "actor_jobs").write_text(text)
    assert wanted_jobs(tmp_path, before=7) == wanted


def test_actors_as_jobs_need_dask_jobqueue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    result = batch("actors", "slurm", "cartpole_vtrace", "--run-dir", "run", "--time", "1h")
    assert result.exit_code == 2
    assert "pip install 'seedflow[hpc]'" in result.stderr
