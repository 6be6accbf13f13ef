"""Where backups are kept: a directory, or an S3-compatible (or other) object store, through obstore.

Layout: ``<queue>/<backup id>/part-00001.msgpack.gz``, ..., and ``<queue>/<backup id>/manifest.json``, which is written
last: a backup without it is incomplete and never restored. The name of the queue is escaped as in URLs. If that would
be too long, it is the beginning and a hash.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote, unquote, urlsplit

from glidemq_py._client.runtime import Runtime
from glidemq_py.errors import SECRET, BackupError, GlideMQValidationError

Destination: TypeAlias = str | Path | object
"""A directory, a URL such as ``s3://bucket/prefix``, or a store of obstore."""

T = TypeVar("T")

_MANIFEST = "manifest.json"
_FILE_NAME_BYTES = 255
_KEY_BYTES = 1_024
"""Length of the key of an object, in any object store."""
_REST_BYTES = 53
"""Length of the longest path in the folder of a queue without partitions: id of a backup, name of a part, slashes.

A larger number would shorten names that were not shortened in earlier releases.
"""
_SHOWN_BYTES = 120
_HASH = "="
"""Separates the hash from the beginning of a long name. An escaped name does not contain it."""
_ENDPOINTS = ("endpoint", "endpoint_url", "base_url")
"""Options of stores that are URLs, all with or without a beginning such as ``aws_``."""
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""Environment variables from which obstore reads the endpoint of S3."""


async def in_thread(runtime: Runtime, work: Callable[[], T]) -> T:
    """Return the result of blocking work; it runs in a thread unless the caller's API is blocking."""
    return work() if runtime.is_blocking else await asyncio.to_thread(work)


def _obstore() -> Any:
    """Import obstore at first use; its annotations are incomplete."""
    import obstore

    return obstore


class BackupStore:
    """A store as backups use it. Its methods run obstore's blocking functions, in a thread if there is an event loop.

    Args:
        destination: A directory, a URL, or a store of obstore.
        options: Settings of the store, such as ``{"region": "eu-central-1"}``; obstore documents them. Credentials that
            are not given here are read from the environment (``AWS_ACCESS_KEY_ID`` ...).
        runtime: Runtime of the queue.
        writes: If True, a missing directory is created.

    Raises:
        GlideMQValidationError: If the destination or an option is invalid.
        GlideMQValidationError: If obstore is not installed.
    """

    def __init__(
        self, destination: Destination, options: Mapping[str, str] | None, runtime: Runtime, *, writes: bool = False
    ) -> None:
        self._store, self.name = _open(destination, check_storage("storage_options", options), writes)
        root = getattr(self._store, "prefix", None) if type(self._store).__name__ == "LocalStore" else None
        self._root = None if root is None else Path(root)
        self._most_bytes = _most_bytes(self._store)
        self.runtime = runtime

    async def put(self, path: str, content: bytes) -> None:
        """Write an object; in a directory, only this user can read it. Raises BackupError."""

        def put() -> None:
            file = None if self._root is None else self._root / path
            for folder in () if file is None else reversed(file.parents[:2]):  # of the backup and of its queue
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _obstore().put(self._store, path, content)
            if file is not None:
                file.chmod(0o600)

        await self._run("write", path, put)

    async def get(self, path: str) -> bytes:
        """Read an object. Raises BackupError."""
        return await self._run("read", path, lambda: bytes(_obstore().get(self._store, path).bytes()))

    async def backups(self, queue: str) -> list[str]:
        """Return the ids of the backups of a queue, oldest first, incomplete ones included. Raises BackupError."""
        folder = self._folder(queue)
        listed = await self._run("list", folder, lambda: _obstore().list_with_delimiter(self._store, folder))
        return sorted(each.rstrip("/").rpartition("/")[2] for each in listed["common_prefixes"])

    async def is_complete(self, queue: str, backup: str) -> bool:
        """Return whether the backup has a manifest. Raises BackupError."""
        path = self.manifest_path(queue, backup)

        def exists() -> bool:
            try:
                _obstore().head(self._store, path)
            except FileNotFoundError:
                return False
            return True

        return await self._run("read", path, exists)

    async def delete(self, queue: str, backup: str) -> None:
        """Delete a backup, its manifest first. Raises BackupError."""
        folder = f"{self._folder(queue)}/{backup}"

        def delete() -> None:
            found = [each["path"] for page in _obstore().list(self._store, folder) for each in page]
            for path in sorted(found, key=lambda path: not path.endswith(_MANIFEST)):
                _obstore().delete(self._store, path)

        await self._run("delete", folder, delete)

    def manifest_path(self, queue: str, backup: str) -> str:
        """Return the path of a backup's manifest."""
        return self.part_path(queue, backup, _MANIFEST)

    def part_path(self, queue: str, backup: str, part: str) -> str:
        """Return the path of a part of a backup."""
        return f"{self._folder(queue)}/{backup}/{part}"

    def _folder(self, queue: str) -> str:
        name = quote(queue, safe=" ")
        if name in (".", ".."):
            return f"{_HASH}{name}"
        if len(name) <= self._most_bytes:
            return name
        shown = re.sub("%.?$", "", name[:_SHOWN_BYTES])
        return f"{shown}{_HASH}{hashlib.blake2b(queue.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"

    async def _run(self, action: str, path: str, work: Callable[[], T]) -> T:
        try:
            return await in_thread(self.runtime, work)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # obstore's exceptions have unrelated classes; a panic is not even an Exception
            raise BackupError(f"cannot {action} {path!r} in {self.name}: {_first_line(error)}") from error


def check_storage(option: str, options: Any) -> dict[str, str]:
    """Return options of a store."""
    if options is None:
        return {}
    found: dict[Any, Any] = dict(options) if hasattr(options, "items") else {None: None}
    if not all(isinstance(text, str) for pair in found.items() for text in pair):
        raise GlideMQValidationError(option, SECRET, "must be a mapping of text to text")
    return found


def check_endpoint(option: str, value: str) -> str:
    """Return the endpoint of a store. obstore itself panics at the first request if it is ill-formed.

    Raises:
        GlideMQValidationError: If it is no HTTP URL. The message does not contain a URL with a password.
    """
    problem = "must be a URL such as 'https://s3.example.com:9000'"
    try:
        parts = urlsplit(value)
        if parts.scheme.lower() in ("http", "https") and parts.hostname and parts.port != 0:
            return value
    except ValueError as error:
        problem = f"{problem} ({error})"
    raise GlideMQValidationError(option, SECRET if "@" in value else value, problem)


def _check_endpoints(options: Mapping[str, str], *, is_s3: bool) -> None:
    given = [name for name in options if name.lower().endswith(_ENDPOINTS)]
    for name in given:
        check_endpoint(f"storage_options.{name}", options[name])
    for variable in _ENDPOINT_VARIABLES if is_s3 and not given else ():
        if variable in os.environ:
            check_endpoint(variable, os.environ[variable])


def _open(destination: Destination, options: dict[str, str], writes: bool) -> tuple[Any, str]:
    try:
        import obstore.store as stores
    except ImportError as error:
        raise GlideMQValidationError(
            "destination", str(destination), "needs obstore; install the extra: pip install 'glidemq-py[backup]'"
        ) from error
    if not isinstance(destination, str | Path):
        if not isinstance(destination, _classes_of(stores)):
            message = "must be a directory, a URL such as 's3://bucket/prefix', or a store of obstore"
            raise GlideMQValidationError("destination", destination, message)
        return destination, type(destination).__name__
    if isinstance(destination, str) and "://" in destination:
        if not destination.startswith("file://"):
            return _object_store(stores, destination, options), destination
        destination = Path(unquote(urlsplit(destination).path))
    if not str(destination):
        raise GlideMQValidationError("destination", destination, "must name a directory")
    if options:
        raise GlideMQValidationError("storage_options", SECRET, "a directory has no options")
    return _directory(stores, Path(destination), writes), str(destination)


def _directory(stores: Any, path: Path, writes: bool) -> Any:
    if path.exists() and not path.is_dir():
        raise GlideMQValidationError("destination", str(path), "is not a directory")
    if not writes and not path.exists():
        raise GlideMQValidationError("destination", str(path), "does not exist")
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)  # backups contain the data of jobs
        return stores.LocalStore(path, automatic_cleanup=True)
    except Exception as error:
        raise GlideMQValidationError("destination", str(path), f"cannot be used ({_first_line(error)})") from error


def _classes_of(stores: Any) -> tuple[type, ...]:
    return (stores.S3Store, stores.GCSStore, stores.AzureStore, stores.LocalStore, stores.MemoryStore)


def _object_store(stores: Any, url: str, options: dict[str, str]) -> Any:
    scheme = url.partition("://")[0].lower()
    kind = {"s3": stores.S3Store, "s3a": stores.S3Store, "gs": stores.GCSStore, "az": stores.AzureStore}.get(scheme)
    if kind is None:
        raise GlideMQValidationError("destination", url, "must begin with s3://, gs://, az:// or file://")
    _check_endpoints(options, is_s3=kind is stores.S3Store)
    settings = dict(options)
    client = {"allow_http": True} if settings.pop("allow_http", "").lower() in ("1", "true") else None
    try:
        return kind.from_url(url, config=settings or None, client_options=client)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        option, value = ("storage_options", SECRET) if "onfig" in type(error).__name__ else ("destination", url)
        raise GlideMQValidationError(option, value, f"is rejected by obstore: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _most_bytes(store: Any) -> int:
    """Return the maximum length of the name of a folder. Names that fit are not shortened: their backups exist."""
    if type(store).__name__ == "LocalStore":
        return _FILE_NAME_BYTES
    prefix = getattr(store, "prefix", None)
    return max(_KEY_BYTES - _REST_BYTES - len(str(prefix or "").encode()), _FILE_NAME_BYTES)
