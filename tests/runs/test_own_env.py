"""Environments of one's own: a function, a module, and what is wrong with them."""

from __future__ import annotations

import sys

import pytest

from tests.runs.rig import Launcher, progress, staged

SCRIPT = """
import sys
import seedflow
from run_envs import StagedEnv

def main(run_dir):
    config = seedflow.load_config("tiny.yaml", sys.argv[2:])
    length = 7
    seedflow.train(config, run_dir=run_dir, env_fn=lambda: StagedEnv(length=length))
    result = seedflow.evaluate(run_dir, episodes=5, env_fn=lambda: StagedEnv(length=length))
    print("lengths", *result.lengths)

"""
GUARDED = SCRIPT + 'if __name__ == "__main__":\n    main(sys.argv[1])\n'
UNGUARDED = SCRIPT + "main(sys.argv[1])\n"


@pytest.mark.parametrize("runtime", ["local", pytest.param("inline", marks=pytest.mark.slow)])
def test_a_script_trains_on_its_lambda(launch: Launcher, runtime: str) -> None:
    (launch.directory / "own.py").write_text(GUARDED)
    launched = launch(sys.executable, "own.py", "run", f"runtime={runtime}")
    assert launched.end() == 0, launched.err
    launched.check_quiet()
    assert "lengths 7 7 7 7 7" in launched.out
    assert progress(launch.directory / "run")["agent_steps"] >= 1000


@pytest.mark.slow
def test_a_script_whose_guard_guards_something_else_is_told_about_it(launch: Launcher) -> None:
    """That there is no guard at all is seen beforehand, see tests/test_preflight.py."""
    text = UNGUARDED.replace("main(sys", 'if __name__ == "__main__":\n    print("begins")\nmain(sys')
    (launch.directory / "own.py").write_text(text)
    launched = launch(sys.executable, "own.py", "run")
    assert launched.end() == 1
    assert "would start the run again; let the main program start it below a guard" in launched.err
    assert launched.err.count("start the run below `if __name__") == 1
    assert launched.err.count("Traceback") == 1
    assert not (launch.directory / "run").exists()


def test_an_environment_that_always_raises_ends_the_run_with_its_traceback(launch: Launcher) -> None:
    launched = launch.train(*staged(fault="actor-step3"))
    assert launched.end() == 1
    assert "the same exception twice" in launched.err
    assert "LookupError: no such level: 99" in launched.err
    assert "run_envs.py" in launched.err
    assert "actor-0-g1.log" in launched.err


@pytest.mark.parametrize(
    ("env_id", "said"),
    [
        ("no_such_module:Level-v0", "No module named 'no_such_module'"),
        ("CartPole-v9", "CartPole"),
        pytest.param("run_envs:Stagde-v0", "Staged", marks=pytest.mark.slow),
    ],
)
def test_an_environment_that_cannot_be_made_starts_nothing(launch: Launcher, env_id: str, said: str) -> None:
    launched = launch.train(f"env.id={env_id}")
    assert launched.end() == 2
    assert launched.err.startswith(f"Error: env.id = '{env_id}' cannot be made")
    assert launched.out == ""
    assert said in launched.err
    launched.check_quiet()
    assert not (launch.directory / "run").exists()


def test_an_environment_that_raises_in_the_probe_is_shown_and_starts_nothing(launch: Launcher) -> None:
    launched = launch.train(*staged(fault="probe-step1"))
    assert launched.end() == 1
    assert "raised LookupError in its first steps: no such level: 99" in launched.err
    assert not (launch.directory / "run").exists()
