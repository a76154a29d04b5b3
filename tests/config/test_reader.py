"""YAML scalars mean what they look like, and every value knows its line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedflow.config.reader import read_yaml, write_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E6", 1e6),
        ("-.5", -0.5),
        ("1.", 1.0),
        ("1_000", 1000),
        ("010", 10),
        ("0x1f", 31),
        ("0o17", 15),
        (".inf", float("inf")),
        ("true", True),
        ("yes", "yes"),
        ("off", "off"),
        ("~", None),
        ("", None),
        ("1:30", "1:30"),
        ("2026-01-31", "2026-01-31"),
        ("'1'", "1"),
        ("1e5x", "1e5x"),
        ("[1, a]", [1, "a"]),
    ],
)
def test_scalars(text: str, value: Any) -> None:
    document = read_yaml(f"key: {text}")
    assert document.value == {"key": value}
    assert type(document.value["key"]) is type(value)


def test_lines_of_nested_values() -> None:
    document = read_yaml("a:\n  b: 1\n  c:\n    - x\n    - y\n")
    assert document.lines == {
        (): 1,
        ("a",): 1,
        ("a", "b"): 2,
        ("a", "c"): 3,
        ("a", "c", 0): 4,
        ("a", "c", 1): 5,
    }


def test_all_mistakes_are_listed() -> None:
    document = read_yaml("a: 1\na: 2\nb: {2: x}\nc: &c [*c]\nd: !!set {x}\n")
    assert [(mistake.path, mistake.line) for mistake in document.mistakes] == [
        (("a",), 2),
        (("b",), 3),
        (("c", 0), 4),
        (("d",), 5),
    ]


@pytest.mark.parametrize(
    "text", ["1e-4", "off", "010", "", "null", "2026-01-31", "1:30", "<<", "=", "- x", "#"]
)
def test_text_that_looks_like_something_else_is_quoted(text: str) -> None:
    assert read_yaml(write_yaml({"key": text})).value == {"key": text}


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12)


@given(st.dictionaries(st.text(max_size=8), SCALARS | st.lists(SCALARS, max_size=2), max_size=3))
def test_what_is_written_reads_back_equal(value: dict[str, Any]) -> None:
    assert read_yaml(write_yaml(value)).value == value
