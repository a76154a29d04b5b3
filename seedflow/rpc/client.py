"""Connecting an actor to its learner, over whichever path there is."""

from __future__ import annotations

import logging
from dataclasses import replace

from seedflow.config.tree import RpcConfig
from seedflow.errors import ConnectionLost
from seedflow.rpc.connection import Connection, Endpoint
from seedflow.rpc.leases import Registration
from seedflow.rpc.slab import BlockLayout
from seedflow.rpc.slab_client import SlabConnection, SocketUnreachable
from seedflow.rpc.tls import Tls

log = logging.getLogger(__name__)


def connect(
    endpoint: Endpoint,
    token: str,
    registration: Registration,
    layout: BlockLayout,
    rpc: RpcConfig,
    heartbeat_seconds: float,
    tls: Tls | None = None,
) -> Connection:
    """Connect to a learner and register: one attempt, within ``rpc.connect_seconds``.

    With ``rpc.path = "auto"`` the control socket is tried first: that it can be reached proves that the
    learner is on this host. Otherwise gRPC is taken.

    Raises
    ------
    RegistrationRefused
        If the learner said no; `retryable` tells whether to try again.
    ConnectionLost
        If no learner answered in time.
    Exit
        If the run has ended.
    """
    if rpc.path == "slab" and endpoint.socket is None:
        raise ConnectionLost(
            "rpc.path = slab, but the learner's endpoint names no socket; use rpc.path = auto"
        )
    if rpc.path == "grpc" and endpoint.gateway is None:
        raise ConnectionLost(
            "rpc.path = grpc, but the learner's endpoint names no gateway; use rpc.path = auto"
        )
    if rpc.path != "grpc" and endpoint.socket is not None:
        try:
            return SlabConnection.open(
                endpoint.socket, token, registration, layout, rpc.connect_seconds, heartbeat_seconds
            )
        except SocketUnreachable as error:
            if rpc.path == "slab" or endpoint.gateway is None:
                raise
            log.debug("no shared memory path, taking gRPC: %s", error)
    if endpoint.gateway is None:
        raise ConnectionLost(f"the learner's endpoint {endpoint} names neither socket nor gateway")

    # grpc takes long to import and starts threads: only for those who need it.
    from seedflow.rpc.grpc_client import GrpcConnection

    return GrpcConnection.open(
        endpoint.gateway,
        token,
        registration,
        layout,
        rpc.connect_seconds,
        heartbeat_seconds,
        secured(endpoint, tls),
    )


def secured(endpoint: Endpoint, tls: Tls | None) -> Tls | None:
    """What this actor shows to the gateway: its own certificate, and the name that it expects there.

    Raises
    ------
    ConnectionLost
        If one of the two ends has a certificate and the other has none.
    """
    if (endpoint.name is None) != (tls is None):
        have, lack = ("gateway", "actor") if tls is None else ("actor", "gateway")
        raise ConnectionLost(
            f"the {have} uses TLS and the {lack} does not; give all workers of the Dask cluster certificates"
        )
    return None if tls is None or endpoint.name is None else replace(tls, name=endpoint.name)
