"""The tree of settings.

Each section belongs to one part of the system and is a frozen pydantic model; an unknown key is
refused. The larger sections have modules of their own in this package; no module outside of it defines a
setting. Checks that concern one section stand in it, checks across sections in `Config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from seedflow.config.algo import AlgoConfig, R2D2Config, VTraceConfig
from seedflow.config.network import NetworkConfig
from seedflow.config.replay import ReplayConfig
from seedflow.config.section import Fraction, NonNegative, Section

SPARE_BLOCKS = 2
"""Blocks of the slab beyond those of all actors, so that one can be replaced at once."""


class EnvConfig(Section):
    """The environment that every actor steps."""

    id: str = Field("CartPole-v1", description="a Gymnasium id, or seedflow/Synthetic-v0")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="passed on to the environment")
    wrappers: tuple[str | dict[str, Any], ...] = Field(
        (), description="wrapper names, or {name: arguments}, innermost first"
    )
    vectorization: Literal["auto", "entry_point", "sync"] = Field(
        "auto", description="the environment's own vector entry point, or SyncVectorEnv"
    )
    exact: bool = Field(
        False,
        description="a run in one process (runtime=inline) goes on exactly where it was saved: every episode "
        "has a seed of its own and its actions are kept; environments are stepped one after the other",
    )
    ship: tuple[str, ...] = Field(
        (),
        description="modules or packages, by name or path, sent along to where environments are made",
    )
    on_nonfinite: Literal["error", "mask"] = Field(
        "error", description="NaN or infinity in an observation or reward: an error, or 0 in its place"
    )


class ActorConfig(Section):
    """The processes that step environments."""

    count: PositiveInt = Field(2, description="actor processes")
    groups: PositiveInt = Field(2, description="env groups an actor alternates between")
    envs_per_group: PositiveInt = Field(16, description="environments stepped by one call")
    max_restarts: NonNegativeInt = Field(10, description="restarts of actors allowed per window")
    restart_window_seconds: PositiveFloat = Field(600.0, description="length of that window")
    heartbeat_seconds: PositiveFloat = Field(5.0, description="pause between heartbeats")
    env_timeout_seconds: PositiveFloat | None = Field(
        300.0, description="a call of an environment that takes longer is a hang; null: never"
    )
    reconnect_seconds: PositiveFloat = Field(
        60.0, description="how long an actor looks for its learner before it gives up"
    )
    stop_seconds: PositiveFloat = Field(10.0, description="grace for an actor to end before it is killed")
    resources: dict[str, PositiveFloat] | None = Field(
        None,
        description="of its Dask worker that an actor holds; default: 1 of ACTOR where a worker declares it",
    )


class LearnerConfig(Section):
    """The process that does all neural network work."""

    resources: dict[str, PositiveFloat] | None = Field(
        None,
        description="of its Dask worker that the learner holds; {GPU: 0.5} shares a GPU; default: 1 of "
        "LEARNER or GPU where a worker declares it",
    )
    max_restarts: NonNegativeInt = Field(5, description="restarts of the learner allowed per window")
    restart_window_seconds: PositiveFloat = Field(600.0, description="length of that window")
    hang_seconds: PositiveFloat | None = Field(
        300.0,
        description="a turn of one of the learner's loops that takes longer is a hang, and the learner is "
        "placed again; null: never",
    )


class InferenceConfig(Section):
    """Central batched inference."""

    max_batch: PositiveInt = Field(256, description="most environments in one forward pass")
    min_batch: PositiveInt = Field(1, description="environments to wait for, up to the deadline")
    deadline_ms: NonNegative = Field(0.0, description="longest wait for min_batch")
    torch_threads: PositiveInt = Field(1, description="threads of the inference loop")
    cuda_graphs: bool = Field(
        True, description="on a GPU: capture what a batch does in one CUDA graph for each size of batch"
    )
    lease_seconds: PositiveFloat = Field(
        30.0, description="an actor, or a learner, that gives no sign of life for so long is given up"
    )


class RolloutConfig(Section):
    """Unroll slots between inference and training."""

    unroll: PositiveInt = Field(20, description="transitions T of an unroll (T + 1 indices)")
    max_envs: PositiveInt | None = Field(
        None, description="training environments at most; default: those of all actors"
    )
    queue: PositiveInt = Field(16, description="finished unrolls waiting for training, at most")
    prefetch: PositiveInt = Field(1, description="batches assembled ahead of training")


class TrainConfig(Section):
    """Optimization."""

    batch: PositiveInt = Field(16, description="unrolls per update; with a replay, sequences")
    total_agent_steps: PositiveInt = Field(1_000_000, description="the run ends here")
    optimizer: Literal["adam", "rmsprop"] = Field("adam", description="torch's")
    learning_rate: PositiveFloat = Field(1e-3, description="at the beginning")
    final_learning_rate: NonNegative = Field(
        0.0, description="reached at total_agent_steps where learning_rate_decay is linear"
    )
    learning_rate_decay: Literal["none", "linear"] = Field("none", description="over the agent steps")
    adam_betas: tuple[Fraction, Fraction] = Field(
        (0.9, 0.999), description="decay of the means of the gradient and its square"
    )
    rmsprop_decay: Fraction = Field(0.99, description="decay of the mean of the squared gradient")
    optimizer_epsilon: PositiveFloat = Field(1e-8, description="added to the root in the denominator")
    clip_norm: PositiveFloat | None = Field(40.0, description="global norm of the gradient")
    torch_threads: PositiveInt | None = Field(
        None, description="threads of the training loop; default: cores left over"
    )
    requeue_exit: bool = Field(
        False, description="end with code 75 where a signal stops the run and it has saved a checkpoint"
    )
    preemption_signal: Literal["SIGUSR1", "SIGUSR2"] | None = Field(
        None, description="a signal that stops the run as SIGTERM does"
    )
    runs_in: Literal["auto", "thread", "process"] = Field(
        "auto",
        description="the learner's process or one of its own; auto: of its own where it computes on a CPU",
    )


class KernelsConfig(Section):
    """The fused kernels of the learner."""

    check: bool = Field(
        False,
        description="stop at the first infinity or NaN and say where it is; costs time, to look for one",
    )


Port = Annotated[int, Field(ge=0, le=65535)]


class RpcConfig(Section):
    """How observations and actions travel."""

    path: Literal["auto", "slab", "grpc"] = Field(
        "auto", description="auto: shared memory on the learner's host, gRPC from elsewhere"
    )
    ports: tuple[PositiveInt, PositiveInt] | None = Field(
        None, description="[low, high] for the gateway; default: any free port"
    )
    interface: str | None = Field(
        None,
        description="address or network interface, such as ib0, of the learner's host that the gateway "
        "binds; default: the Dask worker's own",
    )
    connect_seconds: PositiveFloat = Field(30.0, description="deadline of one connection attempt")

    @model_validator(mode="after")
    def _ports_ascend(self) -> RpcConfig:
        if self.ports is not None and not self.ports[0] <= self.ports[1] <= 65535:
            raise ValueError(f"ports {list(self.ports)} must be [low, high] with low <= high <= 65535")
        return self


class EvalConfig(Section):
    """Periodic evaluation on environments of its own."""

    every: NonNegativeInt = Field(0, description="agent steps between evaluations; 0: never")
    episodes: PositiveInt = Field(20, description="episodes of one evaluation")
    envs: PositiveInt = Field(4, description="environments of the evaluation actor")
    deterministic: bool = Field(False, description="greedy instead of sampled actions")


class CheckpointConfig(Section):
    """Run checkpoints."""

    every_seconds: PositiveFloat = Field(60.0, description="pause between two; one more at the end")
    keep: int = Field(3, ge=2, description="generations kept: one to go back to besides the newest")


class MetricsConfig(Section):
    """What is recorded, and how often."""

    every_seconds: PositiveFloat = Field(5.0, description="pause between two records")
    tensorboard: bool = Field(True, description="write event files beside metrics.jsonl")
    console: Literal["auto", "live", "plain", "off"] = Field(
        "auto", description="auto: live on a terminal, plain lines elsewhere"
    )
    prometheus_port: Port | None = Field(
        None, description="the learner serves its metrics there, to Prometheus; 0: any free port"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="the least that the logs of the roles hold"
    )


class ClusterConfig(Section):
    """The Dask cluster: an existing one, or the local one that seedflow starts."""

    scheduler: str | None = Field(None, description="address of a Dask scheduler; implies runtime=cluster")
    scheduler_file: str | None = Field(
        None, description="file that the scheduler writes its address to; implies runtime=cluster"
    )
    tls_ca_file: str | None = Field(None, description="certificate authority (PEM)")
    tls_cert: str | None = Field(None, description="own certificate (PEM)")
    tls_key: str | None = Field(None, description="key of that certificate (PEM)")
    local_workers: PositiveInt | None = Field(
        None, description="workers of the local cluster; default: one per actor and the learner's"
    )
    connect_seconds: PositiveFloat = Field(30.0, description="wait for the scheduler")
    worker_seconds: PositiveFloat = Field(60.0, description="wait for a first worker")
    learner_seconds: PositiveFloat = Field(120.0, description="wait for the learner to be up")
    actors_per_worker: PositiveInt | None = Field(
        None, description="actors on one worker at most; default: its threads, or its ACTOR resource"
    )
    min_actors: PositiveInt | None = Field(
        None, description="actors that have a place suffice to begin, if there are so many; default: all"
    )
    stop_seconds: PositiveFloat = Field(20.0, description="grace for the learner to save and end")


class Config(Section):
    """All settings of a run."""

    runtime: Literal["inline", "local", "cluster"] = Field(
        "local", description="one process; processes on this machine; an existing Dask cluster"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="what the learner computes on; auto: a GPU where there is one"
    )
    seed: NonNegativeInt = Field(1, description="of everything random in the run")
    env: EnvConfig = EnvConfig()
    actor: ActorConfig = ActorConfig()
    learner: LearnerConfig = LearnerConfig()
    inference: InferenceConfig = InferenceConfig()
    rollout: RolloutConfig = RolloutConfig()
    network: NetworkConfig = NetworkConfig()
    algo: AlgoConfig = VTraceConfig()
    train: TrainConfig = TrainConfig()
    replay: ReplayConfig = ReplayConfig()
    kernels: KernelsConfig = KernelsConfig()
    rpc: RpcConfig = RpcConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    metrics: MetricsConfig = MetricsConfig()
    cluster: ClusterConfig = ClusterConfig()

    @property
    def envs_per_actor(self) -> int:
        """Environments of one actor process."""
        return self.actor.groups * self.actor.envs_per_group

    @property
    def max_envs(self) -> int:
        """Training environments at most, a whole number of actors."""
        return self.rollout.max_envs or self.actor.count * self.envs_per_actor

    @property
    def has_replay(self) -> bool:
        """Whether the algorithm learns from a replay."""
        return isinstance(self.algo, R2D2Config)

    @property
    def actor_blocks(self) -> tuple[int, int]:
        """Blocks of the slab for training and for evaluation actors."""
        return self.max_envs // self.envs_per_actor, 1 if self.eval.every else 0

    @property
    def chunk_buffers(self) -> int:
        """Chunk buffers between inference and a replay: one for each row of the slab, and those that wait."""
        rows = (sum(self.actor_blocks) + SPARE_BLOCKS) * self.envs_per_actor
        return rows + max(self.rollout.queue, self.actor.envs_per_group)

    @property
    def eval_shape(self) -> tuple[int, int] | None:
        """Groups and environments per group of the evaluation actor; None where there is no such split.

        It steps ``eval.envs`` environments in as few groups as the blocks of the run allow.
        """
        for groups in range(1, self.actor.groups + 1):
            if self.eval.envs % groups == 0 and self.eval.envs // groups <= self.actor.envs_per_group:
                return groups, self.eval.envs // groups
        return None

    @property
    def slots(self) -> int:
        """Unroll slots that inference, queue and prefetch need together.

        Fewer can stop a run for good. Every environment may hold a partial unroll while the prefetched
        batches are full. And the environments of a group end their unrolls at the same step: a group may
        need a slot for each of them at once while ``batch - 1`` finished unrolls wait for one more.
        """
        together = self.actor.envs_per_group + self.train.batch - 1
        queued = max(self.rollout.queue, self.train.batch, together)
        return self.max_envs + queued + self.rollout.prefetch * self.train.batch

    @model_validator(mode="before")
    @classmethod
    def _a_scheduler_implies_the_cluster(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or "runtime" in values:
            return values
        cluster = values.get("cluster")
        given = vars(cluster) if isinstance(cluster, ClusterConfig) else cluster
        if not isinstance(given, Mapping):
            return values
        named = given.get("scheduler") or given.get("scheduler_file")
        return {**values, "runtime": "cluster"} if named else values

    @model_validator(mode="after")
    def _sections_agree(self) -> Config:
        for name in ("scheduler", "scheduler_file"):
            value = getattr(self.cluster, name)
            if value is not None and self.runtime != "cluster":
                raise ValueError(
                    f"cluster.{name} = {value!r} names a Dask cluster, but runtime = {self.runtime!r}: set "
                    f"runtime=cluster to run there, or cluster.{name}=null to run here"
                )
        if self.env.exact and self.runtime != "inline":
            raise ValueError(
                f"env.exact = true, but runtime = {self.runtime!r}: only runtime=inline can go on exactly; "
                "elsewhere a resumed run begins new episodes. Set env.exact=false"
            )
        if self.actor.envs_per_group > self.inference.max_batch:
            raise ValueError(
                f"actor.envs_per_group = {self.actor.envs_per_group} is larger than "
                f"inference.max_batch = {self.inference.max_batch}: a group must fit into one batch; "
                "raise inference.max_batch or lower actor.envs_per_group"
            )
        if self.inference.min_batch > self.inference.max_batch:
            raise ValueError(
                f"inference.min_batch = {self.inference.min_batch} is larger than "
                f"inference.max_batch = {self.inference.max_batch}; lower inference.min_batch"
            )
        if self.eval.every and self.eval_shape is None:
            raise ValueError(
                f"eval.envs = {self.eval.envs} cannot be split into at most {self.actor.groups} equal groups "
                f"of at most {self.actor.envs_per_group} (actor.groups, actor.envs_per_group); choose another"
                " eval.envs"
            )
        if self.actor.heartbeat_seconds >= self.inference.lease_seconds / 2:
            raise ValueError(
                f"actor.heartbeat_seconds = {self.actor.heartbeat_seconds:g} is not below half of "
                f"inference.lease_seconds = {self.inference.lease_seconds:g}: live actors would lose their "
                "leases; lower actor.heartbeat_seconds"
            )
        if self.rollout.max_envs is not None and self.rollout.max_envs < self.envs_per_actor:
            raise ValueError(
                f"rollout.max_envs = {self.rollout.max_envs} holds not even one actor's "
                f"{self.envs_per_actor} environments (actor.groups x actor.envs_per_group); raise it"
            )
        return self
