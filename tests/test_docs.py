"""The pages in docs/ say what the code says."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import dask
import pytest
import yaml
from click.testing import CliRunner

import seedflow
from seedflow.cli import cli
from seedflow.cluster.dask_settings import with_dask_settings
from seedflow.config import Config, config_names, load_config
from seedflow.config.describe import sections, settings
from seedflow.envs.atari import SEED_DEFAULTS
from seedflow.envs.synthetic import SyntheticSettings
from seedflow.envs.wrappers import load_env_wrapper, parse_wrappers
from seedflow.metrics import read_metrics
from seedflow.metrics.names import METRICS, describe

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *DOCS.glob("*.md")]}
CODE = {
    page: re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
    for page, text in PAGES.items()
}
BLOCKS = [
    (page, language, block)
    for page, text in PAGES.items()
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
]
SETTINGS = {setting.key for setting in settings()} | {name for name, _ in sections()}
COMMANDS = [
    (page, shlex.split(match[1], comments=True))
    for page, language, block in BLOCKS
    if language == "console" and page != "README.md"  # tests/test_readme.py has those
    for line in block.splitlines()
    if (match := re.match(r"\$ (?:[A-Z_]+=\S+ )?seedflow (.*)", line))
]


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["configuration.md", "metrics.md"])
def test_the_tables_are_those_of_the_code(page: str) -> None:
    regenerated = load_generator().regenerated(page, PAGES[page])
    assert PAGES[page] == regenerated, "run `python docs/generate.py`"


@pytest.mark.parametrize("page", PAGES)
def test_every_setting_that_is_named_exists(page: str) -> None:
    roots = {name.partition(".")[0] for name, _ in sections()}
    for code in CODE[page]:
        match = re.fullmatch(r"([a-z_]+(?:\.[a-z_]+)+)([=:].*)?", code)
        if match and match[1].partition(".")[0] in roots and not match[1].startswith("env.kwargs."):
            assert match[1] in SETTINGS or match[1].endswith((".yaml", ".jsonl", ".md")), code


@pytest.mark.parametrize("page", PAGES)
def test_every_module_and_name_of_seedflow_exists(page: str) -> None:
    for code in CODE[page]:
        match = re.search(r"\bseedflow((?:\.[A-Za-z_0-9]+)+)", code)
        if match and not code.startswith("pip "):
            owner, _, name = f"seedflow{match[1]}".rpartition(".")
            place = ROOT / owner.replace(".", "/") / name
            exists = place.is_dir() or place.with_suffix(".py").is_file()
            exists = exists or (owner == "seedflow" and name in seedflow.__all__)
            assert exists or hasattr(importlib.import_module(owner), name), code


@pytest.mark.parametrize("page", PAGES)
def test_every_metric_that_is_named_is_reported(page: str) -> None:
    groups = {metric.name.partition("/")[0] for metric in METRICS}
    for code in CODE[page]:
        match = re.fullmatch(r"([a-z]+)/[a-z_]+", code)
        if match and match[1] in groups:
            assert describe(code) is not None, code


def test_every_metric_of_a_fault_stands_on_the_page_about_faults() -> None:
    kinds = ("lease/dropped_", "lease/refused_", "control/", "gateway/", "actor/", "env/")
    faults = {metric.name for metric in METRICS if metric.name.startswith(kinds)}
    assert faults <= set(CODE["faults.md"])
    assert len(faults) > 20


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    place = (ROOT if page == "README.md" else DOCS) / page
    for target in re.findall(r"\]\(([^)]+)\)", PAGES[page]):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = (place.parent / name).resolve() if name else place
        assert file.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor in {title.lower().replace(" ", "-") for title in titles}, target


@pytest.mark.parametrize(("page", "arguments"), COMMANDS, ids=lambda value: str(value))
def test_every_command_has_the_options_that_are_shown(page: str, arguments: list[str]) -> None:
    result = CliRunner().invoke(cli, [*arguments, "--help"])
    assert result.exit_code == 0, result.output
    for argument in arguments:
        key = argument.partition("=")[0]
        assert "=" not in argument or key.startswith(("-", "env.kwargs.")) or key in SETTINGS, argument
    named = next((a for a in arguments if a.endswith("_vtrace")), None)
    assert named is None or named in config_names()


@pytest.mark.parametrize("source", [block for _, language, block in BLOCKS if language == "python"])
def test_every_python_example_uses_names_that_exist(source: str) -> None:
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "seedflow"
        ):
            assert node.attr in seedflow.__all__
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("seedflow"):
            module = importlib.import_module(str(node.module))
            assert all(hasattr(module, alias.name) for alias in node.names)


@pytest.mark.parametrize("text", [block for _, language, block in BLOCKS if language == "yaml"])
def test_every_yaml_example_is_a_configuration(text: str, tmp_path: Path) -> None:
    path = tmp_path / "example.yaml"
    path.write_text(text)
    values = yaml.safe_load(text)
    if set(values) == {"seedflow"}:  # a part of Dask's configuration
        with dask.config.set(values):
            assert with_dask_settings(Config()) != Config()
        return
    config = load_config(path)
    per_env, _ = parse_wrappers(config.env.wrappers)
    for call in per_env:
        load_env_wrapper(call)


def test_the_defaults_of_atari_are_listed() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", PAGES["environments.md"], flags=re.MULTILINE))
    for name, value in SEED_DEFAULTS.items():
        if name != "num_threads":  # how it runs, not what it means
            assert yaml.safe_load(rows[name]) == value, name


def test_the_settings_of_the_synthetic_environment_are_listed() -> None:
    section = PAGES["environments.md"].partition("## The synthetic environment")[2]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, flags=re.MULTILINE))
    assert rows.keys() == SyntheticSettings.model_fields.keys()
    assert SyntheticSettings.parse({k: yaml.safe_load(v) for k, v in rows.items()}) == SyntheticSettings()


@pytest.mark.timeout(300)
def test_every_metric_of_a_run_is_documented(tmp_path: Path) -> None:
    config = seedflow.load_config(
        "cartpole_vtrace",
        {
            "runtime": "inline",
            "actor.envs_per_group": 4,
            "rollout.unroll": 4,
            "train.batch": 4,
            "train.total_agent_steps": 2000,
            "eval.every": 200,
            "eval.episodes": 2,
            "eval.envs": 2,
            "metrics.console": "off",
            "metrics.tensorboard": False,
            "metrics.every_seconds": 0.02,  # rates need two records, on the fastest machine, too
        },
    )
    seedflow.train(config, run_dir=tmp_path / "run")
    reported = {name for record in read_metrics(tmp_path / "run") for name in record} - {"step", "time"}
    rows = {row for name in reported if (row := describe(name)) is not None}
    assert {name for name in reported if describe(name) is None} == set()
    # Written only where there are sockets, a gateway or threads, and by algorithms with a replay.
    missing = {metric.name for metric in METRICS} - {row.name for row in rows}
    elsewhere = ("control/", "cpu/", "gateway/", "learner/", "replay/")
    assert {name for name in missing if not name.startswith(elsewhere)} == set()
    listed = {code for code in CODE["metrics.md"] if code.startswith("loss/")} - {"loss/*"}
    assert listed == {name for name in reported if name.startswith("loss/")}
