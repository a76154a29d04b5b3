"""Looking at everything, and putting it into words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import seedflow
from seedflow.config import Config
from seedflow.doctor.batch_system import look_at_batch
from seedflow.doctor.finding import Finding
from seedflow.doctor.gpu import look_at_gpu
from seedflow.doctor.machine import look_at_machine
from seedflow.doctor.packages import look_at_packages

MARKS = {"ok": " ", "missing": "-", "problem": "!"}


@dataclass(frozen=True)
class Report:
    """All that was found."""

    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing was found with which runs fail or suffer."""
        return all(finding.level != "problem" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """As `seedflow doctor --json` prints it."""
        return {
            "seedflow": seedflow.__version__,
            "healthy": self.healthy,
            "findings": [asdict(finding) for finding in self.findings],
        }

    def lines(self) -> Iterator[str]:
        """As people read it: one block for each topic, a ``!`` before problems, a ``-`` before what is
        missing for something, and below both what to do."""
        width = max(len(finding.name) for finding in self.findings)
        topic = ""
        for finding in self.findings:
            if finding.topic != topic:
                topic = finding.topic
                yield topic
            yield f"{MARKS[finding.level]} {finding.name:{width}}  {finding.text}"
            if finding.remedy:
                yield f"  {'':{width}}  -> {finding.remedy}"
        problems = sum(finding.level == "problem" for finding in self.findings)
        yield f"{problems} problem{'' if problems == 1 else 's'} found" if problems else "no problem found"


def examine(config: Config | None = None) -> Report:
    """Look at this machine and, where one is named, at a Dask cluster.

    Parameters
    ----------
    config
        Names the Dask cluster: `cluster.scheduler` or `cluster.scheduler_file`, with its certificates.
        ``DASK_SCHEDULER_ADDRESS`` counts, too.
    """
    from seedflow.doctor.dask_cluster import look_at_cluster, names_a_cluster

    findings = [*look_at_packages(), *look_at_machine(), *look_at_gpu(), *look_at_batch()]
    config = config or Config()
    if names_a_cluster(config):
        findings += look_at_cluster(config.model_copy(update={"runtime": "cluster"}))
    return Report(tuple(findings))
