"""Every setting of every part: one typed tree, YAML files and dotted overrides."""

from seedflow.config.algo import R2D2Config, VTraceConfig
from seedflow.config.describe import changed_settings, fixed_settings_changed
from seedflow.config.load import (
    RUN_CONFIG,
    config_names,
    config_summary,
    dump_config,
    load_config,
    parse_config,
)
from seedflow.config.network import FrameStackConfig, NetworkConfig
from seedflow.config.replay import ReplayConfig
from seedflow.config.tree import (
    ActorConfig,
    CheckpointConfig,
    ClusterConfig,
    Config,
    EnvConfig,
    EvalConfig,
    InferenceConfig,
    LearnerConfig,
    MetricsConfig,
    RolloutConfig,
    RpcConfig,
    TrainConfig,
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
    "LearnerConfig",
    "MetricsConfig",
    "NetworkConfig",
    "R2D2Config",
    "ReplayConfig",
    "RolloutConfig",
    "RpcConfig",
    "TrainConfig",
    "VTraceConfig",
    "changed_settings",
    "config_names",
    "config_summary",
    "dump_config",
    "fixed_settings_changed",
    "load_config",
    "parse_config",
]
