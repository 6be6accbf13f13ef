"""The simulated network: what a GLIDE client does, with messages that are delayed, lost, repeated or cut off.

`SimulatedTransport` is the package's `AsyncTransport` over a `SimulatedClient`, so retries, ambiguous results and the
loading of the library are those of the package.

A connection keeps the order of its messages, as TCP does; messages of different connections overtake each other. A
repeated request is one that its sender may repeat itself (`Call.repeatable`): its second copy arrives later, on another
connection.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from glide_shared.exceptions import ClosingError, GlideError, RequestError
from glide_shared.exceptions import ConnectionError as GlideConnectionError
from glide_shared.exceptions import TimeoutError as GlideTimeoutError
from glide_shared.protobuf import command_request_pb2

from tests.inside import AsyncTransport, Call, CommandError, Waiter, _Read, assemble, failures, glide
from tests.simulation.loop import PARTY, Party, SimulatedLoop
from tests.simulation.server import SimulatedServer

RequestType: Any = vars(command_request_pb2)["RequestType"]  # generated: its names have no types

__all__ = ["MESSAGE_FAULTS", "MessageFault", "Network", "SimulatedTransport", "Source", "subscribe"]

T = TypeVar("T")

REQUEST_TIMEOUT_MS: Final = 3_000
_FCALL: Final = RequestType.FCall
_READS: Final = (b"XREADGROUP", b"XREAD")
_SUBSCRIBED_AGAIN_S: Final = 0.3
_MESSAGES_LOST: Final = 0.1
"""Share of the messages of channels that are lost while faults are injected."""
_DETECTED_S: Final = 0.02
"""Time after which a lost connection is noticed, about."""

MESSAGE_FAULTS: Final = (
    "lose_request", "lose_reply", "delay_request", "delay_reply", "repeat_request", "cut_connection", "late_request",
)  # fmt: skip
"""Kinds of `MessageFault`. `late_request`: it arrives after its sender has given up waiting."""


@dataclass(frozen=True, slots=True)
class MessageFault:
    """A fault of the message with this number (messages are counted in the order in which they are sent)."""

    number: int
    kind: str
    amount: float
    """From 0 to 1: how late, or whether the loss is noticed soon."""


class Network:
    """Carries the messages of all clients to the server and back.

    Args:
        loop: time.
        server: runs the commands.
        chance: decides how long a message takes.
        faults: the faults, by the number of the message.
    """

    def __init__(
        self, loop: SimulatedLoop, server: SimulatedServer, chance: random.Random, faults: Sequence[MessageFault] = ()
    ):
        self.loop = loop
        self.server = server
        self.random = chance.random
        self.faults = {fault.number: fault for fault in faults}
        self.messages = 0
        self.injected: list[MessageFault] = []
        self.trace = 0
        """Checksum of all messages so far."""
        self.down_until = self.subscribed_from = 0.0
        """When the server accepts connections, and when subscriptions of channels are back after they were cut."""
        self._clients: dict[SimulatedClient, None] = {}
        self.config = glide.GlideClientConfiguration(
            addresses=[glide.NodeAddress("simulated", 6379)], request_timeout=REQUEST_TIMEOUT_MS
        )
        self.listeners: list[Any] = []
        self.reliable = False
        """True once no more faults are injected."""

    def latency(self) -> float:
        chance = self.random()
        return 0.0002 + 0.001 * chance * chance

    def add(self, client: SimulatedClient):
        self._clients[client] = None

    def remove(self, client: SimulatedClient):
        self._clients.pop(client, None)

    def leave(self, party: Party):
        """Close the connections of a killed party. What it has sent may still arrive."""
        for client in [client for client in self._clients if client.party is party]:
            client.cut()
            self.remove(client)

    def cut_all(self, down_s: float):
        """Break all connections, and refuse new ones for some time."""
        self.down_until = self.loop.now + down_s
        self.subscribed_from = self.down_until + _SUBSCRIBED_AGAIN_S
        for client in list(self._clients):
            client.cut(executes=False)

    def record(self, *what: object):
        """Add to the checksum of the run."""
        self.trace = zlib.crc32(repr((self.loop.now, what)).encode(), self.trace)


class _Request:
    __slots__ = ("commands", "future", "number", "over", "repeatable", "stop_waiting")

    def __init__(self, number: int, commands: list[list[bytes]], future: asyncio.Future[Any], repeatable: bool):
        self.number = number
        self.commands = commands
        self.future = future
        self.repeatable = repeatable
        self.over = False
        """It will not be executed: its connection is gone."""
        self.stop_waiting: Callable[[], None] | None = None
        """Ends its blocking read, if it waits."""


class SimulatedClient:
    """What `AsyncTransport` uses of a GLIDE client: one connection."""

    def __init__(self, network: Network):
        self._network = network
        self._loop = network.loop
        self.party = PARTY.get()
        self.config = network.config
        self._pending_futures: dict[int, asyncio.Future[Any]] = {}
        self._requests: dict[int, _Request] = {}
        self._sent_until = self._replied_until = 0.0
        self._blocked: list[_Request] | None = None
        """Requests behind a blocking read."""
        self._closed = False
        network.add(self)

    # -- the interface of a GLIDE client ----------------------------------------------------------------------

    async def exec(self, batch: Any, raise_on_error: bool = False, options: Any = None) -> list[Any]:
        assert not raise_on_error
        timeout = getattr(options, "timeout", None) or REQUEST_TIMEOUT_MS
        commands = [_command(kind, args) for kind, args in batch.commands]
        return await self.send(commands, False, timeout / 1000)

    async def custom_command(self, args: Sequence[str | bytes], _route: object = None) -> Any:
        (reply,) = await self.send([[_bytes(arg) for arg in args]], False, REQUEST_TIMEOUT_MS / 1000)
        if isinstance(reply, GlideError):
            raise reply
        return reply

    async def scan(self, cursor: bytes, match: str, count: int) -> Any:
        return await self.custom_command(["SCAN", cursor, "MATCH", match, "COUNT", str(count)])

    async def close(self):
        if not self._closed:
            self._closed = True
            self._network.remove(self)
            for request in list(self._requests.values()):
                self._end(request, ClosingError("the client was closed"))
            self._requests.clear()

    # -- messages -------------------------------------------------------------------------------------------

    def send(self, commands: list[list[bytes]], repeatable: bool, timeout: float) -> asyncio.Future[Any]:
        network, loop = self._network, self._loop
        future: asyncio.Future[Any] = loop.create_future()
        if self._closed:
            future.set_exception(ClosingError("the client was closed"))
            return future
        number = network.messages = network.messages + 1
        now = loop.now
        if now < network.down_until:
            loop.call_at(now + _DETECTED_S, _fail, future, GlideConnectionError("connection refused"))
            return future
        request = self._requests[number] = _Request(number, commands, future, repeatable)
        delay = network.latency()
        fault = None if network.reliable or not network.faults else network.faults.get(number)
        if fault is not None:
            network.injected.append(fault)
            delay = self._spoil(request, fault, delay, timeout)
            if delay < 0:
                return future
        at = self._sent_until = max(self._sent_until, now + delay)
        loop.call_at(at, self._arrive, request, fault, context=_NOBODY)
        return future

    def _spoil(self, request: _Request, fault: MessageFault, delay: float, timeout: float) -> float:
        """Apply a fault of a request. Return its delay, or -1 if it never arrives."""
        kind, loop = fault.kind, self._loop
        if kind == "lose_request":
            self._give_up(request, fault, timeout)
            request.over = True
            return -1
        if kind == "lose_reply":
            self._give_up(request, fault, timeout)
        elif kind == "cut_connection":
            loop.call_later(delay * 2 * fault.amount, self.cut, context=_NOBODY)
        elif kind == "delay_request":
            return delay + fault.amount * timeout * 0.9
        elif kind == "late_request":
            # (On a connection of its own, as the old one of a client that has connected again meanwhile.)
            self._give_up(request, fault, timeout)
            loop.call_later(timeout * (1 + 2 * fault.amount), self._execute, request, True, context=_NOBODY)
            return -1
        elif kind == "repeat_request" and request.repeatable:
            loop.call_later(delay + 20 * fault.amount**4, self._execute_again, request, context=_NOBODY)
        return delay

    def _give_up(self, request: _Request, fault: MessageFault, timeout: float):
        if fault.amount < 0.7:
            after, error = _DETECTED_S * (1 + fault.amount), _lost()
        else:
            after, error = timeout, GlideTimeoutError("no reply")
        self._loop.call_later(after, self._end, request, error, context=_NOBODY)

    def _arrive(self, request: _Request, fault: MessageFault | None):
        if request.over:
            return
        if self._blocked is not None:
            self._blocked.append(request)
            return
        self._execute(request, False, fault)

    def _execute_again(self, request: _Request):
        if self._loop.now >= self._network.down_until:
            for command in request.commands:
                self._reply_of(command, None)

    def _execute(self, request: _Request, late: bool, fault: MessageFault | None = None):
        if self._loop.now < self._network.down_until:
            return
        if request.commands[0][0] in _READS:
            read = _read_of(*request.commands[0])
            if late:
                request.commands[0] = read.command  # its sender does not wait for the reply
            elif read.block is not None:
                self._wait(request, read, fault)
                return
        if request.commands[-1][0] == b"WAIT" and self._network.server.lagging:
            # The replica does not confirm: the reply comes at the end of the wait, if the primary lives so long.
            replies = [*(self._reply_of(command, request) for command in request.commands[:-1]), 0]
            block = int(request.commands[-1][2]) / 1000
            self._loop.call_later(block, self._reply, request, replies, fault, context=_NOBODY)
            return
        self._reply(request, [self._reply_of(command, request) for command in request.commands], fault)

    def _reply_of(self, command: list[bytes], request: _Request | None) -> Any:
        network = self._network
        try:
            reply = network.server.run_command(command)
        except CommandError as error:
            reply = RequestError(f"An error was signalled by the server: - ResponseError: {error}")
        network.trace = zlib.crc32(b"%r %b %r" % (self._loop.now, b" ".join(command), reply), network.trace)
        if network.listeners:
            for listener in network.listeners:
                listener(self.party, command, reply, request is not None)
        return reply

    def _wait(self, request: _Request, read: _Read, fault: MessageFault | None):
        """Run a blocking read, then the commands behind it."""
        server, loop = self._network.server, self._loop
        if self._read(request, read, fault, over=False):
            return
        self._blocked = []

        def changed():  # called within a command
            loop.call_soon(self._read_again, request, read, fault, False, context=_NOBODY)

        waiter = Waiter(frozenset(read.keys), changed)
        waiters = server._waiters
        waiters[waiter] = None
        assert read.block is not None
        timer = loop.call_later(read.block, self._read_again, request, read, fault, True, context=_NOBODY)

        def end():
            request.stop_waiting = None
            timer.cancel()
            del waiters[waiter]

        request.stop_waiting = end

    def _read(self, request: _Request, read: _Read, fault: MessageFault | None, *, over: bool) -> bool:
        first = None if over else self._reply_of(read.command, request)
        if not first and not over:
            return False
        self._reply(request, [first, *(self._reply_of(each, request) for each in request.commands[1:])], fault)
        return True

    def _read_again(self, request: _Request, read: _Read, fault: MessageFault | None, over: bool):
        if request.stop_waiting is not None and self._read(request, read, fault, over=over):
            request.stop_waiting()
            behind, self._blocked = self._blocked or [], None
            for each in behind:
                self._arrive(each, None)

    def _reply(self, request: _Request, replies: list[Any], fault: MessageFault | None):
        delay = self._network.latency()
        if fault is not None:
            if fault.kind == "lose_reply":
                return
            if fault.kind == "delay_reply":
                delay += fault.amount * REQUEST_TIMEOUT_MS / 1000 * 0.9
        at = self._replied_until = max(self._replied_until, self._loop.now + delay)
        self._loop.call_at(at, self._deliver, request, replies, context=_NOBODY)

    def _deliver(self, request: _Request, replies: list[Any]):
        if self._requests.pop(request.number, None) is not None and not request.future.done():
            request.future.set_result(replies)

    def _end(self, request: _Request, error: Exception):
        """Fail a request; if it has not arrived yet, it may still be executed."""
        self._requests.pop(request.number, None)
        if request.stop_waiting is not None:
            request.stop_waiting()
            request.over = True
        _fail(request.future, error)

    def cut(self, executes: bool = True):
        """Break the connection. Requests under way may still arrive, if ``executes``."""
        self._blocked = None
        for request in list(self._requests.values()):
            request.over = request.over or not executes
            self._loop.call_later(_DETECTED_S, self._end, request, _lost(), context=_NOBODY)
            if request.stop_waiting is not None:
                request.stop_waiting()
                request.over = True
        self._requests.clear()


class SimulatedTransport(AsyncTransport):
    """A `Transport` over the simulated network."""

    def __init__(self, network: Network, interruptions: Any = None):
        self._network = network
        client: Any = SimulatedClient(network)
        super().__init__(
            client, network.config, owned=False, library=assemble(),
            interruptions=failures.Interruptions() if interruptions is None else interruptions,
        )  # fmt: skip
        self._full_names = {name: self._names[name] for name in self._names}

    async def _run(self, call: Call[Any], timeout_s: float | None = None) -> Any:
        keys = [_bytes(key) for key in call.keys]
        args = [arg if type(arg) is bytes else _bytes(arg) for arg in call.args]
        command = [b"FCALL", self._full_names[call.function], b"%d" % len(keys), *keys, *args]
        (reply,) = await self.client.send([command], call.repeatable, timeout_s or REQUEST_TIMEOUT_MS / 1000)
        self._answered += 1
        if isinstance(reply, GlideError):
            raise reply
        return reply

    async def dedicated(self) -> SimulatedTransport:
        return SimulatedTransport(self._network, self.interruptions)

    async def elsewhere(self) -> Any:
        return SimulatedTransport(self._network, self.interruptions)

    async def close(self):
        if not self._closed:
            self._closed = True
            await self.client.close()


class _Subscription:
    """A subscription of channels: its party receives the messages, unless they are lost."""

    def __init__(self, network: Network, prefix: str, on_message: Callable[[str], None]):
        self._network, self._listeners = network, network.server._store.listeners
        self._prefix = prefix.encode()
        self._on_message = on_message
        self._context = contextvars.copy_context()
        self._party = PARTY.get()
        self._listeners.append(self._publish)

    def _publish(self, channel: bytes) -> bool:
        network = self._network
        dead = self._party is not None and self._party.dead
        if dead or network.loop.now < network.subscribed_from or not channel.startswith(self._prefix):
            return False
        if network.reliable or network.random() >= _MESSAGES_LOST:
            after = network.latency()
            network.loop.call_later(after, self._on_message, channel.decode(), context=self._context)
        return True

    async def close(self):
        self._listeners.remove(self._publish)


async def subscribe(
    transport: SimulatedTransport, prefix: str, on_message: Callable[[str], None]
) -> _Subscription:  # fmt: skip
    """Subscribe to channels, as `glidemq_py._client.event_reader.subscribe` does."""
    return _Subscription(transport._network, prefix, on_message)


class Source:
    """A connection for queues and workers."""

    def __init__(self, network: Network):
        self._network = network

    def open_transport(self) -> SimulatedTransport:
        return SimulatedTransport(self._network)


_NOBODY: Final = contextvars.Context()
"""The context of the network, which belongs to no party."""


def _command(kind: int, args: Sequence[str | bytes]) -> list[bytes]:
    words = [arg if type(arg) is bytes else _bytes(arg) for arg in args]
    return [b"FCALL", *words] if kind == _FCALL else words


@functools.lru_cache(64)
def _read_of(*command: bytes) -> _Read:
    return _Read(command)


@functools.lru_cache(4096)
def _bytes(arg: str | bytes) -> bytes:
    return arg if isinstance(arg, bytes) else arg.encode("utf-8", "surrogateescape")


def _lost() -> Exception:
    return GlideConnectionError("the connection was lost")


def _fail(future: asyncio.Future[Any], error: Exception):
    if not future.done():
        future.set_exception(error)
