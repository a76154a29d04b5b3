"""From files and dotted overrides to a checked `Config`, and back."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from seedflow.config import reader
from seedflow.config.describe import fits, section_of, sections, settings, takes, variants_of
from seedflow.config.tree import Config
from seedflow.errors import ConfigError

RUN_CONFIG = "config.yaml"
"""The file of a run directory that holds the run's resolved configuration."""


def config_names() -> tuple[str, ...]:
    """Names of the configurations that come with seedflow."""
    return tuple(sorted(path.stem for path in _shipped().glob("*.yaml")))


def config_summary(name: str) -> str:
    """The first line of a shipped configuration, which says what it is for."""
    first, *_ = _read(_shipped() / f"{name}.yaml").splitlines()
    return first.lstrip("# ")


def load_config(
    source: str | Path | Config | Mapping[str, Any],
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    called: str = "override",
) -> Config:
    """Read a configuration.

    Parameters
    ----------
    source
        The name of a shipped configuration, a YAML file, or the directory of a run. A shipped name wins
        over a file of the same name; write ``./name`` for the latter. Or a `Config`, or a mapping as a
        file would hold it.
    overrides
        Texts ``section.key=value`` with the value in YAML, or a mapping from dotted keys to values. They
        are applied in order. A list or mapping replaces the whole value; one entry of ``env.kwargs`` is
        set by ``env.kwargs.name=value``.
    called
        How messages call the place where the overrides were written.

    Raises
    ------
    ConfigError
        With every mistake found: the key, its value, where it stands, what was expected.

    Examples
    --------
    >>> load_config("cartpole_vtrace", ["train.learning_rate=1e-4"]).train.learning_rate
    0.0001
    """
    if isinstance(source, str | Path):
        draft, readable = _draft_of(_find(source))
    else:
        values = source.model_dump(mode="json", exclude_unset=True) if isinstance(source, Config) else source
        draft, readable = _Draft("the configuration", _plain(values)), True
    for key, value in _pairs(overrides, draft, called):
        draft.set(key, value, called)
    return draft.finish(readable)


def _draft_of(path: Path) -> tuple[_Draft, bool]:
    """What a file says, and whether it could be read at all."""
    document = reader.read_yaml(_read(path))
    draft = _Draft(str(path))
    for mistake in document.mistakes:
        line = f"line {mistake.line}"
        if mistake.path:
            draft.note(_dotted(mistake.path), f"{path}, {line}", mistake.text)
        else:
            draft.note(str(path), line, mistake.text)
    if document.value is None and not document.mistakes:
        draft.note(
            str(path), "", "is empty; write settings as `section:` and `key: value`, or {} for all defaults"
        )
    draft.values = document.value if document.value is not None else {}
    draft.places = {place: f"{path}, line {line}" for place, line in document.lines.items()}
    return draft, document.value is not None


def parse_config(values: Mapping[str, Any], source: str = "the configuration") -> Config:
    """Check nested values such as ``config.model_dump(mode="json")``; `source` names them in errors."""
    return _Draft(source, values).finish()


def dump_config(config: Config) -> str:
    """All settings as YAML, which `load_config` reads back to an equal `Config`."""
    return reader.write_yaml(config.model_dump(mode="json"))


class _Draft:
    """Values on their way to a `Config`, the place where each was written, and the mistakes found so far."""

    def __init__(self, source: str, values: Any = None) -> None:
        self.source = source
        self.values: Any = {} if values is None else values
        self.places: dict[reader.Path, str] = {}
        self.mistakes: list[str] = []
        self._sources: list[str] = []  # of the mistakes: where to look for them, without lines

    def note(self, what: str, place: str, text: str) -> None:
        """Record a mistake as one line."""
        self.mistakes.append(f"{what} ({place}): {text}" if place else f"{what}: {text}")
        elsewhere = place and what != self.source and not place.startswith(self.source)
        self._sources.append(place if elsewhere else self.source)

    def set(self, key: str, value: Any, place: str) -> None:
        """Apply one override."""
        parts = tuple(key.split("."))
        models: list[type[BaseModel]] = [Config]
        for depth, part in enumerate(parts):
            field = next((m.model_fields[part] for m in models if part in m.model_fields), None)
            if models and field is None:
                return self.note(_shown(key, value), place, _unknown(key))
            models = list(variants_of(field).values()) if field else []
            if field and not models:
                if depth < len(parts) - 1 and not fits(field, {}):
                    owner = ".".join(parts[: depth + 1])
                    return self.note(
                        _shown(key, value), place, f"{owner} has no parts; it takes {takes(field)}"
                    )
                break
        target = self.values
        for part in parts[:-1]:
            if not isinstance(target, dict):
                return None  # the value in the way is a mistake of its own, which `finish` finds
            target = target.setdefault(part, {})
        if isinstance(target, dict):
            target[parts[-1]] = value
            self.places = {at: p for at, p in self.places.items() if at[: len(parts)] != parts}
            self.places[parts] = place
        return None

    def finish(self, readable: bool = True) -> Config:
        """Check everything; raise one `ConfigError` with all mistakes."""
        config: Config | None = None
        if readable:
            found = dict(self._wrong_types(self.values, Config, ()))
            try:
                config = Config.model_validate(self.values)
            except ValidationError as error:
                for path, text in _explain(error, self.values):
                    if not any(path[: len(seen)] == seen for seen in found if seen or not path):
                        found[path] = text
            for path, text in found.items():
                if path:
                    self.note(*self._locate(path), text)
                else:
                    self.mistakes.append(f"{' and '.join(self._places_named(text)) or self.source}: {text}")
        if self.mistakes:
            where = " and ".join(dict.fromkeys(self._sources)) or self.source
            several = f"{where}: {len(self.mistakes)} mistakes\n  "
            raise ConfigError((several if len(self.mistakes) > 1 else "") + "\n  ".join(self.mistakes))
        assert config is not None
        return config

    def _locate(self, path: reader.Path) -> tuple[str, str]:
        """What is wrong ("key = value") and where it was written."""
        place = next(
            (self.places[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.places), self.source
        )
        value = self.values
        for part in path:
            value = value[part]
        return _shown(_dotted(path), value), place

    def _places_named(self, text: str) -> list[str]:
        """Where the settings of which `text` speaks were written, those of overrides first."""
        known = {setting.key for setting in settings()}
        written = {key: place for path, place in self.places.items() if (key := _dotted(path)) in known}
        named = (
            place
            for key, place in written.items()
            if re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", text)
        )
        return sorted(dict.fromkeys(named), key=lambda place: place.startswith(self.source))

    def _wrong_types(
        self, values: Any, model: type[BaseModel], path: reader.Path
    ) -> Iterator[tuple[reader.Path, str]]:
        if not isinstance(values, Mapping):
            known = ", ".join(model.model_fields)
            yield path, f"expected a section with some of the settings {known}; got {_kind(values)}"
            return
        for key, value in values.items():
            here = (*path, key)
            field = model.model_fields.get(key)
            section = section_of(field, value) if field else None
            if field is None:
                yield here, _unknown(_dotted(here), model)
            elif section is not None:
                yield from self._wrong_types(value, section, here)
                names = tuple(variants_of(field))
                if len(names) > 1 and isinstance(value, Mapping) and value.get("name", names[0]) not in names:
                    yield (*here, "name"), f"expected one of {', '.join(names)}"
            elif not fits(field, value):
                yield here, f"expected {takes(field)}"


def _explain(error: ValidationError, values: Any) -> Iterator[tuple[reader.Path, str]]:
    """Paths and texts of pydantic's findings, in the words of this package."""
    whole = values
    for item in error.errors():
        values = whole
        if item["type"] == "extra_forbidden":
            continue  # found before, with the nearest key
        path: list[str | int] = []
        model: type[BaseModel] | None = Config
        field: FieldInfo | None = None
        for part in item["loc"]:
            if field is not None and model is not None and part in variants_of(field):
                continue  # which variant of the section it is
            # What follows a plain setting says where inside its value, or which branch of a union failed.
            field = model.model_fields.get(str(part)) if model else None
            if model is None or field is None:
                break
            path.append(part)
            values = values.get(part) if isinstance(values, Mapping) else None
            model = section_of(field, values)
        if item["type"] == "value_error":
            yield tuple(path), str(item["ctx"]["error"])
        elif model is None and field is not None:
            yield tuple(path), f"expected {takes(field)}"
        else:
            yield tuple(path), item["msg"]


def _pairs(
    overrides: Sequence[str] | Mapping[str, Any], draft: _Draft, called: str
) -> Iterator[tuple[str, Any]]:
    """Key and value of each override that can be read; the others are noted in `draft`."""
    if isinstance(overrides, Mapping):
        yield from overrides.items()
        return
    for text in [overrides] if isinstance(overrides, str) else overrides:
        key, equals, value_text = text.partition("=")
        if not equals or not all(key.strip().split(".")):
            draft.note(repr(text), called, "expected section.key=value")
            continue
        document = reader.read_yaml(value_text)
        for mistake in document.mistakes:
            draft.note(repr(text), called, f"the value {mistake.text}")
        if not document.mistakes:
            yield key.strip(), document.value


def _unknown(key: str, model: type[BaseModel] | None = None) -> str:
    """Why `key` is refused, with the nearest key that exists; `model` is the section that lacks it."""
    listed = list(settings())
    if model is not None and (own := model.model_fields.get("name")) is not None:
        owner, others = key.rpartition(".")[0], {s.variant for s in listed if s.key == key}
        if others:
            return f"{owner}.name = {own.default!r} has no such setting, {' and '.join(sorted(others))} has"
        listed = [s for s in listed if not s.key.startswith(f"{owner}.") or s.variant == own.default]
    known = {setting.key for setting in listed} | {name for name, _ in sections()}

    def likeness(other: str) -> float:
        whole = difflib.SequenceMatcher(None, key, other).ratio()
        return max(whole, 0.85 if key.rpartition(".")[2] == other.rpartition(".")[2] else 0.0)

    best = max(sorted(known), key=likeness)
    if likeness(best) >= 0.7:
        return f"no such setting; did you mean {best}?"
    owner = key.rpartition(".")[0]
    siblings = [name.removeprefix(f"{owner}.") for name in sorted(known) if name.rpartition(".")[0] == owner]
    if siblings and owner:
        return f"no such setting; {owner} has {', '.join(siblings)}"
    return f"no such setting; the sections are {', '.join(name for name, _ in sections())}"


def _find(source: str | Path) -> Path:
    names = config_names()
    if isinstance(source, str) and source in names:
        return _shipped() / f"{source}.yaml"
    path = Path(source).expanduser()
    if path.is_dir():
        if not (path / RUN_CONFIG).is_file():
            raise ConfigError(f"{path} is a directory without {RUN_CONFIG}: expected the directory of a run")
        return path / RUN_CONFIG
    if path.exists():
        return path
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        known = f"; {path.stem} is a shipped configuration, give its name alone" if path.stem in names else ""
        raise ConfigError(f"{path}: no such file or directory{known}")
    near = difflib.get_close_matches(str(source), names, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ConfigError(
        f"{str(source)!r} is neither a file nor a shipped configuration; {hint}shipped are {', '.join(names)}"
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _shipped() -> Path:
    """Directory of the shipped configurations: inside an installed package, or configs/ of a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_configs"
    return installed if installed.is_dir() else package.parent / "configs"


def _plain(value: Any) -> Any:
    """Mappings as dicts of their own, at every depth."""
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _dotted(path: reader.Path) -> str:
    return ".".join(map(str, path))


def _shown(key: str, value: Any) -> str:
    text = json.dumps(value, default=repr, ensure_ascii=False)
    return f"{key} = {text if len(text) <= 60 else text[:57] + '...'}"


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    return "a list" if isinstance(value, list | tuple) else f"the value {value!r}"
