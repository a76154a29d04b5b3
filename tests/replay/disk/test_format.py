"""The reader that docs/replay_format.md shows reads what is saved."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seedflow.checkpoints import manifest
from seedflow.replay.disk import part, segments
from seedflow.replay.layout import ReplaySpec
from tests.replay.disk.ring import FIELDS, STATE, Ring, saved, values

PAGE = (Path(__file__).parents[3] / "docs" / "replay_format.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("period", [2, 4], ids=["chunks alone", "chunks with a bootstrap row"])
def test_the_reader_of_the_page_reads_every_sequence(tmp_path: Path, period: int) -> None:
    (source,) = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(source, "replay_format.md", "exec"), names)
    spec = ReplaySpec(FIELDS, STATE, chunk=2, burn_in=2, unroll=4, period=period)
    snapshot = Ring(capacity=20, spec=spec).arrive(200).snapshot()
    saved(tmp_path, snapshot)
    found = list(names["read_replay"](tmp_path))
    assert [generation for generation, _, _ in found] == snapshot.sequences.generation.tolist()
    assert [priority for _, priority, _ in found] == snapshot.sequences.priority.tolist()
    places = {chunk.id: (chunk.lane, chunk.position) for chunk in snapshot.chunks}
    for first, (_, _, fields) in zip(snapshot.sequences.first_chunk.tolist(), found, strict=True):
        lane, position = places[first]
        for number, array in enumerate(spec.fields):
            chain = [values(spec, lane, position + step)[number] for step in range(spec.chunks_per_sequence)]
            expected = np.concatenate([*(rows[: spec.chunk] for rows in chain), chain[-1][spec.chunk :]])
            assert len(expected) == spec.length
            assert (fields[f"fields/{array.name.replace(' ', '%20')}"] == expected).all()


def test_versions_and_limits_of_the_page_are_those_of_the_code() -> None:
    text = " ".join(PAGE.split())
    for version, what in (
        (manifest.VERSION, "checkpoint format version"),
        (part.VERSION, "replay format version"),
        (segments.VERSION, "segment format version"),
        (part.TABLE_VERSION, "sequence table format version"),
    ):
        assert f"{what} {version}" in text
    assert f"{segments.MAX_CHUNKS} chunks; {segments.MAX_BYTES >> 20} MiB of encoded chunks" in text
    assert f"{segments.MAX_CHUNK_BYTES >> 20} MiB of one chunk before compression" in text
    assert f"{segments.MAX_ARRAYS} arrays" in text
