"""Evaluating a run, and using its policy elsewhere.

Examples
--------
>>> policy = load_policy("runs/cartpole_vtrace-20260101-120000")  # doctest: +SKIP
>>> state = policy.initial_state(1)  # doctest: +SKIP
>>> action, state = policy.act(observation[None], state, first=np.array([True]))  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from seedflow.algos import Acting, ActingInput, make_algorithm
from seedflow.algos.randomness import torch_seed
from seedflow.config import Config, load_config
from seedflow.envs import env_seed, make_group
from seedflow.envs.base import GroupEnv
from seedflow.envs.shipped import pack, shipped
from seedflow.errors import CheckpointError, SpecError
from seedflow.learner.checkpoint import CheckpointStore
from seedflow.learner.evaluation import Episode, EvaluationRounds
from seedflow.learner.trainer import check_weights
from seedflow.networks.cores import State
from seedflow.rollout.state_table import zeros
from seedflow.rpc.slab import Block, BlockLayout
from seedflow.run_record import RunRecord
from seedflow.specs import EnvSpec, leaf_of

MOST_ENVS = 25


@dataclass(frozen=True)
class EvaluationResult:
    """Outcome of `evaluate`.

    Attributes
    ----------
    return_mean, return_std
        Over episodes; returns are sums of raw rewards.
    episodes
        How many.
    returns, lengths
        Of each episode; lengths in agent steps.
    deterministic
        Whether the most likely actions were taken, not sampled ones.
    generation, agent_steps
        The checkpoint that played: its number, and the steps that it had been trained for.
    """

    return_mean: float
    return_std: float
    episodes: int
    returns: list[float]
    lengths: list[int]
    deterministic: bool
    generation: int
    agent_steps: int


class Policy:
    """The policy of a checkpoint, acting on batches of n environments.

    Parameters
    ----------
    config, spec
        Of the run.
    network, acting
        The network with the checkpoint's weights, and how its algorithm acts.
    generation, agent_steps
        The checkpoint's number, and the steps that it had been trained for.
    """

    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        network: torch.nn.Module,
        acting: Acting,
        generation: int,
        agent_steps: int,
    ) -> None:
        self.config, self.spec, self.generation, self.agent_steps = config, spec, generation, agent_steps
        self.network, self._acting = network, acting
        self._state_specs = network.state_specs
        self._device = next(network.parameters()).device

    def __repr__(self) -> str:
        shown = ", ".join(f"{leaf.name} {list(leaf.shape)} {leaf.dtype}" for leaf in self.spec.observation)
        return (
            f"<Policy of generation {self.generation} after {self.agent_steps:,} steps: {shown} to one of "
            f"{self.spec.num_actions} actions>"
        )

    def initial_state(self, n: int) -> State:
        """The core state before the first step of n environments."""
        return tuple(zeros(spec, (n,), self._device) for spec in self._state_specs)  # type: ignore[union-attr]

    @torch.inference_mode()
    def act(
        self,
        observation: Any,
        state: State,
        first: npt.ArrayLike,
        *,
        reward: npt.ArrayLike | None = None,
        deterministic: bool = False,
    ) -> tuple[npt.NDArray[np.int64], State]:
        """Choose actions.

        Parameters
        ----------
        observation
            A batch as the environment's vector form gives it: ``[n, ...]``, nested as its space; or a
            mapping from the leaves' own names.
        state
            From `initial_state`, or from the call before.
        first : bool[n] or bool
            Whether an episode begins; the core state is reset there. One value stands for all.
        reward : float[n] or float, optional
            Reward of the transition into this step; needed by networks that take the previous reward.
        deterministic
            The most likely action instead of a sampled one.

        Returns
        -------
        actions : int64[n]
            As the environment takes them.
        state
            For the next call.

        Raises
        ------
        SpecError
            If a leaf of the observation is missing or does not have the run's shape, or `first` or `reward`
            are not one value for each environment.
        """
        arrays = [np.asarray(leaf_of(observation, leaf), leaf.dtype) for leaf in self.spec.observation]
        n = (np.shape(first) or arrays[0].shape or (0,))[0]
        starts = torch.as_tensor(_one_each(first, n, "first", np.bool_), device=self._device)
        rewards = _one_each(0.0 if reward is None else reward, n, "reward", np.float32)
        leaves = []
        for leaf, array in zip(self.spec.observation, arrays, strict=True):
            if array.shape != (n, *leaf.shape):
                raise SpecError(
                    f"{leaf.name} has shape {array.shape}; expected {(n, *leaf.shape)}, one row per "
                    "environment: of a single one, give observation[None]"
                )
            leaves.append(torch.as_tensor(array, device=self._device))
        if any(len(s) != n for s in state):
            raise SpecError(
                f"state is that of {len(state[0])} environments; expected one of initial_state({n})"
            )
        state = tuple(s * (~starts).view(-1, *[1] * (s.ndim - 1)).to(s.dtype) for s in state)
        output = self._acting.act(
            self.network,
            ActingInput(
                tuple(leaves),
                torch.as_tensor(rewards, device=self._device),
                starts,
                torch.ones_like(starts) if deterministic else None,
            ),
            state,
        )
        return output.action.cpu().numpy() + self.spec.action_start, output.state


def load_policy(run_dir: str | Path, generation: int | None = None, seed: int | None = None) -> Policy:
    """Load the policy of a run's checkpoint, by default the newest.

    Parameters
    ----------
    run_dir
        The run's directory.
    generation
        Number of the checkpoint.
    seed
        Of the action sampling; default: the run's.

    Raises
    ------
    CheckpointError
        If there is no such checkpoint, or it is damaged.
    """
    run_dir = Path(run_dir)
    config = load_config(run_dir)
    checkpoint = CheckpointStore(run_dir / "checkpoints").load(generation)
    try:
        spec = EnvSpec.from_json(checkpoint.state["spec"])
        agent_steps = int(checkpoint.state["progress"]["agent_steps"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"generation {checkpoint.generation} of {run_dir} does not describe its environment and "
            f"progress ({error!r})"
        ) from error
    algorithm = make_algorithm(config, spec)
    network = algorithm.learning.network
    check_weights(checkpoint, network.state_dict())
    network.load_state_dict(checkpoint.section("weights"))
    network.requires_grad_(False)
    algorithm.acting.generator.manual_seed(torch_seed(config.seed if seed is None else seed, "evaluate"))
    return Policy(config, spec, network, algorithm.acting, checkpoint.generation, agent_steps)


def _one_each(value: npt.ArrayLike, n: int, name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A value for each of n environments."""
    array = np.asarray(value, dtype)
    if array.shape not in ((), (n,)):
        raise SpecError(f"{name} has shape {array.shape}; expected {(n,)}, one value per environment, or one")
    return np.full(n, array) if array.ndim == 0 else array


def _play(
    policy: Policy, group: GroupEnv, envs: int, episodes: int, deterministic: bool
) -> Sequence[Episode]:
    """Whole episodes of all environments of a group."""
    rows = Block.private(BlockLayout(policy.spec, 1, envs)).rows(0)
    rounds = EvaluationRounds(1, episodes, envs)
    index = np.arange(envs)
    rounds.open_if_due(0, 0, index)
    state = policy.initial_state(envs)
    group.reset(rows)
    while True:
        rounds.record(index, rows["first"], rows["reward"])
        played = rounds.result_if_complete()
        if played is not None:
            return played
        actions, state = policy.act(
            rows, state, rows["first"], reward=rows["reward"], deterministic=deterministic
        )
        group.step(actions - policy.spec.action_start, rows)


def evaluate(
    run_dir: str | Path,
    episodes: int = 100,
    deterministic: bool = False,
    seed: int | None = None,
    env_fn: Callable[[], gym.Env[Any, Any]] | None = None,
) -> EvaluationResult:
    """Play whole episodes with the newest checkpoint of a run.

    The environments' seeds are shared with no environment of the training. Every environment plays a
    number of episodes that is fixed beforehand, so that short episodes are not favoured.

    Parameters
    ----------
    run_dir
        The run's directory.
    episodes
        How many.
    deterministic
        Most likely actions instead of sampled ones.
    seed
        Seed of environments and sampling; default: the run's.
    env_fn
        The environment of a run that was trained on one's own; makes one `gymnasium.Env`.

    Raises
    ------
    ConfigError
        If the run was trained with an `env_fn` and none is given.
    CheckpointError
        If there is no checkpoint, or it is damaged.
    SpecError
        If the environment is not of the kind that the policy was trained on.
    """
    instead = f"seedflow.evaluate({str(run_dir)!r}, env_fn=...)"
    RunRecord.read(Path(run_dir)).check_env_fn(Path(run_dir), env_fn is not None, instead)
    policy = load_policy(run_dir, seed=seed)
    run_seed = policy.config.seed if seed is None else seed
    envs = min(episodes, MOST_ENVS)
    seeds = [env_seed(run_seed, "evaluate", i, 0) for i in range(envs)]
    with shipped(pack(policy.config.env.ship)):
        group = make_group(policy.config.env, envs, seeds, env_fn=env_fn)
        try:
            if group.spec != policy.spec:
                raise SpecError(
                    f"the policy of {run_dir} was trained on {policy.spec}, but the environment is "
                    f"{group.spec}; if the run was trained with env_fn, give the same env_fn here"
                )
            played = _play(policy, group, envs, episodes, deterministic)
        finally:
            group.close()
    returns = [episode.total for episode in played]
    return EvaluationResult(
        return_mean=float(np.mean(returns)),
        return_std=float(np.std(returns)),
        episodes=len(returns),
        returns=returns,
        lengths=[episode.length for episode in played],
        deterministic=deterministic,
        generation=policy.generation,
        agent_steps=policy.agent_steps,
    )
