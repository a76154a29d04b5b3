"""What the README tells people to type exists."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import seedflow
from seedflow.cli import cli
from seedflow.config import config_names, load_config

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
COMMANDS = [
    line.removeprefix("$ ")
    for language, block in BLOCKS
    if language == "console"
    for line in block.splitlines()
    if line.startswith("$ ")
]
SEEDFLOW = [
    shlex.split(command, comments=True)[1:] for command in COMMANDS if command.startswith("seedflow ")
]
PYTHON = [block for language, block in BLOCKS if language == "python"]


def test_the_readme_has_examples_of_each_kind() -> None:
    assert len(SEEDFLOW) >= 8
    assert len(PYTHON) >= 2


@pytest.mark.parametrize("arguments", SEEDFLOW, ids=" ".join)
def test_every_seedflow_command_has_the_options_that_are_shown(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli, [*arguments, "--help"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("Usage: ")


@pytest.mark.parametrize(
    "arguments", [a for a in SEEDFLOW if set(a) & set(config_names())], ids=lambda a: " ".join(a)
)
def test_every_configuration_and_setting_that_is_shown_exists(arguments: list[str]) -> None:
    name = next(argument for argument in arguments if argument in config_names())
    overrides = [argument for argument in arguments if "=" in argument and not argument.startswith("--")]
    if "train.learnig_rate=1" in overrides:
        result = CliRunner().invoke(cli, arguments)
        assert result.stderr in README
    else:
        load_config(name, overrides)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("make ")])
def test_every_make_target_exists(command: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{command.split()[1]}:", makefile, flags=re.MULTILINE)


@pytest.mark.parametrize("command", [c for c in COMMANDS if "dask " in c])
def test_every_dask_command_exists(command: str) -> None:
    import importlib.metadata

    words = [part.split()[1] for part in command.split("#")[0].split("&") if part.strip().startswith("dask ")]
    known = {entry.name for entry in importlib.metadata.entry_points(group="dask_cli")}
    assert words
    assert set(words) <= known


@pytest.mark.parametrize("source", PYTHON)
def test_every_python_example_uses_names_that_exist(source: str) -> None:
    tree = ast.parse(source)
    compile(tree, "README.md", "exec")
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "seedflow"
    }
    assert used
    assert used <= set(seedflow.__all__)


def test_every_command_is_mentioned() -> None:
    assert isinstance(cli, click.Group)
    shown = {arguments[0] for arguments in SEEDFLOW}
    assert shown == set(cli.commands)


def test_the_documents_that_the_readme_links_to_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target
