"""The system calls by which a local store changes the disk; tests make them fail."""

from __future__ import annotations

import os


class Syscalls:
    """The calls as the operating system has them."""

    open = staticmethod(os.open)
    write = staticmethod(os.write)
    fsync = staticmethod(os.fsync)
    link = staticmethod(os.link)
    rename = staticmethod(os.rename)
    unlink = staticmethod(os.unlink)
    mkdir = staticmethod(os.mkdir)
    rmdir = staticmethod(os.rmdir)
