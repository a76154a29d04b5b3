"""Logs of roles, on hosts that see the run's directory and on hosts that do not."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from distributed import Client
from scripted_runs import MODULES, SPEC, actor_pids, make_config, wait_for

from seedflow.cluster import Run, logs, open_cluster
from seedflow.cluster.logs import MARKER, RoleLog, collect


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "runs" / "a"
    path.mkdir(parents=True)
    return path


def role_log(run_dir: Path) -> RoleLog:
    return RoleLog(run_dir / "logs" / "actor-0-g0.log", "12ab", run_dir.parent.parent / "dask")


def append(log: RoleLog, text: str) -> None:
    with log.path.open("a") as file:
        file.write(text)


def test_where_the_runs_directory_is_seen_the_log_is_there(run_dir: Path) -> None:
    (run_dir / f"{MARKER}12ab").touch()
    log = role_log(run_dir)
    log.write("# actor-0")
    assert log.path == log.shown == run_dir / "logs" / "actor-0-g0.log"
    assert log.path.read_text() == "# actor-0\n"
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600
    assert log.news(0.0, last=True) is None
    log.remove()
    assert log.path.exists()


def test_a_directory_of_the_same_path_on_another_host_is_not_the_runs(run_dir: Path) -> None:
    log = role_log(run_dir)
    assert log.collected
    assert log.path == run_dir.parent.parent / "dask" / "seedflow-logs" / "12ab" / "actor-0-g0.log"
    assert log.shown == run_dir / "logs" / "actor-0-g0.log"


def test_what_is_new_is_sent_once(run_dir: Path) -> None:
    log = role_log(run_dir)
    log.write("one")
    assert log.news(0.0) == "one\n"
    append(log, "two\n")
    assert log.news(0.5) is None, "not more often than every second"
    assert log.news(1.0) == "two\n"
    assert log.news(2.0) is None
    append(log, "three\n")
    assert log.news(2.1, last=True) == "three\n"


def test_a_role_that_writes_a_lot_is_sent_in_part(run_dir: Path) -> None:
    log = role_log(run_dir)
    append(log, "x" * 100_000 + "y" * logs.NEWS_BYTES)
    assert log.news(0.0) == f"\n[100000 bytes left out: {log.path}]\n" + "y" * logs.NEWS_BYTES


def test_only_the_end_follows_once_a_role_has_written_too_much(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MOST_BYTES", 10)
    log = role_log(run_dir)
    append(log, "0123456789")
    assert log.news(0.0) == "0123456789"
    append(log, "abc")
    assert log.news(1.0) is None
    assert log.news(2.0, last=True) == "abc"


def test_a_collected_log_leaves_nothing_on_its_host(run_dir: Path) -> None:
    log = role_log(run_dir)
    log.remove()
    assert not (run_dir.parent.parent / "dask" / "seedflow-logs").exists()


def test_the_driver_puts_the_pieces_together(run_dir: Path) -> None:
    collect(run_dir, "actor-0-g0.log", "one\n")
    collect(run_dir, "actor-0-g0.log", "two\n")
    path = run_dir / "logs" / "actor-0-g0.log"
    assert path.read_text() == "one\ntwo\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_logs_come_from_hosts_without_a_shared_file_system(
    user_client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seedflow.cluster.run.MARKER", ".seen-by-nobody-")
    config = make_config()
    with open_cluster(config, user_client) as client, Run(client, config, SPEC, tmp_path, **MODULES) as run:
        actor_pids(tmp_path)
        expected = {f"{role.role}-g0.log" for role in run.status().roles}
        wait_for(
            lambda: {path.name for path in (tmp_path / "logs").glob("*")} == expected, "logs of a running run"
        )
        (tmp_path / "finish").touch()
        assert run.wait(timeout=60)
    assert "OMP_NUM_THREADS=1" in (tmp_path / "logs" / "actor-0-g0.log").read_text()
    local = user_client.run(lambda dask_worker: dask_worker.local_directory)
    wait_for(lambda: not [d for d in local.values() if Path(d, "seedflow-logs").exists()], "no log left")
