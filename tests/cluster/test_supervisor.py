"""What travels between a driver and a role's supervisor."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import cloudpickle
from dask.system import CPU_COUNT

from seedflow.cluster.launch import Launch, Note, RoleId
from seedflow.cluster.supervisor import as_task, role_environment

LAUNCH = Launch(
    run="4f1c",
    role=RoleId("actor", 3),
    generation=2,
    module="seedflow.actor",
    start={"token": "secret", "config": {"seed": 1}, "env_fn": None},
    worker="tcp://10.0.0.1:4000",
    topic="Client-1",
    log_path="/runs/x/logs/actor-3-g2.log",
    threads=1,
    grace=10.0,
)


def test_a_launch_survives_json_and_hides_the_token() -> None:
    assert Launch.from_json(LAUNCH.to_json()) == LAUNCH
    assert LAUNCH.key == "seedflow-4f1c-actor-3-g2"
    assert "secret" not in repr(LAUNCH)
    assert "secret" not in repr(as_task(LAUNCH))


def test_a_task_can_be_unpickled_where_there_is_no_seedflow() -> None:
    """A scheduler unpickles the tasks that it passes on."""
    program = (
        "import pickle, sys; task = pickle.loads(sys.stdin.buffer.read()); "
        "assert callable(task) and 'seedflow' not in sys.modules"
    )
    subprocess.run(
        [sys.executable, "-c", program], input=cloudpickle.dumps(as_task(LAUNCH)), check=True, timeout=60
    )


def test_a_note_is_read_by_its_own_run_only() -> None:
    note = Note("4f1c", LAUNCH.role, 2, "a", "message", {"kind": "metrics", "values": {"steps/agent": 1.0}})
    assert Note.from_event(note.to_event(), "4f1c") == note
    assert Note.from_event(note.to_event(), "0000") is None
    assert Note.from_event({"action": "cancel", "count": 1}, "4f1c") is None
    assert Note.from_event("text", "4f1c") is None


def test_the_number_of_threads_is_always_explicit() -> None:
    assert set(role_environment(1).values()) == {"1"}
    assert set(role_environment(None).values()) == {str(CPU_COUNT)}
    assert {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"} <= set(role_environment(1))


def test_the_words_for_a_role() -> None:
    assert [RoleId(kind).start_role for kind in ("learner", "actor", "eval")] == ["learner", "train", "eval"]
    assert str(replace(LAUNCH, role=RoleId("eval")).role) == "eval-0"


def test_only_who_may_sees_a_gpu() -> None:
    assert "CUDA_VISIBLE_DEVICES" not in role_environment(1)
    assert role_environment(1, gpu=False)["CUDA_VISIBLE_DEVICES"] == ""
