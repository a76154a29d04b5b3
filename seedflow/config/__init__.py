"""Every setting of every part: one typed tree, YAML files and dotted overrides."""

from seedflow.config.describe import changed_settings
from seedflow.config.load import (
    RUN_CONFIG,
    config_names,
    config_summary,
    dump_config,
    load_config,
    parse_config,
)
from seedflow.config.tree import (
    ActorConfig,
    CheckpointConfig,
    ClusterConfig,
    Config,
    EnvConfig,
    EvalConfig,
    FrameStackConfig,
    InferenceConfig,
    MetricsConfig,
    NetworkConfig,
    ReplayConfig,
    RolloutConfig,
    RpcConfig,
    TrainConfig,
    VTraceConfig,
)

__all__ = [
    "RUN_CONFIG",
    "ActorConfig",
    "CheckpointConfig",
    "ClusterConfig",
    "Config",
    "EnvConfig",
    "EvalConfig",
    "FrameStackConfig",
    "InferenceConfig",
    "MetricsConfig",
    "NetworkConfig",
    "ReplayConfig",
    "RolloutConfig",
    "RpcConfig",
    "TrainConfig",
    "VTraceConfig",
    "changed_settings",
    "config_names",
    "config_summary",
    "dump_config",
    "load_config",
    "parse_config",
]
