"""Scripts for batch systems: their directives and settings, and that a shell takes them."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seedflow.batch.examples import examples
from seedflow.batch.request import Request, clock, parse_time
from seedflow.batch.script import SYSTEMS, render
from seedflow.errors import ConfigError

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "configs").glob("*/*.sh"))
ASKED = Request("slurm", "cartpole_vtrace", roles=4, run_dir="/shared/runs/first", seconds=3600, nodes=3)


def directives(request: Request) -> list[str]:
    """Those of a script, without their mark."""
    mark = SYSTEMS[request.system].MARK
    return [line.removeprefix(f"{mark} ") for line in render(request).splitlines() if line.startswith(mark)]


def settings(request: Request) -> dict[str, str]:
    """What a shell makes of the lines that people edit."""
    head = render(request).partition("# ---- Nothing to edit below")[0]
    names = re.findall(r"^([A-Z_]+)=", head, flags=re.MULTILINE)
    show = "; ".join(f'printf "%s\\0" "${{{name}[*]}}"' for name in names)
    done = subprocess.run(
        ["bash", "-c", f"IFS='|'\n{head}\n{show}"], capture_output=True, text=True, timeout=60, check=True
    )
    return dict(zip(names, done.stdout.split("\0"), strict=False))


def test_there_is_a_script_of_each_kind_for_each_system() -> None:
    names = {f"{path.parent.name}/{path.stem}" for path in SHIPPED}
    kinds = ("one_job", "elastic", "gpu_learner", "seeds")
    assert names == {f"{system}/{kind}" for system in SYSTEMS for kind in kinds}


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_is_shipped_is_what_the_code_makes(system: Any) -> None:
    for name, text in examples(system).items():
        path = ROOT / "configs" / system / f"{name}.sh"
        assert path.read_text() == text, "run `python -m seedflow.batch.examples configs`"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_shell_takes_what_is_shipped(path: Path) -> None:
    subprocess.run(["bash", "-n", str(path)], timeout=60, check=True)
    if shutil.which("shellcheck"):
        done = subprocess.run(
            ["shellcheck", "--severity=warning", str(path)], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout


def test_slurm_is_told_everything_that_was_asked() -> None:
    request = replace(
        ASKED,
        account="lab",
        partition="short",
        qos="high",
        constraint="ib",
        memory="8G",
        directives=("-x n7",),
    )
    assert directives(request) == [
        "--job-name=seedflow",
        "--time=01:00:00",
        "--signal=B:USR1@120",
        "--requeue",
        "--open-mode=append",
        "--no-kill",
        "--output=%x-%j.out",
        "--account=lab",
        "--partition=short",
        "--qos=high",
        "-x n7",
        "--nodes=3",
        "--ntasks-per-node=1",
        "--cpus-per-task=2",
        "--mem=8G",
        "--constraint=ib",
    ]


def test_pbs_and_lsf_are_told_the_same_in_their_own_words() -> None:
    asked = replace(ASKED, account="lab", partition="short", constraint="ib", memory="8G", gpus=1)
    assert directives(replace(asked, system="pbs")) == [
        "-N seedflow",
        "-l walltime=01:00:00",
        "-S /bin/bash",
        "-j oe",
        "-r y",
        "-A lab",
        "-q short",
        "-l select=1:ncpus=2:mpiprocs=1:ngpus=1:mem=8g:ib+2:ncpus=2:mpiprocs=1:mem=8g:ib",
        "-l place=scatter",
    ]
    assert directives(replace(asked, system="lsf")) == [
        '-J "seedflow"',
        "-W 01:00",
        "-wa USR1",
        "-wt 2",
        '-Q "75"',
        "-o %J.out",
        "-P lab",
        "-q short",
        "-M 8G",
        "-n 6",
        '-R "span[ptile=2]"',
        '-R "select[ib]"',
        '-gpu "num=1:mode=shared"',
    ]


def test_a_gpu_for_one_of_several_hosts_makes_a_heterogeneous_job() -> None:
    found = directives(replace(ASKED, gpus=2))
    at = found.index("hetjob")
    assert found[at - 4 : at] == ["--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=2", "--gres=gpu:2"]
    assert found[at + 1 :] == ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2"]
    assert "hetjob" not in directives(replace(ASKED, gpus=2, nodes=1))


def test_each_seed_of_an_array_is_a_job() -> None:
    asked = replace(ASKED, seeds=(3, 7))
    assert "--array=3-7" in directives(asked)
    assert "-J 3-7" in directives(replace(asked, system="pbs"))
    assert '-J "seedflow[3-7]"' in directives(replace(asked, system="lsf"))


@pytest.mark.parametrize("system", SYSTEMS)
def test_without_requeueing_no_system_is_asked_for_it(system: Any) -> None:
    asked = replace(ASKED, system=system, requeue=False)
    assert settings(asked)["REQUEUE"] == "no"
    assert {"slurm": "--no-requeue", "pbs": "-r n", "lsf": "-o %J.out"}[system] in directives(asked)
    assert not [line for line in directives(asked) if line.startswith("-Q")]


@pytest.mark.parametrize(
    ("nodes", "roles", "cpus", "head"), [(1, 4, 6, 4), (3, 4, 2, 0), (3, 14, 6, 4), (2, 1, 2, 0)]
)
def test_a_host_has_the_cores_that_learner_and_actors_need(
    nodes: int, roles: int, cpus: int, head: int
) -> None:
    found = settings(replace(ASKED, nodes=nodes, roles=roles))
    assert (found["ACTORS_PER_HOST"], found["ACTORS_ON_HEAD"]) == (str(cpus), str(head))


def test_settings_survive_the_shell() -> None:
    awkward = ("env.kwargs={a: 'b c'}", "train.batch=8", "algo.name=$HOME")
    asked = replace(ASKED, settings=awkward, container=("apptainer", "exec", "--nv", "my image.sif"))
    found = settings(asked)
    assert found["SETTINGS"] == "|".join(awkward)
    assert found["CONTAINER"] == "apptainer|exec|--nv|my image.sif"
    assert found["RUN_DIR"] == "/shared/runs/first"
    assert found["INTERFACE"] == ""


@pytest.mark.parametrize("system", SYSTEMS)
def test_jobs_of_actors_get_what_the_head_gets(system: Any) -> None:
    found = settings(replace(ASKED, system=system, elastic=True, account="lab", partition="short"))
    options = {"slurm": "--account=lab|--partition=short", "pbs": "-A lab|-q short", "lsf": "-P lab|-q short"}
    assert found["ACTOR_DIRECTIVES"] == options[system]
    assert (found["ACTOR_JOBS"], found["ACTORS_PER_JOB"]) == ("2", "2")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"grace": 30}, "--grace = 30 s: expected 60 s or more"),
        ({"grace": 2000}, "at most half of --time = 3600 s"),
        ({"cpus_per_node": 1}, "have 2 cores for actors, without 2 of the learner"),
        ({"elastic": True, "nodes": 1}, "--nodes = 1: with --elastic expected 2 or more"),
        ({"elastic": True, "seeds": (1, 2)}, "--elastic and --seeds exclude each other"),
        ({"elastic": True, "container": ("apptainer",)}, "--elastic and --container exclude each other"),
        ({"system": "pbs", "qos": "high"}, "--qos = high: only Slurm has it"),
        ({"seeds": (4, 2)}, "--seeds = 4-2: expected FIRST-LAST"),
    ],
)
def test_what_cannot_be_is_refused_with_what_was_expected(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        replace(ASKED, **changes)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 5400), ("2h", 7200), ("00:10:30", 630), ("1-00:00:01", 86401), ("45s", 45)]
)
def test_times_are_read_as_people_write_them(text: str, seconds: int) -> None:
    assert parse_time(text) == seconds
    assert parse_time(clock(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "1:00", "1x", "00:99:00", "1.5h"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected HH:MM:SS"):
        parse_time(text)
