"""Faults of valkey-glide 2.6.0, and what mends them. Nothing else of the package uses GLIDE's private names.

Each section names the fault; `tests/server/test_glide_faults.py` shows it on GLIDE alone, and fails when a version of
GLIDE no longer has it: then the section goes. A version without the private names is used as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import sys
import time
import weakref
from collections.abc import Awaitable
from typing import Any, ClassVar, Final, Protocol

import glide
from glide import glide_client
from glide_shared.exceptions import ClosingError, GlideError
from glide_shared.exceptions import TimeoutError as GlideTimeoutError

from glidemq_py._client.call_retry import classify
from glidemq_py._client.connect_errors import GlideConfig, demoted, half_open, is_replying
from glidemq_py._client.failures import READ_ONLY, Interruptions
from glidemq_py._client.threads import in_thread, may_start_threads, own_loops
from glidemq_py._client.transport import GlideClient
from glidemq_py._core.forks import new_lock
from glidemq_py._core.logs import get_logger
from glidemq_py.errors import ConnectionRejectedError, GlideMQError

_glide: Any = glide_client
_log = get_logger(__name__)

# -- Replies in several event loops --------------------------------------------------------------------------------
# GLIDE's core writes the replies for all clients of a process into one pipe, and GLIDE reads that pipe in one event
# loop: the one that created the first client. If that loop stops or blocks, no other loop receives replies, not even
# timeouts; if a loop was closed, a reply for it ends the reading of those behind it; and a client that is created after
# the reading loop was closed discards the replies in the pipe. Here every loop that has a client reads the pipe, and
# passes each reply on to the loop that waits for it; loops of our own threads read it only while they wait.

_NEEDED: Final = (
    "_CompatFuture",
    "_async_pipe_read_fd",
    "_drain_stale_pipe_frames",
    "_on_async_pipe_readable",
    "_resolve_future",
)
_installed = False
_installing = new_lock()
_reading = new_lock()
_LINGER_S: Final = 0.05
"""How long a loop of our own reads the pipe after its last reply, seconds."""


def read_replies_in(loop: asyncio.AbstractEventLoop, client: Any = None) -> None:
    """Read GLIDE's replies in this loop, which must be running and have a client. Idempotent.

    Args:
        loop: the loop.
        client: a client of one of `own_loops`: it reads replies only while calls of this client have none.
    """
    if not _install():
        return
    descriptor: int = _glide._async_pipe_read_fd
    if descriptor < 0:
        return
    if client is None:
        loop.add_reader(descriptor, _glide._on_async_pipe_readable)
        return
    reading = _Reading.of_loops.get(loop)
    if reading is None:
        reading = _Reading.of_loops[loop] = _Reading(loop)
    client._pending_futures = _Pending(reading)
    reading.begin()  # GLIDE has begun already


class _Pending(dict[int, Any]):
    """The calls of a client that have no reply yet, in a loop that reads the pipe only while there are some."""

    __slots__ = ("__weakref__", "_reading")
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(self, reading: _Reading) -> None:
        super().__init__()
        self._reading = reading
        reading.clients.add(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __setitem__(self, number: int, future: Any) -> None:
        super().__setitem__(number, future)
        self._reading.begin()


class _Reading:
    """Reads the pipe in one loop while calls wait there, and for a moment after.

    Every loop that reads it is woken up by each reply, also by those for other loops.
    """

    of_loops: ClassVar[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Reading]] = weakref.WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._reads = self._is_needed = False
        self.clients: weakref.WeakSet[_Pending] = weakref.WeakSet()

    def begin(self) -> None:
        """Read, because a call begins; called in the loop."""
        self._is_needed = True
        loop = None if self._reads else self._loop()
        if loop is not None:
            self._reads = True
            loop.add_reader(_glide._async_pipe_read_fd, _glide._on_async_pipe_readable)
            loop.call_later(_LINGER_S, self._look)

    def _look(self) -> None:
        loop = self._loop()
        if loop is None:
            return
        if self._is_needed or any(self.clients):
            self._is_needed = False
            loop.call_later(_LINGER_S, self._look)
        else:
            self._reads = False
            loop.remove_reader(_glide._async_pipe_read_fd)


def _install() -> bool:
    """Replace the three functions of GLIDE that assume a single event loop. Return False if GLIDE lacks any of them."""
    with _installing:  # two threads would each wrap the other's functions, which then wait for their own lock
        return _installed or _replace()


def _replace() -> bool:
    global _installed
    if not all(hasattr(_glide, name) for name in _NEEDED):
        return False
    read, current_loop, compatible = _glide._on_async_pipe_readable, asyncio._get_running_loop, _glide._CompatFuture

    def read_in_turn() -> None:
        # Two threads must not read parts of one frame. The pipe stays readable, so returning loses nothing.
        if _reading.acquire(blocking=False):
            try:
                read()
            finally:
                _reading.release()

    def resolve(future: Any, result: Any, client: Any) -> None:
        loop = client._loop
        if loop is not None and loop is not current_loop() and not isinstance(future, compatible):  # compatible: trio
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing in it waits any longer
                loop.call_soon_threadsafe(resolve, future, result, client)
        elif not future.done():
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    def deliver_stale_frames() -> None:
        descriptor: int = _glide._async_pipe_read_fd
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while poll.poll(0) and _reading.acquire(timeout=1):
            try:
                read()
            finally:
                _reading.release()

    _glide._resolve_future = resolve
    _glide._on_async_pipe_readable = read_in_turn
    _glide._drain_stale_pipe_frames = deliver_stale_frames
    _installed = True
    return True


def loop_of(client: Any) -> asyncio.AbstractEventLoop:
    """Return the event loop in which a client was created: GLIDE does not report calls from another one."""
    return getattr(client, "_loop", None) or asyncio.get_running_loop()


# -- Connecting ------------------------------------------------------------------------------------------------------
# GLIDE connects in a synchronous call, even in its asynchronous ``create``. If a server accepts the connection and then
# does not reply (it is frozen or overloaded), that call blocks the event loop for seconds. Here it runs in a thread.
# Then the client is given its event loop and registered there for the replies, as GLIDE itself does for clients with a
# credential provider.

_REGISTER: Final = "_setup_pipe_after_creation"
"""The last step of GLIDE's ``create``, which must run in the client's event loop."""
_REGISTRY: Final = "_client_registry"
"""GLIDE's clients by id, in the module of their class."""


async def create_in_thread(kind: type[Any], config: GlideConfig) -> GlideClient:
    """Return a client connected for the running event loop, which stays free meanwhile.

    If the caller is cancelled, the client is closed once it is connected.

    Args:
        kind: GLIDE's class.
        config: the configuration.

    Raises:
        GlideError: as ``kind.create``.
        OSError: as ``kind.create``.
    """
    connecting = _connecting(kind)
    is_here = asyncio.get_running_loop() in own_loops and not may_start_threads()
    if connecting is None or is_here or _has_provider(config):
        client: GlideClient = await kind.create(config)
        return client
    attempt = _Attempt(connecting, config)
    try:
        await in_thread(attempt.run)
    except asyncio.CancelledError:
        attempt.abandon()
        raise
    connected = attempt.client
    connected._loop = asyncio.get_running_loop()
    connected.__class__ = kind
    getattr(connected, _REGISTER)(False)
    return connected  # type: ignore[no-any-return]


class _Attempt:
    """Connects a client that is registered nowhere yet; its event loop is that of the call."""

    def __init__(self, connecting: type[Any], config: GlideConfig) -> None:
        self.client: Any = None
        self._connecting = connecting
        self._config = config
        self._is_abandoned = False
        self._ending = new_lock()

    def run(self) -> None:
        """Connect. Raises GlideError or OSError."""
        client = asyncio.run(self._connecting.create(self._config))
        with self._ending:
            self.client = client
            if self._is_abandoned:
                close_at_once(client)

    def abandon(self) -> None:
        """Close the client now, or as soon as it is connected."""
        with self._ending:
            self._is_abandoned = True
            if self.client is not None:
                close_at_once(self.client)


def _has_provider(config: GlideConfig) -> bool:
    """Return whether the credentials come from a function: GLIDE connects such clients in a thread itself."""
    iam = None if config.credentials is None else config.credentials.iam_config
    return getattr(iam, "credential_provider", None) is not None


def _connecting(kind: type[Any]) -> type[Any] | None:
    """Return a subclass whose ``create`` omits the registration; None if this version of GLIDE has other steps."""
    registry = getattr(sys.modules[kind.__module__], _REGISTRY, None)
    if registry is None or not hasattr(kind, _REGISTER):
        return None

    def register_later(client: Any, _: bool) -> None:
        if getattr(client.config, "pubsub_subscriptions", None) is not None:
            registry[client._pipe_client_id] = client  # messages may come before the loop continues

    return type(kind.__name__, (kind,), {_REGISTER: register_later})


# -- Closing ---------------------------------------------------------------------------------------------------------
# GLIDE's ``close`` fails the calls without a reply in the thread that closes, which asyncio does not allow, and raises
# if their event loop was closed: then the connection stays open.


def close_at_once(client: Any) -> None:
    """Close a client that has no calls. ``close`` is a coroutine, but does not suspend, so it needs no event loop."""
    with contextlib.suppress(StopIteration):
        client.close().send(None)


def abandon_client(client: Any, loop: asyncio.AbstractEventLoop | None) -> None:
    """Close a client from outside its event loop, which may be closed. Calls without a reply fail in that loop."""
    for future in _take_pending(client):
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(_fail, future, ClosingError("the connection was closed"))
    close_at_once(client)


async def _end_client(client: Any, reason: str) -> None:
    """Close a client that was replaced; calls without a reply fail as after a timeout."""
    for future in _take_pending(client):
        _fail(future, GlideTimeoutError(reason))
    await client.close()


def _take_pending(client: Any) -> list[asyncio.Future[Any]]:
    pending = list(client._pending_futures.values())
    client._pending_futures.clear()
    return pending


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


# -- Connections that GLIDE keeps -----------------------------------------------------------------------------------
# GLIDE reconnects only if the operating system reports a lost connection. If a firewall or a router drops the packets
# of a connection, that takes many minutes, in which every call times out. And without a cluster, it keeps its
# connection to a primary that was demoted, where every write fails. Here the client is replaced by another one.

_PAUSE_S: Final = 1.0
"""Shortest time between two searches for another primary."""


class ClientHolder(Protocol):
    """A transport whose client may be replaced."""

    config: GlideConfig
    client: Any
    interruptions: Interruptions
    timeout_s: float

    @property
    def is_closed(self) -> bool:
        """Whether the client is closed, or about to be."""
        ...

    @property
    def is_cluster(self) -> bool:
        """Whether the client is one of a cluster."""
        ...

    def connect_client(self) -> Awaitable[Any]:
        """Return another client. Raises GlideMQError."""
        ...

    def use_client(self, client: Any) -> None:
        """Make all further calls over another client."""
        ...

    async def is_silent(self, key: str | bytes) -> bool:
        """Return whether a trivial command for the key's node has no reply."""
        ...


class ClientReplacement:
    """Replaces the client of a transport if its connection is half-open, or leads to a demoted primary.

    Args:
        holder: the transport that owns the client.
    """

    def __init__(self, holder: ClientHolder) -> None:
        self._holder = holder
        self._task: asyncio.Task[None] | None = None
        self._next_search = 0.0
        """Earliest time of the next search for another primary, by ``time.monotonic``."""

    def check(self, error: GlideError, key: str | bytes, *, is_silent: bool) -> None:
        """Replace the client in the background if an error shows that it may be useless.

        Args:
            error: why a call failed.
            key: a key of the call, for the node that may be silent.
            is_silent: the client has delivered no reply since the call was sent.
        """
        if self._task is not None or self._holder.is_closed:
            return
        if isinstance(error, GlideTimeoutError):
            replaced = self._replace_half_open(key) if is_silent else None
        else:
            replaced = self._replace_demoted() if self._is_demoted(error) else None
        if replaced is not None:
            self._task = asyncio.ensure_future(replaced)
            self._task.add_done_callback(self._done)

    def _done(self, _: asyncio.Task[None]) -> None:
        self._task = None

    async def stop(self) -> None:
        """End the search; the client stays as it is."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _is_demoted(self, error: GlideError) -> bool:
        return not self._holder.is_cluster and classify(error) is READ_ONLY and time.monotonic() >= self._next_search

    async def _replace_half_open(self, key: str | bytes) -> None:
        """Replace the client if the server replies on a new connection, and still not on the present one."""
        config = self._holder.config
        if await in_thread(is_replying, config) and await self._holder.is_silent(key):
            old = await self._replaced("half-open", half_open(config))
            if old is not None:
                await _end_client(old, "the connection was half-open")

    async def _replace_demoted(self) -> None:
        """Replace the client by one that is connected to the new primary, once there is one."""
        self._next_search = time.monotonic() + _PAUSE_S
        old = await self._replaced("demoted", demoted(self._holder.config))
        if old is not None:
            try:  # the replies under way will come: the server rejects the calls
                pending: list[asyncio.Future[Any]] = list(old._pending_futures.values())
                if pending:
                    await asyncio.wait(pending, timeout=self._holder.timeout_s)
            finally:
                await _end_client(old, "the server became a replica")

    async def _replaced(self, reason: str, report: str) -> Any:
        """Connect another client; return the old one, or None on failure."""
        holder = self._holder
        try:
            client = await holder.connect_client()
        except GlideMQError as error:
            _log.debug("replacing a client (%s) failed: %s", reason, error)
            if isinstance(error, ConnectionRejectedError) and holder.interruptions.server.is_doubted:
                holder.interruptions.server.reject(error)
            return None
        if holder.is_closed:
            await client.close()
            return None
        old = holder.client
        holder.use_client(client)
        holder.interruptions.record()
        holder.interruptions.count(reason)
        _log.warning("%s", report)
        return old


# -- Deprecated module names ---------------------------------------------------------------------------------------
# GLIDE registers its old module names (``glide.config`` and others) as modules that warn at any attribute access. Tools
# that inspect every loaded module (``inspect.getmodule``, ``unittest.assertWarns``, Hypothesis, reloaders) read
# ``__file__`` and other special attributes, and so cause a DeprecationWarning, an error under ``-W error``, that the
# program's own code did not cause. Here special attributes raise AttributeError; importing a name from a deprecated
# module warns as before.


def _ignore_special_attributes(legacy: type[Any] | None) -> None:
    warn = getattr(legacy, "__getattr__", None)
    if legacy is None or warn is None:
        return

    def get(module: Any, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        return warn(module, name)

    legacy.__getattr__ = get


_ignore_special_attributes(getattr(glide, "_LegacyModule", None))
