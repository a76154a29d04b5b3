"""Addresses of a host by the name of a network interface."""

from __future__ import annotations

import socket

import psutil

from seedflow.errors import PlacementError


def address_to_bind(interface: str | None, default: str) -> str:
    """The address that `rpc.interface` means on this host; `default` where it is None.

    Raises
    ------
    PlacementError
        If this host has no such interface, or not this address; names those that it has.
    """
    if interface is None:
        return default
    known: dict[str, list[str]] = {
        name: [a.address for a in addresses if a.family in (socket.AF_INET, socket.AF_INET6)]
        for name, addresses in psutil.net_if_addrs().items()
    }
    if known.get(interface):
        return known[interface][0]
    own = {address.partition("%")[0] for addresses in known.values() for address in addresses}
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(interface, None)}
    except OSError:
        found = set()
    if found & own or any(_is_loopback(address) for address in found):
        return interface
    shown = ", ".join(f"{name} ({', '.join(addresses)})" for name, addresses in known.items() if addresses)
    raise PlacementError(
        f"rpc.interface = {interface!r} is neither a network interface nor an address of "
        f"{socket.gethostname()}, which has {shown}"
    )


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"
