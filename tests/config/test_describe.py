"""Settings explain themselves."""

from __future__ import annotations

from seedflow.config import load_config
from seedflow.config.describe import changed_settings, section_variants, sections, settings


def test_every_setting_is_listed_once_with_what_it_takes() -> None:
    assert len({(setting.key, setting.variant) for setting in settings()}) == len(list(settings()))
    listed = {setting.key: setting for setting in settings()}
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


def test_a_section_of_several_names_is_listed_once_for_each() -> None:
    titles = {variant: title for name, title, variant in section_variants() if name == "algo"}
    assert list(titles) == ["vtrace", "r2d2"]
    assert {s.variant for s in settings() if s.key == "algo.discount"} == {"vtrace", "r2d2"}


def test_what_differs_between_algorithms_is_what_the_later_one_has() -> None:
    before, after = load_config({}), load_config({"algo": {"name": "r2d2", "n_step": 3}})
    changed = changed_settings(before, after)
    assert 'algo.name = "r2d2" (was "vtrace")' in changed
    assert "algo.n_step = 3 (was not there)" in changed
    assert not any(change.startswith("algo.rho_bar") for change in changed)
