"""Learning a spec in a child process that may crash, hang or raise."""

import os
import subprocess
import sys
import time
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

from seedflow.config import EnvConfig
from seedflow.envs import probe_spec
from seedflow.errors import ConfigError, EnvironmentFault, SpecError
from seedflow.specs import ArraySpec, EnvSpec

CARTPOLE = EnvSpec((ArraySpec("observation", (4,), np.dtype("float32")),), 2)


def env_fn(function):
    """Pickle a function of this module by value, as a user's script would be."""
    return cloudpickle.dumps(function)


def test_the_spec_of_a_gymnasium_id():
    assert probe_spec(EnvConfig(id="CartPole-v1")) == CARTPOLE


def test_the_spec_is_that_after_all_wrappers():
    config = EnvConfig(wrappers=({"select_observation": {"indices": [0, 2]}},))
    assert probe_spec(config).observation == (ArraySpec("observation", (2,), np.dtype("float32")),)


def test_the_spec_of_a_users_own_environment_that_prints():
    def make():
        import gymnasium as gym

        print("hello from an environment")
        os.write(1, b"and from its C library\n")
        return gym.make("CartPole-v1")

    assert probe_spec(EnvConfig(id="not-used"), env_fn=env_fn(make)) == CARTPOLE


def test_a_crash_names_the_signal_and_shows_the_last_lines():
    def crash():
        import os
        import signal
        import sys

        print("loading the emulator", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)

    with pytest.raises(
        EnvironmentFault, match=r"(?s)env_fn ended its process by SIGSEGV.*loading the emulator"
    ):
        probe_spec(EnvConfig(), env_fn=env_fn(crash))


def test_an_exit_names_its_code():
    def leave():
        import os

        os._exit(7)

    with pytest.raises(EnvironmentFault, match="env_fn ended its process with exit code 7"):
        probe_spec(EnvConfig(), env_fn=env_fn(leave))


def test_an_exception_while_making_is_named():
    def fail():
        raise RuntimeError("no licence")

    with pytest.raises(EnvironmentFault, match="env_fn cannot be made: RuntimeError: no licence"):
        probe_spec(EnvConfig(), env_fn=env_fn(fail))


def test_an_exception_in_the_first_step_comes_with_its_traceback():
    def make():
        import gymnasium as gym

        class Jammed(gym.Wrapper):
            def step(self, action):
                raise RuntimeError("servo jammed")

        return Jammed(gym.make("CartPole-v1"))

    with pytest.raises(EnvironmentFault, match=r"(?s)RuntimeError in its first steps: servo jammed.*in step"):
        probe_spec(EnvConfig(), env_fn=env_fn(make))


def test_a_hang_is_ended_with_all_processes_that_the_environment_started(tmp_path):
    def hang():
        import subprocess
        import sys
        import time

        sleeper = [sys.executable, "-c", "import time; time.sleep(1000)"]
        plain = subprocess.Popen(sleeper)
        own_session = subprocess.Popen(sleeper, start_new_session=True)
        Path(tmp_path, "pids").write_text(f"{plain.pid} {own_session.pid}")
        while True:
            time.sleep(1000)

    with pytest.raises(EnvironmentFault, match=r"env_fn was not made, reset and stepped once within 15 s"):
        probe_spec(EnvConfig(), timeout=15, env_fn=env_fn(hang))
    pids = [int(pid) for pid in Path(tmp_path, "pids").read_text().split()]
    assert wait_until_gone(pids)


def test_what_an_environment_leaves_behind_is_ended_after_a_success(tmp_path):
    def make():
        import subprocess
        import sys

        import gymnasium as gym

        helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        Path(tmp_path, "pids").write_text(f"{helper.pid}")
        return gym.make("CartPole-v1")

    assert probe_spec(EnvConfig(), env_fn=env_fn(make)) == CARTPOLE
    assert wait_until_gone([int(Path(tmp_path, "pids").read_text())])


def wait_until_gone(pids, timeout=30.0):
    """Poll until no process of these ids runs; an unreaped one counts as gone."""

    def running(pid):
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False

    end = time.monotonic() + timeout
    while any(running(pid) for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def test_errors_of_seedflow_keep_their_kind():
    with pytest.raises(SpecError, match="expected a Discrete space"):
        probe_spec(EnvConfig(id="Pendulum-v1"))
    with pytest.raises(ConfigError, match="did you mean 'select_observation'"):
        probe_spec(EnvConfig(wrappers=("select_observations",)))
    with pytest.raises(ConfigError, match=r"No registered env with id|doesn't exist"):
        probe_spec(EnvConfig(id="NoSuchGame-v0"))


def test_environment_modules_load_neither_torch_nor_numba_nor_dask():
    code = (
        "import sys, seedflow.envs, seedflow.envs.probe; "
        "print([m for m in ('torch', 'numba', 'dask', 'distributed', 'ale_py', 'cv2') if m in sys.modules])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert loaded.stdout.strip() == "[]"
