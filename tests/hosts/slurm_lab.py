"""A real Slurm on this machine: a controller, and nodes that are network namespaces with a slurmd each.

Needs the superuser and Debian's packages, which are installed where they are missing. Everything lies in a
directory of the lab's own, and nothing in ``/etc`` is read or changed: clients find it by ``SLURM_CONF``.

- The controller is reached at `ADDRESS`.1, the first of a bridge's addresses; node K has `ADDRESS`.(10 + K),
  and is called ``nodeK`` in a UTS namespace of its own, so that several hosts are told apart as in life.
- `slurmd` is entered by ``nsenter``, since ``ip netns exec`` hides the cgroups that it looks for.
- A requeued job waits as long as credentials live, 120 s unless told otherwise.
- Without cgroups Slurm knows the processes of a job by their parents (``proctrack/linuxproc``).
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.hosts.debian import install
from tests.runs.rig import until

PACKAGES = ("slurm-wlm", "slurm-wlm-torque", "munge", "iproute2", "util-linux", "shellcheck")
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "qsub", "ip", "nsenter", "unshare", "shellcheck")
ADDRESS = "10.79.0"
BRIDGE, LINK, NAMESPACE = "sfslurm", "sfslurm", "seedflow-slurm-"
INTERFACE = "eth0"
COMMAND_SECONDS = 400.0
KILL_WAIT = 120
"""Seconds between SIGTERM and SIGKILL: many, since this machine may be slow."""
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "DEADLINE", "OUT_OF_MEMORY")

CONFIGURATION = """
ClusterName=seedflow
SlurmctldHost={host}({address}.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={lab}/run/munge.socket,cred_expire=5
SlurmctldPort=16917
SlurmdPort=16918
SlurmctldPidFile={lab}/run/slurmctld.pid
SlurmdPidFile={lab}/run/slurmd.%n.pid
StateSaveLocation={lab}/state
SlurmdSpoolDir={lab}/spool.%n
SlurmctldLogFile={lab}/log/slurmctld.log
SlurmdLogFile={lab}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,bf_resolution=10
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=15
InactiveLimit=0
MinJobAge=3600
KillWait={kill_wait}
JobRequeue=1
MessageTimeout=30
OverTimeLimit=0
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=60 DefaultTime=10 State=UP OverSubscribe=NO
"""


class SlurmLab:
    """A Slurm of some nodes.

    Parameters
    ----------
    nodes
        How many.
    cpus
        Of each, whatever the machine has.
    gpu_nodes
        Numbers of the nodes that have a GPU, or rather a file that Slurm takes for one.

    Attributes
    ----------
    directory
        Short, since sockets lie below it, and open to all users.
    """

    def __init__(self, nodes: int = 3, cpus: int = 4, gpu_nodes: Sequence[int] = (1,)) -> None:
        self.nodes, self.cpus, self.gpu_nodes = nodes, cpus, tuple(gpu_nodes)
        self.directory = Path(tempfile.mkdtemp(prefix="sfs-", dir="/tmp"))
        self.directory.chmod(0o755)
        self.mark = f"SEEDFLOW_SLURM_{secrets.token_hex(8)}"
        """In the environment of every process of the lab, jobs included."""
        self._users: list[str] = []
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(self.directory / "slurm.conf"),
            self.mark: "1",
        }

    def start(self) -> None:
        """Start everything and wait until all nodes are idle."""
        for name in ("munge", "run", "state", "log", *(f"spool.node{k}" for k in self.numbers)):
            (self.directory / name).mkdir(mode=0o755)
        (self.directory / "munge").chmod(0o700)
        self._start_munge()
        self._lay_network()
        self._configure()
        self.run("slurmctld", "-f", self.environment["SLURM_CONF"])
        for number in self.numbers:
            self._start_node(number)
        until(lambda: self.node_states() == ["idle"] * self.nodes, f"idle nodes; {self.log_tails()}", 120)

    def stop(self) -> None:
        """End every process and remove every namespace and interface."""
        with contextlib.suppress(subprocess.SubprocessError):
            self.run("scancel", "--state=PENDING", "--user=root", check=False)
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            with contextlib.suppress(AssertionError):
                until(lambda: not self.processes(), "the lab's end", 10)
        for number in self.numbers:
            self.run("ip", "link", "del", f"{LINK}{number}", check=False)
            self.run("ip", "netns", "del", f"{NAMESPACE}{number}", check=False)
        self.run("ip", "link", "del", BRIDGE, check=False)
        for name in self._users:
            self.run("userdel", name, check=False)
        shutil.rmtree(self.directory)

    @property
    def numbers(self) -> range:
        """Of the nodes."""
        return range(1, self.nodes + 1)

    def run(self, *command: str, check: bool = True, **options: Any) -> str:
        """Run a command as a user of the lab does; returns what it prints."""
        done = subprocess.run(
            command,
            env={**self.environment, **options.pop("env", {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=options.pop("timeout", COMMAND_SECONDS),
            check=False,
            **options,
        )
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def job(self, job: str) -> dict[str, str]:
        """What Slurm says of a job, or of the first one of an array or of a heterogeneous one."""
        said = self.run("scontrol", "--oneliner", "show", "job", job).splitlines()[0]
        return dict(re.findall(r"(\S+?)=(\S*)", said))

    def state(self, job: str) -> str:
        """Of a job, without what is appended to it."""
        return self.job(job)["JobState"]

    def exit_code(self, job: str) -> int:
        return int(self.job(job)["ExitCode"].partition(":")[0])

    def until_over(self, job: str, seconds: float) -> str:
        """Wait for the end of a job; returns its state."""

        def over() -> str | None:
            state = self.state(job)
            return state if state in OVER else None

        return str(until(over, f"the end of job {job}", seconds))

    def node_states(self) -> list[str]:
        """Of all nodes, in order."""
        return self.run("sinfo", "-h", "-N", "-o", "%T", check=False).split()

    def cancel_all(self) -> None:
        """Cancel whatever is there, and wait until it is gone."""
        for state in ("PENDING", "RUNNING"):
            self.run("scancel", f"--state={state}", check=False)
        for pid in self.of_jobs():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not self.run("squeue", "-h", check=False).strip(), "an empty queue", 120)

    def add_user(self, name: str) -> dict[str, Any]:
        """Make a user with a home directory; returns what `subprocess` needs to be this user."""
        home = self.directory / name
        self.run("useradd", "--no-create-home", f"--home-dir={home}", "--shell=/bin/bash", name)
        self._users.append(name)
        entry = pwd.getpwnam(name)
        home.mkdir(mode=0o700)
        os.chown(home, entry.pw_uid, entry.pw_gid)
        environment = {"HOME": str(home), "USER": name, "LOGNAME": name}
        return {
            "user": entry.pw_uid,
            "group": entry.pw_gid,
            "extra_groups": [],
            "env": environment,
            "cwd": home,
        }

    def crash(self, number: int) -> None:
        """Cut a node off and end all that runs there, without a word to anybody."""
        self.run("ip", "link", "set", f"{LINK}{number}", "down")
        for pid in self.on_node(number):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def revive(self, number: int) -> None:
        """Start a node that has crashed, and wait until it may be used."""
        self.run("ip", "link", "set", f"{LINK}{number}", "up")
        self._start_node(number)
        until(lambda: self.node_states() == ["idle"] * self.nodes, "the node to be idle again", 120)

    def address(self, number: int) -> str:
        return f"{ADDRESS}.{10 + number}"

    def on_node(self, number: int) -> list[int]:
        """Processes of a node, its slurmd included."""
        return [
            int(pid) for pid in self.run("ip", "netns", "pids", f"{NAMESPACE}{number}", check=False).split()
        ]

    def of_jobs(self) -> dict[int, str]:
        """Processes that jobs have started, with their command lines."""
        return {
            pid: command
            for number in self.numbers
            for pid in self.on_node(number)
            if not (command := command_line(pid)).startswith("slurmd ") and command
        }

    def processes(self) -> list[int]:
        """All processes of the lab that live: marked ones, and Slurm's, which overwrite their environment."""
        on_nodes = {pid for number in self.numbers for pid in self.on_node(number) if command_line(pid)}
        return sorted(on_nodes | set(processes_with(f"{self.mark}=1")))

    def log_tails(self) -> str:
        """The end of what Slurm's daemons have written."""
        tails = [path.read_text(errors="replace")[-800:] for path in (self.directory / "log").glob("*.log")]
        return "\n".join(tails)

    def _start_munge(self) -> None:
        key = self.directory / "munge" / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        places = {
            "key-file": key,
            "socket": self.directory / "run" / "munge.socket",
            "pid-file": self.directory / "run" / "munged.pid",
            "log-file": self.directory / "munge" / "log",
            "seed-file": self.directory / "munge" / "seed",
        }
        self.run("munged", *(f"--{name}={path}" for name, path in places.items()))

    def _lay_network(self) -> None:
        self.run("ip", "link", "add", BRIDGE, "type", "bridge")
        self.run("ip", "addr", "add", f"{ADDRESS}.1/24", "dev", BRIDGE)
        self.run("ip", "link", "set", BRIDGE, "up")
        for number in self.numbers:
            name, link = f"{NAMESPACE}{number}", f"{LINK}{number}"
            self.run("ip", "netns", "add", name)
            self.run("ip", "link", "add", link, "type", "veth", "peer", "name", INTERFACE, "netns", name)
            self.run("ip", "link", "set", link, "master", BRIDGE, "up")
            self.run("ip", "-n", name, "link", "set", "lo", "up")
            self.run("ip", "-n", name, "addr", "add", f"{self.address(number)}/24", "dev", INTERFACE)
            self.run("ip", "-n", name, "link", "set", INTERFACE, "up")

    def _configure(self) -> None:
        nodes, gpus = [], []
        for number in self.numbers:
            node = f"NodeName=node{number} NodeHostname=node{number} NodeAddr={self.address(number)}"
            node += f" CPUs={self.cpus} RealMemory=16000 State=UNKNOWN"
            if number in self.gpu_nodes:
                node += " Gres=gpu:1"
                gpus.append(f"NodeName=node{number} Name=gpu File=/dev/zero")
            nodes.append(node)
        text = CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0],
            address=ADDRESS,
            lab=self.directory,
            kill_wait=KILL_WAIT,
            nodes="\n".join(nodes),
        )
        (self.directory / "slurm.conf").write_text(text)
        (self.directory / "gres.conf").write_text("\n".join(gpus) + "\n")

    def _start_node(self, number: int) -> None:
        start = 'hostname "$0"; exec slurmd -f "$1" -N "$0"'
        namespace = f"/run/netns/{NAMESPACE}{number}"
        self.run(
            "nsenter", f"--net={namespace}", "unshare", "--uts", "sh", "-c", start,
            f"node{number}", self.environment["SLURM_CONF"],
        )  # fmt: skip


def command_line(pid: int) -> str:
    """Of a process, words with blanks between them; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def processes_with(entry: str) -> list[int]:
    """Living processes that were started with an entry in their environment."""
    found = []
    for place in Path("/proc").iterdir():
        try:
            if place.name.isdigit() and entry.encode() in (place / "environ").read_bytes().split(b"\0"):
                state = (place / "stat").read_text().rpartition(")")[2].split()[0]
                found += [int(place.name)] if state != "Z" else []
        except OSError:
            continue
    return found


@contextlib.contextmanager
def slurm_lab(start: Callable[[], SlurmLab] = SlurmLab) -> Iterator[SlurmLab]:
    """A Slurm that is ended whatever happens, and checked to have left nothing."""
    install(PROGRAMS, PACKAGES)
    lab = start()
    try:
        lab.start()
        yield lab
    finally:
        lab.stop()
    assert lab.processes() == []
