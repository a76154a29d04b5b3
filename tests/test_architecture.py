"""Who may import whom, and what may be loaded where."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
UNPICKLERS = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
HEAVY = ("torch", "numba", "dask", "distributed", "gymnasium", "pydantic", "grpc")


def loaded_by(statements: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after running `statements`."""
    script = (
        f"{statements}\nimport json, sys\nprint(json.dumps(sorted({{n.split('.')[0] for n in sys.modules}})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_imports_go_down_the_floors() -> None:
    command = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    done = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, timeout=100, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_importing_seedflow_loads_nothing_heavy() -> None:
    assert loaded_by("import seedflow; dir(seedflow)").isdisjoint(HEAVY)


def test_the_command_line_starts_without_anything_heavy() -> None:
    assert loaded_by("import seedflow.cli").isdisjoint(HEAVY)


@pytest.mark.parametrize(
    "module",
    [
        "seedflow.actor",
        "seedflow.actor.__main__",
        "seedflow.config",
        "seedflow.envs.make",
        "seedflow.envs.probe",
        "seedflow.metrics",
        "seedflow.roles",
        "seedflow.rpc.client",
        "seedflow.rpc.gateway",
        "seedflow.specs",
    ],
)
def test_what_runs_in_an_actor_loads_neither_torch_nor_numba_nor_dask(module: str) -> None:
    loaded = loaded_by(f"import importlib; importlib.import_module({module!r})")
    assert loaded.isdisjoint({"torch", "numba", "dask", "distributed"})


@pytest.mark.parametrize("package", ["rpc", "learner", "roles", "rollout", "metrics", "config"])
def test_nothing_that_reads_from_a_socket_or_a_file_can_unpickle(package: str) -> None:
    """The user's environment alone is pickled, and only actors and the probe read it."""
    for path in (ROOT / "seedflow" / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & UNPICKLERS, path


def test_the_learner_loads_no_dask() -> None:
    assert loaded_by("import seedflow.learner.learner").isdisjoint({"dask", "distributed"})


def test_what_reads_a_replay_loads_neither_torch_nor_numba() -> None:
    modules = ("layout", "codec", "chunks", "snapshot")
    loaded = loaded_by("; ".join(f"import seedflow.replay.{module}" for module in modules))
    assert loaded.isdisjoint({"torch", "numba", "dask", "distributed"})


def test_train_and_evaluate_stay_functions_when_their_modules_are_imported() -> None:
    loaded_by(
        "import seedflow, seedflow.train, seedflow.evaluate\n"
        "from seedflow.train import train\n"
        "assert seedflow.train is train and callable(seedflow.evaluate)\n"
        "assert seedflow.load_policy and seedflow.Config and seedflow.errors.ConfigError"
    )


def test_dir_shows_the_public_names_alone() -> None:
    loaded_by("import seedflow, seedflow.cli\nassert dir(seedflow) == sorted(seedflow.__all__)")


def test_an_unknown_name_is_an_attribute_error() -> None:
    import seedflow

    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        seedflow.trian  # noqa: B018
