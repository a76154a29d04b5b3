"""The scripts that are shipped in ``configs/``: ``python -m seedflow.batch.examples configs`` writes them."""

from __future__ import annotations

import sys
from pathlib import Path

from seedflow.batch.request import Request, System
from seedflow.batch.script import SYSTEMS, render

RUN_DIR = "$HOME/seedflow/cartpole"


def examples(system: System) -> dict[str, str]:
    """The scripts of a batch system by their names."""
    kinds: dict[str, Request] = {
        "one_job": Request(system, "cartpole_vtrace", 4, RUN_DIR, 3600, 3, ("actor.count=4",)),
        "elastic": Request(system, "cartpole_vtrace", 4, RUN_DIR, 3600, 3, ("actor.count=4",), elastic=True),
        "gpu_learner": Request(
            system, "pong_vtrace", 14, "$HOME/seedflow/pong", 14400, 3, ("actor.count=13",), gpus=1
        ),
        "seeds": Request(system, "cartpole_vtrace", 2, RUN_DIR, 3600, 1, ("actor.count=2",), seeds=(1, 4)),
    }
    return {name: render(request) for name, request in kinds.items()}


def main(directory: Path) -> None:
    for system in SYSTEMS:
        place = directory / system
        place.mkdir(exist_ok=True)
        for name, text in examples(system).items():
            (place / f"{name}.sh").write_text(text, encoding="utf-8")
            print(place / f"{name}.sh")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
