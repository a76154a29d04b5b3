"""A gateway that ends, hangs or cannot come back: what is done, and what is counted."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from seedflow.errors import TransportError
from seedflow.rpc.gateway_counts import GatewayCounts
from seedflow.rpc.gateway_keeper import LONGEST_PAUSE, SILENT_SECONDS, GatewayKeeper
from tests.rpc.gateway_rig import RecordingLearner, Rig, pixels, running, step, until


class ScriptedGateway:
    """Ends, falls silent and comes back as a test says."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.silence = 0.0
        self.counted = GatewayCounts()
        self.starts = 0
        self.broken = False

    def poll(self) -> int | None:
        return self.code

    def silent_for(self) -> float:
        return self.silence

    def counts(self) -> GatewayCounts:
        return self.counted

    def restart(self, timeout: float) -> int:
        self.starts += 1
        if self.broken:
            self.code = 1
            raise TransportError("no port in rpc.ports = [7, 7] is free")
        self.code, self.silence, self.counted = None, 0.0, GatewayCounts()
        return 7


class Kept:
    def __init__(self) -> None:
        self.gateway = ScriptedGateway()
        self.said: list[str] = []
        self.now = 100.0
        self.keeper = GatewayKeeper(self.gateway, self.said.append, clock=lambda: self.now)  # type: ignore[arg-type]

    def look_for(self, seconds: int) -> None:
        """Look once a second."""
        for _ in range(seconds):
            self.now += 1.0
            self.keeper.look()


@pytest.fixture
def kept() -> Kept:
    return Kept()


def test_a_gateway_that_runs_is_left_alone(kept: Kept) -> None:
    kept.gateway.silence = SILENT_SECONDS - 1.0
    kept.keeper.look()
    assert (kept.gateway.starts, kept.said) == (0, [])


@pytest.mark.parametrize(
    ("code", "silence", "words"),
    [(-9, 0.0, "ended with code -9"), (None, SILENT_SECONDS + 1.0, "has said nothing for 30 s")],
)
def test_one_that_has_ended_or_hangs_is_started_again(
    kept: Kept, code: int | None, silence: float, words: str
) -> None:
    kept.gateway.code, kept.gateway.silence = code, silence
    kept.look_for(100)
    assert kept.gateway.starts == 1
    assert kept.said == [f"the gateway {words}; starting it again"]
    assert kept.keeper.metrics()["gateway/restarts"] == 1


def test_silence_while_the_learner_was_stopped_itself_is_none(kept: Kept) -> None:
    kept.look_for(100)
    kept.now += 1000.0
    kept.gateway.silence = 1000.0
    kept.keeper.look()
    kept.look_for(5)
    assert kept.gateway.starts == 0
    kept.look_for(100)
    assert kept.gateway.starts == 1


def test_one_that_cannot_come_back_is_tried_again_ever_more_rarely(kept: Kept) -> None:
    kept.gateway.code, kept.gateway.broken = 1, True
    kept.keeper.look()
    tried = [kept.now]
    while len(tried) < 9:
        kept.now += 0.5
        starts = kept.gateway.starts
        kept.keeper.look()
        if kept.gateway.starts > starts:
            tried.append(kept.now)
    pauses = [after - before for before, after in itertools.pairwise(tried)]
    assert pauses == [1, 2, 4, 8, 16, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]
    assert "is free; trying again in 1 s, remote actors wait so long" in kept.said[1]
    kept.gateway.broken = False
    kept.now += LONGEST_PAUSE
    kept.keeper.look()
    assert kept.gateway.code is None
    assert kept.keeper.restarts == 1


def test_counters_go_on_over_restarts_and_gauges_do_not(kept: Kept) -> None:
    kept.gateway.counted = GatewayCounts(streams=3, pending=1, refused_token=4, malformed=2, broken=1)
    kept.gateway.code = -9
    kept.keeper.look()
    kept.gateway.counted = GatewayCounts(streams=2, refused_token=1, unregistered=5)
    values = kept.keeper.metrics()
    assert values["gateway/streams"] == 2
    assert values["gateway/pending"] == 0
    assert values["gateway/refused_token"] == 5
    assert (values["gateway/malformed"], values["gateway/unregistered"]) == (2, 5)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with running(RecordingLearner(pixels(4)), tmp_path) as rig:
        yield rig


def test_a_real_gateway_is_brought_back_and_tells_what_it_counts(rig: Rig) -> None:
    keeper = GatewayKeeper(rig.gateway, lambda text: None)
    with pytest.raises(TransportError):
        rig.connect(token="0" * 64)
    until(lambda: keeper.metrics()["gateway/refused_token"] == 1, "the gateway's count")
    rig.kill_gateway()
    until(lambda: rig.gateway.poll() is not None, "its end")
    keeper.look()
    step(rig.connect(), 0, seed=0, first=True)
    until(lambda: keeper.metrics()["gateway/streams"] == 1, "the stream")
    assert keeper.metrics()["gateway/refused_token"] == 1


def test_a_gateway_that_is_stopped_says_nothing(rig: Rig) -> None:
    assert rig.gateway.pid is not None
    os.kill(rig.gateway.pid, signal.SIGSTOP)
    try:
        until(lambda: rig.gateway.silent_for() > 2.0, "the silence")
    finally:
        os.kill(rig.gateway.pid, signal.SIGCONT)
    until(lambda: rig.gateway.silent_for() < 2.0, "a word")
