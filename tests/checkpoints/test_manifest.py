"""Manifests: checked before anything in them is believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seedflow.checkpoints import LocalStore, Manifest, Part, StoredFile
from seedflow.checkpoints.manifest import manifest_path, seal
from seedflow.errors import CheckpointDamaged, CheckpointError

MANIFEST = Manifest(
    7,
    1700000000.5,
    {
        "tensors": Part((StoredFile("tensors/a-1.safetensors", 12, 0xDEADBEEF),), {"n": 1}),
        "replay": Part((), {}),
    },
    {"steps": 3, "random": 2**127, "name": 'with "quotes" and é'},
)


def write(root: Path, data: bytes, generation: int = 7) -> LocalStore:
    path = root / manifest_path(generation)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return LocalStore(root)


def altered(**changes: Any) -> bytes:
    """The manifest with other values, correctly sealed."""
    document = json.loads(MANIFEST.encode())
    del document["crc32c"]
    return seal(json.dumps(document | changes, indent=1).encode())


def test_what_is_encoded_is_read(tmp_path: Path) -> None:
    store = write(tmp_path, MANIFEST.encode())
    assert Manifest.read(store, 7) == MANIFEST
    assert json.loads(store.read("manifests/00000007.json"))["state"] == MANIFEST.state


def test_every_flipped_bit_and_every_cut_is_damage(tmp_path: Path) -> None:
    data = MANIFEST.encode()
    for position in range(len(data)):
        for bit in (1, 16, 128):
            flipped = bytearray(data)
            flipped[position] ^= bit
            with pytest.raises(CheckpointDamaged, match=r"00000007\.json cannot be read"):
                Manifest.read(write(tmp_path, bytes(flipped)), 7)
        with pytest.raises(CheckpointDamaged, match=r"00000007\.json cannot be read"):
            Manifest.read(write(tmp_path, data[:position]), 7)


def test_another_generations_manifest_is_damage(tmp_path: Path) -> None:
    with pytest.raises(CheckpointDamaged, match="belongs to generation 7"):
        Manifest.read(write(tmp_path, MANIFEST.encode(), generation=8), 8)


def test_a_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    store = write(tmp_path, altered(version=99, parts="quite different"))
    with pytest.raises(CheckpointError, match=r"format version 99.*upgrade seedflow") as caught:
        Manifest.read(store, 7)
    assert not isinstance(caught.value, CheckpointDamaged), "an older generation is no way out"


def file(**changes: Any) -> dict[str, Any]:
    entry = {"path": "tensors/a", "bytes": 1, "crc32c": "00000000"} | changes
    return {"tensors": {"files": [entry], "state": {}}}


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "something else"},
        {"version": 1},
        {"version": True},
        {"version": "2"},
        {"generation": "7"},
        {"created": "yesterday"},
        {"created": 1e999},
        {"state": []},
        {"parts": []},
        {"parts": {"tensors": {}}},
        {"parts": {"tensors": {"files": [], "state": None}}},
        {"parts": file(path="../outside")},
        {"parts": file(path="/etc/passwd")},
        {"parts": file(path="manifests/00000006.json")},
        {"parts": file(path="writer.json")},
        {"parts": file(path=3)},
        {"parts": file(bytes=-1)},
        {"parts": file(bytes=2**70)},
        {"parts": file(bytes=1.5)},
        {"parts": file(crc32c="xyz")},
        {"parts": file(crc32c=7)},
        {"parts": {"a": {"files": [file()["tensors"]["files"][0]] * 2, "state": {}}}},
    ],
    ids=str,
)
def test_what_is_sealed_but_wrong_is_damage(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(CheckpointDamaged, match=r"00000007\.json cannot be read"):
        Manifest.read(write(tmp_path, altered(**changes)), 7)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=10,
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("manifests")


@given(data=st.binary(max_size=200))
@example(data=b"")
@example(data=b"[" * 100_000)
@example(data=seal(b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"))
@example(data=seal(b"{}"))
@example(data=seal(b'{"format": NaN}'))
@example(data=seal(b'{"format": ' + b"9" * 10_000 + b"}"))
def test_any_bytes_are_damage(root: Path, data: bytes) -> None:
    with pytest.raises(CheckpointDamaged, match="cannot be read"):
        Manifest.read(write(root, data), 7)


@given(key=st.sampled_from(["format", "version", "generation", "created", "state", "parts"]), value=JSON)
def test_any_value_is_named_or_meant(root: Path, key: str, value: Any) -> None:
    document = json.loads(MANIFEST.encode()) | {key: value}
    del document["crc32c"]
    try:
        manifest = Manifest.read(write(root, seal(json.dumps(document).encode())), 7)
    except CheckpointError:
        return
    assert manifest.generation == 7


def test_an_enormous_manifest_is_not_read(tmp_path: Path) -> None:
    store = write(tmp_path, b"")
    with open(tmp_path / manifest_path(7), "wb") as sparse:
        sparse.truncate(2**40)
    with pytest.raises(CheckpointDamaged, match="more than a manifest can have"):
        Manifest.read(store, 7)
