"""What each setting takes, in words: for error messages and for ``seedflow config schema``."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union

import annotated_types as at
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from seedflow.config.tree import Config


@dataclass(frozen=True)
class Setting:
    """One setting: its dotted key, what it takes, its default and what it is for.

    Attributes
    ----------
    variant
        The ``name`` of the section that has it, where sections of several names can stand in one place.
    """

    key: str
    takes: str
    default: Any
    description: str
    variant: str = ""


def settings(model: type[BaseModel] = Config, prefix: str = "", variant: str = "") -> Iterator[Setting]:
    """All settings below `model`, depth first in the order in which they are declared."""
    for name, field in model.model_fields.items():
        below = variants_of(field)
        for key, section in below.items():
            yield from settings(section, f"{prefix}{name}.", key)
        if not below:
            default = field.get_default(call_default_factory=True)
            yield Setting(f"{prefix}{name}", takes(field), default, field.description or "", variant)


def sections(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted name and one-line description of every section."""
    for name, title, _ in section_variants(model, prefix):
        yield name, title


def section_variants(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """As `sections`, with the variant of each, see `Setting`."""
    for name, field in model.model_fields.items():
        for key, below in variants_of(field).items():
            yield f"{prefix}{name}", (below.__doc__ or "").strip().splitlines()[0], key
            yield from section_variants(below, f"{prefix}{name}.")


FIXED = ("algo.name", "env.id", "network.activation", "network.frame_stack.padding")
"""Settings that what a run has learned belongs to, though no shape of an array shows it."""


def fixed_settings_changed(before: Config, after: Config) -> list[str]:
    """Those of `changed_settings` that a run cannot go on with."""
    return [
        change
        for change in changed_settings(before, after)
        if change.startswith(tuple(f"{key} " for key in FIXED))
    ]


def changed_settings(before: Config, after: Config) -> list[str]:
    """Each setting that differs: ``key = value (was value)``."""
    keys = dict.fromkeys(setting.key for setting in settings())
    old, new = (dict(_flat(c.model_dump(mode="json"), keys)) for c in (before, after))
    changes = []
    for key in keys:
        if key in new and key not in old:
            changes.append(f"{key} = {json.dumps(new[key])} (was not there)")
        elif key in new and old[key] != new[key]:
            changes.append(f"{key} = {json.dumps(new[key])} (was {json.dumps(old[key])})")
    return changes


def variants_of(field: FieldInfo) -> dict[str, type[BaseModel]]:
    """The models of a section by variant, the default first; none where `field` is a plain setting."""
    annotation = field.annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {"": annotation}
    if typing.get_origin(annotation) not in (Union, types.UnionType):
        return {}
    models = [
        typing.get_args(a)[0] if typing.get_origin(a) is Annotated else a for a in typing.get_args(annotation)
    ]
    if not all(isinstance(m, type) and issubclass(m, BaseModel) for m in models):
        return {}
    return {model.model_fields["name"].default: model for model in models}


def section_of(field: FieldInfo, values: Any = None) -> type[BaseModel] | None:
    """The model of a section that holds `values`, or None where `field` is a plain setting."""
    variants = variants_of(field)
    name = values.get("name") if isinstance(values, Mapping) else None
    return variants.get(name) if name in variants else next(iter(variants.values()), None)


def _flat(values: Mapping[str, Any], keys: Collection[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys of settings, and their values."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        if key in keys:
            yield key, value
        else:
            yield from _flat(value, keys, f"{key}.")


def takes(field: FieldInfo) -> str:
    """What a plain setting takes, for example ``a whole number, 1 or more``."""
    return _words(field.annotation, field.metadata)


def fits(field: FieldInfo, value: Any) -> bool:
    """Whether the *type* of `value` suits `field`; the bounds are pydantic's business.

    Pydantic would take ``true`` as the number 1 and ``"32"`` as 32. In a file that a person wrote such a
    value is a slip, and is refused.
    """
    return _fits(field.annotation, value)


def _fits(annotation: Any, value: Any) -> bool:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _fits(arguments[0], value)
    if origin in (Union, types.UnionType):
        return any(_fits(argument, value) for argument in arguments)
    if origin is Literal:
        return value in arguments
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return False
        items = arguments if arguments[-1] is not Ellipsis else arguments[:1] * len(value)
        return len(items) == len(value) and all(map(_fits, items, value))
    if annotation is None or annotation is type(None):
        return value is None
    if annotation is Any:
        return True
    if annotation is bool or isinstance(value, bool):
        return annotation is bool and isinstance(value, bool)
    if annotation is float:
        return isinstance(value, int | float)
    if annotation is int:
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if annotation is str:
        return isinstance(value, str)
    return isinstance(value, dict)


def _words(annotation: Any, metadata: list[Any] | tuple[Any, ...] = ()) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _words(arguments[0], arguments[1:])
    if origin in (Union, types.UnionType):
        return " or ".join(_words(argument) for argument in arguments)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}" if len(arguments) > 1 else str(arguments[0])
    if origin is tuple and arguments[-1] is Ellipsis:
        return f"a list, each item {_words(arguments[0])}"
    if origin is tuple:
        return f"a list of {len(arguments)}: {', '.join(map(_words, arguments))}"
    if origin is dict:
        return "a mapping"
    if annotation is int or annotation is float:
        return _number("a whole number" if annotation is int else "a number", annotation is int, metadata)
    plain = {str: "text", bool: "true or false", type(None): "null"}
    return plain.get(annotation, "any value")


def _number(noun: str, whole: bool, metadata: list[Any] | tuple[Any, ...]) -> str:
    low: float | None = None
    high: float | None = None
    above = False
    bounds = [bound for item in metadata for bound in getattr(item, "metadata", [item])]
    for bound in bounds:
        if isinstance(bound, at.Gt) and isinstance(bound.gt, int | float):
            low, above = (bound.gt + 1, False) if whole else (bound.gt, True)
        elif isinstance(bound, at.Ge) and isinstance(bound.ge, int | float):
            low = bound.ge
        elif isinstance(bound, at.Le) and isinstance(bound.le, int | float):
            high = bound.le
    if low is None:
        return noun
    if high is not None:
        return f"{noun} from {low:g} to {high:g}"
    return f"{noun} above {low:g}" if above else f"{noun}, {low:g} or more"
