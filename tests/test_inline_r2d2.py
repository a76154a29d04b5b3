"""R2D2 in the one-process runtime: repeatable, and resumed with all that belongs to a generation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seedflow.checkpoints import Generations, open_store
from seedflow.errors import ConfigError, SeedflowError
from seedflow.evaluate import evaluate, load_policy
from seedflow.kernels.r2d2_loss import inverse_rescale
from seedflow.learner.checkpoint import CheckpointStore
from seedflow.metrics import read_metrics
from seedflow.networks import NetworkInput
from seedflow.replay.disk.load import load_replay
from seedflow.replay.snapshot import Snapshot
from seedflow.train import train
from tests.small_runs import Constant, small_config, small_r2d2


def saved_tensors(run_dir: Path) -> dict[str, torch.Tensor]:
    return CheckpointStore(run_dir / "checkpoints").load().tensors


def saved_replay(run_dir: Path) -> Snapshot:
    generations = Generations(open_store(run_dir / "checkpoints"))
    return load_replay(generations.store, generations.restore(lambda manifest: None).manifest).snapshot


def replay_values(snapshot: Snapshot) -> list[Any]:
    """All that is in a replay, to compare."""
    columns = [
        getattr(snapshot.sequences, name).tolist() for name in ("generation", "first_chunk", "priority")
    ]
    return [snapshot.chunks, *columns, snapshot.state]


def test_one_seed_gives_one_set_of_weights_and_one_replay(tmp_path: Path) -> None:
    config = small_r2d2(eval={"every": 200, "episodes": 2})
    for name in ("one", "two"):
        train(config, run_dir=tmp_path / name)
    train(config.model_copy(update={"seed": 2}), run_dir=tmp_path / "other")
    one, two, other = (saved_tensors(tmp_path / name) for name in ("one", "two", "other"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one if name.startswith("weights"))
    replays = [saved_replay(tmp_path / name) for name in ("one", "two")]
    assert replay_values(replays[0]) == replay_values(replays[1])
    assert len(replays[0].sequences) == config.replay.capacity


@pytest.mark.parametrize(("burn_in", "period"), [(0, 4), (4, 8)])
def test_a_time_limit_is_no_end_of_the_rewards(tmp_path: Path, burn_in: int, period: int) -> None:
    """With discount 0.9 the value is 1 / (1 - 0.9) = 10, not the 4.1 that five rewards sum to."""
    config = small_r2d2(
        algo={"discount": 0.9, "target_period": 25},
        network={"core": "none", "inputs": []},
        actor={"count": 1, "envs_per_group": 8},
        replay={"burn_in": burn_in, "period": period, "capacity": 500, "samples_per_insert": 16.0},
        train={
            "batch": 8,
            "total_agent_steps": 4000,
            "learning_rate": 1e-2,
            "learning_rate_decay": "linear",
        },
    )
    train(config, run_dir=tmp_path, env_fn=Constant)
    policy = load_policy(tmp_path)
    inputs = NetworkInput((torch.ones(1, 1, 1),), torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.bool))
    output, _ = policy.network(inputs, policy.initial_state(1))
    values = inverse_rescale(output, 1e-3)
    assert values.flatten().tolist() == pytest.approx([10.0, 10.0], abs=0.3)


def test_metrics_have_their_names_and_say_what_the_replay_does(tmp_path: Path) -> None:
    train(small_r2d2(train={"total_agent_steps": 1500}), run_dir=tmp_path)
    records = read_metrics(tmp_path)
    seen = {name for record in records for name in record}
    assert {
        "replay/sequences", "replay/chunks", "replay/bytes", "replay/compression", "replay/inserted",
        "replay/sampled", "replay/balance", "replay/samples_per_insert", "replay/wait_insert_seconds",
        "replay/wait_sample_seconds", "loss/total", "loss/td_error", "loss/value", "loss/target",
        "loss/gradient_norm", "steps/trained",
    } <= seen  # fmt: skip
    last = records[-1]
    assert last["replay/sampled"] == pytest.approx(4.0 * (last["replay/inserted"] - 10), abs=16 + 8)


def test_evaluation_explores_as_little_as_configured(tmp_path: Path) -> None:
    train(small_r2d2(algo={"evaluation_epsilon": 0.0}), run_dir=tmp_path, env_fn=Constant)
    result = evaluate(tmp_path, episodes=7, env_fn=Constant)
    assert result.returns == [5.0] * 7
    policy = load_policy(tmp_path)
    observation, first = np.ones((300, 1), np.float32), np.ones(300, bool)
    actions, _ = policy.act(observation, policy.initial_state(300), first)
    assert len(set(actions.tolist())) == 1


def test_a_resumed_run_goes_on_with_everything_of_its_generation(tmp_path: Path) -> None:
    train(small_r2d2(), run_dir=tmp_path)
    before, replay = CheckpointStore(tmp_path / "checkpoints").load(), saved_replay(tmp_path)
    run = train(small_r2d2(train={"total_agent_steps": 1200}), run_dir=tmp_path, resume=True)
    after, later = CheckpointStore(tmp_path / "checkpoints").load(), saved_replay(tmp_path)
    old, new = before.state["progress"], after.state["progress"]
    for counter in ("agent_steps", "updates", "trained_steps"):
        assert new[counter] > old[counter] > 0, counter
    assert after.tensors["learning/updates"].item() == new["updates"]
    assert after.tensors["learning/optimizer/step"].item() == new["updates"]
    for counter in ("inserted", "sampled"):
        assert later.state["counters"][counter] > replay.state["counters"][counter]
    # No burst of updates or of acting to catch up with what was before.
    made = later.state["counters"]["inserted"] - replay.state["counters"]["inserted"]
    sampled = later.state["counters"]["sampled"] - replay.state["counters"]["sampled"]
    assert sampled == pytest.approx(4.0 * made, abs=2 * 16 + 8)
    assert run.status().metrics["replay/sequences"] == 60


def test_restoring_brings_back_weights_target_and_replay(tmp_path: Path) -> None:
    """Saved again right after a restore, a checkpoint has the same content."""
    from seedflow.envs import probe_spec
    from seedflow.learner.learner import Learner
    from seedflow.learner.leases import lease_table
    from seedflow.rpc.inline import InlineTransport
    from seedflow.rpc.slab import BlockLayout, Slab

    config = small_r2d2()
    train(config, run_dir=tmp_path)
    tensors, replay = saved_tensors(tmp_path), saved_replay(tmp_path)
    spec = probe_spec(config.env)
    layout = BlockLayout(spec, 2, 2)
    table = lease_table(config, spec)
    with Slab(layout, table.blocks) as slab:
        learner = Learner(config, spec, InlineTransport(layout, slab, table), tmp_path, lambda text: None)
        learner.restore()
        learner.save()
        learner.close()
    again = saved_tensors(tmp_path)
    assert tensors.keys() == again.keys()
    assert any(name.startswith("learning/target/") for name in tensors)
    for name, tensor in tensors.items():
        assert torch.equal(tensor, again[name]), name
    assert replay_values(saved_replay(tmp_path)) == replay_values(replay)


def test_what_a_resumed_run_cannot_go_on_with_is_refused_by_name(tmp_path: Path) -> None:
    config = small_r2d2()
    train(config, run_dir=tmp_path)
    before = (tmp_path / "config.yaml").read_text()
    more = config.train.model_copy(update={"total_agent_steps": 1200})
    for section, changes, message in (
        ("replay", {"burn_in": 8}, r"burn_in: 8 here, 4 there"),
        ("network", {"core_size": 16}, r"has shape|lstm/hidden: float32 \(16,\) here, float32 \(8,\) there"),
        ("network", {"head_size": 32}, r"weight 'value_head.0.weight' of generation 1 has shape"),
        ("network", {"activation": "relu"}, r'network.activation = "relu" \(was "tanh"\)'),
        ("env", {"id": "Acrobot-v1"}, r'env.id = "Acrobot-v1" \(was "CartPole-v1"\)'),
    ):
        changed = getattr(config, section).model_copy(update=changes)
        with pytest.raises(SeedflowError, match=message):
            train(config.model_copy(update={"train": more, section: changed}), run_dir=tmp_path, resume=True)
    other = small_config(train={"total_agent_steps": 1200})
    with pytest.raises(ConfigError, match=r'algo.name = "vtrace" \(was "r2d2"\)'):
        train(other, run_dir=tmp_path, resume=True)
    assert (tmp_path / "config.yaml").read_text() == before


def test_a_smaller_or_larger_replay_takes_what_fits(tmp_path: Path) -> None:
    train(small_r2d2(), run_dir=tmp_path)
    for total, capacity in ((700, 30), (1500, 120)):
        run = train(
            small_r2d2(train={"total_agent_steps": total}, replay={"capacity": capacity}),
            run_dir=tmp_path,
            resume=True,
        )
        assert run.status().metrics["replay/sequences"] <= capacity
    assert run.status().metrics["replay/sequences"] == 120


def test_a_new_run_begins_with_the_replay_of_another(tmp_path: Path) -> None:
    train(small_r2d2(), run_dir=tmp_path / "old")
    old = saved_replay(tmp_path / "old")
    new_config = small_r2d2(seed=2, train={"total_agent_steps": 120})
    train(new_config, run_dir=tmp_path / "new", restore_replay=tmp_path / "old")
    new = saved_replay(tmp_path / "new")
    shared = set(old.sequences.generation.tolist()) & set(new.sequences.generation.tolist())
    assert len(shared) > 20
    assert new.state["counters"]["sampled"] > old.state["counters"]["sampled"], "it is sampled from at once"
    progress = CheckpointStore(tmp_path / "new" / "checkpoints").load().state["progress"]
    assert progress["agent_steps"] < 140


def test_a_replay_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    train(small_r2d2(), run_dir=tmp_path / "old")
    for config, options, message in (
        (small_r2d2(replay={"burn_in": 8}), {}, r"burn_in: 8 here, 4 there"),
        (small_config(), {}, r"algo.name = 'vtrace' learns without a replay"),
        (small_r2d2(), {"resume": True}, r"leave one of the two out"),
    ):
        where = tmp_path / ("old" if options else "new")
        with pytest.raises(SeedflowError, match=message):
            train(config, run_dir=where, restore_replay=tmp_path / "old", **options)
    with pytest.raises(SeedflowError, match="holds no checkpoint"):
        train(small_r2d2(), run_dir=tmp_path / "new", restore_replay=tmp_path / "none")
    assert not list((tmp_path / "new").glob("checkpoints/manifests/*"))
