"""Samples follow the priorities, and batches are what was inserted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seedflow.errors import ConfigError, DamagedChunk, SeedflowError, SpecError
from seedflow.metrics.names import describe
from seedflow.replay.chunks import Chunk, ChunkStore
from seedflow.replay.encoding import ChunkEncoder
from seedflow.replay.layout import DTYPES, ReplaySpec
from seedflow.replay.priorities import SMALLEST, Priorities, importance_weights
from seedflow.replay.sampling import Decoder, NotYet, Sample, SequenceBatch
from seedflow.replay.table import SequenceTable
from seedflow.specs import ArraySpec

from .rig import arrays, beginnings, fill, make_replay, make_spec


def chi_square_p(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Probability that multinomial counts deviate from what is expected by as much as these, or more."""
    expected = counts.sum() * probabilities
    statistic = ((counts - expected) ** 2 / expected).sum()
    half = torch.tensor([(len(counts) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def table_with(priorities: np.ndarray, exponent: float, capacity: int = 300) -> SequenceTable:
    table = SequenceTable(capacity, exponent, ChunkStore())
    for i, priority in enumerate(priorities.tolist()):
        table.append((Chunk(i, 0, i, ()),), priority)
    return table


@pytest.mark.parametrize("exponent", [0.0, 0.9])
def test_a_million_draws_follow_the_priorities(exponent: float) -> None:
    batch = 500
    rng = np.random.default_rng(1)
    first = np.exp(rng.normal(scale=1.5, size=450))
    table = table_with(first, exponent)  # the ring has wrapped
    for _ in range(20):
        table.evict()
    updated = rng.integers(150, 450, 200)
    first[updated] = values = np.exp(rng.normal(scale=1.5, size=200))
    table.update(updated, values)
    alive = first.copy()
    for generation, value in zip(updated.tolist(), values.tolist(), strict=True):
        alive[generation] = value  # of one that comes twice the last counts
    weights = np.maximum(alive[170:], SMALLEST) ** exponent
    probabilities = weights / weights.sum()

    counts = np.zeros(450, np.int64)
    for _ in range(1_000_000 // batch):
        slots, generations, p = table.draw(rng.random(batch))
        counts += np.bincount(generations, minlength=450)
        assert (slots == generations % 300).all()
    np.testing.assert_allclose(p, probabilities[generations - 170], rtol=1e-9)
    assert counts[:170].sum() == 0
    assert chi_square_p(counts[170:], probabilities) > 1e-6


def test_the_test_of_the_distribution_can_fail() -> None:
    rng = np.random.default_rng(0)
    probabilities = np.full(100, 0.01)
    assert chi_square_p(rng.multinomial(1_000_000, probabilities), probabilities) > 1e-6
    skewed = np.linspace(0.97, 1.03, 100) / 100
    assert chi_square_p(rng.multinomial(1_000_000, skewed), probabilities) < 1e-6


def test_draws_are_stratified() -> None:
    table = table_with(np.array([1.0, 1.0, 2.0, 4.0]), exponent=1.0)
    for seed in range(200):
        uniform = np.random.default_rng(seed).random(8)
        assert table.draw(uniform)[1].tolist() == [0, 1, 2, 2, 3, 3, 3, 3]


def test_a_priority_of_zero_is_drawn_rarely_but_drawn() -> None:
    table = table_with(np.array([0.0, 1.0]), exponent=1.0)
    assert table.draw(np.array([0.9e-6]))[1].tolist() == [0]
    assert table.draw(np.array([1.1e-6]))[1].tolist() == [1]


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=20), st.floats(0, 1))
def test_importance_weights(priorities: list[float], exponent: float) -> None:
    p = np.array(priorities) / sum(priorities)
    weights = importance_weights(p, len(p), exponent)
    assert weights.dtype == np.float32
    expected = (len(p) * p) ** -exponent
    np.testing.assert_allclose(weights, expected / expected.max(), rtol=1e-6)


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf, -np.inf, 1e200])
def test_a_priority_that_is_none_is_refused_and_changes_nothing(value: float) -> None:
    priorities = Priorities(4, 1.0)
    priorities.set(np.array([0, 1]), np.array([1.0, 3.0]))
    with pytest.raises(SeedflowError, match=r"priority is .*: expected a number from 0"):
        priorities.set(np.array([0, 1]), np.array([5.0, value]))
    assert priorities.values.tolist() == [1.0, 3.0, 0.0, 0.0]
    assert priorities.sample(np.array([0.2, 0.8]))[1].tolist() == [0.25, 0.75]
    assert priorities.largest == 3.0


def test_leaves_set_one_by_one_equal_leaves_set_at_once() -> None:
    values = np.exp(np.random.default_rng(0).normal(scale=3, size=1000))
    one, many = Priorities(1000, 0.9), Priorities(1000, 0.9)
    for slot in np.random.default_rng(1).permutation(1000).tolist():
        one.set(np.array([slot]), values[slot : slot + 1])
    many.set(np.arange(1000), values)
    uniform = np.random.default_rng(2).random(64)
    for a, b in zip(one.sample(uniform), many.sample(uniform), strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("size", [1, 3, 16])
def test_a_batch_is_what_was_inserted(threads: int, size: int) -> None:
    replay = make_replay(make_spec(), decode_threads=threads)
    for position in range(7):
        for lane in range(3):
            fill(replay, lane, [position])
    batch = SequenceBatch(replay.spec, size)
    seen = set()
    for _ in range(30):
        sample = replay.sample(batch)
        assert isinstance(sample, Sample)
        assert sample.batch is batch
        found = beginnings(batch)
        for (lane, begin), generation in zip(found, sample.generations.tolist(), strict=True):
            assert generation == begin // 2 * 3 + lane
        seen |= set(found)
    assert seen == {(lane, begin) for lane in range(3) for begin in (4, 6, 8)} - {(0, 4)}
    replay.close()


@pytest.mark.parametrize("geometry", [(2, 2, 4, 4), (1, 0, 3, 3), (5, 10, 5, 5)])
def test_where_period_is_the_unroll_sequences_end_with_the_next_chunks_first_index(
    geometry: tuple[int, int, int, int],
) -> None:
    spec = make_spec(*geometry)
    assert spec.bootstrap == 1
    replay = make_replay(spec)
    fill(replay, 3, range(4 * spec.chunks_per_sequence))
    batch = SequenceBatch(spec, 32)
    assert replay.sample(batch)
    begins = {begin for _, begin in beginnings(batch)}
    assert begins
    assert begins <= set(range(0, 100, spec.period))
    assert batch.fields["index"].shape == (32, spec.burn_in + spec.unroll + 1)
    replay.close()


def test_nested_observations_of_any_dtype() -> None:
    rng = np.random.default_rng(0)
    leaves = [
        ArraySpec(f"observation/{kind}/{i}", shape, np.dtype(kind))
        for kind in sorted(DTYPES)
        for i, shape in enumerate([(), (0,), (3,), (100,), (2, 3, 20)])
    ]
    states = tuple(ArraySpec(f"core/{kind}", (2, 3), np.dtype(kind)) for kind in sorted(DTYPES))
    spec = ReplaySpec(tuple(leaves), states, chunk=3, burn_in=3, unroll=3, period=3)

    def noise(array: ArraySpec) -> np.ndarray:
        raw = rng.integers(0, 2, (*spec.shape(array), array.dtype.itemsize)).astype(np.uint8)
        return raw.view(array.dtype)[..., 0]

    replay = make_replay(spec)
    inserted = [({a.name: noise(a) for a in leaves}, [noise(a) for a in states]) for _ in range(2)]
    for fields, state in inserted:
        replay.insert("env", fields, state)
    batch = SequenceBatch(spec, 2)
    assert replay.sample(batch)
    for row in range(2):
        for name, values in batch.fields.items():
            expected = np.concatenate([fields[name] for fields, _ in inserted])[: spec.length]
            expected[3:] = inserted[1][0][name][: spec.length - 3]
            assert values[row].tobytes() == expected.tobytes(), name
        for part, expected in zip(batch.state, inserted[0][1], strict=True):
            assert part[row].tobytes() == expected.tobytes()
    assert batch.nbytes == sum(a.nbytes for a in batch.fields.values()) + sum(a.nbytes for a in batch.state)
    replay.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_a_chunk_that_changed_in_memory_is_named(threads: int) -> None:
    spec = make_spec()
    encoder, decoder = ChunkEncoder(spec), Decoder(threads)
    chain = [Chunk(i + 40, 0, i, encoder.encode(*arrays(spec, 0, i), i)) for i in range(3)]
    damaged = chain[2].data[1]
    chain[2] = Chunk(42, 0, 2, (chain[2].data[0], damaged[:3] + b"?" + damaged[4:], *chain[2].data[2:]))
    with pytest.raises(DamagedChunk, match="chunk 42 of the replay, index: the checksum"):
        decoder.decode([tuple(chain)] * 4, SequenceBatch(spec, 4))
    decoder.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f, s: f.pop("first"), "a chunk lacks first: expected observation, index, first"),
        (
            lambda f, s: f.update(index=f["index"].astype("i4")),
            r"index of a chunk is int32 \(2,\): expected int64",
        ),
        (
            lambda f, s: f.update(first=f["first"][:1]),
            r"first of a chunk is bool \(1,\): expected bool \(2,\)",
        ),
        (lambda f, s: s.pop(), "its core state has 1 arrays: expected lstm, stack"),
        (lambda f, s: s.reverse(), r"lstm of a chunk is uint8 \(5,\): expected float32 \(4,\)"),
    ],
)
def test_a_chunk_that_does_not_fit_is_refused_and_the_lane_goes_on(change, words: str) -> None:
    replay = make_replay(make_spec())
    fill(replay, 0, range(2))
    fields, state = arrays(replay.spec, 0, 2)
    change(fields, state)
    with pytest.raises(SpecError, match=words):
        replay.insert(0, fields, state)
    with pytest.raises(SpecError, match="its core state has 0 arrays"):
        replay.insert(0, arrays(replay.spec, 0, 2)[0], None)
    with pytest.raises(SeedflowError, match="priority is nan"):
        fill(replay, 0, [2], priority=float("nan"))
    assert fill(replay, 0, [2, 3]) == [0, 1]
    replay.close()


def test_a_state_is_needed_only_where_a_sequence_begins() -> None:
    replay = make_replay(make_spec(period=4))
    assert replay.insert(0, *arrays(replay.spec, 0, 0)) is None
    assert replay.insert(0, arrays(replay.spec, 0, 1)[0], None) is None
    assert fill(replay, 0, [2]) == [0]
    assert [len(chunk.data) for chunk in replay.snapshot().chunks] == [5, 3, 5]
    replay.close()


def test_all_that_it_counts_is_described() -> None:
    replay = make_replay(make_spec(), capacity=2)
    fill(replay, 0, range(6))
    batch = SequenceBatch(replay.spec, 3)
    assert replay.sample(batch)
    replay.update_priorities(np.array([0, 1, 2]), np.ones(3))
    metrics = replay.metrics()
    assert [name for name in metrics if describe(name) is None] == []
    counted = {name.removeprefix("replay/"): value for name, value in metrics.items()}
    chosen = (
        "sequences",
        "chunks",
        "inserted",
        "evicted",
        "evicted_for_memory",
        "sampled",
        "stale",
        "balance",
    )
    assert [counted[name] for name in chosen] == [2, 4, 4, 2, 0, 3, 2, 0.0]
    assert counted["compression"] > 1.5
    replay.close()


def test_a_batch_of_another_kind_is_refused() -> None:
    replay = make_replay(make_spec())
    with pytest.raises(SpecError, match="burn_in: 2 here, 4 there"):
        replay.sample(SequenceBatch(make_spec(burn_in=4), 1))
    with pytest.raises(ConfigError, match="a batch of 0 sequences"):
        SequenceBatch(replay.spec, 0)
    replay.close()


def test_below_the_minimum_it_says_how_many_are_missing() -> None:
    replay = make_replay(make_spec(), min_size=4)
    fill(replay, 0, range(5))
    answer = replay.sample(SequenceBatch(replay.spec, 2), timeout=0.01)
    assert isinstance(answer, NotYet)
    assert not answer
    assert (answer.status.size, answer.status.min_size) == (3, 4)
    assert "holds 3 of the 4 sequences needed" in str(answer)
    fill(replay, 0, [5])
    assert replay.sample(SequenceBatch(replay.spec, 2))
    replay.close()
    assert str(replay.sample(SequenceBatch(replay.spec, 2), timeout=None)) == "the replay is closed"
    with pytest.raises(SeedflowError, match="closed"):
        fill(replay, 0, [6])
