"""A private server that keeps its data in a directory, for gateways without a URL."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from glidemq_py._client.connect import URL_VARIABLE
from glidemq_py._client.embedded import EmbeddedServer, make_private, open_private, start_embedded
from glidemq_py.errors import EmbeddedServerError, GlideMQValidationError

if TYPE_CHECKING:
    from collections.abc import Generator

if sys.platform != "win32":
    import fcntl

__all__ = ["kept_server"]

_START_MS: Final = 600_000
"""Maximum time for reading the data at the start."""


@contextmanager
def kept_server(path: str) -> Generator[EmbeddedServer]:
    """Run a server on a directory, with an append-only file, and set GLIDEMQ_URL to its URL.

    Args:
        path: The directory; it is created if it does not exist.

    Raises:
        GlideMQValidationError: If the path is a file or cannot be used, or another gateway uses it.
        EmbeddedServerError: If the server does not start.
    """
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise GlideMQValidationError("data_path", path, "must be a directory, not a file")
    try:
        make_private(folder)
        lock = open_private(folder / "gateway.lock")
    except OSError as error:
        raise GlideMQValidationError("data_path", path, f"cannot be used: {error.strerror}") from None
    with lock as held:
        _hold(held, path)
        server = start_embedded(folder, start_timeout=_START_MS)
        os.environ[URL_VARIABLE] = server.url
        try:
            yield server
        finally:
            del os.environ[URL_VARIABLE]
            server.stop(flush=True)


def _hold(file: IO[bytes], path: str) -> None:
    if sys.platform == "win32":
        raise EmbeddedServerError("the embedded server does not run on Windows")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise GlideMQValidationError("data_path", path, "is used by another gateway") from None
