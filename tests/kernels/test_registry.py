"""How a twin joins, and which one is picked."""

from __future__ import annotations

import pytest
import torch

from seedflow.kernels import recurrent_scatter, registry


def test_torch_stands_in_where_a_device_has_no_twin() -> None:
    stand_in = registry.twins("vtrace")["torch"]
    assert registry.twin("vtrace", "xpu") is stand_in
    assert registry.twin("vtrace", "cpu") is not stand_in


def test_a_registered_twin_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setitem(registry._twins, "recurrent_scatter", dict(registry.twins("recurrent_scatter")))
    registry.register("recurrent_scatter", "meta")(lambda *arguments: calls.append(arguments))
    table, rows = torch.zeros(3, device="meta"), torch.zeros(2, dtype=torch.int64, device="meta")
    recurrent_scatter([table], rows, [torch.zeros(2, device="meta")])
    assert calls[0][0][0] is table
    assert calls[0][1] is rows


def test_a_second_twin_for_one_device_is_refused() -> None:
    with pytest.raises(ValueError, match="'vtrace' already has a twin for 'cpu'"):
        registry.register("vtrace", "cpu")(lambda: None)
