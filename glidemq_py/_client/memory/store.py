"""The keyspace of an in-memory server: fakeredis with our clock, advanced by the test or running in real time.

fakeredis is called below its sockets and parsers: a command is a function call of a few microseconds. `Store.execute`
corrects replies that differ from a real server's. Callers must hold the server's lock.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py.errors import EmbeddedServerError, GlideMQValidationError


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

_WRONG_TYPE: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"
_VERSION: Final = (7, 2)


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


class _Command:
    """A command of fakeredis, which looks at the types of all arguments in each call.

    That takes longer than most commands, so it is done once. Commands with unusual arguments are left to it.
    """

    __slots__ = ("_converted", "_empties", "_fixed", "_function", "_keys", "_repeats", "_signature", "_socket")

    def __init__(self, socket: Any, function: Callable[..., Any], signature: Any) -> None:
        self._socket, self._function, self._signature = socket, function, signature
        self._empties: bool = "v" not in signature.flags
        """Delete a key whose last element was removed."""
        self._fixed: int = len(signature.fixed)
        self._repeats: int = len(signature.repeat) if set(signature.repeat) == {bytes} else 0
        fixed: tuple[Any, ...] = signature.fixed
        kinds = list(enumerate(fixed))
        keys = [(at, kind) for at, kind in kinds if hasattr(kind, "missing_return")]
        if any(kind.missing_return is not kind.UNSPECIFIED for _, kind in keys):
            self._fixed = sys.maxsize
        creates = "i" not in signature.flags
        self._keys: list[tuple[int, Any, bool]] = [
            (at, kind.type_, creates and kind.type_ not in (None, bytes)) for at, kind in keys
        ]
        self._converted: list[tuple[int, Callable[[bytes], Any]]] = [
            (at, kind.decode) for at, kind in kinds if kind is not bytes and hasattr(kind, "decode")
        ]

    def run(self, args: list[bytes], database: Any, item_type: Any) -> Any:
        """Return the reply, or fakeredis' error."""
        more = len(args) - self._fixed
        if more and (more < 0 or not self._repeats or more % self._repeats):
            return self._socket._run_command(self._function, self._signature, args, False)
        words: list[Any] = [*args]
        for at, convert in self._converted:
            words[at] = convert(args[at])
        items: list[Any] = []
        for at, kind, create in self._keys:
            found = database.get(args[at])
            if found is not None and kind is not None and type(found.value) is not kind:
                raise CommandError(_WRONG_TYPE)
            default: Any = kind() if found is None and create and kind is not None else None
            words[at] = item = item_type(args[at], database, found, default)
            items.append(item)
        try:
            return self._function(*words)
        finally:
            for item in items:
                item.writeback(self._empties)


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
        fake = fakeredis.FakeServer(version=_VERSION, server_type="valkey")
        # Functions use RESP2, as on a real server; clients use RESP3, which has maps.
        # (The clients are stored because a deleted client closes its connections.)
        self._clients = [fakeredis.FakeStrictRedis(server=fake, protocol=protocol) for protocol in (2, 3)]
        self._for_scripts, self._for_clients = (_socket(client) for client in self._clients)
        self._database = self._for_clients._db
        # We wake up blocked readers ourselves: fakeredis would require its own lock.
        self._database.notify_watch = touched
        self.listeners: list[Callable[[bytes], bool]] = []
        """Subscribers of channels: called with the channel of a message; True if it is theirs."""
        self._item_type: Any = importlib.import_module("fakeredis._core._database").CommandItem
        self._problem: Any = importlib.import_module("fakeredis._helpers").SimpleError
        self.as_resp2: Callable[[Any], Any] = importlib.import_module("fakeredis._socket._resp").convert_to_resp2
        self._found: dict[tuple[bool, bytes], _Command] = {}

    def moment(self) -> _Moment:
        """Freeze the time within this context, as a server does while it runs a function."""
        return _Moment(self)

    @property
    def seconds(self) -> float:
        """Time of the current moment, epoch seconds."""
        return self._clock.micros() / 1_000_000 if _acting.seconds is None else _acting.seconds

    def execute(self, name: bytes, args: list[bytes], *, script: bool) -> Any:
        """Run a command and return its reply, RESP2 for a function and RESP3 for clients. Raises CommandError.

        Args:
            name: the command, in capitals.
            args: its arguments.
            script: the caller is a function.
        """
        if name == b"TIME":
            micros = round(self.seconds * 1_000_000)
            return [b"%d" % (micros // 1_000_000), b"%d" % (micros % 1_000_000)]
        if name == b"PUBLISH":
            return sum([listen(args[0]) for listen in tuple(self.listeners)])
        if name in _WITH_SUBCOMMANDS and args:
            name, args = name + b" " + args[0].upper(), args[1:]
        if name == b"XPENDING" and len(args) > 3 and args[2].upper() == b"IDLE":
            # fakeredis omits entries that have been idle for exactly this time.
            args = [*args[:3], b"%d" % (int(args[3]) - 1), *args[4:]]
        try:
            command = self._found.get((script, name))
            if command is None:
                command = self._found[script, name] = self._find(script, name)
            reply = command.run(args, self._database, self._item_type)
            if isinstance(reply, self._problem):
                raise reply
        except self._problem as error:
            raise CommandError(_corrected(name, args, error.value)) from None
        except AttributeError:
            if name not in _READS:
                raise
            raise CommandError(_WRONG_TYPE) from None
        if name == b"XPENDING" and len(args) == 2 and not reply[0]:
            return [*reply[:3], None]
        if reply is None and name in _EMPTY and len(args) > 1:
            return []
        return reply

    def _find(self, script: bool, name: bytes) -> _Command:
        socket = self._for_scripts if script else self._for_clients
        function, signature = socket._name_to_func(name.decode("utf-8", "replace").lower())
        if function is None:
            raise CommandError(f"ERR unknown command '{name.decode()}'")
        return _Command(socket, function, signature)


def _socket(client: Any) -> Any:
    socket = client.connection_pool.get_connection()._sock
    socket.add_subkey_event = _ignore  # collected for notifications, which nobody wants
    return socket


def _ignore(*_: object) -> None: ...


def _corrected(name: bytes, args: list[bytes], text: str) -> str:
    if name == b"XREADGROUP" and text.startswith("ERR The XGROUP subcommand requires"):
        return f"NOGROUP No such key or consumer group '{args[1].decode('utf-8', 'replace')}' in XREADGROUP"
    return text.removeprefix("ERR ") if text.startswith("ERR BUSYGROUP") else text
