"""Configurations from files, names and run directories, with overrides on top."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seedflow.config import (
    RUN_CONFIG,
    Config,
    R2D2Config,
    VTraceConfig,
    config_names,
    config_summary,
    dump_config,
    load_config,
    parse_config,
)
from seedflow.errors import ConfigError

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(text: str) -> Path:
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return path

    return write_file


def refusal(source: str | Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as raised:
        load_config(source, overrides)
    return str(raised.value)


@pytest.mark.parametrize("name", config_names())
def test_every_shipped_configuration_is_valid_and_says_what_it_is_for(name: str) -> None:
    assert isinstance(load_config(name), Config)
    assert len(config_summary(name)) > 20


def test_the_shipped_configurations() -> None:
    assert set(config_names()) >= {
        "cartpole_vtrace",
        "cartpole_masked_vtrace",
        "pong_vtrace",
        "synthetic_vtrace",
    }
    masked = load_config("cartpole_masked_vtrace")
    assert masked.env.wrappers == ({"select_observation": {"indices": [0, 2]}},)
    assert masked.network.core == "lstm"
    pong = load_config("pong_vtrace")
    assert (pong.env.id, pong.network.encoder, pong.network.frame_stack.depth) == (
        "ALE/Pong-v5",
        "shallow",
        4,
    )
    assert (pong.rpc.path, pong.algo.reward_clip) == ("grpc", 1.0)


def test_a_file_states_what_differs_from_the_defaults(write: Write) -> None:
    config = load_config(write("train: {batch: 7}\nrpc: {ports: [4000, 4010]}"))
    assert config.train.batch == 7
    assert config.rpc.ports == (4000, 4010)
    assert config.model_copy(update={"train": Config().train, "rpc": Config().rpc}) == Config()


def test_a_run_directory_stands_for_its_resolved_configuration(tmp_path: Path) -> None:
    config = load_config("cartpole_vtrace", ["seed=5"])
    (tmp_path / RUN_CONFIG).write_text(dump_config(config))
    assert load_config(tmp_path) == config


def test_a_shipped_name_wins_over_a_file_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pong_vtrace").write_text("seed: 99")
    assert load_config("pong_vtrace").seed != 99
    assert load_config("./pong_vtrace").seed == 99


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("train.learning_rate=1e-4", "train.learning_rate", 1e-4),
        ("train.total_agent_steps=2e6", "train.total_agent_steps", 2_000_000),
        ("train.total_agent_steps=2_000_000", "train.total_agent_steps", 2_000_000),
        ("train.clip_norm=null", "train.clip_norm", None),
        ("metrics.console=off", "metrics.console", "off"),
        ("metrics.tensorboard=false", "metrics.tensorboard", False),
        ("network.hidden=[32, 16]", "network.hidden", (32, 16)),
        ("network.frame_stack.depth=4", "network.frame_stack.depth", 4),
        ("env.kwargs.x=[1,2]", "env.kwargs", {"x": [1, 2]}),
        ("env.kwargs.deep.er=a=b", "env.kwargs", {"deep": {"er": "a=b"}}),
        ("env.kwargs={x: 1e-3}", "env.kwargs", {"x": 1e-3}),
        ("cluster.scheduler=tcp://10.0.0.1:8786", "cluster.scheduler", "tcp://10.0.0.1:8786"),
        (" seed = 3", "seed", 3),
    ],
)
def test_an_override_is_read_as_yaml(write: Write, override: str, key: str, value: Any) -> None:
    found: Any = load_config(write("{}"), [override])
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value
    assert type(found) is type(value)


def test_overrides_come_on_top_of_the_file_in_their_order(write: Write) -> None:
    config = load_config(
        write("env: {kwargs: {a: 1, b: 2}}\nseed: 1"), ["env.kwargs.b=3", "seed=2", "seed=3"]
    )
    assert config.env.kwargs == {"a": 1, "b": 3}
    assert config.seed == 3


def test_overrides_may_be_a_mapping_or_a_single_text(write: Write) -> None:
    path = write("{}")
    assert load_config(path, {"train.batch": 3, "network.inputs": ["previous_action"]}).train.batch == 3
    assert load_config(path, "train.batch=3").train.batch == 3


def test_a_misspelt_setting_is_refused_with_the_nearest_one(write: Write) -> None:
    assert refusal(write("{}"), "train.learnig_rate=1") == (
        "train.learnig_rate = 1 (override): no such setting; did you mean train.learning_rate?"
    )


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("trian.batch", "train.batch"),
        ("learning_rate", "train.learning_rate"),
        ("inference.batch", "inference.max_batch"),
        ("network.framestack.depth", "network.frame_stack.depth"),
        ("envs", "env"),
    ],
)
def test_suggestions_know_sections_and_settings(write: Write, written: str, meant: str) -> None:
    assert f"did you mean {meant}?" in refusal(write("{}"), f"{written}=1")


def test_where_nothing_is_near_the_section_is_listed(write: Write) -> None:
    assert refusal(write("{}"), "rpc.zzzzzzzzzzzzz=1").endswith(
        "no such setting; rpc has connect_seconds, interface, path, ports"
    )


def test_every_mistake_is_reported_with_its_place(write: Write) -> None:
    path = write("train:\n  batch: 0\n  learning_rate: fast\nnetwork:\n  encoder: cnn\n  hiden: [3]\n")
    assert refusal(path, "seed=-1", "foo", "rpc.ports=[1]").splitlines() == [
        f"override and {path}: 7 mistakes",
        "  'foo' (override): expected section.key=value",
        f'  train.learning_rate = "fast" ({path}, line 3): expected a number above 0',
        f'  network.encoder = "cnn" ({path}, line 5): expected one of mlp, nature, shallow',
        f"  network.hiden = [3] ({path}, line 6): no such setting; did you mean network.hidden?",
        "  rpc.ports = [1] (override): expected a list of 2: a whole number, 1 or more, "
        "a whole number, 1 or more or null",
        "  seed = -1 (override): expected a whole number, 0 or more",
        f"  train.batch = 0 ({path}, line 2): expected a whole number, 1 or more",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train: {batch: true}", "train.batch = true"),
        ("train: {batch: '32'}", 'train.batch = "32"'),
        ("train: {batch: 32.5}", "train.batch = 32.5"),
        ("metrics: {tensorboard: 1}", "expected true or false"),
        ("train: {clip_norm: .inf}", "train.clip_norm = Infinity"),
        ("env: {id: 5}", "env.id = 5"),
        ("env: {wrappers: [5]}", "env.wrappers = [5]"),
        ("env: {kwargs: [5]}", "expected a mapping"),
        ("seed:", "seed = null"),
        ("train:", "expected a section with some of the settings batch, total_agent_steps"),
        ("train: 3", "got the value 3"),
        ("train: [batch]", "got a list"),
        ("cluster: tcp://10.0.0.1:8786", "got the value 'tcp://10.0.0.1:8786'"),
        ("- train", "expected a section with some of the settings runtime"),
        ("3", "got the value 3"),
        ("", "is empty"),
        ("# only a remark", "is empty"),
        ("train: {batch: 1, batch: 2}", "line 1): is given twice"),
        ("train: {batch: 1", "is not valid YAML"),
        ("train:\n\tbatch: 1", "indent with spaces"),
        ("1: 2", "has the key 1, which is not text"),
        ("env: {kwargs: {a: !!python/name:os.system }}", "line 1): has the tag"),
        ("inference: {max_batch: 8}", "actor.envs_per_group = 16 is larger than inference.max_batch = 8"),
        ("rpc: {ports: [5, 4]}", "must be [low, high]"),
    ],
)
def test_a_wrong_file_is_refused_and_named(write: Write, text: str, said: str) -> None:
    path = write(text)
    message = refusal(path)
    assert said in message
    assert str(path) in message


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.batch", "'train.batch' (override): expected section.key=value"),
        ("=3", "expected section.key=value"),
        ("train..batch=3", "expected section.key=value"),
        ("train.batch.size=3", "train.batch has no parts; it takes a whole number"),
        ("env.wrappers.0=x", "env.wrappers has no parts"),
        ("train=3", "expected a section"),
        ("train.batch=", "train.batch = null (override)"),
        ("train.batch=[1", "'train.batch=[1' (override): the value is not valid YAML"),
        ("nothing.like.this=1", "the sections are env, actor"),
    ],
)
def test_a_wrong_override_is_refused_and_named(write: Write, override: str, said: str) -> None:
    assert said in refusal(write("{}"), override)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("replay.chunk=30", "burn_in = 40 is not a multiple of chunk = 30"),
        ("replay.period=50", "period = 50 is not a multiple of chunk = 40"),
        ("replay.capacity=100", "min_size = 5000 is larger than capacity = 100"),
        ("replay.priority_exponent=1.5", "replay.priority_exponent = 1.5"),
        ("replay.samples_per_insert=0", "replay.samples_per_insert = 0"),
        ("replay.on_damage=ignore", 'replay.on_damage = "ignore"'),
    ],
)
def test_a_replay_that_cannot_be_is_refused(write: Write, override: str, said: str) -> None:
    assert said in refusal(write("{}"), override)


def test_mistakes_of_overrides_alone_do_not_blame_the_file(write: Write) -> None:
    path = write("actor: {envs_per_group: 4}")
    assert refusal(path, "seed=-1", "foo").splitlines()[0] == "override: 2 mistakes"
    assert refusal(path, "inference.max_batch=2").startswith(
        f"override and {path}, line 1: actor.envs_per_group = 4 is larger than inference.max_batch = 2"
    )
    assert refusal(path, "inference.max_batch=2", "actor.envs_per_group=3").startswith(
        "override: actor.envs_per_group = 3 is larger than"
    )
    with pytest.raises(ConfigError, match=r"^seed = -1 \(command line\): "):
        load_config(path, ["seed=-1"], called="command line")


def test_a_config_or_a_mapping_is_a_source_as_well() -> None:
    config = load_config("cartpole_vtrace", ["seed=5"])
    assert load_config(config) == config
    assert load_config(config, {"train.batch": 3}).train.batch == 3
    assert load_config(config, ["cluster.scheduler=x"]).runtime == "cluster"
    values = {"env": {"kwargs": {"a": 1}}, "seed": 2}
    assert load_config(values, ["env.kwargs.b=3"]).env.kwargs == {"a": 1, "b": 3}
    assert values == {"env": {"kwargs": {"a": 1}}, "seed": 2}
    with pytest.raises(ConfigError, match=r"^train.bach = 1 \(the configuration\): .*train.batch\?"):
        load_config({"train": {"bach": 1}})


def test_an_override_into_a_broken_section_does_not_hide_the_break(write: Write) -> None:
    assert "env = 3" in refusal(write("env: 3"), "env.id=CartPole-v1")


@pytest.mark.parametrize("key", ["cluster.scheduler", "cluster.scheduler_file"])
def test_a_scheduler_that_is_named_is_used(write: Write, key: str) -> None:
    assert load_config(write("{}"), [f"{key}=x"]).runtime == "cluster"
    assert load_config(write("{}"), [f"{key}=null"]).runtime == "local"
    section, _, name = key.partition(".")
    assert load_config(write(f"{section}: {{{name}: x}}")).runtime == "cluster"
    assert load_config(write("runtime: local"), [f"{key}=x", "runtime=cluster"]).runtime == "cluster"


@pytest.mark.parametrize("runtime", ["local", "inline"])
def test_a_scheduler_beside_another_runtime_is_refused(write: Write, runtime: str) -> None:
    message = refusal(write(f"runtime: {runtime}"), "cluster.scheduler=tcp://10.0.0.1:8786")
    assert (
        f"cluster.scheduler = 'tcp://10.0.0.1:8786' names a Dask cluster, but runtime = '{runtime}'"
        in message
    )
    assert "set runtime=cluster to run there, or cluster.scheduler=null to run here" in message


def test_an_unknown_name_lists_the_shipped_ones() -> None:
    message = refusal("cartpol_vtrace")
    assert "did you mean cartpole_vtrace?" in message
    assert all(name in message for name in config_names())


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "missing.yaml")
    assert "give its name alone" in refusal("elsewhere/pong_vtrace.yaml")
    assert f"without {RUN_CONFIG}" in refusal(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in refusal(binary)


def test_parse_config_names_its_source() -> None:
    assert parse_config({"seed": 4}).seed == 4
    with pytest.raises(ConfigError, match=r"seeds = 4 \(start message\): no such setting"):
        parse_config({"seeds": 4}, "start message")


def test_what_is_dumped_reads_back_equal(tmp_path: Path) -> None:
    kwargs = {
        "rate": 1e-05,
        "text": "1e-5",
        "none": None,
        "nested": {"list": [1, float("inf"), "off", "é\x85\r\n"]},
    }
    config = parse_config(
        {"env": {"kwargs": kwargs}, "train": {"learning_rate": 3e-12}, "rpc": {"ports": [1, 2]}}
    )
    path = tmp_path / "dumped.yaml"
    path.write_text(dump_config(config), encoding="utf-8")
    assert load_config(path) == config


def test_the_name_says_whose_settings_the_section_of_the_algorithm_has() -> None:
    assert load_config({"algo": {"name": "r2d2", "n_step": 3}}).algo == R2D2Config(n_step=3)
    assert load_config({}, ["algo.name=r2d2", "algo.n_step=3"]).algo == R2D2Config(n_step=3)
    assert isinstance(load_config({"algo": {"discount": 0.9}}).algo, VTraceConfig)
    for override, message in (
        ("algo.n_step=3", "algo.n_step = 3 (override): algo.name = 'vtrace' has no such setting, r2d2 has"),
        ("algo.name=dqn", 'algo.name = "dqn" (override): expected one of vtrace, r2d2'),
        ("algo.rho_br=3", "algo.rho_br = 3 (override): no such setting; did you mean algo.rho_bar?"),
    ):
        with pytest.raises(ConfigError) as caught:
            load_config({}, [override])
        assert str(caught.value) == message
    with pytest.raises(ConfigError, match=r"^algo.discount = 2 .*: expected a number from 0 to 1$"):
        load_config({"algo": {"name": "r2d2", "discount": 2}})
