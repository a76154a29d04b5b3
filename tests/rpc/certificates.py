"""Certificates for tests, made anew for each authority."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from seedflow.rpc.tls import Tls


@dataclass(frozen=True)
class Authority:
    """A certificate that signs others."""

    certificate: x509.Certificate
    key: Any

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    def issue(self, *, alternative: str | None = None, common: str | None = None) -> tuple[str, str]:
        """A certificate and its key, both PEM, with these names."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(common, self.certificate.subject, key)
        if alternative is not None:
            names = x509.SubjectAlternativeName([x509.DNSName(alternative)])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM).decode(), _pem(key)

    def tls(self, name: str = "workers.example") -> Tls:
        """One end's certificate with everything that it needs."""
        certificate, key = self.issue(alternative=name)
        return Tls(self.pem, certificate, key, name)

    def files(self, directory: Path, **names: str) -> dict[str, str]:
        """Files as Dask's settings name them, for scheduler, worker and client alike."""
        certificate, key = self.issue(**names)
        paths = {name: directory / f"{name}.pem" for name in ("authority", "certificate", "key")}
        for path, text in zip(paths.values(), (self.pem, certificate, key), strict=True):
            path.write_text(text)
        return {name: str(path) for name, path in paths.items()}


@cache
def authority(name: str) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(name, subject, key).add_extension(x509.BasicConstraints(True, None), critical=True)
    return Authority(builder.sign(key, hashes.SHA256()), key)


def _builder(common: str | None, issuer: x509.Name, key: Any) -> x509.CertificateBuilder:
    subject = [] if common is None else [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name(subject))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
    )


def _pem(key: Any) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
