"""Settings from Dask's own configuration, below ``seedflow:``.

A site can put there what holds for all runs, in a file in ``/etc/dask`` or ``~/.config/dask``, or in
variables such as ``DASK_SEEDFLOW__RPC__INTERFACE=ib0``. Whatever a run's configuration says comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import dask

from seedflow.config import Config, load_config
from seedflow.errors import ConfigError

SOURCE = "Dask's configuration, seedflow"


def with_dask_settings(config: Config) -> Config:
    """The config with what it leaves open filled in.

    Raises
    ------
    ConfigError
        Names the settings there that are wrong.

    Examples
    --------
    >>> with dask.config.set({"seedflow.rpc.interface": "ib0"}):
    ...     with_dask_settings(Config()).rpc.interface
    'ib0'
    """
    found = dask.config.get("seedflow", None)
    if not found:
        return config
    if not isinstance(found, Mapping):
        raise ConfigError(
            f"{SOURCE} = {found!r}: expected sections of settings, such as rpc: {{interface: ib0}}"
        )
    settings = dict(_leaves(found))
    load_config({}, settings, called=SOURCE)  # says what is wrong there
    own = config.model_dump(mode="json", exclude_unset=True)
    return load_config(
        own, {key: value for key, value in settings.items() if not _has(own, key)}, called=SOURCE
    )


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted settings; Dask writes ``-`` and ``_`` alike."""
    for name, value in values.items():
        key = prefix + str(name).replace("-", "_")
        if isinstance(value, Mapping) and value and key.count(".") == 0:
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def _has(values: Mapping[str, Any], key: str) -> bool:
    for part in key.split("."):
        if not isinstance(values, Mapping) or part not in values:
            return False
        values = values[part]
    return True
