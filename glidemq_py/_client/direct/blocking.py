"""Direct connections for threads, as those of event loops: one per node, which one thread uses at a time.

A call that finds the connection in use goes through GLIDE, whose client serves any number of threads at the same time.
"""

from __future__ import annotations

import contextlib
import math
import random
import select
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any, Final, cast

import hiredis
from glide_shared.exceptions import ConnectionError as GlideConnectionError
from glide_shared.exceptions import GlideError, RequestError
from glide_shared.exceptions import TimeoutError as GlideTimeoutError

from glidemq_py._client.call_retry import NotSentError
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.connection_url import Address
from glidemq_py._client.direct.connection import Handshake, handshake_of, sign_in, tls_context
from glidemq_py._client.direct.slots import Slots
from glidemq_py._core.forks import new_lock
from glidemq_py._core.logs import get_logger

__all__ = ["BlockingNodes", "BlockingSocket"]

_log = get_logger(__name__)
_INCOMPLETE: Final = object()
_RECEIVED_AT_ONCE: Final = 65_536
_LONGEST_WAIT_S: Final = 1.0
"""Longest wait of a call for a new connection to a server, seconds; then GLIDE serves it."""
_FIRST_PAUSE_S: Final = 0.1
_LAST_PAUSE_S: Final = 5.0
_pack = cast("Any", hiredis).pack_command


class BlockingSocket:
    """A connection to one server: sends commands and waits for their replies (RESP3).

    Errors are those of GLIDE, so that `call_retry` classifies them in the same way.

    Args:
        connected: the socket; its timeout is the longest wait for a part of a reply.

    Attributes:
        turn: the thread that uses the connection holds it.
        usable: False once it is closed or lost.
        was_silent: True if it ended because a reply did not arrive in time.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._end = weakref.finalize(self, connected.close)  # also if the transport is never closed
        self._reader: Any = hiredis.Reader(replyError=cast("Any", RequestError), notEnoughData=_INCOMPLETE)
        self._ends = select.poll()
        """Tells whether the server has closed the connection meanwhile."""
        if not isinstance(connected, ssl.SSLSocket):  # TLS sends data of its own at any time
            self._ends.register(connected.fileno(), select.POLLIN)
        self.turn = new_lock()
        self.usable = True
        self.was_silent = False

    def call(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send commands together, and return the replies; an error reply is a GlideError.

        Only for the thread that holds `turn`. After an exception, the connection is closed.

        Raises:
            GlideTimeoutError: No reply in time. The commands may have been executed, as after the following error.
            GlideConnectionError: The connection was lost.
            NotSentError: Nothing was sent.
        """
        packed = _pack(commands[0]) if len(commands) == 1 else b"".join(map(_pack, commands))
        if self._ends.poll(0):
            self.close()
            raise NotSentError("the server has closed the connection")
        try:
            self._socket.sendall(packed)
            return [self._receive() for _ in commands]
        except TimeoutError as error:
            self.was_silent = True
            self.close()
            raise GlideTimeoutError("no reply in time") from error
        except (OSError, hiredis.ProtocolError, TypeError) as error:  # TypeError: a map as the key of a map
            self.close()
            raise GlideConnectionError(f"the connection was lost: {error}") from error
        except BaseException:  # KeyboardInterrupt: replies are still under way
            self.close()
            raise

    def _receive(self) -> Any:
        reader = self._reader
        while (reply := reader.gets()) is _INCOMPLETE:
            data = self._socket.recv(_RECEIVED_AT_ONCE)
            if not data:
                raise ConnectionError("closed by the server")
            reader.feed(data)
        return reply

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self.usable = False
        with contextlib.suppress(OSError):
            self._end()


class BlockingNodes:
    """The direct connections of one `ThreadTransport`.

    The first call waits for its connection; after a loss, a thread opens the next one while GLIDE serves the calls.

    Args:
        options: how to connect.
    """

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options
        self._slots = Slots()
        self._open: dict[Address | None, BlockingSocket] = {}
        """Connections by node; None is the only one of a standalone server."""
        self._changing = new_lock()
        self._pause = _FIRST_PAUSE_S
        self._not_before = 0.0
        self._tried: set[Address | None] = set()
        self._closed = False

    def take(self, key: str) -> BlockingSocket | None:
        """Return a connection to the node that owns the key, for this thread alone; None: the call goes through GLIDE.

        `BlockingSocket.turn` must be released afterwards.
        """
        found = self._open.get(self._slots.node_of(key))
        if found is None:
            found = self._look_up(key)
        if found is None or not found.turn.acquire(blocking=False):
            return None
        if not found.usable:
            found.turn.release()
            return None
        return found

    def _look_up(self, key: str) -> BlockingSocket | None:
        for _ in range(2):  # the first turn may only read the ranges of the cluster
            node = self._slots.node_of(key)
            found = self._open.get(node)
            if found is not None or self._closed or time.monotonic() < self._not_before:
                return found
            if node in self._tried:
                self._begin(node)
                return None
            self._connect(node, first=True)
        return self._open.get(self._slots.node_of(key))

    def _begin(self, node: Address | None) -> None:
        if self._changing.acquire(blocking=False):
            try:
                self._not_before = time.monotonic() + self._pause  # no other call begins one meanwhile
                with contextlib.suppress(RuntimeError):  # the interpreter is ending
                    threading.Thread(target=self._connect, args=(node,), name="glidemq-direct", daemon=True).start()
            finally:
                self._changing.release()

    def _connect(self, node: Address | None, *, first: bool = False) -> None:
        """Connect to a node; ``first``: a call waits for it, unless another thread has tried meanwhile."""
        # A failure is no error: GLIDE serves the calls, and reports the cause.
        patience = _LONGEST_WAIT_S if first else math.inf
        with self._changing:
            if self._closed or node in self._open or (first and node in self._tried):
                return
            self._tried.add(node)
            try:
                if node is not None:
                    self._open_primary(node, (node,), patience)
                elif self._options.cluster:
                    self._learn_slots(patience)
                else:
                    self._open_primary(None, self._options.addresses, patience)
                self._pause, self._not_before = _FIRST_PAUSE_S, 0.0
            except (OSError, GlideError, ValueError) as error:  # TimeoutError is an OSError
                _log.debug("no direct connection to %s: %r", node or self._options, error)
                self._wait_longer()

    def _wait_longer(self) -> None:
        self._slots.forget()
        self._not_before = time.monotonic() + self._pause * (0.5 + random.random())
        self._pause = min(self._pause * 2, _LAST_PAUSE_S)

    def _open_primary(self, node: Address | None, addresses: Sequence[Address], patience: float) -> None:
        """Connect to the first of the servers that is a primary. Raises OSError or GlideError."""
        failure: OSError | GlideError | None = None
        for address in addresses:
            try:
                opened, server = self._open_socket(address, patience)
            except (OSError, GlideError) as error:
                failure = error
                continue
            if server.is_primary:
                self._open[node] = opened
                if self._closed:  # meanwhile, by another thread
                    opened.close()
                return
            opened.close()
        raise failure or ConnectionError("no server is a primary")

    def _learn_slots(self, patience: float) -> None:
        failure: OSError | GlideError | None = None
        for address in self._options.addresses:
            try:
                opened, _ = self._open_socket(address, patience)
            except (OSError, GlideError) as error:
                failure = error
                continue
            try:
                (reply,) = opened.call([("CLUSTER", "SLOTS")])
            finally:
                opened.close()
            if isinstance(reply, GlideError):
                raise reply
            self._slots.learn(cast("list[Any]", reply), address)
            return
        raise failure or ConnectionError("no node of the cluster replies")

    def _open_socket(self, address: Address, patience: float) -> tuple[BlockingSocket, Handshake]:
        """Connect and sign in. Raises as `open_connection`."""
        options = self._options
        timeout = min(options.connection_timeout / 1000, patience)
        connected = socket.create_connection((address.host, address.port), timeout)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = tls_context(options)
            if context is not None:
                connected = context.wrap_socket(connected, server_hostname=address.host)
            opened = BlockingSocket(connected)
            server = handshake_of(opened.call([tuple(words) for words in sign_in(options)]))
            connected.settimeout(options.request_timeout / 1000)
        except BaseException:
            connected.close()
            raise
        return opened, server

    def leave(self, connection: BlockingSocket) -> None:
        """Do not use the connection any more, and forget where slots are: it was lost, or replied with a surprise."""
        connection.close()
        for node, each in list(self._open.items()):
            if each is connection:
                self._open.pop(node, None)
                if connection.was_silent:  # as in nodes.py: the next call waits for a new connection
                    self._tried.discard(node)
        if not connection.was_silent:
            self._wait_longer()

    def close(self) -> None:
        """Close all connections. No call may be under way. Idempotent."""
        self._closed = True
        for each in list(self._open.values()):
            each.close()
