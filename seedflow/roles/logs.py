"""What a role writes into its log."""

from __future__ import annotations

import logging

from seedflow.roles.messages import Message

LEVELS = ("debug", "info", "warning", "error")


def begin_log(start: Message) -> None:
    """Log to stderr, which is the role's log, from the level on that `metrics.log_level` says."""
    level = start.get("config", {}).get("metrics", {}).get("log_level")
    logging.basicConfig(
        level=(level if level in LEVELS else "info").upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
