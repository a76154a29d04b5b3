"""Runs on hosts that grant little: long paths, few file descriptors."""

from __future__ import annotations

from pathlib import Path

from tests.runs.rig import PROGRAM, Launcher, metrics

LONG = "a-directory-whose-name-alone-is-longer-than-most-paths-are"


def test_a_run_with_paths_too_long_for_a_socket_and_few_file_descriptors(launch: Launcher) -> None:
    """A unix socket's address ends at 107 bytes; a small desktop or container allows 256 open files."""
    deep = launch.directory / LONG / LONG
    (deep / "tmp").mkdir(parents=True)
    run_dir = deep / "run"
    assert len(str(run_dir)) > 107
    envs = ["actor.count=1", "actor.groups=2", "actor.envs_per_group=32"]
    train = [str(PROGRAM), "train", "tiny.yaml", "--run-dir", str(run_dir), *envs, "rpc.path=auto"]
    limited = 'ulimit -n 256; exec "$@"'
    launched = launch(
        "bash", "-c", limited, "bash", *train, env={"TMPDIR": str(deep / "tmp"), "XDG_RUNTIME_DIR": ""}
    )
    sockets: set[str] = set()

    def seen() -> bool:
        for pid in launched.family("seedflow.learner"):
            limits = Path(f"/proc/{pid}/limits").read_text()
            assert "256" in next(line for line in limits.splitlines() if line.startswith("Max open files"))
            sockets.update(
                line.split()[-1]
                for line in Path("/proc/net/unix").read_text().splitlines()
                if "seedflow" in line
            )
        return bool(sockets)

    launched.until(seen, "the control socket")
    assert launched.end() == 0, launched.err
    launched.check_quiet()
    last = metrics(run_dir)[-1]
    assert last["steps/agent"] >= 1000
    assert last["control/exhausted"] == 0
    assert all(len(path) <= 107 for path in sockets)
