"""Certificates for the Dask cluster of one job: ``python -m seedflow.batch.credentials DIRECTORY``.

Without them everybody who reaches the scheduler's port could run code as the user.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from distributed.security import Security

CERTIFICATE, KEY = "cert.pem", "key.pem"


def write_credentials(directory: Path) -> tuple[Path, Path]:
    """Make a certificate and its key, which are their own authority, for nobody else to read.

    Returns
    -------
    Path, Path
        The certificate and the key, in `directory`.
    """
    made = Security.temporary().get_tls_config_for_role("worker")
    paths = directory / CERTIFICATE, directory / KEY
    for path, text in zip(paths, (made["cert"], made["key"]), strict=True):
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
    return paths


def security_of(directory: Path) -> Security:
    """Dask's credentials of what `write_credentials` has written."""
    certificate, key = str(directory / CERTIFICATE), str(directory / KEY)
    return Security(
        tls_ca_file=certificate,
        tls_scheduler_cert=certificate,
        tls_scheduler_key=key,
        tls_worker_cert=certificate,
        tls_worker_key=key,
        tls_client_cert=certificate,
        tls_client_key=key,
        require_encryption=True,
    )


if __name__ == "__main__":
    write_credentials(Path(sys.argv[1]))
