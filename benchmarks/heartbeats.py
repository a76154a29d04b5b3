"""What thousands of idle actors cost: ``python -m benchmarks.heartbeats --actors 4000``.

The learner's control server with its lease table and the gateway process are those of a run. The actors are
simulated: one process opens a gRPC stream for each, registers, and sends heartbeats as an actor does. Nothing
is stepped, so what is measured is the price of being there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
import psutil

from seedflow.rpc.control import ControlServer
from seedflow.rpc.gateway_process import GatewayProcess
from seedflow.rpc.leases import LeaseTable
from seedflow.rpc.slab import BlockLayout, Slab
from seedflow.specs import ArraySpec, EnvSpec

SPEC = EnvSpec((ArraySpec("observation", (4,), np.dtype(np.float32)),), num_actions=2)
TOKEN = "5eed" * 16
STREAMS_PER_CHANNEL = 100
AT_ONCE = 128
"""Registrations under way; the gateway lets 256 streams in that have not registered."""


async def simulate(gateway: str, actors: int, every: float) -> None:
    """The actors: prints a line when all have registered, then sends heartbeats until its input ends."""
    from seedflow.rpc.grpc_options import aio
    from seedflow.rpc.messages import PROTOCOL_VERSION
    from seedflow.rpc.seedflow_pb2 import ActorMessage, Heartbeat, LearnerMessage, Register

    few, calls = asyncio.Semaphore(AT_ONCE), []
    channels = [
        aio.insecure_channel(gateway, options=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(-(-actors // STREAMS_PER_CHANNEL))
    ]

    async def register(index: int) -> None:
        async with few:
            steps = channels[index // STREAMS_PER_CHANNEL].stream_stream(
                "/seedflow.rpc.Gateway/Steps",
                request_serializer=ActorMessage.SerializeToString,
                response_deserializer=LearnerMessage.FromString,
            )
            call = steps()
            message = Register(
                version=PROTOCOL_VERSION,
                token=TOKEN,
                role="train",
                index=index,
                generation=0,
                fingerprint=SPEC.fingerprint,
                groups=1,
                envs=1,
            )
            await call.write(ActorMessage(register=message))
            answer = await call.read()
            assert answer.WhichOneof("kind") == "granted", answer
            calls.append(call)

    await asyncio.gather(*map(register, range(actors)))
    print("registered", flush=True)
    beat, ended = ActorMessage(heartbeat=Heartbeat()), asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    pause = every / actors
    while not ended.is_set():
        began = time.monotonic()
        for number, call in enumerate(calls):
            await call.write(beat)
            late = began + (number + 1) * pause - time.monotonic()
            if late > 0:
                await asyncio.sleep(late)
            if ended.is_set():
                break
    for channel in channels:
        await channel.close()


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def measure(actors: int, every: float, seconds: float) -> dict[str, Any]:
    """Register `actors` actors and let them be for `seconds`; what that took, by process."""
    layout = BlockLayout(SPEC, groups=1, envs=1)
    table = LeaseTable(actors, 0, 2, 1, 1, SPEC.fingerprint, lease_seconds=30.0)
    own = psutil.Process()
    with (
        Slab(layout, table.blocks) as slab,
        ControlServer(layout, slab, table, TOKEN) as server,
        GatewayProcess(
            TOKEN,
            str(server.path),
            "127.0.0.1",
            None,
            SPEC,
            groups=1,
            envs=1,
            lease_seconds=table.lease_seconds,
        ) as gateway,
    ):
        gateway.start()
        child = psutil.Process(gateway.pid)
        command = [sys.executable, "-m", "benchmarks.heartbeats", "--simulate", gateway.address]
        command += ["--actors", str(actors), "--every", str(every)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as simulation:
            assert simulation.stdin is not None
            assert simulation.stdout is not None
            os.set_blocking(simulation.stdout.fileno(), False)
            began, before = time.monotonic(), (cpu_seconds(own), cpu_seconds(child))
            while not simulation.stdout.read(1):
                server.poll(0.1)
                if simulation.poll() is not None:
                    raise SystemExit("the simulated actors ended")
            registered = (
                time.monotonic() - began,
                cpu_seconds(own) - before[0],
                cpu_seconds(child) - before[1],
            )
            before, began = (cpu_seconds(own), cpu_seconds(child)), time.monotonic()
            while time.monotonic() - began < seconds:
                server.poll(0.1)
            wall = time.monotonic() - began
            learner, relayed = cpu_seconds(own) - before[0], cpu_seconds(child) - before[1]
            counts = server.counts()
            if counts.active != actors:
                raise SystemExit(f"{counts.active} of {actors} actors are left: this measured something else")
            simulation.stdin.close()
            memory = child.memory_info().rss
            while simulation.poll() is None:
                server.poll(0.1)
    return {
        "actors": actors,
        "heartbeat_seconds": every,
        "active": counts.active,
        "registering_seconds": round(registered[0], 2),
        "registering_cpu_ms_per_actor": {
            "learner": round(1e3 * registered[1] / actors, 3),
            "gateway": round(1e3 * registered[2] / actors, 3),
        },
        "idle_cpu_us_per_actor_and_second": {
            "learner": round(1e6 * learner / actors / wall, 2),
            "gateway": round(1e6 * relayed / actors / wall, 2),
        },
        "gateway_kib_per_actor": round(memory / 1024 / actors, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--actors", type=int, default=4000)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between heartbeats of an actor")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to measure")
    parser.add_argument("--simulate", metavar="GATEWAY", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if arguments.simulate:
        asyncio.run(simulate(arguments.simulate, arguments.actors, arguments.every))
    else:
        print(json.dumps(measure(arguments.actors, arguments.every, arguments.seconds), indent=2))


if __name__ == "__main__":
    main()
