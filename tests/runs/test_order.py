"""Roles find each other whoever is there first."""

from __future__ import annotations

import secrets
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from seedflow.config import parse_config
from seedflow.envs import probe_spec
from seedflow.roles import EXIT_DONE, Message, RoleProcess
from tests.runs.rig import TINY, steps, until


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.slow
def test_actors_that_are_there_before_their_learner_join_it(tmp_path: Path) -> None:
    port = free_port()
    config = parse_config({**TINY, "rpc": {"path": "grpc", "ports": [port, port]}})
    spec = probe_spec(config.env)
    common = {
        "config": config.model_dump(mode="json"),
        "spec": spec.to_json(),
        "token": secrets.token_hex(32),
        "run_dir": str(tmp_path),
        "resume": False,
    }
    endpoint = {"socket": None, "gateway": f"127.0.0.1:{port}"}
    actor_start = {**common, "role": "train", "index": 0, "generation": 0, "endpoint": endpoint}
    said: dict[str, list[Message]] = {"actor": [], "learner": []}
    with ExitStack() as stack:
        actor = stack.enter_context(RoleProcess("seedflow.actor", actor_start, tmp_path / "actor.log"))
        until(lambda: "tries again in" in (tmp_path / "actor.log").read_text(), "an attempt in vain")
        learner_start = {**common, "role": "learner", "index": 0, "generation": 0, "host": "127.0.0.1"}
        learner = stack.enter_context(
            RoleProcess("seedflow.learner", learner_start, tmp_path / "learner.log")
        )

        def ended() -> bool:
            said["actor"] += actor.poll_messages()
            said["learner"] += learner.poll_messages()
            return actor.returncode() is not None and learner.returncode() is not None

        until(ended, "the end of both")
        assert (learner.returncode(), actor.returncode()) == (EXIT_DONE, EXIT_DONE)
    assert steps(tmp_path) >= config.train.total_agent_steps
    assert {"kind": "done", "reason": "finished"} in said["actor"]


@pytest.mark.slow
def test_an_actor_without_a_learner_gives_up_in_time(tmp_path: Path) -> None:
    config = parse_config(TINY | {"actor": {**TINY["actor"], "reconnect_seconds": 3.0}})
    spec = probe_spec(config.env)
    start = {
        "config": config.model_dump(mode="json"),
        "spec": spec.to_json(),
        "token": secrets.token_hex(32),
        "role": "train",
        "index": 0,
        "generation": 0,
        "endpoint": {"socket": str(tmp_path / "nowhere"), "gateway": f"127.0.0.1:{free_port()}"},
    }
    with RoleProcess("seedflow.actor", start, tmp_path / "actor.log") as actor:
        until(lambda: actor.returncode() is not None, "the end of the actor")
        assert actor.returncode() == 1
        (failed,) = [message for message in actor.poll_messages() if message["kind"] == "failed"]
    assert failed["retryable"]
    assert "found no learner within actor.reconnect_seconds = 3" in failed["message"]
