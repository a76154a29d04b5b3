"""The one-process runtime: the same bits for the same seed, and what a short run learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seedflow.algos.vtrace.learning import VTraceLearning
from seedflow.config import Config
from seedflow.errors import CheckpointError, ConfigError, EnvironmentFault
from seedflow.evaluate import evaluate, load_policy
from seedflow.learner.checkpoint import CheckpointStore
from seedflow.metrics import METRICS_FILE, JsonlSink, column, read_metrics
from seedflow.networks import NetworkInput
from seedflow.rollout.storage import UnrollBatch
from seedflow.run_dir import locked
from seedflow.train import train
from tests.small_runs import Constant, small_config


def final_tensors(run_dir: Path) -> dict[str, torch.Tensor]:
    return CheckpointStore(run_dir / "checkpoints").load().tensors


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_one_seed_gives_one_set_of_weights(tmp_path: Path, core: str) -> None:
    config = small_config(network={"core": core, "core_size": 8}, eval={"every": 200, "episodes": 2})
    for name in ("one", "two"):
        train(config, run_dir=tmp_path / name)
    train(config.model_copy(update={"seed": 2}), run_dir=tmp_path / "other")
    one, two, other = (final_tensors(tmp_path / name) for name in ("one", "two", "other"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one if name.startswith("weights"))


def losses_of(config: Config, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """Everything that every update of a run reports."""
    measured: list[dict[str, float]] = []
    update = VTraceLearning.update

    def recorded(self: VTraceLearning, batch: UnrollBatch, learning_rate: float) -> dict[str, float]:
        measured.append(update(self, batch, learning_rate))
        return measured[-1]

    with monkeypatch.context() as patch:
        patch.setattr(VTraceLearning, "update", recorded)
        train(config, run_dir=run_dir)
    return measured


def test_a_thousand_updates_have_the_same_losses_bit_by_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(
        actor={"count": 1, "envs_per_group": 16}, train={"total_agent_steps": 21_000, "torch_threads": 1}
    )
    one, two = (losses_of(config, tmp_path / name, monkeypatch) for name in ("one", "two"))
    assert len(one) >= 1000
    assert one == two
    assert len({losses["loss/total"] for losses in one}) > 900  # and they do change


@pytest.mark.parametrize("unroll", [3, 7])
def test_a_time_limit_is_no_end_of_the_rewards(tmp_path: Path, unroll: int) -> None:
    """With discount 0.9 the value is 1 / (1 - 0.9) = 10, not the 4.1 that five rewards sum to."""
    config = small_config(
        algo={"discount": 0.9},
        rollout={"unroll": unroll},
        actor={"count": 1, "envs_per_group": 16},
        train={
            "batch": 8,
            "total_agent_steps": 300 * 8 * unroll,
            "learning_rate": 2e-2,
            "learning_rate_decay": "linear",
        },
    )
    train(config, run_dir=tmp_path, env_fn=Constant)
    policy = load_policy(tmp_path)
    inputs = NetworkInput((torch.ones(1, 1, 1),), torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.bool))
    output, _ = policy.network(inputs, policy.initial_state(1))
    assert output.value.item() == pytest.approx(10.0, abs=0.3)


def test_a_resumed_run_goes_on_where_the_first_one_ended(tmp_path: Path) -> None:
    config = small_config(train={"learning_rate_decay": "linear"}, algo={"target_entropy": 0.5})
    train(config, run_dir=tmp_path)
    before = CheckpointStore(tmp_path / "checkpoints").load()
    more = small_config(
        train={"learning_rate_decay": "linear", "total_agent_steps": 1200}, algo={"target_entropy": 0.5}
    )
    train(more, run_dir=tmp_path, resume=True)
    after = CheckpointStore(tmp_path / "checkpoints").load()
    old, new = before.state["progress"], after.state["progress"]
    for counter in ("agent_steps", "env_frames", "updates", "trained_steps", "seconds"):
        assert new[counter] > old[counter] > 0, counter
    assert new["agent_steps"] >= 1200
    updates = new["updates"]
    assert after.tensors["learning/optimizer/step"].item() == updates
    steps, rates = column(read_metrics(tmp_path), "loss/learning_rate")
    assert rates[-1] < rates[0]
    assert list(steps) == sorted(steps)


def test_restoring_brings_back_every_tensor_and_counter(tmp_path: Path) -> None:
    """Saved again right after a restore, a checkpoint has the same content."""
    from seedflow.envs import probe_spec
    from seedflow.learner.learner import Learner
    from seedflow.learner.leases import lease_table
    from seedflow.rpc.inline import InlineTransport
    from seedflow.rpc.slab import BlockLayout, Slab

    config = small_config(algo={"target_entropy": 0.5}, eval={"every": 100, "episodes": 1})
    train(config, run_dir=tmp_path)
    store = CheckpointStore(tmp_path / "checkpoints")
    saved = store.load()
    spec = probe_spec(config.env)
    layout = BlockLayout(spec, 2, 2)
    table = lease_table(config, spec)
    with Slab(layout, table.blocks) as slab:
        learner = Learner(config, spec, InlineTransport(layout, slab, table), tmp_path, lambda text: None)
        learner.restore()
        again = store.load(learner.save())
        learner.close()
    assert saved.tensors.keys() == again.tensors.keys()
    for name, tensor in saved.tensors.items():
        assert torch.equal(tensor, again.tensors[name]), name
    for name, value in saved.state["progress"].items():
        if name == "seconds":
            assert again.state["progress"][name] >= value
        else:
            assert again.state["progress"][name] == value, name


def test_a_resumed_run_does_not_replay_its_episodes(tmp_path: Path) -> None:
    seeds: list[int | None] = []

    class Recorded(Constant):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            if seed is not None:
                seeds.append(seed)
            return super().reset(seed=seed, options=options)

    train(small_config(train={"total_agent_steps": 100}), run_dir=tmp_path, env_fn=Recorded)
    train(small_config(train={"total_agent_steps": 200}), run_dir=tmp_path, resume=True, env_fn=Recorded)
    # Eight environments, twice; the environment made beforehand for its spec has a seed of its own.
    assert len(seeds) == 18
    assert len(set(seeds)) == 17


def test_metrics_have_their_names_and_policy_lag_is_bounded(tmp_path: Path) -> None:
    config = small_config(train={"total_agent_steps": 4000}, eval={"every": 1000, "episodes": 2, "envs": 2})
    train(config, run_dir=tmp_path)
    records = read_metrics(tmp_path)
    seen = {name for record in records for name in record}
    assert {
        "steps/agent", "steps/env_frames", "episode/return", "episode/length", "eval/return",
        "rate/agent_steps_per_second", "lag/policy_versions", "inference/batch_size",
        "inference/latency_ms_p50", "inference/latency_ms_p99", "slots/free", "queue/unrolls",
        "lease/active", "lease/quarantined", "lease/dropped", "actor/restarts", "time/seconds",
        "loss/entropy", "loss/rho_clipped", "loss/c_clipped", "loss/value_error",
        "loss/explained_variance", "loss/gradient_norm",
    } <= seen  # fmt: skip
    _, lag = column(records, "lag/policy_versions_max")
    # What lies between acting and training: every slot full, plus the batches that are assembled.
    assert max(lag) <= config.slots / config.train.batch + config.rollout.unroll


def test_evaluation_plays_as_many_episodes_as_asked(tmp_path: Path) -> None:
    train(small_config(), run_dir=tmp_path, env_fn=Constant)
    result = evaluate(tmp_path, episodes=7, env_fn=Constant)
    assert result.returns == [5.0] * 7
    assert result.lengths == [5] * 7
    assert (result.return_mean, result.return_std, result.episodes) == (5.0, 0.0, 7)


def test_an_environment_that_raises_ends_the_run_with_its_exception(tmp_path: Path) -> None:
    class Broken(Constant):
        def step(self, action: int) -> Any:
            if self.steps == 3:
                raise ZeroDivisionError("the pole is gone")
            return super().step(action)

    with pytest.raises(EnvironmentFault, match="the pole is gone") as caught:
        train(small_config(), run_dir=tmp_path, env_fn=Broken)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


class Diverging(Constant):
    """Observes infinity in the third step of every episode."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, *rest = super().step(action)
        return observation * (np.inf if self.steps == 3 else 1.0), *rest


def test_a_number_that_is_none_ends_the_run_or_is_masked_and_counted(tmp_path: Path) -> None:
    with pytest.raises(
        EnvironmentFault, match=r"observation of environment 0 is inf at step 3 .*on_nonfinite"
    ):
        train(small_config(), run_dir=tmp_path / "error", env_fn=Diverging)
    train(small_config(env={"on_nonfinite": "mask"}), run_dir=tmp_path / "mask", env_fn=Diverging)
    last = read_metrics(tmp_path / "mask")[-1]
    assert last["env/masked"] == pytest.approx(last["steps/agent"] / 5, abs=8)
    assert all(tensor.isfinite().all() for tensor in final_tensors(tmp_path / "mask").values())


def test_a_used_run_directory_is_refused(tmp_path: Path) -> None:
    config = small_config(train={"total_agent_steps": 50})
    with pytest.raises(ConfigError, match="no checkpoint to resume"):
        train(config, run_dir=tmp_path, resume=True)
    train(config, run_dir=tmp_path)
    with pytest.raises(ConfigError, match="holds a run already"):
        train(config, run_dir=tmp_path)
    assert train(config, run_dir=tmp_path, resume_or_start=True).dir == tmp_path


@pytest.mark.parametrize(("envs", "batch"), [(32, 8), (32, 4), (7, 5)])
def test_a_group_larger_than_queue_and_batch_does_not_stop_the_run(
    tmp_path: Path, envs: int, batch: int
) -> None:
    """Its environments end their unrolls together and need as many slots at once."""
    config = small_config(
        actor={"count": 1, "groups": 1, "envs_per_group": envs},
        rollout={"unroll": 8, "queue": 1},
        train={"batch": batch, "total_agent_steps": 1500},
    )
    run = train(config, run_dir=tmp_path)
    assert run.wait() is True
    assert run.status().metrics["train/updates"] > 10


def test_a_resume_that_fails_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    config = small_config(train={"total_agent_steps": 50})
    train(config, run_dir=tmp_path)
    before = (tmp_path / "config.yaml").read_text()
    wider = small_config(network={"hidden": [99]})
    with pytest.raises(CheckpointError, match="has shape"):
        train(wider, run_dir=tmp_path, resume=True)
    other = small_config(train={"optimizer": "rmsprop", "total_agent_steps": 100})
    with pytest.raises(CheckpointError, match="resume with the optimizer of the run"):
        train(other, run_dir=tmp_path, resume=True)
    assert (tmp_path / "config.yaml").read_text() == before
    assert evaluate(tmp_path, episodes=1).episodes == 1


def test_two_runs_do_not_share_a_directory(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(ConfigError, match="in use by another process"):
        train(small_config(), run_dir=tmp_path)


def test_a_failed_run_keeps_what_it_had_learned(tmp_path: Path) -> None:
    class Failing(Constant):
        left = 200

        def step(self, action: int) -> Any:
            Failing.left -= 1
            if not Failing.left:
                raise ZeroDivisionError("worn out")
            return super().step(action)

    config = small_config(actor={"count": 1, "groups": 1, "envs_per_group": 1}, train={"batch": 1})
    with pytest.raises(EnvironmentFault):
        train(config, run_dir=tmp_path, env_fn=Failing)
    progress = CheckpointStore(tmp_path / "checkpoints").load().state["progress"]
    assert progress["agent_steps"] > 100


def test_what_a_start_without_checkpoint_recorded_is_left_behind(tmp_path: Path) -> None:
    with JsonlSink(tmp_path / METRICS_FILE) as sink:
        sink.write(5000, {"episode/return": 1.0})
    train(small_config(), run_dir=tmp_path, resume_or_start=True)
    steps, _ = column(read_metrics(tmp_path), "steps/agent")
    assert max(steps) < 5000
