"""Several runs on one cluster, each with a client of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from scripted_runs import MODULES, SPEC, alive, left_over, make_config, wait_for

import seedflow
from seedflow.cluster import Preflight, Run, open_cluster
from seedflow.config import Config, parse_config
from seedflow.errors import PlacementError
from tests.runs.rig import ENDLESS, TINY, steps, until


def sharing(**sections: Any) -> Config:
    return make_config(
        **{**sections, "actor": {"count": 1, "stop_seconds": 4.0, **sections.get("actor", {})}}
    )


@contextmanager
def started(address: str, run_dir: Path, config: Config) -> Iterator[Run]:
    """A run of scripted roles that a client of its own has started."""
    run_dir.mkdir()
    with Client(address, set_as_default=False) as mine, open_cluster(config, mine) as client:
        preflight = Preflight(client, config, SPEC, print)
        with Run(client, config, SPEC, run_dir, preflight=preflight, **MODULES) as run:
            wait_for(lambda: {role.state for role in run.status().roles} == {"running"}, "all roles run")
            yield run


def learner_worker(run: Run) -> str | None:
    return run.status().learner.worker


def test_two_runs_take_a_gpu_each_and_a_third_learns_who_holds_them(gpu_cluster: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with ExitStack() as both:
        one = both.enter_context(started(gpu_cluster, first, sharing()))
        other = both.enter_context(started(gpu_cluster, second, sharing()))
        assert learner_worker(one) != learner_worker(other)
        message = (
            r"the learner needs {GPU: 1}, and other tasks hold too much of it on every worker .*: "
            rf"seedflow-({one.id}|{other.id})-learner-0-g0, seedflow-({one.id}|{other.id})-learner-0-g0; "
            r"wait for them, share by learner.resources, or start another worker with `dask worker "
            r"SCHEDULER_ADDRESS --resources GPU=1` \(waited 0.5 s"
        )
        impatient = sharing(cluster={"worker_seconds": 0.5})
        with pytest.raises(PlacementError, match=message), started(gpu_cluster, tmp_path / "c", impatient):
            pass
        before = other.status().roles
        one.stop()
        assert not left_over(first)
        assert other.status().roles == before
        assert all(role.pid is not None and alive(role.pid) for role in before)
        assert {status.state for status in other.status().roles} == {"running"}
        with started(gpu_cluster, tmp_path / "third", sharing()) as third:
            assert learner_worker(third) == learner_worker(one)
    assert not left_over(second)


def test_learners_share_a_gpu_that_each_asks_a_part_of(gpu_cluster: str, tmp_path: Path) -> None:
    half = sharing(learner={"resources": {"GPU": 0.5}})
    with ExitStack() as all_of_them:
        whole = all_of_them.enter_context(started(gpu_cluster, tmp_path / "whole", sharing()))
        halves = [
            all_of_them.enter_context(started(gpu_cluster, tmp_path / name, half)) for name in ("a", "b")
        ]
        assert len({learner_worker(run) for run in halves}) == 1
        assert learner_worker(halves[0]) != learner_worker(whole)


def test_the_learner_sees_the_devices_of_its_worker_and_actors_see_none(
    dask_cuda_worker: str, tmp_path: Path
) -> None:
    with started(dask_cuda_worker, tmp_path / "run", sharing()):
        up = (tmp_path / "run" / "train-0-g0.up").read_text()
        assert (tmp_path / "run" / "learner.gpus").read_text() == "1,2,0"
        assert len(up.split()) == 3, "CUDA_VISIBLE_DEVICES is empty"
    config = sharing(actor={"resources": {"GPU": 0.25}}, learner={"resources": {"GPU": 0.5}})
    with started(dask_cuda_worker, tmp_path / "rendering", config):
        assert (tmp_path / "rendering" / "train-0-g0.up").read_text().split()[3] == "1,2,0"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_runs_train_and_the_end_of_one_is_nothing_to_the_other(gpu_cluster: str, tmp_path: Path) -> None:
    config = parse_config({**TINY, "rpc": {}, "metrics": {**TINY["metrics"], "console": "off"}})
    config = seedflow.load_config(config, [ENDLESS])
    first, second = tmp_path / "first", tmp_path / "second"
    with Client(gpu_cluster, set_as_default=False) as a, Client(gpu_cluster, set_as_default=False) as b:
        one = seedflow.train(config, client=a, run_dir=first, block=False)
        other = seedflow.train(config, client=b, run_dir=second, block=False)
        with one, other:
            until(lambda: steps(first) > 500 and steps(second) > 500, "both to train")
            one.stop()
            reached = steps(second)
            until(lambda: steps(second) > reached, "the second to go on")
            assert other.status().restarts == 0
            assert [role.generation for role in other.status().roles] == [0, 0]
        held = a.run(lambda dask_worker: dask_worker.state.available_resources)
        wait_for(lambda: all(each == {"GPU": 1, "ACTOR": 2} for each in held.values()), "all to be free")
