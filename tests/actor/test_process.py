"""Actor processes against a real control server: how they live and how they end."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest

from seedflow.envs.synthetic import counting_observation
from seedflow.rpc.gateway_process import GatewayProcess
from seedflow.specs import EnvSpec
from tests.actor.conftest import TOKEN, ActorProcess, FixedActionLearner, make_config, spec_of, wait_for

Learner = Callable[..., FixedActionLearner]
Actor = Callable[..., ActorProcess]

CARTPOLE = {"id": "CartPole-v1", "kwargs": {}}
NOWHERE = {"socket": "/nonexistent/control.sock", "gateway": None}
SPACE = gym.spaces.Box(-1, 1, (2,), np.float32)
SPEC = EnvSpec.from_spaces(SPACE, gym.spaces.Discrete(2))


def make_env_fn(behaviour: str, step: int = 3) -> Callable[[], gym.Env[Any, Any]]:
    """An environment function whose class is known to this process only, so it travels by value."""

    class Misbehaving(gym.Env[Any, Any]):
        observation_space = SPACE
        action_space = gym.spaces.Discrete(2)
        steps = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            import subprocess

            if behaviour == "child":
                self.child = subprocess.Popen(["sleep", "600"], start_new_session=True)
                print("grandchild", self.child.pid, flush=True)
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> Any:
            import os
            import signal
            import time

            self.steps += 1
            if self.steps == step:
                if behaviour == "raise":
                    raise ZeroDivisionError("the pole has no length")
                if behaviour == "exit":
                    raise SystemExit(0)
                if behaviour == "crash":
                    os.kill(os.getpid(), signal.SIGSEGV)
                if behaviour == "hang":
                    print("hanging", flush=True)
                    time.sleep(600)
            return np.zeros(2, np.float32), 1.0, False, False, {}

    return Misbehaving


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def failure_of(process: ActorProcess) -> dict[str, Any]:
    (message,) = process.of_kind("failed")
    return message


def test_actor_steps_every_group_and_stops_in_order(learner: Learner, actor: Actor) -> None:
    config = make_config()
    served = learner(config)
    process = actor(config, served.endpoint, index=1)
    process.wait_state("running")
    wait_for(lambda: len(served.rows) >= 40)
    assert process.stop(30) == 0

    assert [m["state"] for m in process.of_kind("state")] == ["starting", "running", "stopping"]
    assert process.of_kind("done") == [{"kind": "done", "reason": "stopped"}]
    assert process.of_kind("failed") == []
    values = process.of_kind("metrics")[-1]["values"]
    assert values["actor/steps"] == values["actor/env_frames"] > 0
    assert values["actor/reconnects"] == 0

    (leaf,) = spec_of(config).observation
    for group in range(2):
        requests = [rows for _, g, rows in served.rows if g == group]
        for t, rows in enumerate(requests[:9]):
            assert rows["first"].tolist() == [t % 4 == 0] * 2
            assert rows["terminated"].tolist() == [t % 4 == 3] * 2
            for i in range(2):
                np.testing.assert_array_equal(
                    rows["observation"][i], counting_observation(4 + 2 * group + i, t, leaf)
                )
    wait_for(lambda: served.closed)


def test_threads_are_limited_before_numpy_is_loaded_and_logged(learner: Learner, actor: Actor) -> None:
    config = make_config()
    process = actor(config, learner(config).endpoint)
    process.wait_state("running")
    assert "OMP_NUM_THREADS=1" in process.log_tail()
    threads = len(os.listdir(f"/proc/{process.pid}/task"))
    assert threads <= 6, "main, heartbeat, watchdog, two of the channel, one connection attempt at most"


def test_running_actor_has_loaded_neither_torch_nor_numba_nor_dask(learner: Learner, actor: Actor) -> None:
    config = make_config(env=CARTPOLE)
    process = actor(config, learner(config).endpoint)
    process.wait_state("running")
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert "numpy" in maps
    assert not [
        line for line in maps.splitlines() if any(f"/{x}" in line for x in ("torch/", "numba/", "llvmlite"))
    ]
    code = (
        "import sys, seedflow.actor.__main__, seedflow.actor.session, seedflow.rpc.slab_client\n"
        "import seedflow.rpc.grpc_client\n"
        "print([m for m in ('torch', 'numba', 'dask', 'distributed') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_importing_the_process_module_does_not_load_numpy() -> None:
    code = "import sys, seedflow.actor.__main__; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr


def test_sigterm_stops_an_actor_that_waits_for_actions(learner: Learner, actor: Actor) -> None:
    config = make_config()
    served = learner(config)
    served.answering.clear()
    process = actor(config, served.endpoint)
    wait_for(lambda: len(served.rows) == 2)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait_exit() == 0
    assert process.of_kind("done") == [{"kind": "done", "reason": "stopped"}]


def test_end_of_the_run_ends_the_actor_with_success(learner: Learner, actor: Actor) -> None:
    config = make_config()
    served = learner(config)
    process = actor(config, served.endpoint)
    wait_for(lambda: len(served.rows) > 4)
    served.finish()
    assert process.wait_exit() == 0
    assert process.of_kind("done") == [{"kind": "done", "reason": "finished"}]
    late = actor(config, served.endpoint, index=1)
    assert late.wait_exit() == 0


def test_newer_generation_takes_over_and_the_older_one_exits_with_success(
    learner: Learner, actor: Actor
) -> None:
    config = make_config()
    served = learner(config)
    older = actor(config, served.endpoint)
    older.wait_state("running")
    newer = actor(config, served.endpoint, generation=1)
    newer.wait_state("running")
    assert older.wait_exit() == 0
    assert older.of_kind("done") == [{"kind": "done", "reason": "superseded"}]
    assert older.wait_state("stopping")["reason"].startswith("superseded")
    newest = served.opened[-1].id
    count = served.rings[newest]
    wait_for(lambda: served.rings[newest] > count + 4)
    assert newer.returncode() is None


def test_second_actor_of_the_same_generation_is_refused_for_good(
    learner: Learner, actor: Actor, tmp_path: Path
) -> None:
    config = make_config()
    served = learner(config)
    actor(config, served.endpoint).wait_state("running")
    (tmp_path / "second").mkdir()
    second = actor(config, served.endpoint)
    assert second.wait_exit() == 3
    failed = failure_of(second)
    assert (failed["exception"], failed["retryable"]) == ("RegistrationRefused", False)
    assert "already connected" in failed["message"]


def test_wrong_token_is_refused_for_good_and_not_logged(learner: Learner, actor: Actor) -> None:
    config = make_config()
    wrong = "0ff5e7" * 10 + "abcd"
    process = actor(config, learner(config).endpoint, token=wrong)
    assert process.wait_exit() == 3
    assert failure_of(process)["retryable"] is False
    assert wrong not in process.log_tail(1000)
    assert TOKEN not in process.log_tail(1000)


def test_full_learner_is_asked_again_until_the_time_is_over(learner: Learner, actor: Actor) -> None:
    config = make_config(actor={"groups": 2, "envs_per_group": 2, "reconnect_seconds": 1})
    process = actor(config, learner(config).endpoint, index=9)
    assert process.wait_exit() == 1
    failed = failure_of(process)
    assert (failed["exception"], failed["retryable"]) == ("RegistrationRefused", True)
    assert "full" in failed["message"]
    assert "tries again" in process.log_tail()


def test_actor_without_a_learner_gives_up_after_its_time(actor: Actor) -> None:
    config = make_config(actor={"groups": 2, "envs_per_group": 2, "reconnect_seconds": 1})
    process = actor(config, NOWHERE)
    assert process.wait_exit() == 1
    failed = failure_of(process)
    assert (failed["exception"], failed["retryable"]) == ("ConnectionLost", True)
    assert "no learner within actor.reconnect_seconds = 1" in failed["message"]
    assert NOWHERE["socket"] in failed["message"]


def test_actor_whose_learner_is_gone_gives_up_after_its_time(learner: Learner, actor: Actor) -> None:
    config = make_config(actor={"groups": 2, "envs_per_group": 2, "reconnect_seconds": 1})
    served = learner(config)
    process = actor(config, served.endpoint)
    wait_for(lambda: len(served.rows) > 4)
    served.close()
    assert process.wait_exit() == 1
    assert failure_of(process)["exception"] == "ConnectionLost"
    assert [m["state"] for m in process.of_kind("state")] == ["starting", "running", "reconnecting"]


def test_actor_that_looks_for_a_learner_stops_at_once(actor: Actor) -> None:
    process = actor(make_config(), NOWHERE)
    wait_for(lambda: "tries again" in process.log_tail())
    assert process.stop(30) == 0


def test_actor_started_before_its_learner_finds_it(learner: Learner, actor: Actor) -> None:
    config = make_config()
    process = actor(config, NOWHERE)
    wait_for(lambda: "tries again" in process.log_tail())
    served = learner(config)
    process.send({"kind": "endpoint", "endpoint": served.endpoint})
    process.wait_state("running")
    wait_for(lambda: len(served.rows) > 4)


def test_actor_follows_its_learner_and_begins_new_episodes(learner: Learner, actor: Actor) -> None:
    config = make_config(env=CARTPOLE)
    before = learner(config)
    process = actor(config, before.endpoint)
    wait_for(lambda: len(before.rows) > 4)
    after = learner(config)
    process.send({"kind": "endpoint", "endpoint": after.endpoint})
    before.close()
    wait_for(lambda: len(after.rows) > 4)
    for group in range(2):
        old = next(rows for _, g, rows in before.rows if g == group)
        new = next(rows for _, g, rows in after.rows if g == group)
        assert old["first"].all()
        assert new["first"].all()
        assert not np.isin(new["observation"], old["observation"]).any()

    def reconnected() -> bool:
        return any(m["values"]["actor/reconnects"] == 1 for m in process.of_kind("metrics"))

    wait_for(reconnected)
    assert process.stop(30) == 0


def test_restarted_actor_or_run_does_not_replay_episodes(learner: Learner, actor: Actor) -> None:
    config = make_config(env=CARTPOLE)
    served = learner(config)
    starts = []
    for generation, attempt in ((0, 0), (1, 0), (0, 7), (0, 0)):
        process = actor(config, served.endpoint, generation=generation, attempt=attempt)
        wait_for(lambda: len(served.opened) > len(starts))
        lease = served.opened[-1]
        rows = wait_for(lambda of=lease.id: [r for n, g, r in served.rows if (n, g) == (of, 0)])[0]
        starts.append(rows["observation"])
        assert process.stop(30) == 0
        wait_for(lambda: len(served.closed) == len(starts))
    assert np.unique(np.stack(starts[:3])).size == np.stack(starts[:3]).size
    np.testing.assert_array_equal(starts[0], starts[3])


@pytest.mark.parametrize(("behaviour", "exception"), [("raise", "ZeroDivisionError"), ("exit", "SystemExit")])
def test_what_an_environment_raises_reaches_learner_and_supervisor(
    learner: Learner, actor: Actor, behaviour: str, exception: str
) -> None:
    config = make_config()
    served = learner(config, SPEC)
    process = actor(config, served.endpoint, env_fn=make_env_fn(behaviour), spec=SPEC, index=1)
    assert process.wait_exit() == 1
    failed = failure_of(process)
    assert (failed["exception"], failed["retryable"]) == (exception, True)
    wait_for(lambda: served.faults)
    for text in (failed["traceback"], served.faults[0]):
        assert "in step" in text
        assert "train actor 1" in text
        assert "environments 4 to 5" in text
        assert exception in text
    wait_for(lambda: served.closed)


def test_crash_in_an_environment_leaves_signal_and_place(learner: Learner, actor: Actor) -> None:
    config = make_config()
    served = learner(config, SPEC)
    process = actor(config, served.endpoint, env_fn=make_env_fn("crash"), spec=SPEC)
    assert process.wait_exit() == 128 + signal.SIGSEGV
    assert "Segmentation fault" in process.log_tail(200)
    wait_for(lambda: served.closed)


def test_environment_that_hangs_is_killed_after_the_grace(learner: Learner, actor: Actor) -> None:
    config = make_config()
    served = learner(config, SPEC)
    process = actor(config, served.endpoint, env_fn=make_env_fn("hang"), spec=SPEC)
    wait_for(lambda: "hanging" in process.log_tail())
    assert process.stop(1.0) == 128 + signal.SIGKILL
    wait_for(lambda: served.closed)


@pytest.mark.parametrize(
    ("more", "exception", "text"),
    [
        ({"env_fn": b"no pickle"}, "EnvironmentFault", "env_fn cannot be unpickled"),
        ({"env_fn": b"cno_such_module\nmake\n."}, "EnvironmentFault", "no_such_module"),
        ({"env_fn": b"cbuiltins\nlist\n."}, "EnvironmentFault", "env_fn"),
        ({"env_fn": make_env_fn("well")}, "EnvironmentFault", "looks different on this host"),
        ({"generation": "new"}, "ConfigError", "start message"),
        ({"config": {"seed": -1}}, "ConfigError", "seed"),
        ({"role": "spectator"}, "ConfigError", "expected train or eval"),
        ({"endpoint": {"socket": 5}}, "TransportError", "endpoint's socket = 5"),
    ],
)
def test_failure_that_a_restart_cannot_cure_says_so(
    learner: Learner, actor: Actor, more: dict[str, Any], exception: str, text: str
) -> None:
    config = make_config()
    process = actor(config, learner(config).endpoint, **more)
    assert process.wait_exit() == 3
    failed = failure_of(process)
    assert (failed["exception"], failed["retryable"]) == (exception, False)
    assert text in failed["message"]


def test_unknown_environment_ends_the_actor_for_good(learner: Learner, actor: Actor) -> None:
    config = make_config(env={"id": "NoSuchGame-v0", "kwargs": {}})
    process = actor(config, learner(config, SPEC).endpoint, spec=SPEC)
    assert process.wait_exit() == 3
    assert "NoSuchGame" in failure_of(process)["message"]


def test_evaluation_actor_has_a_lease_of_its_own(learner: Learner, actor: Actor) -> None:
    config = make_config(eval={"envs": 2})
    served = learner(config)
    process = actor(config, served.endpoint, role="eval")
    wait_for(lambda: len(served.rows) > 4)
    lease = served.opened[0]
    assert (lease.role, lease.groups, lease.envs) == ("eval", 1, 2)
    assert process.stop(30) == 0


def test_grpc_path_serves_an_actor_alike(learner: Learner, actor: Actor) -> None:
    config = make_config(rpc={"path": "grpc"})
    served = learner(config)
    spec = spec_of(config)
    with GatewayProcess(
        TOKEN, served.endpoint["socket"], "127.0.0.1", None, spec, groups=2, envs=2, lease_seconds=30.0
    ) as gateway:
        gateway.start(60)
        process = actor(config, {"socket": None, "gateway": gateway.address})
        wait_for(lambda: len(served.rows) > 20)
        assert process.stop(30) == 0
        wait_for(lambda: served.closed)
    first = [rows["first"].tolist() for _, g, rows in served.rows if g == 0]
    assert first[:5] == [[True, True], [False, False], [False, False], [False, False], [True, True]]


def test_nothing_is_left_of_an_actor_whose_supervisor_is_killed(learner: Learner, tmp_path: Path) -> None:
    config = make_config()
    served = learner(config, SPEC)
    code = """
import json, pathlib, sys, time
from tests.actor.conftest import ActorProcess
process = ActorProcess(json.loads(sys.stdin.readline()), pathlib.Path(sys.argv[1]))
process.wait_state("running")
print(process.pid, flush=True)
time.sleep(600)
"""
    message = {
        "config": config.model_dump(mode="json"),
        "spec": SPEC.to_json(),
        "token": TOKEN,
        "role": "train",
        "index": 0,
        "generation": 0,
        "endpoint": served.endpoint,
        "env_fn": base64.b64encode(cloudpickle.dumps(make_env_fn("child"))).decode(),
    }
    log = tmp_path / "actor.log"
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(log)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        try:
            parent.stdin.write(json.dumps(message) + "\n")
            parent.stdin.flush()
            pids = [int(parent.stdout.readline())]
            wait_for(lambda: len(served.rows) > 4)
        finally:
            parent.kill()
    pids += [int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("grandchild")]
    assert len(pids) == 5
    wait_for(lambda: not any(is_running(pid) for pid in pids))
    wait_for(lambda: served.closed)
