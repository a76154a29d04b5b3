"""Suites of environments that register their ids when they are asked to: MinAtar and POPGym."""

from __future__ import annotations

import importlib
from typing import NamedTuple

from seedflow.errors import ConfigError


class _Suite(NamedTuple):
    prefix: str  # of its ids
    module: str
    register: str | None  # a function of the module; None: importing it registers
    extra: str


SUITES = (
    _Suite("MinAtar/", "minatar.gym", "register_envs", "minatar"),
    _Suite("popgym-", "popgym", None, "popgym"),
)


def register_suite(env_id: str) -> None:
    """Make the suite of an id known to Gymnasium, if it is one of these.

    Raises
    ------
    ConfigError
        If its package is not installed.
    """
    suite = next((suite for suite in SUITES if env_id.startswith(suite.prefix)), None)
    if suite is None:
        return
    try:
        module = importlib.import_module(suite.module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"env.id = {env_id!r} needs a package that is not installed ({error}); install it with "
            f"pip install 'seedflow[{suite.extra}]'"
        ) from error
    if suite.register is not None:
        getattr(module, suite.register)()
