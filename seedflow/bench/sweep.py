"""One learner with more and more environments: ``seedflow bench sweep``.

Each size is an ordinary run of the synthetic configuration, whose environments and network cost what Atari's
do, with eight environments an actor process where there are that many. A learner that is overrun shows it
here: its rate falls, its batches stay small, or its answers come late.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seedflow.bench.measure import Figures, alternate, machine
from seedflow.bench.train import Workload, measure

SHOWN = ("steps_per_second", "bound_steps_per_second", "latency_ms_p50", "latency_ms_p99", "envs_per_batch")


@dataclass(frozen=True)
class Size:
    """Environments of one run.

    Attributes
    ----------
    actors, groups, envs
        Actor processes, groups of each, environments of each group.
    """

    actors: int
    groups: int
    envs: int

    @property
    def total(self) -> int:
        return self.actors * self.groups * self.envs

    @property
    def workload(self) -> Workload:
        """The run that has them."""
        overrides = (
            f"actor.count={self.actors}",
            f"actor.groups={self.groups}",
            f"actor.envs_per_group={self.envs}",
            f"inference.max_batch={max(64, self.total)}",
            "cluster.local_workers=2",
        )
        return Workload(f"{self.total} envs", "synthetic_vtrace", overrides)


SIZES = (
    Size(1, 1, 1),
    Size(1, 2, 1),
    Size(1, 2, 2),
    Size(1, 2, 4),
    Size(2, 2, 4),
    Size(4, 2, 4),
    Size(8, 2, 4),
    Size(16, 2, 4),
    Size(32, 2, 4),
)


def bench_sweep(rounds: int = 3, seconds: float = 10.0, sizes: tuple[Size, ...] = SIZES) -> dict[str, Any]:
    """Measure every size; returns a JSON-able report.

    The `bound` of a size is the rate at which this machine's cores could step and train if the CPU time of an
    agent step were that of the bare environment and the bare network (`seedflow.bench.bound`).
    """

    def run(size: Size) -> Figures:
        figures = measure(size.workload, seconds)
        bound = figures["steps_per_second"] / figures["share_of_bound_wall"]
        return figures | {"bound_steps_per_second": bound}

    medians = alternate({size.workload.name: lambda size=size: run(size) for size in sizes}, rounds)  # type: ignore[misc]
    best = max(figures["steps_per_second"] for figures in medians.values())
    for size in sizes:
        figures = medians[size.workload.name]
        figures["share_of_best"] = figures["steps_per_second"] / best
        figures |= {"envs": float(size.total), "actors": float(size.actors)}
    return {"machine": machine(), "rounds": rounds, "seconds": seconds, "sizes": medians}


def markdown(report: dict[str, Any]) -> str:
    """The report's sizes as a table."""
    lines = [
        "| environments | actors | steps/s | bound | share of the best | latency ms, median | 99% | batch |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for f in report["sizes"].values():
        rate, bound, p50, p99, batch = (f[name] for name in SHOWN)
        lines.append(
            f"| {f['envs']:.0f} | {f['actors']:.0f} | {rate:,.0f} | {bound:,.0f} | {f['share_of_best']:.2f} "
            f"| {p50:.1f} | {p99:.1f} | {batch:.0f} |"
        )
    return "\n".join(lines)


def draw(report: dict[str, Any], out_file: Path) -> None:
    """Draw rates, bound and latencies over the number of environments; needs matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    from seedflow.metrics.plot import COLORS, STYLE

    sizes = list(report["sizes"].values())
    envs = [f["envs"] for f in sizes]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 4), dpi=150, layout="constrained")
        rates, latencies = figure.subplots(1, 2)
        rates.plot(envs, [f["bound_steps_per_second"] for f in sizes], "--", color="0.5", label="bound")
        rates.plot(envs, [f["steps_per_second"] for f in sizes], "o-", color=COLORS[0], label="reached")
        rates.set_ylabel("agent steps per second")
        rates.set_ylim(bottom=0)
        for i, name in enumerate(("latency_ms_p50", "latency_ms_p99")):
            label = ("median", "99th percentile")[i]
            latencies.plot(envs, [f[name] for f in sizes], "o-", color=COLORS[i], label=label)
        latencies.set_ylabel("answer to a request [ms]")
        latencies.set_yscale("log")
        for axes in (rates, latencies):
            axes.set_xscale("log", base=2)
            axes.set_xticks(envs, [f"{n:.0f}" for n in envs])
            axes.set_xlabel("environments")
            axes.legend()
        figure.savefig(out_file, metadata={"Date": None} if out_file.suffix == ".svg" else None)
