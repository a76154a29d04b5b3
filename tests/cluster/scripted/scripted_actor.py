"""An actor role that steps nothing: tells in a file that it is up, and ends as its script says."""

import os
import subprocess
import sys
from pathlib import Path

from seedflow.roles import RoleChannel, run_role
from seedflow.roles.messages import failure


def main(channel: RoleChannel) -> int:
    start = channel.start
    script = start["config"]["env"]["kwargs"]
    run_dir, index, generation = Path(start["run_dir"]), start["index"], start["generation"]
    assert start["endpoint"]["gateway"].startswith("127.0.0.1:")
    if script.get("actor") == "raise" and index == 1:
        raise LookupError("no such level: 99")
    if script.get("actor") == "hopeless":
        channel.send(failure(ImportError("no module named minigrid"), retryable=False))
        return 3
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    up = run_dir / f"{start['role']}-{index}-g{generation}.up"
    up.with_suffix(".tmp").write_text(
        f"{os.getpid()} {child.pid} {os.environ['OMP_NUM_THREADS']} {os.environ.get('CUDA_VISIBLE_DEVICES')}"
    )
    up.with_suffix(".tmp").rename(up)
    channel.send({"kind": "state", "state": "running"})
    while not (run_dir / "finish").exists() and not channel.stop_requested.wait(0.05):
        if channel.endpoint is not None:
            (run_dir / f"{start['role']}-{index}.told").write_text(channel.endpoint["gateway"])
    channel.send({"kind": "done", "reason": "finished" if (run_dir / "finish").exists() else "stopped"})
    return 0


if __name__ == "__main__":
    run_role(main)
