"""Where the roles go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedflow.cluster.placement import Place, WorkerInfo, actor_roles, free_places, plan, workers_of
from seedflow.config import Config
from seedflow.errors import PlacementError

GIB = 1 << 30


def settings(count: int = 2, **cluster: object) -> Config:
    return Config.model_validate({"actor": {"count": count}, "cluster": cluster})


def worker(number: int, **what: object) -> WorkerInfo:
    fields = {"memory_limit": 4 * GIB, **what}
    return WorkerInfo(f"tcp://10.0.0.{number}:4000", f"10.0.0.{number}", **fields)  # type: ignore[arg-type]


def hosts(places: tuple[Place, ...]) -> list[str]:
    return [place.host.rpartition(".")[2] for place in places]


def test_a_single_worker_hosts_everything() -> None:
    placement = plan([worker(1)], settings(count=8))
    assert placement.learner == Place("tcp://10.0.0.1:4000", "10.0.0.1")
    assert hosts(placement.actors) == ["1"] * 8
    assert placement.shared


def test_the_learner_takes_the_most_memory_and_actors_spread_over_the_others() -> None:
    workers = [worker(1, nthreads=2), worker(2, memory_limit=64 * GIB), worker(3, nthreads=2)]
    placement = plan(workers, settings(count=3))
    assert placement.learner.host == "10.0.0.2"
    assert hosts(placement.actors) == ["1", "3", "1"]
    assert not placement.shared


def test_a_worker_without_memory_limit_counts_as_the_largest() -> None:
    assert plan([worker(1), worker(2, memory_limit=0)], settings(1)).learner.host == "10.0.0.2"


def test_a_declared_gpu_outranks_memory_and_a_declared_learner_outranks_a_gpu() -> None:
    big, gpu = worker(1, memory_limit=512 * GIB), worker(2, resources={"GPU": 1})
    chosen = worker(3, resources={"LEARNER": 1})
    assert plan([big, gpu], settings(1)).learner == Place(gpu.address, gpu.host, {"GPU": 1})
    assert plan([big, gpu, chosen], settings(1)).learner == Place(chosen.address, chosen.host, {"LEARNER": 1})


def test_where_actor_is_declared_actors_go_nowhere_else() -> None:
    workers = [worker(1, resources={"GPU": 1}), worker(2, nthreads=8), worker(3, resources={"ACTOR": 4})]
    placement = plan(workers, settings(count=4))
    assert hosts(placement.actors) == ["3"] * 4
    assert all(place.resources == {"ACTOR": 1} for place in placement.actors)


def test_a_gpu_is_shared_where_the_learner_asks_for_a_part() -> None:
    config = Config.model_validate({"actor": {"count": 1}, "learner": {"resources": {"GPU": 0.5}}})
    workers = [
        worker(1),
        worker(2, resources={"GPU": 1}, held={"GPU": 0.5}, holders={"GPU": ("seedflow-ab-learner-0-g0",)}),
    ]
    assert plan(workers, config).learner == Place(workers[1].address, "10.0.0.2", {"GPU": 0.5})


def test_a_learner_goes_where_the_resource_is_free() -> None:
    busy = worker(
        1,
        resources={"GPU": 1},
        held={"GPU": 1},
        holders={"GPU": ("train-model",), "ACTOR": ("another",)},
        memory_limit=64 * GIB,
    )
    assert plan([busy, worker(2, resources={"GPU": 1})], settings(1)).learner.host == "10.0.0.2"
    with pytest.raises(PlacementError) as error:
        plan([busy, worker(2, nthreads=8)], settings(1))
    assert str(error.value) == (
        "the learner needs {GPU: 1}, and other tasks hold too much of it on every worker that declares it "
        "(tcp://10.0.0.1:4000): train-model; wait for them, share by learner.resources, or start another "
        "worker with `dask worker SCHEDULER_ADDRESS --resources GPU=1`"
    )


def test_a_resource_that_nobody_declares_is_named_with_the_flag_to_start_a_worker_with() -> None:
    config = Config.model_validate({"learner": {"resources": {"GPU": 0.5, "BIGMEM": 2}}})
    with pytest.raises(PlacementError) as error:
        plan([worker(1), worker(2, resources={"GPU": 1})], config)
    assert str(error.value) == (
        "learner.resources = {GPU: 0.5, BIGMEM: 2}, but no worker of the Dask cluster declares as much; "
        "start one with `dask worker SCHEDULER_ADDRESS --resources GPU=1,BIGMEM=2`, or change "
        "learner.resources"
    )


def test_actors_hold_what_the_settings_say() -> None:
    config = Config.model_validate({"actor": {"count": 4, "resources": {"CPU": 2}}})
    workers = [worker(1, memory_limit=64 * GIB), worker(2, resources={"CPU": 8}), worker(3)]
    placement = plan(workers, config)
    assert [(place.host, place.resources) for place in placement.actors] == [("10.0.0.2", {"CPU": 2})] * 4


def test_what_other_runs_hold_is_no_place_and_they_are_named() -> None:
    other = {"ACTOR": ("seedflow-ab-actor-0-g0", "seedflow-ab-actor-1-g0")}
    workers = [worker(1), worker(2, resources={"ACTOR": 4}, held={"ACTOR": 2}, holders=other)]
    assert hosts(plan(workers, settings(count=2)).actors) == ["2", "2"]
    message = (
        r"declare ACTOR=4 in all, of which other tasks hold ACTOR=2 \(seedflow-ab-actor-0-g0, seedflow-ab"
    )
    with pytest.raises(PlacementError, match=message):
        plan(workers, settings(count=3))


def test_a_learners_worker_that_declares_actor_hosts_actors_too() -> None:
    placement = plan([worker(1, resources={"LEARNER": 1, "ACTOR": 2}), worker(2)], settings(count=2))
    assert hosts(placement.actors) == ["1", "1"]
    assert placement.shared


def test_the_learner_avoids_workers_that_are_meant_for_actors() -> None:
    workers = [worker(1, resources={"ACTOR": 2}, memory_limit=512 * GIB), worker(2)]
    assert plan(workers, settings(count=2)).learner.host == "10.0.0.2"


def test_actors_prefer_the_learners_host_among_equals() -> None:
    twins = [WorkerInfo(f"tcp://10.0.0.2:{port}", "10.0.0.2", memory_limit=8 * GIB) for port in (1, 2)]
    placement = plan([worker(1, memory_limit=GIB), *twins], settings(count=1))
    assert placement.learner.worker == "tcp://10.0.0.2:1"
    assert placement.actors[0].worker == "tcp://10.0.0.2:2"


def test_actors_per_worker_limits_what_threads_allow() -> None:
    workers = [worker(1, memory_limit=64 * GIB), worker(2, nthreads=16)]
    assert hosts(plan(workers, settings(count=3, actors_per_worker=3)).actors) == ["2"] * 3
    with pytest.raises(PlacementError, match=r"with 16 threads in all and cluster.actors_per_worker = 3"):
        plan(workers, settings(count=4, actors_per_worker=3))


def test_paused_and_leaving_workers_get_nothing() -> None:
    with pytest.raises(PlacementError, match="no running worker; start some with `dask worker"):
        plan([worker(1, running=False)], settings())
    assert plan([worker(1), worker(2, running=False)], settings(1)).shared


def test_too_few_places_are_counted() -> None:
    workers = [worker(1, memory_limit=64 * GIB), worker(2, nthreads=2), worker(3)]
    with pytest.raises(PlacementError) as error:
        plan(workers, settings(count=5))
    assert str(error.value) == (
        "actor.count = 5 needs 5 places, but the Dask cluster has 3: workers besides the learner's: 2, with "
        "3 threads in all (the learner takes tcp://10.0.0.1:4000); start more workers, or workers with more "
        "--nthreads, or set actor.count=3"
    )


def test_too_few_declared_places_name_the_resource() -> None:
    workers = [worker(1, resources={"GPU": 1}), worker(2, resources={"ACTOR": 2})]
    with pytest.raises(PlacementError, match=r'ACTOR=2 in all .* --resources "ACTOR=\.\.\."'):
        plan(workers, settings(count=3))


def test_evaluation_needs_a_place_of_its_own() -> None:
    config = Config.model_validate({"actor": {"count": 1}, "eval": {"every": 100}})
    assert len(plan([worker(1), worker(2, nthreads=2)], config).actors) == 2
    with pytest.raises(PlacementError, match=r"actor.count = 1 and one for evaluation"):
        plan([worker(1), worker(2)], config)


def test_places_that_are_taken_are_not_free() -> None:
    workers = [worker(1), worker(2, nthreads=2), worker(3)]
    learner = Place(workers[0].address, workers[0].host)
    free = free_places(workers, learner, False, settings(), {workers[1].address: 1})
    assert hosts(tuple(free)) == ["3", "2"]


def test_what_a_scheduler_says_about_its_workers() -> None:
    said = {
        "host": "10.0.0.1",
        "nthreads": 4,
        "memory_limit": None,
        "resources": {"ACTOR": 2.0},
        "status": "closing_gracefully",
        "name": "w",
    }
    assert workers_of({"workers": {"tcp://10.0.0.1:4000": said}}) == (
        worker(1, nthreads=4, memory_limit=0, resources={"ACTOR": 2.0}, running=False),
    )


@st.composite
def clusters(draw: st.DrawFn) -> list[WorkerInfo]:
    names = st.sampled_from(["GPU", "LEARNER", "ACTOR"])
    workers = []
    for number in range(draw(st.integers(0, 6))):
        resources = draw(st.dictionaries(names, st.integers(0, 3)))
        workers.append(
            worker(
                number,
                nthreads=draw(st.integers(1, 4)),
                memory_limit=draw(st.integers(0, 3)) * GIB,
                resources=resources,
                running=draw(st.booleans()),
                held={name: draw(st.integers(0, amount)) for name, amount in resources.items()},
            )
        )
    return workers


@given(clusters(), st.integers(1, 6))
def test_a_plan_never_exceeds_what_a_worker_offers(workers: list[WorkerInfo], count: int) -> None:
    config = settings(count)
    try:
        placement = plan(workers, config)
    except PlacementError:
        return
    assert len(placement.actors) == actor_roles(config)
    by_address = {info.address: info for info in workers if info.running}
    for place in (placement.learner, *placement.actors):
        worker = by_address[place.worker]
        assert all(worker.resources[k] - worker.held.get(k, 0) >= n for k, n in place.resources.items())
    for address, info in by_address.items():
        hosted = sum(place.worker == address for place in placement.actors)
        if any(other.declares({"ACTOR": 1}) for other in by_address.values()):
            assert hosted <= info.resources.get("ACTOR", 0) - info.held.get("ACTOR", 0)
        elif address == placement.learner.worker:
            assert hosted == (count if len(by_address) == 1 else 0)
        else:
            assert hosted <= info.nthreads
