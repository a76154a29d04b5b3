"""Runs of scripted roles on real worker processes."""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client, Future
from scripted_runs import (
    MODULES,
    SPEC,
    actor_pids,
    alive,
    learner_pid,
    left_over,
    make_config,
    processes_of,
    wait_for,
)

from seedflow.cluster import Run, open_cluster
from seedflow.cluster.launch import RoleId, RoleResult
from seedflow.errors import PlacementError, RunFailed


def test_a_run_ends_with_its_learner_and_leaves_no_process(user_client: Client, tmp_path: Path) -> None:
    config = make_config()
    metrics: list[dict[str, float]] = []
    with (
        open_cluster(config, user_client) as client,
        Run(client, config, SPEC, tmp_path, on_metrics=metrics.append, **MODULES) as run,
    ):
        for index in range(2):
            actor_pids(tmp_path, index)
        assert run.status().phase == "running"
        assert not run.wait(timeout=0.0)
        (tmp_path / "finish").touch()
        assert run.wait(timeout=60)
        assert len(processes_of(tmp_path)) == 5  # the learner, two actors and a child of each
        assert not left_over(tmp_path)
        status = run.status()
    assert status.phase == "ended"
    assert status.restarts == 0
    assert status.metrics == {"steps/agent": 7.0}
    assert metrics == [{"steps/agent": 7.0}]
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {
        "learner-0-g0.log",
        "actor-0-g0.log",
        "actor-1-g0.log",
    }


@pytest.mark.parametrize("fault", ["cancelled", "client closed"])
def test_a_result_that_a_run_lets_go_of_while_it_is_fetched_is_no_error(
    user_client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: str,
) -> None:
    """Dask's thread fetches the result of a task while the run, which has ended, cancels the task."""
    fetch = Future.result
    fetched = []

    def let_go(self: Future[Any], timeout: float | None = None) -> Any:
        fetched.append(self.key)
        if fault == "client closed":
            raise RuntimeError("IOLoop is closed")
        self.cancel()
        return fetch(self, timeout)

    config = make_config()
    with (
        caplog.at_level(logging.WARNING, logger="distributed.client"),
        open_cluster(config, user_client) as client,
        Run(client, config, SPEC, tmp_path, **MODULES) as run,
    ):
        monkeypatch.setattr(Future, "result", let_go)
        (tmp_path / "finish").touch()
        assert run.wait(timeout=60)
        wait_for(lambda: fetched, "a result to be fetched")
    assert "Error in callback" not in caplog.text
    assert not left_over(tmp_path)


def test_the_callers_client_stays_as_it_was(user_client: Client, tmp_path: Path) -> None:
    mine = user_client.submit(sum, [1, 2], pure=False)
    config = make_config()
    with open_cluster(config, user_client) as client, Run(client, config, SPEC, tmp_path, **MODULES):
        # All three workers host a role of one thread each, and still have their thread for others.
        assert user_client.submit(sum, [3, 4], pure=False).result(timeout=30) == 7
        assert set(user_client.futures) >= {mine.key}
        assert not any(key.startswith("seedflow") for key in user_client.futures)
    assert user_client.status == "running"
    assert mine.result(timeout=30) == 3
    wait_for(lambda: not [key for key in user_client.who_has() if "seedflow" in key], "no key left")
    assert len(user_client.scheduler_info(n_workers=-1)["workers"]) == 3


def test_threads_and_address_of_the_roles(user_client: Client, tmp_path: Path) -> None:
    config = make_config(train={"torch_threads": 3})
    with open_cluster(config, user_client) as client, Run(client, config, SPEC, tmp_path, **MODULES):
        actor_pids(tmp_path)
    assert (tmp_path / "learner.env").read_text() == "3 127.0.0.1"
    assert (tmp_path / "train-0-g0.up").read_text().split()[2] == "1"
    assert "OMP_NUM_THREADS=1" in (tmp_path / "logs" / "actor-0-g0.log").read_text()


def test_no_log_and_no_page_of_dask_holds_the_token(user_client: Client, tmp_path: Path) -> None:
    config = make_config()
    with open_cluster(config, user_client) as client, Run(client, config, SPEC, tmp_path, **MODULES) as run:
        token = run._launches._start["token"]
        pids = [actor_pids(tmp_path)[0], learner_pid(tmp_path)]
        for pid in pids:
            assert token.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
            assert token.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        seen = user_client.run_on_scheduler(
            lambda dask_scheduler: repr([(task, task.run_spec) for task in dask_scheduler.tasks.values()])
        )
        events = repr(user_client.get_events())
        logs = repr(user_client.get_worker_logs())
    assert "seedflow" in seen
    assert "seedflow" in events
    for text in (seen, events, logs, *(path.read_text() for path in (tmp_path / "logs").iterdir())):
        assert token not in text


def test_every_run_has_a_token_of_its_own_of_256_bits_that_it_does_not_show(
    user_client: Client, tmp_path: Path
) -> None:
    runs = [Run(user_client, make_config(), SPEC, tmp_path) for _ in range(2)]
    tokens = [run._launches._start["token"] for run in runs]
    assert tokens[0] != tokens[1]
    assert [len(bytes.fromhex(token)) for token in tokens] == [32, 32]
    assert not any(token in repr(run) for token, run in zip(tokens, runs, strict=True))


def test_a_killed_actor_is_replaced_by_the_next_generation(user_client: Client, tmp_path: Path) -> None:
    config = make_config()
    with open_cluster(config, user_client) as client, Run(client, config, SPEC, tmp_path, **MODULES) as run:
        pid, child = actor_pids(tmp_path, 0)
        os.kill(pid, signal.SIGKILL)
        actor_pids(tmp_path, 0, generation=1)
        wait_for(lambda: run.status().actors[0].state == "running", "the new actor runs")
        assert run.status().actors[0].generation == 1
        assert run.status().actors[1].generation == 0
        assert run.status().restarts == 1
        assert not alive(child)
        (tmp_path / "finish").touch()
        assert run.wait(timeout=60)
    assert not left_over(tmp_path)


def test_actors_that_keep_dying_end_the_run(user_client: Client, tmp_path: Path) -> None:
    config = make_config(actor={"max_restarts": 1, "count": 1, "stop_seconds": 4.0})
    with open_cluster(config, user_client) as client, Run(client, config, SPEC, tmp_path, **MODULES) as run:
        for generation in range(2):
            os.kill(actor_pids(tmp_path, 0, generation)[0], signal.SIGSEGV)
        with pytest.raises(RunFailed, match=r"(?s)killed by SIGSEGV.*more than actor.max_restarts = 1"):
            run.wait(timeout=60)
    assert not left_over(tmp_path)


def test_the_same_exception_twice_ends_the_run_with_its_traceback(
    user_client: Client, tmp_path: Path
) -> None:
    config = make_config({"actor": "raise"})
    with open_cluster(config, user_client) as client, Run(client, config, SPEC, tmp_path, **MODULES) as run:
        with pytest.raises(RunFailed) as failure:
            run.wait(timeout=60)
        assert run.status().restarts == 1
    text = str(failure.value)
    assert text.startswith("actor-1 failed with LookupError: no such level: 99; ")
    assert "the same exception twice" in text
    assert "scripted_actor.py" in text
    assert str(tmp_path / "logs" / "actor-1-g1.log") in text
    assert "host: " + os.uname().nodename in text
    assert not left_over(tmp_path)


def test_what_a_restart_cannot_cure_ends_the_run_at_once(user_client: Client, tmp_path: Path) -> None:
    config = make_config({"actor": "hopeless"})
    with open_cluster(config, user_client) as client, Run(client, config, SPEC, tmp_path, **MODULES) as run:
        with pytest.raises(RunFailed, match=r"ImportError: no module named minigrid; another start"):
            run.wait(timeout=60)
        assert run.status().restarts == 0
    assert not left_over(tmp_path)


def test_a_killed_learner_starts_again_and_its_actors_hear_where(user_client: Client, tmp_path: Path) -> None:
    config = make_config()
    notes: list[str] = []
    with (
        open_cluster(config, user_client) as client,
        Run(client, config, SPEC, tmp_path, on_note=notes.append, **MODULES) as run,
    ):
        pids = [actor_pids(tmp_path, index) for index in range(2)]
        os.kill(learner_pid(tmp_path), signal.SIGKILL)
        learner_pid(tmp_path, generation=1)
        for index in range(2):
            told = tmp_path / f"train-{index}.told"
            wait_for(lambda told=told: told.exists() and told.read_text() == "127.0.0.1:2", told.name)
        assert run.status().learner_restarts == 1
        assert run.status().restarts == 0
        assert all(alive(pid) for pair in pids for pid in pair)
        (tmp_path / "finish").touch()
        assert run.wait(timeout=60)
    assert "the learner was killed by SIGKILL; starting generation 1 from the newest checkpoint" in notes
    assert not left_over(tmp_path)


def test_a_learner_that_keeps_dying_ends_the_run(user_client: Client, tmp_path: Path) -> None:
    config = make_config(learner={"max_restarts": 1})
    with open_cluster(config, user_client) as client, Run(client, config, SPEC, tmp_path, **MODULES) as run:
        actor_pids(tmp_path)
        for generation in range(2):
            os.kill(learner_pid(tmp_path, generation), signal.SIGKILL)
        with pytest.raises(RunFailed, match=r"(?s)SIGKILL.*more than learner.max_restarts = 1.*learner-0-g1"):
            run.wait(timeout=60)
        assert not left_over(tmp_path)


def test_a_learner_that_hangs_is_killed_and_placed_again(user_client: Client, tmp_path: Path) -> None:
    config = make_config({"learner": "hangs"}, learner={"hang_seconds": 2.0})
    notes: list[str] = []
    with (
        open_cluster(config, user_client) as client,
        Run(client, config, SPEC, tmp_path, on_note=notes.append, **MODULES) as run,
    ):
        learner_pid(tmp_path, generation=1)
        wait_for(lambda: run.status().phase == "running" and run.status().learner.generation == 1, "the next")
        assert not alive(learner_pid(tmp_path, generation=0))
    assert notes[0] == (
        "the learner was killed, since its training loop stood still for 2 s (learner.hang_seconds); "
        "starting generation 1 from the newest checkpoint"
    )
    where = (tmp_path / "logs" / "learner-0-g0.log").read_text()
    assert "Fatal Python error: Aborted" in where  # where it stood still
    assert not left_over(tmp_path)


def test_a_learner_that_is_not_up_in_time_is_shown_by_its_log(user_client: Client, tmp_path: Path) -> None:
    config = make_config({"learner": "silent"}, cluster={"learner_seconds": 5.0})
    with open_cluster(config, user_client) as client:
        with pytest.raises(RunFailed, match=r"(?s)within 5 s \(cluster.learner_seconds\).*never come"):
            Run(client, config, SPEC, tmp_path, **MODULES).start()
        assert not left_over(tmp_path)


def test_stop_lets_the_roles_end_in_order_and_may_come_twice(user_client: Client, tmp_path: Path) -> None:
    config = make_config()
    with open_cluster(config, user_client) as client:
        run = Run(client, config, SPEC, tmp_path, **MODULES).start()
        actor_pids(tmp_path)
        run.stop()
        run.stop()
        assert run.wait(timeout=0.0)
        assert not left_over(tmp_path)
        assert (tmp_path / "learner.stopped").read_text() == "in order"


def test_a_failing_metrics_callback_ends_the_run(user_client: Client, tmp_path: Path) -> None:
    def fail(values: dict[str, float]) -> None:
        raise ZeroDivisionError("no steps yet")

    config = make_config()
    with (
        open_cluster(config, user_client) as client,
        pytest.raises(RunFailed, match=r"metrics callback .* ZeroDivisionError: no steps yet") as failure,
        Run(client, config, SPEC, tmp_path, on_metrics=fail, **MODULES) as run,
    ):
        run.wait(timeout=60)
    assert isinstance(failure.value.__cause__, ZeroDivisionError)
    assert not left_over(tmp_path)


def test_roles_that_find_no_place_are_counted(user_client: Client, tmp_path: Path) -> None:
    config = make_config(actor={"count": 5}, cluster={"worker_seconds": 0.5})
    message = r"actor.count = 5 needs 5 places, .* has 2: .*actor.count=2"
    with open_cluster(config, user_client) as client, pytest.raises(PlacementError, match=message):
        Run(client, config, SPEC, tmp_path, **MODULES).start()
    assert not any(thread.name.startswith("seedflow-run") for thread in threading.enumerate())


def test_an_evaluation_actor_joins_where_the_run_evaluates(user_client: Client, tmp_path: Path) -> None:
    config = make_config(actor={"count": 1}, eval={"every": 1000})
    with open_cluster(config, user_client) as client, Run(client, config, SPEC, tmp_path, **MODULES) as run:
        actor_pids(tmp_path, role="train")
        actor_pids(tmp_path, role="eval")
        assert [str(status.role) for status in run.status().roles] == ["learner-0", "actor-0", "eval-0"]
    assert not left_over(tmp_path)


def test_a_scheduler_that_has_no_time_to_answer_ends_no_run(
    user_client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing that the roles do goes through it."""
    monkeypatch.setattr("seedflow.cluster.run.REPLY_SECONDS", 0.3)
    monkeypatch.setattr("seedflow.cluster.run.WORKERS_SECONDS", 0.1)
    config, scheduler = make_config(), process_at(user_client)
    with open_cluster(config, user_client) as client, Run(client, config, SPEC, tmp_path, **MODULES) as run:
        actor_pids(tmp_path)
        scheduler.suspend()
        try:
            wait_for(lambda: caplog.text.count("scheduler has not answered") > 1, "the run's patience")
        finally:
            scheduler.resume()
        (tmp_path / "finish").touch()
        assert run.wait(timeout=60)
    assert run.status().restarts == 0


def test_workers_are_looked_at_however_much_is_heard_meanwhile(
    user_client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler's word of a new worker may come before that worker runs, and does not come again."""
    monkeypatch.setattr("seedflow.cluster.run.WORKERS_SECONDS", 0.5)
    look, looks = Run._look_at_workers, []
    monkeypatch.setattr(Run, "_look_at_workers", lambda self: (looks.append(1), look(self))[1])
    config = make_config()
    with open_cluster(config, user_client) as client, Run(client, config, SPEC, tmp_path, **MODULES) as run:
        actor_pids(tmp_path)
        before = len(looks)

        def looked_at() -> bool:
            run._events.put((RoleId("actor", 0), 99, RoleResult("lost")))  # of no start that there was
            return len(looks) > before + 2

        wait_for(looked_at, "another look")
        (tmp_path / "finish").touch()
        assert run.wait(timeout=60)


def process_at(client: Client) -> psutil.Process:
    """The scheduler's process, a child of this one."""
    assert client.scheduler is not None
    port = int(client.scheduler.address.rpartition(":")[2])
    for process in psutil.Process().children(recursive=True):
        if any(c.laddr.port == port and c.status == "LISTEN" for c in process.net_connections("tcp")):
            return process
    raise AssertionError(f"nobody listens at {client.scheduler.address}")
