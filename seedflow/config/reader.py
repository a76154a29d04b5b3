"""Reading and writing YAML so that a setting means what it looks like.

PyYAML implements YAML 1.1, in which ``1e-4`` is text, ``off`` is false, ``010`` is eight and a key given
twice silently wins. Here scalars follow the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema),
with ``_`` allowed between digits, and a key given twice is a mistake. Each value's place is kept, so that
a mistake found later can be reported with its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

Path = tuple[str | int, ...]
"""Keys and list positions from the root of a document to one of its values."""

_TAG = "tag:yaml.org,2002:"
# Type, what its text looks like, the characters that it can begin with (PyYAML's index; "" if empty).
_SCALARS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("int", r"[-+]?[0-9][0-9_]*|0o[0-7_]+|0x[0-9a-fA-F_]+", [*"-+0123456789"]),
    (
        "float",
        r"[-+]?(?:\.[0-9][0-9_]*|[0-9][0-9_]*\.[0-9_]*)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        [*"-+.0123456789"],
    ),
)


class _Loader(yaml.SafeLoader):  # type: ignore[misc] # PyYAML has no types
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's

    def construct_core_int(self, node: yaml.ScalarNode) -> int:
        text = str(node.value).replace("_", "")
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        return int(text[2:] if base != 10 else text, base)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Quotes text that YAML 1.1 *or* the loader above would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_PATTERNS = {f"{_TAG}{name}": re.compile(f"^(?:{pattern})$") for name, pattern, _ in _SCALARS}
for _name, _, _first in _SCALARS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"{_TAG}{_name}", _PATTERNS[f"{_TAG}{_name}"], _first)
_Loader.add_constructor(f"{_TAG}int", _Loader.construct_core_int)


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong with a document, at `path`; `line` counts from 1."""

    path: Path
    line: int
    text: str


@dataclass
class Document:
    """A parsed document: its value, the line of each value in it, and what is wrong with it."""

    value: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)


def read_yaml(text: str) -> Document:
    """Parse `text`; whatever is wrong is listed in the result's `mistakes`, nothing is raised."""
    document = Document()
    try:
        node = yaml.compose(text, _Loader)
        if node is None:
            return document
        document.mistakes.extend(_inspect(node, (), document.lines, []))
        if not document.mistakes:
            document.value = _Loader("").construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(part for part in (error.context, error.problem) if part)
        hint = "; indent with spaces" if "'\\t'" in problem else ""
        line = mark.line + 1 if mark else 1
        document.mistakes.append(Mistake((), line, f"is not valid YAML: {problem}{hint}"))
    except yaml.YAMLError as error:
        document.mistakes.append(Mistake((), 1, f"is not valid YAML: {error}"))
    return document


def write_yaml(value: Any) -> str:
    """Plain values (mappings, lists, numbers, text, booleans, None) as YAML that `read_yaml` reads back."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=100)
    return text


def _inspect(
    node: yaml.Node, path: Path, lines: dict[Path, int], above: list[yaml.Node]
) -> Iterator[Mistake]:
    """Record the line of every value below `node`; yield repeated keys, keys that are no text, and loops."""
    line = node.start_mark.line + 1
    lines.setdefault(path, line)
    if any(node is parent for parent in above):
        yield Mistake(path, line, "refers to itself; write the value out")
    elif node.tag in _PATTERNS:
        if not (isinstance(node, yaml.ScalarNode) and _PATTERNS[node.tag].match(node.value)):
            yield Mistake(path, line, f"is tagged !!{node.tag.removeprefix(_TAG)} and does not look like it")
    elif node.tag not in (f"{_TAG}str", f"{_TAG}map", f"{_TAG}seq"):
        yield Mistake(path, line, f"has the tag {node.tag}, which is not supported; write a plain value")
    elif isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            key_line = key.start_mark.line + 1
            if key.tag != f"{_TAG}str":
                shown = key.value if isinstance(key, yaml.ScalarNode) else "a collection"
                yield Mistake(path, key_line, f"has the key {shown}, which is not text; put it in quotes")
                continue
            child = (*path, str(key.value))
            if key.value in seen:
                yield Mistake(child, key_line, f"is given twice, first on line {seen[key.value]}; keep one")
            seen[key.value] = key_line
            lines[child] = key_line
            yield from _inspect(value, child, lines, [*above, node])
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _inspect(item, (*path, index), lines, [*above, node])
