"""Modules of one's own that travel with a run: `env.ship`.

The driver packs them into a zip archive (`pack`). Where environments are made the archive is importable
without being written to a disk (`shipped`): it lies in an anonymous file, which also the children of the
process find.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path

from seedflow.errors import ConfigError, EnvironmentFault

MOST_BYTES = 16 << 20
"""Of an archive; data belongs on a file system that all hosts see."""
LEFT_OUT = ("__pycache__",)
COMPILED = (".so", ".pyd", ".dylib")


def pack(modules: Sequence[str]) -> bytes | None:
    """The archive of some modules and packages; None for none.

    Parameters
    ----------
    modules
        Names as they are imported, from the working directory or `sys.path`, or paths. Of a package all files
        are packed, of ``a.b`` the whole package ``a``.

    Raises
    ------
    ConfigError
        If one is not found, is compiled, or all are too large.

    Examples
    --------
    >>> pack(["json"])[:2]  # the signature of a zip archive
    b'PK'
    """
    if not modules:
        return None
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in dict.fromkeys(modules):
            for file, inside in _files_of(name):
                if file.suffix in COMPILED:
                    raise ConfigError(
                        f"env.ship = {name!r} holds compiled code, {file}, which cannot be imported from "
                        "memory; install it on the workers instead"
                    )
                archive.write(file, inside)
    if buffer.tell() > MOST_BYTES:
        raise ConfigError(
            f"env.ship = {list(modules)} takes {buffer.tell() / 2**20:.0f} MiB, and {MOST_BYTES >> 20} MiB "
            "are allowed; install it on the workers instead, or leave data out"
        )
    return buffer.getvalue()


@contextmanager
def shipped(archive: bytes | None) -> Iterator[None]:
    """Let modules be imported from an archive, before any of the same name that is installed.

    Raises
    ------
    EnvironmentFault
        If it is no archive of modules.
    """
    if archive is None:
        yield
        return
    fd = os.memfd_create("seedflow-modules", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(archive)
        path = f"/proc/{os.getpid()}/fd/{fd}"
        if not zipfile.is_zipfile(path):
            raise EnvironmentFault("the modules that were sent along (env.ship) are no zip archive")
        sys.path.insert(0, path)
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.path.remove(path)
            sys.path_importer_cache.pop(path, None)
    finally:
        os.close(fd)


def _files_of(module: str) -> Iterator[tuple[Path, str]]:
    """Each file of a module, and its path in the archive."""
    root = _find(module)
    if root.is_file():
        yield root, root.name
        return
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT and not name.startswith("."))
        for name in sorted(files):
            path = Path(folder) / name
            if path.suffix != ".pyc":
                yield path, str(Path(root.name) / path.relative_to(root))


def _find(module: str) -> Path:
    """The file of a module, or the directory of a package."""
    path = Path(module).expanduser()
    if os.sep in module or path.suffix == ".py":
        if path.is_dir() or (path.suffix == ".py" and path.is_file()):
            return path.resolve()
        raise ConfigError(f"env.ship = {module!r} is neither a package's directory nor a module's .py file")
    name = module.partition(".")[0]
    spec = PathFinder.find_spec(name, [os.getcwd(), *sys.path])
    if spec is None:
        raise ConfigError(
            f"env.ship = {module!r} is not found in {os.getcwd()} or on Python's path; give its path, like "
            f"./{name}.py"
        )
    folders = list(spec.submodule_search_locations or ())
    return Path(folders[0] if folders else str(spec.origin)).resolve()
