"""Ratios of medians, and when a target is reached."""

from __future__ import annotations

from seedflow.bench.timing import Measurement, Target, compare

SECONDS = {"ours": 2.0, "theirs": 5.0}


def test_a_ratio_is_read_in_the_direction_of_its_target() -> None:
    assert Target("ours", "theirs", 2.0).ratio(SECONDS) == 2.5
    assert Target("ours", "theirs", 2.5).reached(SECONDS)
    assert not Target("ours", "theirs", 3.0).reached(SECONDS)
    assert Target("theirs", "ours", 2.5, "slower").reached(SECONDS)
    assert not Target("theirs", "ours", 2.4, "slower").reached(SECONDS)


def test_a_measurement_says_what_was_missed() -> None:
    targets = (Target("ours", "theirs", 2.0), Target("ours", "theirs", 3.0))
    text = str(Measurement("a thing", SECONDS, targets, notes=("left out: others",)))
    assert text.splitlines() == [
        "a thing",
        "   2000000.0 us  ours",
        "   5000000.0 us  theirs",
        "       2.50x  ours faster than theirs (target >= 2): reached",
        "       2.50x  ours faster than theirs (target >= 3): MISSED",
        "  left out: others",
    ]


def test_contenders_take_turns_and_targets_of_absent_ones_are_left_out() -> None:
    calls: list[str] = []
    targets = (Target("a", "b", 1.0), Target("a", "c", 1.0))
    contenders = {name: lambda name=name: calls.append(name) for name in "ab"}
    measured = compare("turns", contenders, targets, rounds=3)
    assert measured.seconds.keys() == {"a", "b"}
    assert all(seconds > 0 for seconds in measured.seconds.values())
    assert measured.targets == targets[:1]
    turns = [name for i, name in enumerate(calls) if i == 0 or name != calls[i - 1]]
    assert turns[-6:] == ["a", "b"] * 3


def test_json_holds_seconds_ratios_and_verdicts() -> None:
    row = Measurement("a thing", SECONDS, (Target("ours", "theirs", 2.0),)).to_json()
    assert row["seconds"] == SECONDS
    assert row["targets"] == [
        {"of": "ours", "to": "theirs", "direction": "faster", "bound": 2.0, "ratio": 2.5, "reached": True}
    ]
