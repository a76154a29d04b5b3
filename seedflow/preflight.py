"""What can be known to be wrong before anything of a run starts.

The settings themselves are checked where they are read (`seedflow.config`), the environment where it is
made (`seedflow.envs.probe`). Here is what lies between them and this machine. Nothing loads torch.
"""

from __future__ import annotations

import ast
import multiprocessing
import subprocess
import sys
from pathlib import Path
from types import FrameType

from seedflow.config import Config
from seedflow.errors import ConfigError
from seedflow.learner.footprint import experience_bytes
from seedflow.networks.images import check_encoder
from seedflow.replay.memory import gib, machine_bytes
from seedflow.specs import EnvSpec

GUARD = """

    if __name__ == "__main__":
        main()

"""
NVIDIA = Path("/proc/driver/nvidia")


def check_script(config: Config) -> None:
    """Refuse a program that the workers of a local cluster would run a second time, or cannot find.

    They are processes that multiprocessing spawns, and it makes each import the main program first.

    Raises
    ------
    ConfigError
        Shows the guard that is missing.
    SystemExit
        In such a process itself, which must not start another run.
    """
    # Set while a spawned process imports the main program; multiprocessing's own check looks at it, too.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(
            "seedflow: a process that was started by multiprocessing runs the main program again, and would "
            "start the run again; let the main program start it below a guard:" + GUARD.rstrip()
        )
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if config.runtime != "local" or path is None or (name or "").rpartition(".")[2] == "__main__":
        return
    try:
        source = Path(path).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        if name is None:
            raise ConfigError(
                f"the main program is {path}, which is no file; runtime = 'local' starts worker processes "
                f"that import it: save it as a file, and start the run in it below a guard:{GUARD}"
                "or use runtime=inline, which starts no process"
            ) from None
        return
    except OSError:
        return
    line = _line_in_the_body_of(vars(main))
    if line is not None and not _is_guarded(source, line):
        raise ConfigError(
            f"{path}, line {line}, starts a run without a guard; runtime = 'local' starts worker processes "
            f"that import it, and each of them would start the run again; start it below a guard:{GUARD}"
            "or use runtime=inline, which starts no process"
        )


def check_learner(config: Config, spec: EnvSpec) -> None:
    """Whether the learner can be what the settings say: its encoder, device and memory.

    On a cluster the latter two are known on the learner's host only.

    Raises
    ------
    ConfigError
        Says which setting to change.
    """
    check_encoder(config.network, spec)
    if config.runtime == "cluster":
        return
    if config.device == "cuda":
        _check_cuda()
    if config.device == "cpu" or not NVIDIA.exists():
        _check_memory(config, spec)


def _check_memory(config: Config, spec: EnvSpec) -> None:
    needed, there = experience_bytes(config, spec), machine_bytes()
    if needed > there and config.has_replay:
        raise ConfigError(
            f"replay.chunk = {config.replay.chunk}, train.batch = {config.train.batch} and {config.max_envs} "
            f"environments need at least {gib(needed)} for {config.chunk_buffers} chunk buffers and "
            f"{config.rollout.prefetch + 1} batches, but this machine has {gib(there)}; lower replay.chunk, "
            "train.batch, rollout.prefetch or actor.envs_per_group"
        )
    if needed > there:
        raise ConfigError(
            f"rollout.unroll = {config.rollout.unroll}, train.batch = {config.train.batch} and "
            f"{config.max_envs} environments need at least {gib(needed)} for {config.slots} unroll slots and "
            f"{config.rollout.prefetch + 1} batches, but this machine has {gib(there)}; lower "
            "rollout.unroll, train.batch, rollout.queue, rollout.prefetch or actor.envs_per_group"
        )


CUDA_CHECK = """
from seedflow.errors import ConfigError
from seedflow.learner.footprint import experience_bytes
from seedflow.networks.devices import pick_device

try:
    pick_device("cuda")
except ConfigError as error:
    print(error)
"""


def _check_cuda() -> None:
    """In a process of its own, so that the driver need not load torch."""
    done = subprocess.run([sys.executable, "-c", CUDA_CHECK], capture_output=True, text=True, check=False)
    if done.returncode == 0 and done.stdout:
        raise ConfigError(done.stdout.strip())


def _line_in_the_body_of(module: dict[str, object]) -> int | None:
    """The line of a module that is just being executed and has led here."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals is module and frame.f_code.co_name == "<module>":
            return frame.f_lineno
        frame = frame.f_back
    return None


def _is_guarded(source: str, line: int) -> bool:
    """Whether a program asks, up to the statement on a line, if it is imported by a spawned process."""
    try:
        statements = [statement for statement in ast.parse(source).body if statement.lineno <= line]
    except (SyntaxError, ValueError):  # not what runs: the file has changed meanwhile
        return True
    for node in (node for statement in statements for node in ast.walk(statement)):
        if isinstance(node, ast.Compare):
            compared = [node.left, *node.comparators]
            if any(isinstance(part, ast.Name) and part.id == "__name__" for part in compared):
                return True
        name = getattr(node, "attr", None) or getattr(node, "id", None) or getattr(node, "name", None)
        if name in ("parent_process", "current_process"):
            return True
    return False
