"""The direct connections of one event loop: one per node, found by the hash slot of a key."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import Sequence
from typing import Any, Final, cast

from glide_shared.exceptions import GlideError

from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.connection_url import Address
from glidemq_py._client.direct.connection import DirectConnection, open_connection, tls_context
from glidemq_py._client.direct.slots import Slots
from glidemq_py._client.reachability import reachability_of
from glidemq_py._client.replies import PollChoice
from glidemq_py._client.threads import in_thread
from glidemq_py._core.logs import get_logger

_log = get_logger(__name__)
_FIRST_PAUSE_S: Final = 0.1
_LAST_PAUSE_S: Final = 5.0
_LONGEST_WAIT_S: Final = 1.0
"""Longest wait of a call for a new connection, seconds; then GLIDE serves it."""
_MOST_KEYS: Final = 4_096
"""Keys whose connection is remembered; one per queue."""


class DirectNodes:
    """Finds the connection for a key; opens connections in the background.

    Args:
        options: how to connect.
    """

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options
        self.loop = asyncio.get_running_loop()
        self.by_key: dict[str, DirectConnection] = {}
        """Connections in use, by key: what `find` returns, without a function call."""
        self._open: dict[Address | None, DirectConnection] = {}
        """Connections by node; None is the only one of a standalone server."""
        self._opening: dict[Address | None, asyncio.Task[None]] = {}
        self.is_failing = False
        """True if the last connection could not be opened."""
        self._later: dict[Address | None, asyncio.TimerHandle] = {}
        """Timers of the next attempts to connect, by node; set if a call needs the node."""
        self._slots = Slots()
        self._context: ssl.SSLContext | None = None
        self._choice = PollChoice(wanted=options.busy_poll)
        self._pause = _FIRST_PAUSE_S
        self._not_before = 0.0
        self._tried: set[Address | None] = set()
        self._closed = False
        self._reachability = reachability_of((each.host, each.port) for each in options.addresses)

    @property
    def is_open(self) -> bool:
        """False after `close` and `abandon`, and after the end of the event loop."""
        return not self._closed and not self.loop.is_closed()

    def find(self, key: str) -> DirectConnection | None:
        """Return the connection to the node that owns the key, or None: then the call goes through GLIDE."""
        return self.by_key.get(key) or self._look_up(key)

    def _look_up(self, key: str) -> DirectConnection | None:
        node = self._slots.node_of(key)
        found = self._open.get(node)
        if found is None:
            self._begin(node)
        else:
            if len(self.by_key) >= _MOST_KEYS:
                self.by_key.clear()
            self.by_key[key] = found
        return found

    async def connect(self, key: str) -> DirectConnection | None:
        """Return the connection as `find`; wait for it if none to that node was tried yet.

        So the calls of a process keep their order from the first one on.
        """
        found = self.find(key)
        if found is None and not self._closed and self._slots.node_of(key) not in self._tried:
            return await self.ready(key)
        return found

    async def ready(self, key: str) -> DirectConnection | None:
        """Return the connection as `find`, after waiting for it if it is being opened. Raises nothing."""
        for _ in range(2):  # the first turn may only have read the ranges of the cluster
            found = self.find(key)
            opening = self._opening.get(self._slots.node_of(key))
            if found is not None or opening is None:
                return found
            await asyncio.wait((opening,), timeout=_LONGEST_WAIT_S)
        return self.find(key)

    def retire(self, connection: DirectConnection) -> None:
        """Do not use the connection any more, and forget where slots are: the server replied with a surprise."""
        self._slots.forget()
        self.by_key.clear()
        connection.retire()

    def replace_all(self) -> None:
        """Let the next calls open new connections: one of another transport has been silent, as these may be."""
        for connection in list(self._open.values()):
            connection.replace()

    def _begin(self, node: Address | None) -> None:
        if self._closed or node in self._opening or node in self._later:
            return
        pause = self._not_before - self.loop.time()
        if pause > 0:
            self._later[node] = self.loop.call_later(pause, self._begin_later, node)
            return
        task = self._opening[node] = self.loop.create_task(self._connect(node))
        task.add_done_callback(lambda _: self._opening.pop(node, None))

    def _begin_later(self, node: Address | None) -> None:
        del self._later[node]
        if node not in self._open:
            self._begin(node)

    async def _connect(self, node: Address | None) -> None:
        # A failure is no error: GLIDE serves the calls, and reports the cause.
        try:
            if self._context is None and self._options.tls:
                self._context = await in_thread(tls_context, self._options)
            if node is not None:
                await self._open_primary(node, (node,))
            elif self._options.cluster:
                await self._read_slots()
            else:
                await self._open_primary(None, self._options.addresses)
                self._reachability.accept()
        except (OSError, GlideError, ValueError) as error:  # TimeoutError is an OSError
            _log.debug("no direct connection to %s: %r", node or self._options, error)
            self.is_failing = isinstance(error, OSError) and not isinstance(error, ssl.SSLError)
            if isinstance(error, ConnectionRefusedError) and not self._options.cluster:
                self._reachability.refuse()
            self._wait_longer()
            self._slots.forget()
            self._context = None  # certificates may be replaced meanwhile
        finally:
            self._tried.add(node)

    def _wait_longer(self) -> None:
        self._not_before = self.loop.time() + self._pause * (0.5 + random.random())
        self._pause = min(self._pause * 2, _LAST_PAUSE_S)

    async def _open_primary(self, node: Address | None, addresses: Sequence[Address]) -> None:
        """Connect to the first of the servers that is a primary. Raises OSError or GlideError."""
        failure: OSError | GlideError | None = None
        for address in addresses:
            try:
                connection, server = await open_connection(
                    address, self._options, self._context, self._ended, self._choice
                )
            except (OSError, GlideError) as error:
                failure = error
                continue
            if server.is_primary and not self._closed:
                self._open[node] = connection
                self.is_failing = False
                self._pause = _FIRST_PAUSE_S
                return
            connection.close()
        raise failure or ConnectionError("no server is a primary")

    async def _read_slots(self) -> None:
        failure: OSError | GlideError | None = None
        for address in self._options.addresses:
            try:
                connection, _ = await open_connection(address, self._options, self._context, _ignore, self._choice)
            except (OSError, GlideError) as error:
                failure = error
                continue
            try:
                reply = await connection.send(("CLUSTER", "SLOTS"), self._options.connection_timeout / 1000)
            finally:
                connection.close()
            if isinstance(reply, GlideError):
                raise reply
            self._slots.learn(cast("list[Any]", reply), address)
            return
        raise failure or ConnectionError("no node of the cluster replies")

    def _ended(self, connection: DirectConnection) -> None:
        """Forget a connection that was lost, closed or retired."""
        for node, each in list(self._open.items()):
            if each is connection:
                del self._open[node]
                self.by_key.clear()
                if connection.was_silent:
                    # The packets of GLIDE's connections are probably dropped, too. So the next call waits for a new
                    # connection to the same node, instead of losing its time there.
                    self._tried.discard(node)
                else:
                    self._slots.forget()
                    self._wait_longer()

    def close(self) -> None:
        """Close all connections, in their event loop. Idempotent."""
        self._closed = True
        for task in list(self._opening.values()):
            task.cancel()
        for timer in self._later.values():
            timer.cancel()
        for connection in list(self._open.values()):
            connection.close()

    def abandon(self) -> None:
        """Free the sockets from outside the event loop, which is closed or not running. Idempotent."""
        self._closed = True
        if not self.loop.is_closed():
            with contextlib.suppress(RuntimeError):  # it was closed meanwhile
                self.loop.call_soon_threadsafe(self.close)
                return
        for connection in list(self._open.values()):
            connection.abandon()


def _ignore(_: DirectConnection) -> None: ...
