"""Settings explain themselves."""

from __future__ import annotations

from seedflow.config.describe import sections, settings


def test_every_setting_is_listed_once_with_what_it_takes() -> None:
    listed = {setting.key: setting for setting in settings()}
    assert len(listed) == len(list(settings()))
    assert listed["train.batch"].takes == "a whole number, 1 or more"
    assert listed["seed"].takes == "a whole number, 0 or more"
    assert listed["train.learning_rate"].takes == "a number above 0"
    assert listed["algo.discount"].takes == "a number from 0 to 1"
    assert listed["device"].takes == "one of auto, cpu, cuda"
    assert listed["network.hidden"].takes == "a list, each item a whole number, 1 or more"
    assert listed["metrics.tensorboard"].takes == "true or false"
    assert listed["rpc.interface"].takes == "text or null"
    assert listed["env.kwargs"].takes == "a mapping"
    assert "any value" not in {setting.takes for setting in settings()}


def test_every_section_has_a_title() -> None:
    titles = dict(sections())
    assert titles["rpc"] == "How observations and actions travel."
    assert "network.frame_stack" in titles
    assert all(titles.values())
