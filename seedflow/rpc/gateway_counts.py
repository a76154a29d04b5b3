"""What a gateway counts, and tells its learner every second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class GatewayCounts:
    """Streams of one gateway process.

    Attributes
    ----------
    streams, pending
        Open now; and those of them that have not registered yet.
    refused_token
        Streams that did not show the run's token.
    unregistered
        Streams that did not register in time, or came when too many others had not either.
    malformed
        Streams that ended for a message that is none, or that came out of turn.
    broken
        Streams that ended with their connection, or for a message that is too large.
    """

    streams: int = 0
    pending: int = 0
    refused_token: int = 0
    unregistered: int = 0
    malformed: int = 0
    broken: int = 0

    GAUGES = ("streams", "pending")

    def to_json(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> GatewayCounts:
        return cls(**{name: int(value[name]) for name in asdict(cls())})

    def __add__(self, other: GatewayCounts) -> GatewayCounts:
        """Counters of two gateways after one another; gauges are the second one's."""
        mine, its = asdict(self), asdict(other)
        return GatewayCounts(**{k: its[k] if k in self.GAUGES else mine[k] + its[k] for k in mine})

    def metrics(self) -> dict[str, float]:
        """All of it, by metric name."""
        return {f"gateway/{name}": value for name, value in asdict(self).items()}
