"""The certificates of a Dask worker, for the gRPC stream of its role, and those of a local cluster."""

from __future__ import annotations

from pathlib import Path

from distributed import Worker
from distributed.security import Security

from seedflow.errors import PlacementError
from seedflow.rpc.tls import Tls


def worker_tls(worker: Worker) -> Tls | None:
    """What a role on this worker shows and believes; None where the Dask cluster does not use TLS.

    Raises
    ------
    PlacementError
        If the worker's files cannot be read, or its certificate names nobody.
    """
    if not str(worker.address).startswith("tls://"):
        return None
    return tls_of(worker.security)


def tls_of(security: Security) -> Tls:
    """The worker's part of Dask's credentials. Raises PlacementError."""
    config = security.get_tls_config_for_role("worker")
    certificate = _text("certificate", config["cert"])
    return Tls(
        authority=_text("certificate authority", config["ca_file"]),
        certificate=certificate,
        # Dask, too, looks for the key behind the certificate where none is named.
        key=_text("key", config["key"] or config["cert"]),
        name=_name(certificate),
    )


def _text(what: str, value: str) -> str:
    """A file's content; Dask also takes the content itself."""
    if "\n" in value:
        return value
    try:
        return Path(value).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise PlacementError(f"the worker's TLS {what} {value} cannot be read: {error}") from error


def _name(certificate: str) -> str:
    from cryptography import x509  # takes a while to load, and most workers need none of it
    from cryptography.x509.oid import NameOID

    try:
        parsed = x509.load_pem_x509_certificate(certificate.encode())
    except ValueError as error:
        raise PlacementError(f"the worker's TLS certificate is no PEM certificate: {error}") from error
    try:
        alternatives = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = alternatives.get_values_for_type(x509.DNSName)
        names += [str(address) for address in alternatives.get_values_for_type(x509.IPAddress)]
    except x509.ExtensionNotFound:
        names = []
    names += [str(part.value) for part in parsed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if not names:
        raise PlacementError(
            "the worker's TLS certificate names nobody, but gRPC between hosts needs a name: give it a "
            "subject alternative name (DNS) or a common name, the same for all workers if you like"
        )
    return names[0]
