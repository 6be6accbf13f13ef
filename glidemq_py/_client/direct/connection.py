"""One connection of an event loop to one server."""

from __future__ import annotations

import asyncio
import math
import select
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, cast

import hiredis
from glide_shared.exceptions import ClosingError, GlideError, RequestError
from glide_shared.exceptions import ConnectionError as GlideConnectionError
from glide_shared.exceptions import TimeoutError as GlideTimeoutError

from glidemq_py._client.call_retry import NotSentError
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.connection_url import Address
from glidemq_py._client.replies import LONGEST, PollChoice
from glidemq_py._client.threads import to_first_address

_INCOMPLETE: Final = object()
"""Result of the parser while a reply is incomplete."""
_pack: Callable[[tuple[Any, ...]], bytes] = cast("Any", hiredis).pack_command


class Receiver(Protocol):
    """Gets the reply to a command; a future, or an object that processes it at once."""

    def done(self) -> bool:
        """Return whether the reply is not wanted any more."""
        ...

    def set_result(self, result: Any, /) -> None:
        """Take the reply. Must not raise."""
        ...

    def set_exception(self, exception: BaseException, /) -> None:
        """Take the error of the connection. Must not raise."""
        ...


class DirectConnection(asyncio.Protocol):
    """Sends commands in order and returns their replies in the same order (RESP3).

    Errors are those of GLIDE, so that `call_retry` classifies them in the same way.

    Attributes:
        usable: False once it is closed, lost or retired: no more commands must be sent.
        was_silent: it ended because a reply did not arrive in time, on it or on another connection to the server.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, ended: Callable[[DirectConnection], None], choice: PollChoice
    ) -> None:
        self._loop = loop
        self._ended = ended
        self._choice = choice
        self._left = self._calls = 0
        """Lone calls left of the block, and measured ones."""
        self._took = 0.0
        self._began: float | None = None
        """When the only pending command was sent, by the loop's clock; None without such a command."""
        self._spinning = False
        self._ends = select.poll()
        """Tells whether the server has closed the connection while the event loop was busy."""
        self._reader: Any = hiredis.Reader(replyError=cast("Any", RequestError), notEnoughData=_INCOMPLETE)
        self._pending: deque[tuple[Receiver, float]] = deque()
        self._unsent: list[bytes] = []
        self._is_held = False
        self._transport: Any = None
        self._watch: asyncio.TimerHandle | None = None
        self._watch_at = math.inf
        """When it calls `_check`."""
        self._closing: GlideError | None = None
        self.was_silent = False
        self.usable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport; called by the event loop."""
        self._transport = transport
        if transport.get_extra_info("sslcontext") is None:  # TLS sends data of its own at any time
            self._ends.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def send(self, words: tuple[Any, ...], timeout: float) -> asyncio.Future[Any]:
        """Send a command; return a future of its reply, which is a GlideError if the server replied with an error.

        Commands that are sent while others have no reply yet leave together at the end of this turn of the event loop.

        Args:
            words: the command: str, bytes or int.
            timeout: longest wait for the reply, seconds.

        The future raises TimeoutError of GLIDE if there is no reply in time, ConnectionError of GLIDE if the connection
        is lost, and ClosingError if it was closed on this side: the command may have been executed. It raises
        NotSentError if the command was certainly not sent.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        self.send_for(future, words, timeout)
        return future

    def send_for(self, receiver: Receiver, words: tuple[Any, ...], timeout: float) -> None:
        """Send a command as `send` does, for another receiver of its reply; it may get an error before this returns."""
        packed = _pack(words)
        now = self._loop.time()
        if self._pending:
            self._began = None
            if not self._unsent:
                self._loop.call_soon(self._flush)
            self._unsent.append(packed)
        else:
            if self._ends.poll(0):
                self.retire()
                receiver.set_exception(NotSentError("the server has closed the connection"))
                return
            if self._is_held:
                self._unsent.append(packed)
            else:
                self._transport.write(packed)
            if now + timeout < self._watch_at:
                self._check_at(now + timeout)
            # Busy polling (replies.py), here without a function of its own.
            if not self._left:
                self._left = self._choice.next_block(self._calls, self._took)
                self._calls, self._took = 0, 0.0
            self._left -= 1
            self._began = now
            if self._choice.polls and not self._spinning:
                self._spinning = True
                self._loop.call_soon(self._spin)
        self._pending.append((receiver, now + timeout))

    def hold(self) -> None:
        """Let commands wait until `let_go`, in the same turn of the event loop, so that they leave together."""
        self._is_held = True

    def let_go(self) -> None:
        """Send the commands that have waited since `hold`."""
        self._is_held = False
        self._flush()

    def _spin(self) -> None:
        """Keep the event loop from blocking until the reply to a lone call has arrived."""
        began = self._began
        if began is not None and self._loop.time() - began < LONGEST:
            self._loop.call_soon(self._spin)
        else:
            self._spinning = False

    def send_together(self, commands: Sequence[tuple[Any, ...]], timeout: float) -> list[asyncio.Future[Any]]:
        """Send several commands in one piece; see `send`. For a connection with no other command under way."""
        deadline = self._loop.time() + timeout
        futures: list[asyncio.Future[Any]] = [self._loop.create_future() for _ in commands]
        self._pending.extend((future, deadline) for future in futures)
        if deadline < self._watch_at:
            self._check_at(deadline)
        self._flush()
        self._transport.write(b"".join(map(_pack, commands)))
        return futures

    def when_replied(self, cancelled: asyncio.Future[Any], then: Callable[[Any], None]) -> None:
        """Pass the reply of a command to `then`, unless it is an error, after the task that awaited it was cancelled.

        Args:
            cancelled: the future of `send`.
            then: gets the reply, at once if it has arrived.
        """
        if not cancelled.cancelled():
            _pass_on(cancelled, then)
            return
        for number, (future, deadline) in enumerate(self._pending):
            if future is cancelled:
                again: asyncio.Future[Any] = self._loop.create_future()
                again.add_done_callback(lambda replied: _pass_on(replied, then))
                self._pending[number] = (again, deadline)
                return

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if unsent:
            self._transport.write(b"".join(unsent))

    def data_received(self, data: bytes) -> None:
        """Deliver the replies that are complete; called by the event loop."""
        reader, pending = self._reader, self._pending
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not _INCOMPLETE:
                future, _ = pending.popleft()
                if not future.done():
                    future.set_result(reply)
        except (hiredis.ProtocolError, IndexError, TypeError) as error:  # TypeError: a map as the key of a map
            self._end(GlideConnectionError(f"malformed reply of the server: {error}"))
        if not pending:
            if self._began is not None:
                self._calls += 1
                self._took += self._loop.time() - self._began
                self._began = None
            if not self.usable:
                self.close()

    def _check_at(self, deadline: float) -> None:
        """Check then whether a command is overdue, instead of later: earlier commands may have had more time."""
        if self._watch is not None:
            self._watch.cancel()
        self._watch, self._watch_at = self._loop.call_at(deadline, self._check), deadline

    def _check(self) -> None:
        """End the connection if the oldest command is overdue; else look again when it would be."""
        self._watch, self._watch_at = None, math.inf
        if not self._pending:
            return
        _, deadline = self._pending[0]
        if deadline > self._loop.time():
            self._check_at(deadline)
            return
        future, _ = self._pending.popleft()
        if not future.done():
            future.set_exception(GlideTimeoutError("no reply in time"))
        self.was_silent = True
        self._end(GlideTimeoutError("no reply in time"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the commands without a reply; called by the event loop."""
        error = self._closing or GlideConnectionError(f"the connection was lost: {exc or 'closed by the server'}")
        self._leave()
        sent = len(self._pending) - len(self._unsent)
        for number, (future, _) in enumerate(self._pending):
            if not future.done():
                future.set_exception(error if number < sent else NotSentError(str(error)))
        self._pending.clear()
        self._unsent.clear()
        if self._watch is not None:
            self._watch.cancel()
            self._watch, self._watch_at = None, math.inf

    def _leave(self) -> None:
        if self.usable:
            self.usable = False
            self._ended(self)

    def _end(self, error: GlideError) -> None:
        self._closing = error
        self._leave()
        self._transport.abort()

    def replace(self) -> None:
        """Send nothing more, as another connection to the server has been silent; calls under way wait on."""
        self.was_silent = True
        self.retire()

    def retire(self) -> None:
        """Send nothing more, and close when the commands under way have their replies."""
        self._leave()
        if not self._pending:
            self.close()

    def close(self) -> None:
        """Close the connection; the commands under way fail with ClosingError. Idempotent."""
        self._end(ClosingError("the connection was closed"))

    def abandon(self) -> None:
        """Free the socket from outside the event loop, which is closed or not running. Idempotent."""
        if self._loop.is_closed():
            self.usable = False
            self._pending.clear()
            # asyncio's own last step, which a closed loop does not run any more; uvloop has closed the socket itself.
            finish = getattr(self._transport, "_call_connection_lost", None)
            if finish is not None and getattr(self._transport, "_sock", None) is not None:
                finish(None)
        else:
            self._loop.call_soon_threadsafe(self.close)


def _pass_on(replied: asyncio.Future[Any], then: Callable[[Any], None]) -> None:
    if not replied.cancelled() and replied.exception() is None and not isinstance(replied.result(), GlideError):
        then(replied.result())


@dataclass(frozen=True, slots=True)
class Handshake:
    """The role of a server, read when a connection is opened."""

    is_primary: bool
    is_cluster: bool


async def open_connection(
    address: Address,
    options: ConnectionOptions,
    context: ssl.SSLContext | None,
    ended: Callable[[DirectConnection], None],
    choice: PollChoice,
) -> tuple[DirectConnection, Handshake]:
    """Connect and sign in.

    Args:
        address: the server.
        options: credentials, database, name and timeout.
        context: of TLS; None connects without it.
        ended: called once, when the connection must not be used any more.
        choice: whether lone calls are polled for.

    Raises:
        OSError: if the server cannot be reached within the connection timeout, or TLS fails.
        GlideError: if the server rejects the credentials or the database, or is no Valkey of version 7 or later.
    """
    loop = asyncio.get_running_loop()
    timeout = options.connection_timeout / 1000
    async with asyncio.timeout(timeout):
        connect = partial(
            loop.create_connection, lambda: DirectConnection(loop, ended, choice), port=address.port, ssl=context,
            server_hostname=address.host if context is not None else None,
        )  # fmt: skip
        _, connection = await to_first_address(address.host, address.port, connect)
        try:
            replies = [await connection.send(tuple(words), timeout) for words in sign_in(options)]
            return connection, handshake_of(replies)
        except BaseException:
            connection.close()
            raise


def sign_in(options: ConnectionOptions) -> list[list[str]]:
    """Return the first commands of a connection; `handshake_of` takes their replies."""
    hello = ["HELLO", "3"]
    if options.password is not None:
        hello += ["AUTH", options.username or "default", options.password]
    if options.client_name is not None:
        hello += ["SETNAME", options.client_name]
    return [hello, ["SELECT", str(options.database_id)]] if options.database_id else [hello]


def handshake_of(replies: Sequence[Any]) -> Handshake:
    """Return the role of the server; raise the first error reply."""
    for reply in replies:
        if isinstance(reply, GlideError):
            raise reply
    found = cast("dict[bytes, Any]", replies[0]) if isinstance(replies[0], dict) else {}
    return Handshake(found.get(b"role") == b"master", found.get(b"mode") == b"cluster")


def tls_context(options: ConnectionOptions) -> ssl.SSLContext | None:
    """Return the TLS settings of new connections, or None without TLS. Reads files.

    Raises:
        OSError: if a file cannot be read or contains no certificate (ssl.SSLError is one).
    """
    if not options.tls:
        return None
    authority = options.tls_ca
    if isinstance(authority, bytes):
        context = ssl.create_default_context(cadata=authority.decode("ascii", "ignore"))
    else:
        context = ssl.create_default_context(cafile=authority)
    if options.tls_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if isinstance(options.tls_cert, str) and isinstance(options.tls_key, str):
        context.load_cert_chain(options.tls_cert, options.tls_key)
    return context
