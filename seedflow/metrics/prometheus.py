"""The metrics of a run for Prometheus, at one endpoint: that of the learner.

``steps/agent`` becomes ``seedflow_steps_agent_total`` and ``episode/return`` ``seedflow_episode_return``,
with the run's directory as the label ``run``. The page is made when it is asked for, from the newest record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from threading import Thread
from typing import Any

from seedflow.metrics.names import describe, prometheus_name
from seedflow.metrics.sinks import Sink


class PrometheusSink(Sink):
    """Serves the newest values by HTTP, to whoever reaches the address.

    Parameters
    ----------
    run
        Value of the label ``run``.
    host, port
        Where to listen; port 0: any free one.

    Attributes
    ----------
    url
        The page.

    Raises
    ------
    OSError
        If the port is taken.
    """

    def __init__(self, run: str, host: str, port: int) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self._values: Mapping[str, float] = {}
        self._run = run
        registry = CollectorRegistry()
        registry.register(self)  # anything with `collect` will do
        self._thread: Thread | None
        self._server, self._thread = start_http_server(port, host, registry)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_port}/metrics"

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._values = dict(values)

    def collect(self) -> Iterable[Any]:
        """What Prometheus asks for."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, value in self._values.items():
            known = describe(name)
            family = CounterMetricFamily if known and known.kind == "counter" else GaugeMetricFamily
            metric = family(prometheus_name(name), known.meaning if known else name, labels=["run"])
            metric.add_metric([self._run], float(value))
            yield metric

    def close(self) -> None:
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._thread = None
