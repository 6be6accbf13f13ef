"""The keyspace of an in-memory server: fakeredis with our clock, advanced by the test or running in real time.

fakeredis is called below its sockets and parsers: a command is a function call of a few microseconds. `execute`
corrects replies that differ from a real server's. Callers must hold the server's lock.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from glidemq_py._client.memory.native import UNUSUAL, Keyspace, NativeCommands
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py.errors import EmbeddedServerError, GlideMQValidationError

__all__ = ["Clock", "CommandError", "Store", "load_optional"]


class Clock:
    """The clock of an in-memory server. It controls delays, retries, limits, locks, ages and entry ids.

    Args:
        start: initial time, epoch ms; None uses the current time.
        running: the clock runs in real time; otherwise it changes only by `advance`.

    Raises:
        GlideMQValidationError: if ``start`` is not a valid time.
    """

    def __init__(self, start: int | None = None, *, running: bool = False) -> None:
        given: object = start
        if start is not None and (isinstance(given, bool) or not isinstance(given, int) or start < 0):
            raise GlideMQValidationError("start", start, "must be epoch milliseconds")
        self.running = running
        self._micros = time.time_ns() // 1000 if start is None else start * 1000
        self._since = time.monotonic_ns()
        self.moved = 0
        """Total of all advances, milliseconds."""
        self._listeners: list[Callable[[], None]] = []

    def now(self) -> int:
        """Return the time in epoch ms."""
        return self.micros() // 1000

    def micros(self) -> int:
        """Return the time in epoch microseconds."""
        return self._micros + ((time.monotonic_ns() - self._since) // 1000 if self.running else 0)

    def advance(self, by: Milliseconds) -> int:
        """Advance the clock and wake up pending blocking reads.

        Args:
            by: milliseconds or a timedelta.

        Returns:
            The new time, epoch ms.

        Raises:
            GlideMQValidationError: if ``by`` is negative or not a duration.
        """
        milliseconds = to_ms("by", by)
        self.moved += milliseconds
        self._micros += milliseconds * 1000
        for notify in tuple(self._listeners):
            notify()
        return self.now()

    def on_advance(self, notify: Callable[[], None]) -> None:
        """Call ``notify`` after every `advance`."""
        self._listeners.append(notify)

    def __repr__(self) -> str:
        return f"<Clock {self.now()}{' running' if self.running else ''}>"


_WITH_SUBCOMMANDS: Final = frozenset((b"XGROUP", b"XINFO", b"OBJECT", b"CONFIG", b"CLIENT", b"MEMORY"))

_READS: Final = frozenset((b"XREAD", b"XREADGROUP"))
"""Commands for which fakeredis does not check the type of the key."""
_EMPTY: Final = frozenset((b"HRANDFIELD", b"SRANDMEMBER", b"ZRANDMEMBER"))
"""Commands that with a count return an empty array for a missing key; fakeredis returns nil."""


class CommandError(Exception):
    """An error reply; its message is the text of the reply."""


class _Acting(threading.local):
    seconds: float | None = None


_acting = _Acting()


class _Time:
    """Replaces the module `time` in fakeredis: our clock while one of our servers acts, otherwise the real time."""

    @staticmethod
    def time() -> float:
        return time.time() if _acting.seconds is None else _acting.seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def load_optional(module: str) -> Any:
    """Import a module of the extra `testing`. Raises EmbeddedServerError with the install command if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise EmbeddedServerError(
            f"the in-memory server needs {module.partition('.')[0]}: pip install 'glidemq-py[testing]'"
        ) from error


def _share_our_clock() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("fakeredis.") and getattr(module, "time", None) is time:
            module.time = _Time()  # type: ignore[attr-defined]


class _Moment:
    """Freezes the time of a store. A class, because a generator costs more than many commands."""

    __slots__ = ("_before", "_store")

    def __init__(self, store: Store) -> None:
        self._store = store
        self._before: float | None = None

    def __enter__(self) -> None:
        store = self._store
        self._before = _acting.seconds
        _acting.seconds = store._database.time = store._clock.micros() / 1_000_000

    def __exit__(self, *_: object) -> None:
        _acting.seconds = self._before


class Store:
    """The databases of one server.

    Args:
        clock: the server's clock.
        touched: called with every key that a command changes.
    """

    def __init__(self, clock: Clock, touched: Callable[[bytes], object]) -> None:
        fakeredis = load_optional("fakeredis")
        _share_our_clock()
        self._clock = clock
        fake = fakeredis.FakeServer(version=(7, 2), server_type="valkey")
        # Functions use RESP2, as on a real server; clients use RESP3, which has maps.
        # (The clients are stored because a deleted client closes its connections.)
        self._clients = [fakeredis.FakeStrictRedis(server=fake, protocol=protocol) for protocol in (2, 3)]
        self._for_scripts, self._for_clients = (_socket(client) for client in self._clients)
        self._database = self._for_clients._db
        # We wake up blocked readers ourselves: fakeredis would require its own lock.
        self._database.notify_watch = touched
        keyspace = Keyspace(self._database, fake.config, touched)
        commands = NativeCommands(keyspace)
        self.listeners = keyspace.listeners
        self.natives = commands.by_name
        """Direct implementations of commands, for functions."""
        self._for_readers = {b"XREADGROUP": commands.read_group, b"ZRANGE": self.natives[b"ZRANGE"]}
        """The same for the commands that idle workers send."""
        self._found: dict[tuple[bool, bytes], tuple[Any, Any, Any]] = {}

    def moment(self) -> _Moment:
        """Freeze the time within this context, as a server does while it runs a function."""
        return _Moment(self)

    @property
    def seconds(self) -> float:
        """Time of the current moment, epoch seconds."""
        return self._clock.micros() / 1_000_000 if _acting.seconds is None else _acting.seconds

    def execute(self, name: bytes, args: list[bytes], *, script: bool) -> Any:
        """Run a command and return its reply. Raises CommandError.

        Args:
            name: the command, in capitals.
            args: its arguments.
            script: the caller is a function: the reply is RESP2.
        """
        if name == b"TIME":
            micros = round(self.seconds * 1_000_000)
            return [b"%d" % (micros // 1_000_000), b"%d" % (micros % 1_000_000)]
        if not script and name in self._for_readers:
            with contextlib.suppress(*UNUSUAL):
                return self._for_readers[name](*args)
        if name in _WITH_SUBCOMMANDS and args:
            name, args = name + b" " + args[0].upper(), args[1:]
        found = self._found.get((script, name))
        if found is None:
            found = self._found[script, name] = self._find(script, name)
        socket, function, signature = found
        if name == b"XPENDING" and len(args) > 3 and args[2].upper() == b"IDLE":
            # fakeredis omits entries that have been idle for exactly this time.
            args = [*args[:3], b"%d" % (int(args[3]) - 1), *args[4:]]
        try:
            reply = socket._run_command(function, signature, args, script)
        except AttributeError:
            if name not in _READS:
                raise
            raise CommandError("WRONGTYPE Operation against a key holding the wrong kind of value") from None
        if isinstance(reply, Exception):
            raise CommandError(_corrected(name, args, _text(reply)))
        if name == b"XPENDING" and len(args) == 2 and not reply[0]:
            return [*reply[:3], None]
        if reply is None and name in _EMPTY and len(args) > 1:
            return []
        return reply

    def _find(self, script: bool, name: bytes) -> tuple[Any, Any, Any]:
        socket = self._for_scripts if script else self._for_clients
        try:
            function, signature = socket._name_to_func(name.decode("utf-8", "replace").lower())
        except Exception as error:  # fakeredis has no public name for the type
            raise CommandError(_text(error)) from None
        if function is None:
            raise CommandError(f"ERR unknown command '{name.decode()}'")
        return socket, function, signature


def _socket(client: Any) -> Any:
    return client.connection_pool.get_connection()._sock


def _corrected(name: bytes, args: list[bytes], text: str) -> str:
    if name == b"XREADGROUP" and text.startswith("ERR The XGROUP subcommand requires"):
        return f"NOGROUP No such key or consumer group '{args[1].decode('utf-8', 'replace')}' in XREADGROUP"
    return text.removeprefix("ERR ") if text.startswith("ERR BUSYGROUP") else text


def _text(error: Exception) -> str:
    return str(getattr(error, "value", None) or error)
