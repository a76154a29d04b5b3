"""Whatever fsspec reaches as a store: object stores above all."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import fsspec
from fsspec.spec import AbstractBufferedFile

from seedflow.checkpoints.store import Store, checked_path
from seedflow.errors import CheckpointConflict, CheckpointDamaged, CheckpointError


class FsspecStore(Store):
    """A prefix of an fsspec file system.

    The file system must be able to refuse to overwrite ("put if absent", Python's mode ``x``): that is what
    keeps two writers apart and a generation from being replaced. `clean`, which a writer calls when it
    begins, tries that out. An object that was written counts as durable.

    Parameters
    ----------
    url
        As fsspec takes it, such as ``s3://bucket/runs/pong/checkpoints``.
    filesystem
        To use instead of the one that the URL names.
    """

    def __init__(self, url: str, filesystem: fsspec.AbstractFileSystem | None = None) -> None:
        if filesystem is None:
            try:
                filesystem, root = fsspec.core.url_to_fs(url)
            except (ValueError, ImportError) as error:
                raise CheckpointError(f"{url} cannot be opened: {error}") from error
        else:
            root = filesystem._strip_protocol(url)
        self._fs, self._root, self._url = filesystem, root.rstrip("/"), url.rstrip("/")

    def __str__(self) -> str:
        return self._url

    def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes:
        place = self._place(path)
        try:
            end = None if size is None else offset + size
            data: bytes = b"" if size == 0 else self._fs.cat_file(place, offset, end)
        except FileNotFoundError as error:
            raise CheckpointDamaged(f"{self._url}/{path} cannot be read: it is missing") from error
        except Exception as error:  # every file system has errors of its own
            raise CheckpointError(f"{self._url}/{path} cannot be read: {error!r}") from error
        if size is not None and len(data) < size:
            raise CheckpointDamaged(
                f"{self._url}/{path} ends at {offset + len(data)} bytes, fewer than the {offset + size} that "
                "belong there"
            )
        return data

    def size(self, path: str) -> int:
        place = self._place(path)
        try:
            self._fs.invalidate_cache()
            return int(self._fs.size(place))
        except FileNotFoundError as error:
            raise CheckpointDamaged(f"{self._url}/{path} cannot be read: it is missing") from error
        except Exception as error:
            raise CheckpointError(f"{self._url}/{path} cannot be read: {error!r}") from error

    def write_new(self, path: str, blocks: Iterable[bytes]) -> None:
        place = self._place(path)
        with suppress(Exception):  # object stores have no directories, and say so in different ways
            self._fs.makedirs(place.rpartition("/")[0], exist_ok=True)
        try:
            file = self._fs.open(place, "xb")
        except FileExistsError as error:
            raise CheckpointConflict(f"{self._url}/{path} exists already; nothing was overwritten") from error
        except Exception as error:
            raise self._failed(path, error) from error
        try:
            for block in blocks:
                try:
                    file.write(block)
                except Exception as error:
                    raise self._failed(path, error) from error
        except BaseException:
            self._abandon(file, place)
            raise
        try:
            file.close()
        except FileExistsError as error:
            raise CheckpointConflict(f"{self._url}/{path} exists already; nothing was overwritten") from error
        except Exception as error:
            raise self._failed(path, error) from error

    def paths(self, directory: str = "") -> list[str]:
        place = self._place(directory) if directory else self._root
        try:
            self._fs.invalidate_cache()
            found = self._fs.find(place)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise CheckpointError(f"{self._url}/{directory} cannot be listed: {error!r}") from error
        paths = []
        for name in found:
            path = str(name).removeprefix(self._root).lstrip("/")
            with suppress(CheckpointError):  # else it is not ours
                paths.append(checked_path(path))
        return sorted(paths)

    def delete(self, path: str) -> None:
        try:
            self._fs.rm_file(self._place(path))
        except FileNotFoundError:
            return
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(f"{self._url}/{path} cannot be removed: {error!r}") from error

    def clean(self) -> None:
        """Make sure that the file system refuses to overwrite; there are no temporary files."""
        probe = f"probe-{uuid.uuid4().hex}"
        self.write_new(probe, [b"first"])
        try:
            self.write_new(probe, [b"second"])
        except CheckpointConflict:
            return
        finally:
            self.delete(probe)
        raise CheckpointError(
            f"{self._url} cannot hold checkpoints: {type(self._fs).__name__} overwrites files when told not "
            "to, so that two runs could destroy each other's; use another place or a newer version of it"
        )

    def _place(self, path: str) -> str:
        return f"{self._root}/{checked_path(path)}"

    def _failed(self, path: str, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"{self._url}/{path} cannot be written: {error!r}; "
            "nothing was saved, what was saved before is untouched"
        )

    def _abandon(self, file: Any, place: str) -> None:
        """Give up a file half written: closing it would publish what there is."""
        with suppress(Exception):
            if isinstance(file, AbstractBufferedFile):
                file.discard()
                file.closed = True
            else:
                file.close()
                self._fs.rm_file(place)
