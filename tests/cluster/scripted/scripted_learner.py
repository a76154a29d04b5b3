"""A learner role that learns nothing: up until the file `finish` appears in the run's directory."""

import os
import sys
import threading
from pathlib import Path

from seedflow.learner.pulse import Pulse
from seedflow.roles import RoleChannel, run_role


def main(channel: RoleChannel) -> int:
    script = channel.start["config"]["env"]["kwargs"]
    run_dir = Path(channel.start["run_dir"])
    generation = channel.start["generation"]
    (run_dir / f"learner-g{generation}.pid").write_text(str(os.getpid()))
    (run_dir / "learner.env").write_text(f"{os.environ['OMP_NUM_THREADS']} {channel.start['host']}")
    (run_dir / "learner.gpus").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
    if script.get("learner") == "silent":
        print("loading weights that never come", file=sys.stderr)
        channel.stop_requested.wait(60)
        return 0
    channel.send({"kind": "endpoint", "endpoint": {"socket": None, "gateway": f"127.0.0.1:{1 + generation}"}})
    channel.send({"kind": "state", "state": "running"})
    channel.send({"kind": "metrics", "values": {"steps/agent": 7.0}})
    if script.get("learner") == "hangs" and generation == 0:
        Pulse(channel.board).beat("training")
        threading.Event().wait(600)  # in a turn that does not end
    while not (run_dir / "finish").exists() and not channel.stop_requested.wait(0.05):
        pass
    (run_dir / "learner.stopped").write_text("in order")
    channel.send({"kind": "done", "reason": "finished" if (run_dir / "finish").exists() else "stopped"})
    return 0


if __name__ == "__main__":
    run_role(main)
