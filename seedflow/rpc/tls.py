"""Certificates of the gRPC stream between hosts: those of the Dask cluster, where it has some.

Both ends show a certificate and believe those that the cluster's authority has signed, as Dask itself does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from seedflow.errors import TransportError


@dataclass(frozen=True)
class Tls:
    """One end's certificate; all parts are PEM texts.

    Attributes
    ----------
    authority
        The certificates that sign those of the other end.
    certificate
        This end's own, with what leads to the authority.
    key
        Its private key; never shown.
    name
        A name in the certificate, which the other end expects there.
    """

    authority: str
    certificate: str
    key: str = field(repr=False)
    name: str

    def to_json(self) -> dict[str, str]:
        return {
            "authority": self.authority,
            "certificate": self.certificate,
            "key": self.key,
            "name": self.name,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Tls | None:
        """What `to_json` gave, or None for None.

        Raises
        ------
        TransportError
            Names the part that is missing; shows none.
        """
        if value is None:
            return None
        parts = {name: value.get(name) for name in ("authority", "certificate", "key", "name")}
        for name, part in parts.items():
            if not isinstance(part, str) or not part:
                raise TransportError(f"tls.{name} is {type(part).__name__}: expected text")
        return cls(**{name: str(part) for name, part in parts.items()})

    def server_credentials(self) -> Any:
        """What a gRPC server takes: its own certificate, and every client must show one, too."""
        from seedflow.rpc.grpc_options import grpc

        pair = (self.key.encode(), self.certificate.encode())
        return grpc.ssl_server_credentials([pair], self.authority.encode(), require_client_auth=True)

    def channel_credentials(self) -> Any:
        """What a gRPC channel takes."""
        from seedflow.rpc.grpc_options import grpc

        return grpc.ssl_channel_credentials(
            self.authority.encode(), self.key.encode(), self.certificate.encode()
        )
