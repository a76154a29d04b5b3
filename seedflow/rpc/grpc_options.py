"""gRPC as both ends of a stream use it, and what they agree on.

`grpc` is imported from here, never directly: the event-engine transport, the default since gRPC 1.80,
costs a Python process 1.4 to 1.9 times as much CPU per message as the one before it, and the switch is
read once, when `grpc` is first imported. A release of gRPC that no longer knows the switch ignores it.

Each end asks the other from time to time whether it still lives (HTTP/2's ping). gRPC's own threads answer,
without Python's interpreter lock: so does an actor whose environment holds it, but not one that is stopped.
"""

from __future__ import annotations

import os

os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

import grpc as grpc
from grpc import aio as aio

from seedflow.errors import ConfigError
from seedflow.rpc.slab import BlockLayout

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Largest message either end sends or takes."""

MAX_PAYLOAD_BYTES = MAX_MESSAGE_BYTES - 64
"""Largest packed request or reply of a group: the rest is room for the message's own fields."""

SILENCE_SECONDS = 30.0
"""An end gives up a connection on which nothing came for so long, not even the answer to its question."""

PINGS_ALLOWED_EVERY_SECONDS = 5.0
"""A server ends connections that ask more often; gRPC's own default is five minutes."""

Options = list[tuple[str, int]]


def _common_options(silence_seconds: float) -> Options:
    """Options of both ends. One that hears nothing for a third of the time asks, and waits for the rest."""
    asks_after = max(1, int(silence_seconds * 1000 / 3))
    waits = 2 * asks_after
    return [
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", asks_after),
        ("grpc.keepalive_timeout_ms", waits),
        # A ping that gRPC sent to measure the line counts as the question; it has a limit of its own, a
        # minute.
        ("grpc.http2.ping_timeout_ms", waits),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def client_options(connect_seconds: float) -> Options:
    """Options of an actor's channel: no proxy, no hidden retries, no connection shared between channels.

    Parameters
    ----------
    connect_seconds
        When gRPC lets go of a connection that the other side accepted without a word; closing the channel
        does not do it.
    """
    return [
        *_common_options(SILENCE_SECONDS),
        ("grpc.min_reconnect_backoff_ms", max(1, int(connect_seconds * 1000))),
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]


def longest_silence(lease_seconds: float) -> float:
    """Seconds after which a gateway gives up a connection on which nothing comes, in a run of such leases."""
    return min(lease_seconds, SILENCE_SECONDS)


def server_options(lease_seconds: float) -> Options:
    """Options of the gateway's server. Its port belongs to it alone, where gRPC would share it silently.

    Parameters
    ----------
    lease_seconds
        As of `LeaseTable`.
    """
    return [
        *_common_options(longest_silence(lease_seconds)),
        ("grpc.http2.min_ping_interval_without_data_ms", int(PINGS_ALLOWED_EVERY_SECONDS * 1000)),
        ("grpc.so_reuseport", 0),
    ]


def address(host: str, port: int) -> str:
    """``host:port``, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_payloads(layout: BlockLayout) -> None:
    """Check that one group's rows fit into a message.

    Raises
    ------
    ConfigError
        If they do not; the text has both sizes.
    """
    largest = max(layout.request_bytes, layout.reply_bytes)
    if largest > MAX_PAYLOAD_BYTES:
        raise ConfigError(
            f"one group of {layout.envs} environments is {largest} bytes a step, but a gRPC message holds "
            f"{MAX_PAYLOAD_BYTES} at most; lower actor.envs_per_group, or keep every actor on the learner's "
            "host with rpc.path = slab"
        )
