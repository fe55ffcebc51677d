"""Where the bytes of large values can lie, other than in the database: a folder, or anything that fsspec can reach.

A store is simple on purpose. It keeps objects under names that are never used twice, and knows nothing of what they
mean: which object holds which value, and whether anybody still needs it, is in the database (`dexray.journal.blobs`).

- An object is whole or not there. A folder gets it under another name first, and by a rename when it is on the disk;
  so do file systems behind fsspec. Object stores take an object whole by themselves.
- What `put` has returned for is durable, as far as the store is.
- `OSError` of any kind means that the store is away for now; a missing object is `FileNotFoundError`.
"""

from __future__ import annotations

import contextlib
import os
import time
import urllib.parse
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from dexray.journal.interface import JournalRefused
from dexray.settings import masked

_TEMPORARY = ".part"
_TAKES_WHOLE = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "memory"})
"""fsspec protocols of object stores, where what was not put whole is not there."""


class BlobStore(Protocol):
    @property
    def label(self) -> str:
        """Which store this is: a path, or a URL without secrets. It is kept with every object, to find it again."""
        ...

    def put(self, name: str, body: bytes) -> None: ...

    def get(self, name: str) -> bytes: ...

    def delete(self, name: str) -> None:
        """Again, or of an object that is not there: does nothing."""

    def names(self, prefix: str, before: float) -> Iterator[str]:
        """Objects that were put before a time (seconds since the epoch), and what a crash has left of others."""
        ...


def open_blob_store(where: str) -> BlobStore:
    """A folder (made when it is missing) or an fsspec URL. Raises JournalRefused when it can't be used."""
    kind, separator, path = where.partition("://")
    if not separator:
        return FolderStore(where)
    return FolderStore(urllib.parse.unquote(path)) if kind in ("file", "local") else FsspecStore(where)


def label_of(where: str) -> str:
    """The label of the store at a place, without opening it."""
    kind, separator, path = where.partition("://")
    if separator and kind not in ("file", "local"):
        return masked(where.rstrip("/"))
    return os.path.realpath(os.path.expanduser(urllib.parse.unquote(path) if separator else where))


class FolderStore:
    """A folder on a disk, or on a network file system that all nodes of the engine have mounted."""

    def __init__(self, folder: str) -> None:
        self.label = label_of(folder)
        self._folder = Path(self.label)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise JournalRefused(f"blob_store {self.label} can't be used: {error}. Give another folder.") from error
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise JournalRefused(f"blob_store {self.label} is not writable for this user: give another folder.")

    def put(self, name: str, body: bytes) -> None:
        path = self._folder / name
        if not path.parent.is_dir():
            self._make(path.parent)
        part = path.with_name(path.name + _TEMPORARY)
        with part.open("wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
        _sync(path.parent)

    def get(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def delete(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def names(self, prefix: str, before: float) -> Iterator[str]:
        for path in (self._folder / prefix).rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                if path.is_file() and path.stat().st_mtime < before:
                    yield path.relative_to(self._folder).as_posix()

    def _make(self, folder: Path) -> None:
        """So that it is there after a crash as well."""
        missing = [parent for parent in (folder, *folder.parents) if parent.is_relative_to(self._folder)]
        for parent in reversed(missing):
            parent.mkdir(exist_ok=True)
            if parent != self._folder:
                _sync(parent.parent)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class FsspecStore:
    """Anything that fsspec reaches: "s3://bucket/values", "gs://…", "sftp://…". Credentials come from where the file
    system looks for them itself."""

    def __init__(self, url: str) -> None:
        self.label = label_of(url)
        try:
            import fsspec
        except ImportError:
            raise JournalRefused(
                f"blob_store {self.label} is a URL, which needs fsspec: pip install 'dexray[blobs]', or give a folder."
            ) from None
        try:
            self._files, self._root = fsspec.core.url_to_fs(url.rstrip("/"))
        except (ImportError, ValueError, TypeError) as error:
            raise JournalRefused(f"blob_store {self.label} can't be used: {masked(error)}") from error
        protocol = self._files.protocol
        names = {protocol} if isinstance(protocol, str) else set(protocol)
        self._takes_whole = not names.isdisjoint(_TAKES_WHOLE)

    def put(self, name: str, body: bytes) -> None:
        path = self._path(name)
        content = bytes(body)
        if self._takes_whole:
            self._files.pipe_file(path, content)
            return
        self._files.makedirs(str(PurePosixPath(path).parent), exist_ok=True)
        self._files.pipe_file(path + _TEMPORARY, content)
        self._files.mv(path + _TEMPORARY, path)

    def get(self, name: str) -> bytes:
        content: bytes = self._files.cat_file(self._path(name))
        return content

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def names(self, prefix: str, before: float) -> Iterator[str]:
        try:
            found: dict[str, dict[str, Any]] = self._files.find(self._path(prefix), detail=True)
        except FileNotFoundError:
            return
        root = self._root.rstrip("/") + "/"
        for path, details in found.items():
            if _put_at(details) < before:
                yield path.removeprefix(root)

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"


def _put_at(details: dict[str, Any]) -> float:
    """When an object was put; one that does not tell counts as new."""
    for key in ("LastModified", "last_modified", "mtime", "updated", "created", "modified"):
        moment = details.get(key)
        if isinstance(moment, int | float):
            return float(moment)
        if isinstance(moment, datetime):
            return moment.timestamp()
    return time.time()
