"""Modules of one's own that travel along."""

from __future__ import annotations

import importlib
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from seedflow.config import EnvConfig
from seedflow.envs.probe import probe_spec
from seedflow.envs.shipped import pack, shipped
from seedflow.errors import ConfigError, EnvironmentFault

GAME = """
import gymnasium, numpy, pkgutil
SIZE = int(pkgutil.get_data("labyrinth", "size.txt"))

class Labyrinth(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (SIZE,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, seed=None, options=None):
        return numpy.zeros(SIZE, numpy.float32), {}
    def step(self, action):
        return numpy.zeros(SIZE, numpy.float32), 0.0, True, False, {}

gymnasium.register("Labyrinth-v0", Labyrinth)
"""


@pytest.fixture
def labyrinth(tmp_path: Path) -> Path:
    """A package with a module, a file of data, and what need not travel."""
    package = tmp_path / "labyrinth"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("from labyrinth.game import SIZE\n")
    (package / "game.py").write_text(GAME)
    (package / "size.txt").write_text("7")
    (package / "__pycache__" / "game.cpython-311.pyc").write_bytes(b"\0")
    return package


def forget(name: str) -> None:
    for module in [key for key in sys.modules if key.partition(".")[0] == name]:
        del sys.modules[module]


def names_in(archive: bytes | None) -> list[str]:
    assert archive is not None
    return zipfile.ZipFile(io.BytesIO(archive)).namelist()


def test_a_package_is_packed_with_its_data(labyrinth: Path) -> None:
    expected = ["labyrinth/__init__.py", "labyrinth/game.py", "labyrinth/size.txt"]
    assert names_in(pack([str(labyrinth)])) == expected


def test_a_module_is_found_by_name_in_the_working_directory(
    labyrinth: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(labyrinth.parent)
    assert (
        names_in(pack(["labyrinth"])) == names_in(pack(["labyrinth.game"])) == names_in(pack(["./labyrinth"]))
    )


def test_a_shipped_package_is_imported_from_memory_and_leaves_the_path(labyrinth: Path) -> None:
    archive, before = pack([str(labyrinth)]), list(sys.path)
    with shipped(archive):
        module = importlib.import_module("labyrinth")
        assert module.SIZE == 7
        assert str(labyrinth) not in module.__file__
    assert sys.path == before
    forget("labyrinth")


def test_the_children_of_a_process_find_it_too(labyrinth: Path) -> None:
    """Vector environments in processes import the module again."""
    with shipped(pack([str(labyrinth)])):
        environment = {**os.environ, "PYTHONPATH": sys.path[0]}
        child = [sys.executable, "-c", "import labyrinth; print(labyrinth.SIZE)"]
        done = subprocess.run(child, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "7\n"


def test_an_environment_of_a_shipped_module(labyrinth: Path) -> None:
    config = EnvConfig(id="labyrinth.game:Labyrinth-v0")
    assert probe_spec(config, ship=pack([str(labyrinth)])).observation[0].shape == (7,)
    with pytest.raises(ConfigError, match="labyrinth"):
        probe_spec(config)


def test_nothing_is_shipped_where_nothing_is_named() -> None:
    assert pack(()) is None
    with shipped(None):
        pass


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module", r"env.ship = 'no_such_module' is not found in .*give its path, like ./no_such"),
        ("./no/such.py", r"is neither a package's directory nor a module's .py file"),
    ],
)
def test_what_is_not_there_is_named(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pack([name])


def test_compiled_code_is_refused(labyrinth: Path) -> None:
    (labyrinth / "fast.so").write_bytes(b"\x7fELF")
    with pytest.raises(ConfigError, match=r"holds compiled code, .*fast.so.* install it on the workers"):
        pack([str(labyrinth)])


def test_large_data_is_refused_with_the_size(labyrinth: Path) -> None:
    (labyrinth / "levels.bin").write_bytes(os.urandom(17 << 20))
    with pytest.raises(ConfigError, match="takes 17 MiB, and 16 MiB are allowed"):
        pack([str(labyrinth)])


def test_what_is_no_archive_is_refused() -> None:
    with pytest.raises(EnvironmentFault, match="no zip archive"), shipped(b"text"):
        pass
