"""Programs of Debian's that tests need, installed where they are missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

NO_SERVICES = Path("/usr/sbin/policy-rc.d")
INSTALL_SECONDS = 600.0


def install(programs: Iterable[str], packages: Iterable[str]) -> None:
    """Install packages unless all programs are there; no service is started by it."""
    if all(shutil.which(program) for program in programs):
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    ours = not NO_SERVICES.exists()
    if ours:
        NO_SERVICES.write_text("#!/bin/sh\nexit 101\n")
        NO_SERVICES.chmod(0o755)
    try:
        for command in (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", *packages]):
            subprocess.run(
                ["apt-get", *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                timeout=INSTALL_SECONDS,
                check=True,
            )
    finally:
        if ours:
            NO_SERVICES.unlink()
