"""Rows of a slab: which ones a batch gets, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from seedflow.errors import SpecError
from seedflow.kernels import slab_gather
from seedflow.rpc.slab import BlockLayout, Slab
from seedflow.specs import ArraySpec, EnvSpec


def test_a_batch_is_made_of_the_rows_of_several_blocks() -> None:
    spec = EnvSpec((ArraySpec("observation", (5,), np.dtype("uint8")),), num_actions=2)
    with Slab(BlockLayout(spec, groups=2, envs=3), blocks=4) as slab:
        for block in range(4):
            slab.fields["observation"][block] = 10 * block + np.arange(6)[:, None]
            slab.fields["reward"][block] = block - np.arange(6)
        fields = [torch.from_numpy(slab.fields[name]) for name in ("observation", "reward")]
        observation, reward = slab_gather(fields, torch.tensor([3, 1, 3]), torch.tensor([5, 0, 2]))
        assert observation[:, 4].tolist() == [35, 10, 32]
        assert reward.tolist() == [-2.0, 1.0, 1.0]
        del fields


@pytest.mark.parametrize(
    ("blocks", "rows", "message"),
    [
        ([0, 3], [0, 0], r"blocks\[1\] is 3: expected 0 <= blocks\[1\] < 3"),
        ([0, 1], [4, 0], r"rows\[0\] is 4: expected 0 <= rows\[0\] < 4"),
        ([0, 1], [0, -1], r"rows\[1\] is -1"),
    ],
)
def test_an_index_out_of_range_gathers_nothing(blocks: list[int], rows: list[int], message: str) -> None:
    out = torch.full((2, 5), 7.0)
    with pytest.raises(SpecError, match=message):
        slab_gather([torch.zeros(3, 4, 5)], torch.tensor(blocks), torch.tensor(rows), [out])
    assert (out == 7).all()


def test_errors_name_the_argument() -> None:
    fields = [torch.zeros(3, 4, 5), torch.zeros(3, 4, dtype=torch.bool)]
    blocks, rows = torch.tensor([0, 2]), torch.tensor([1, 1])
    with pytest.raises(SpecError, match=r"fields\[1\] is .*expected its first 2 axes to be \[3, 4\]"):
        slab_gather([fields[0], torch.zeros(3, 5)], blocks, rows)
    with pytest.raises(SpecError, match="blocks is int32"):
        slab_gather(fields, blocks.int(), rows)
    with pytest.raises(SpecError, match=r"rows is int64 .*expected shape \[2\]"):
        slab_gather(fields, blocks, rows[:1])
    with pytest.raises(SpecError, match="out has 1 tensors: expected 2, one for each of fields"):
        slab_gather(fields, blocks, rows, [torch.zeros(2, 5)])
    with pytest.raises(SpecError, match=r"out\[1\] is float32 \[2\] on cpu: expected dtype bool"):
        slab_gather(fields, blocks, rows, [torch.zeros(2, 5), torch.zeros(2)])
    meta = torch.zeros(3, 4, 5, device="meta")
    with pytest.raises(SpecError, match=r"fields\[0\] is .* on meta: expected it on cpu .*pinned"):
        slab_gather([meta], blocks, rows)
