"""What whole-run tests share."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs.rig import Launcher, launcher


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A run is a dozen processes, which a busy machine needs long to start."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launcher]:
    """Starts programs; whatever they leave is cleared away."""
    with launcher(tmp_path) as started:
        yield started


@pytest.fixture
def silent_scheduler() -> Iterator[str]:
    """Address of something that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
