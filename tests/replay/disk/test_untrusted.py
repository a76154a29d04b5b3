"""A checkpoint is untrusted: whatever it holds, no crash, no memory, no file beyond it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seedflow.checkpoints import LocalStore
from seedflow.checkpoints.manifest import manifest_path, seal
from seedflow.replay.disk.group import Form
from tests.replay.disk.forge import outcomes, rewritten, untouched
from tests.replay.disk.ring import Ring, saved


@pytest.fixture(scope="module", params=["zip", "directory"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a whole checkpoint, and with files that are none of a checkpoint's business."""
    place = tmp_path_factory.mktemp("untrusted")
    (place / "outside").mkdir()
    (place / "outside" / "secret").write_bytes(b"secret")
    form: Form = request.param
    saved(place / "whole", Ring(capacity=6).arrive(30).snapshot(), form)
    return place


def check_any_change(place: Path, data: st.DataObject) -> None:
    root = place / "changed"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(place / "whole", root)
    files = [path for path in LocalStore(root).paths() if path != "writer.json"]
    for _ in range(data.draw(st.integers(1, 3), "changes")):
        target = root / data.draw(st.sampled_from(files), "file")
        if not target.is_file():
            continue
        content = target.read_bytes()
        kind = data.draw(st.sampled_from(["bytes", "cut", "insert", "repeat", "link", "pipe", "directory"]))
        begin = data.draw(st.integers(0, len(content)), "begin")
        some = data.draw(st.binary(min_size=1, max_size=8), "bytes")
        target.unlink()
        if kind == "bytes":
            target.write_bytes(content[:begin] + some + content[begin + len(some) :])
        elif kind == "cut":
            target.write_bytes(content[:begin])
        elif kind == "insert":
            target.write_bytes(content[:begin] + some + content[begin:])
        elif kind == "repeat":
            target.write_bytes(content + content)
        elif kind == "link":
            target.symlink_to(place / "outside" / "secret")
        elif kind == "pipe":
            os.mkfifo(target)
        else:
            target.mkdir()
    manifest = root / manifest_path(1)
    if data.draw(st.booleans(), "sealed again") and manifest.is_file() and not manifest.is_symlink():
        with suppress(ValueError, KeyError):
            rewritten(root, lambda document: None)
    with untouched(place / "outside"):
        outcomes(root)


EXAMPLES = pytest.mark.parametrize("examples", [12, pytest.param(150, marks=pytest.mark.slow)])


def fuzz(check: Callable[[Path, st.DataObject], None], place: Path, examples: int) -> None:
    """Run a check on many examples."""
    many = settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow])
    many(given(st.data())(check))(place)


@pytest.mark.timeout(1200)
@EXAMPLES
def test_any_change_of_any_file_is_named_or_harmless(place: Path, examples: int) -> None:
    fuzz(check_any_change, place, examples)


JSON = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
)
NASTY = st.sampled_from(
    [
        "../../outside/secret",
        "/etc/passwd",
        "segments/../outside",
        "manifests/00000001.json",
        2**62,
        -1,
        10**30,
        [],
        {},
        "",
    ]
)


def places_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values of a document are."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places_of(inner, (*path, key))


def check_any_manifest(place: Path, data: st.DataObject) -> None:
    root = place / "changed"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(place / "whole", root)
    path = root / manifest_path(1)
    document = json.loads(path.read_bytes())
    del document["crc32c"]
    for _ in range(data.draw(st.integers(1, 2), "changes")):
        *parents, key = data.draw(st.sampled_from(list(places_of(document))), "place")
        owner = document
        for step in parents:
            owner = owner[step]
        owner[key] = data.draw(JSON | NASTY, "value")
    path.write_bytes(seal(json.dumps(document).encode()))
    with untouched(place / "outside"):
        outcomes(root)


@pytest.mark.timeout(1200)
@EXAMPLES
def test_any_value_in_a_manifest_is_named_or_harmless(place: Path, examples: int) -> None:
    fuzz(check_any_manifest, place, examples)
