"""The slab: where rows lie, who sees what, and that packed halves carry every field."""

import fcntl
import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedflow.errors import SpecError, TransportError
from seedflow.rpc.slab import CACHE_LINE, Block, BlockLayout, Slab
from seedflow.specs import OBSERVATION_DTYPES, ArraySpec, EnvSpec

PIXELS = EnvSpec((ArraySpec("observation", (84, 84), np.dtype(np.uint8)),), num_actions=6)

specs = st.lists(
    st.tuples(st.lists(st.integers(0, 3), max_size=3), st.sampled_from(OBSERVATION_DTYPES)), max_size=4
).map(
    lambda leaves: EnvSpec(
        tuple(
            ArraySpec(f"observation/{i}", tuple(shape), np.dtype(dtype))
            for i, (shape, dtype) in enumerate(leaves)
        ),
        num_actions=3,
    )
)
layouts = st.builds(BlockLayout, specs, st.integers(1, 4), st.integers(1, 5))


def random_fill(block: Block, seed: int) -> list[dict[str, bytes]]:
    rng = np.random.default_rng(seed)
    for g in range(block.layout.groups):
        for array in block.rows(g).values():
            array[...] = rng.integers(0, 2, array.shape).astype(array.dtype)
    return contents(block)


def contents(block: Block) -> list[dict[str, bytes]]:
    return [{k: v.tobytes() for k, v in block.rows(g).items()} for g in range(block.layout.groups)]


@given(layouts)
def test_fields_are_aligned_and_do_not_overlap(layout: BlockLayout) -> None:
    end = 2 * layout.groups * CACHE_LINE  # the counters come first, each on its own cache line
    for field in [*layout.request_fields.values(), *layout.reply_fields.values()]:
        assert field.offset % CACHE_LINE == 0
        assert field.offset >= end
        end = field.offset + int(np.prod(field.shape)) * field.dtype.itemsize
    assert layout.block_bytes >= end
    assert layout.block_bytes % mmap.PAGESIZE == 0


def test_a_row_carries_observation_reward_flags_frames_and_action() -> None:
    layout = BlockLayout(PIXELS, groups=2, envs=16)
    names = ["observation", "reward", "terminated", "truncated", "first", "frames", "masked"]
    assert list(layout.request_fields) == names
    assert list(layout.reply_fields) == ["action"]
    assert layout.request_fields["observation"].shape == (32, 84, 84)
    assert layout.request_bytes == 16 * (84 * 84 + 4 + 1 + 1 + 1 + 4 + 4)
    assert layout.reply_bytes == 16 * 8


@given(layouts, st.integers(1, 3), st.data())
def test_the_learner_sees_what_an_actor_wrote_and_no_other_block_changes(
    layout: BlockLayout, blocks: int, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, blocks - 1))
    with Slab(layout, blocks) as slab:
        block = Block.map(slab.fd, layout, index)
        random_fill(block, seed=index)
        for g in range(layout.groups):
            rows = slice(g * layout.envs, (g + 1) * layout.envs)
            for name, array in block.rows(g).items():
                np.testing.assert_array_equal(slab.fields[name][index, rows], array)
        for name, array in slab.fields.items():
            for other in set(range(blocks)) - {index}:
                assert not array[other].any(), name


def test_an_action_written_by_the_learner_is_in_the_actors_rows() -> None:
    layout = BlockLayout(PIXELS, groups=2, envs=3)
    with Slab(layout, blocks=2) as slab:
        block = Block.map(slab.fd, layout, 1)
        slab.fields["action"][1, 3:] = [4, 5, 6]
        assert block.rows(1)["action"].tolist() == [4, 5, 6]
        assert block.rows(0)["action"].tolist() == [0, 0, 0]


def test_counters_are_shared_and_reset_for_the_next_lease() -> None:
    layout = BlockLayout(PIXELS, groups=3, envs=1)
    with Slab(layout, blocks=2) as slab:
        block = Block.map(slab.fd, layout, 1)
        block.count_request(2)
        slab.replies[1, 2] += 1
        assert slab.requests.tolist() == [[0, 0, 0], [0, 0, 1]]
        assert block.replies.tolist() == [0, 0, 1]
        slab.reset_counters(1)
        assert block.requests.tolist() == block.replies.tolist() == [0, 0, 0]


@given(layouts, st.integers(0, 100))
def test_packed_halves_carry_every_field_of_their_group_alone(layout: BlockLayout, seed: int) -> None:
    source, target = Block.private(layout), Block.private(layout)
    sent = random_fill(source, seed)
    untouched = contents(target)
    group = seed % layout.groups
    request, reply = source.pack_request(group), source.pack_reply(group)
    assert (len(request), len(reply)) == (layout.request_bytes, layout.reply_bytes)
    target.unpack_request(group, request)
    target.unpack_reply(group, memoryview(reply))
    untouched[group] = sent[group]
    assert contents(target) == untouched


def test_steps_of_many_megabytes_pack_and_unpack() -> None:
    stacked = EnvSpec((ArraySpec("observation", (4, 128, 128), np.dtype(np.uint8)),), num_actions=2)
    layout = BlockLayout(stacked, groups=1, envs=128)
    source, target = Block.private(layout), Block.private(layout)
    sent = random_fill(source, seed=0)
    target.unpack_request(0, source.pack_request(0))
    target.unpack_reply(0, source.pack_reply(0))
    assert layout.request_bytes > 8_000_000
    assert contents(target) == sent


@pytest.mark.parametrize("change", [-1, 1])
def test_a_packed_half_of_the_wrong_length_is_refused_and_changes_nothing(change: int) -> None:
    block = Block.private(BlockLayout(PIXELS, 1, 2))
    block.rows(0)["reward"][:] = 7.0
    with pytest.raises(TransportError, match=rf"{block.layout.request_bytes + change} bytes, expected"):
        block.unpack_request(0, bytes(block.layout.request_bytes + change))
    with pytest.raises(TransportError, match="packed reply"):
        block.unpack_reply(0, bytes(block.layout.reply_bytes + change))
    assert block.rows(0)["reward"].tolist() == [7.0, 7.0]


@pytest.mark.parametrize("index", [-1, 2])
def test_a_block_beyond_the_slab_is_refused(index: int) -> None:
    layout = BlockLayout(PIXELS, 1, 1)
    with Slab(layout, blocks=2) as slab:
        with pytest.raises(TransportError, match=f"block {index}"):
            Block.map(slab.fd, layout, index)
        with pytest.raises(TransportError, match=f"block {index}"):
            Block.of(slab, index)


def test_an_actor_maps_the_pages_of_its_own_block_only() -> None:
    layout = BlockLayout(PIXELS, 1, 1)
    with Slab(layout, blocks=3) as slab:
        block = Block.map(slab.fd, layout, 2)
        maps = [m for m in Path("/proc/self/maps").read_text().splitlines() if "seedflow-slab" in m]
        sizes = sorted(int(high, 16) - int(low, 16) for low, high in (m.split()[0].split("-") for m in maps))
        assert sizes == [layout.block_bytes, 3 * layout.block_bytes]
        block.close()


def test_the_file_can_be_neither_shrunk_nor_grown_and_has_all_its_pages() -> None:
    layout = BlockLayout(PIXELS, 1, 4)
    with Slab(layout, blocks=3) as slab:
        assert os.fstat(slab.fd).st_blocks * 512 >= 3 * layout.block_bytes
        assert fcntl.fcntl(slab.fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        for size in (0, 4 * layout.block_bytes):
            with pytest.raises(PermissionError):
                os.ftruncate(slab.fd, size)


def test_a_slab_larger_than_the_machine_is_refused_with_numbers_and_advice() -> None:
    layout = BlockLayout(PIXELS, 2, 512)
    with pytest.raises(TransportError, match=r"MiB for the slab.*MiB of memory; lower rollout\.max_envs"):
        Slab(layout, blocks=10**9)


def test_memory_outlives_close_as_long_as_somebody_looks_at_it() -> None:
    slab = Slab(BlockLayout(PIXELS, 1, 2), blocks=1)
    reward = slab.fields["reward"]
    slab.close()
    slab.close()
    reward[:] = 1.0
    assert reward.sum() == 2.0


@pytest.mark.parametrize(("groups", "envs", "setting"), [(0, 1, "actor.groups"), (256, 1, "actor.groups")])
def test_groups_that_a_doorbell_cannot_name_are_refused(groups: int, envs: int, setting: str) -> None:
    with pytest.raises(SpecError, match=setting):
        BlockLayout(PIXELS, groups, envs)


def test_a_group_without_environments_is_refused() -> None:
    with pytest.raises(SpecError, match=r"actor\.envs_per_group"):
        BlockLayout(PIXELS, 1, 0)
