"""Options and shared state of one proxy: connection, open queues, subscriptions, and whether it is closing."""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

from glidemq_py._api.broadcast import Broadcast
from glidemq_py._api.job_queue import Queue
from glidemq_py._client.transport import Connection, Transport, open_transport
from glidemq_py._core.checks import (
    Converted,
    OptionValue,
    check_bool,
    check_callable,
    check_choice,
    check_int,
    check_iterable,
    option,
)
from glidemq_py._core.keys import DEFAULT_PREFIX, validate_prefix, validate_queue_name
from glidemq_py._core.logs import get_logger
from glidemq_py._core.queue_options import COMPRESSIONS, Compression
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._operate.access import ROLES, Role, suffices
from glidemq_py._web.clients import LOOPBACK_HOSTS, NotAllowedError, check_tokens, require_tokens
from glidemq_py._worker.broadcasts import BroadcastWorker
from glidemq_py.errors import ClosedError, GlideMQValidationError
from glidemq_py.proxy.hubs import SubscriptionHub
from glidemq_py.proxy.responses import INTERNAL, status_of

_log = get_logger("glidemq_py.proxy")

OpenQueue = Queue
OnError = Callable[[Exception, Request], object]
OpenT = TypeVar("OpenT", Queue, Broadcast[Any])


_HOST: Final = re.compile(r"\*|[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")
_DAY_MS: Final = 86_400_000
_QUEUES_KEPT: Final = 1_000


def _prefix(_: str, value: str) -> str:
    return validate_prefix(value)


def _queue_names(option: str, value: Iterable[str]) -> frozenset[str]:
    return frozenset(validate_queue_name(name, option) for name in check_iterable(option, value, "names"))


def _on_error(option: str, value: OnError) -> OnError:
    return check_callable(option, value, "error", "request")


_tokens = partial(
    check_tokens, form=re.compile(r"[^\s\x80-\U0010ffff]{16,}"),
    allowed="ASCII strings of at least 16 characters without spaces",
)  # fmt: skip
_size = partial(check_int, minimum=1, maximum=2**30)


def _hosts(option: str, given: Iterable[object]) -> tuple[str, ...]:
    names = tuple(check_iterable(option, given, "names"))
    if not names:
        raise GlideMQValidationError(option, (), "must not be empty")
    for name in names:
        if not isinstance(name, str) or not _HOST.fullmatch(name):
            raise GlideMQValidationError(option, name, "must be host names without port, IPv6 in brackets, or '*'")
    return tuple(str(name).lower() for name in names)


class ProxyOptions(OptionValue, kw_only=True):
    """Options of `create_proxy_app`.

    Args:
        prefix: first part of every key.
        queues: names of the queues that clients may use; None = all.
        compression: "gzip" stores job data compressed.
        events: False leaves out the `added` events.
        tokens: accepted bearer tokens; every request except ``GET /health`` needs one. None = no authentication.
        max_body: maximum size of a request body, bytes.
        keep_alive: interval of the comments on an idle stream, ms or timedelta.
        on_error: called with each internal error (status 500, code ``internal``) and its request; it is also logged.
        hosts: accepted names in the header Host, without port; "*" accepts any. Default: the names of this machine
            (localhost, 127.0.0.1, [::1]).
        body_timeout: maximum time to receive a request body, ms or timedelta.
        max_response: maximum size of a page of a listing, bytes; a single job is returned whole.
        allow_anonymous: allow ``hosts`` other than the names of this machine without ``tokens``: every client that
            reaches the proxy may then use the queues.
        role: what clients may do: "observer" reads, "producer" adds jobs and messages too, "operator" does everything.

    Raises:
        GlideMQValidationError: if an option is invalid, or ``hosts`` requires ``tokens``. The message never
            contains a token.
    """

    prefix: str = option(_prefix, default=DEFAULT_PREFIX)
    queues: Converted[frozenset[str] | None, Iterable[str] | None] = option(_queue_names, default=None)
    compression: Compression = option(partial(check_choice, choices=COMPRESSIONS), default="none")
    events: bool = option(check_bool, default=True)
    tokens: Converted[tuple[str, ...] | None, Iterable[str] | None] = option(_tokens, default=None, repr=False)
    max_body: int = option(_size, default=1_048_576)
    keep_alive: Converted[int, Milliseconds] = option(partial(to_ms, minimum=100, maximum=_DAY_MS), default=5_000)
    on_error: OnError | None = option(_on_error, default=None)
    hosts: Converted[tuple[str, ...], Iterable[str]] = option(_hosts, default=LOOPBACK_HOSTS)
    body_timeout: Converted[int, Milliseconds] = option(partial(to_ms, minimum=100, maximum=3_600_000), default=30_000)
    max_response: int = option(_size, default=4_194_304)
    allow_anonymous: bool = option(check_bool, default=False)
    role: Role = option(partial(check_choice, choices=ROLES), default="operator")

    def _check_given(self) -> None:
        require_tokens(self, self.hosts)


class ProxyState:
    """One connection for all queues; a queue is opened at its first request.

    Args:
        connection: that of the proxy; queues and streams share its clients.
        options: those of the proxy.
    """

    def __init__(self, connection: Connection, options: ProxyOptions) -> None:
        self.options = options
        self.closing = asyncio.Event()
        self.started = time.monotonic()
        self.connection = connection
        self._transport: Transport | None = None
        self._connecting = asyncio.Lock()
        self._queues: OrderedDict[str, Queue] = OrderedDict()
        self._broadcasts: OrderedDict[str, Broadcast[Any]] = OrderedDict()
        self._subscriptions: dict[tuple[str, str], SubscriptionHub] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def open_queues(self) -> int:
        """Return the number of open queues."""
        return len(self._queues)

    async def connect(self) -> None:
        """Connect if not connected.

        Raises:
            ClosedError: if the proxy is closing.
            GlideMQConnectionError: if the server cannot be reached; a later request retries.
        """
        if self.closing.is_set():
            raise ClosedError("the proxy is closing")
        async with self._connecting:
            if self._transport is None:
                self._transport = await open_transport(self.connection)

    def check_allowed(self, name: str, option: str = "name") -> None:
        """Check that a queue may be used.

        Raises:
            GlideMQValidationError: if the name is invalid.
            NotAllowedError: if the queue may not be used.
        """
        validate_queue_name(name, option)
        allowed = self.options.queues
        if allowed is not None and name not in allowed:
            raise NotAllowedError(f"queue {name!r} is not available through this proxy")

    def check_role(self, needed: Role) -> None:
        """Raise NotAllowedError if clients may not do what needs this role."""
        if not suffices(self.options.role, needed):
            raise NotAllowedError(f"requires the role {needed!r}; clients of this proxy have {self.options.role!r}")

    def queue(self, name: str) -> Queue:
        """Return the queue of this name; requires `connect`. Raises the errors of `check_allowed`."""
        self.check_allowed(name)
        return self._open(Queue, self._queues, name)

    def broadcast(self, name: str) -> Broadcast[Any]:
        """Return the broadcast of this name; requires `connect`."""
        return self._open(Broadcast, self._broadcasts, name)

    def _open(self, kind: Callable[..., OpenT], opened: OrderedDict[str, OpenT], name: str) -> OpenT:
        if name not in opened:
            options = self.options
            opened[name] = kind(
                name, self.connection, prefix=options.prefix, compression=options.compression, events=options.events
            )
        opened.move_to_end(name)
        if len(opened) > _QUEUES_KEPT:
            self._later(opened.popitem(last=False)[1].close())
        return opened[name]

    def _later(self, closing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(closing)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def subscription(self, name: str, subscription: str) -> SubscriptionHub:
        """Return the hub that delivers the messages of a subscription."""
        key = (name, subscription)
        hub = self._subscriptions.get(key)
        if hub is None:

            def worker_of(handler: Any) -> BroadcastWorker:
                return BroadcastWorker(
                    name, handler, self.connection, subscription=subscription, prefix=self.options.prefix
                )

            hub = self._subscriptions[key] = SubscriptionHub(worker_of, lambda: self._subscriptions.pop(key, None))
        return hub

    def report(self, error: Exception, request: Request) -> None:
        """Call `on_error` if the error is internal (status 500, code ``internal``)."""
        on_error = self.options.on_error
        if on_error is None or isinstance(error, HTTPException) or status_of(error)[1] != INTERNAL:
            return
        try:
            on_error(error, request)
        except Exception:
            _log.exception("proxy: the function 'on_error' failed for %s %s", request.method, request.url.path)

    def begin_closing(self) -> None:
        """End the streams and reject new requests; running requests continue."""
        self.closing.set()

    async def close(self) -> None:
        """Close all subscriptions, queues and the connection."""
        self.begin_closing()
        for subscription in list(self._subscriptions.values()):
            await subscription.close()
        users: list[Queue | Broadcast[Any]] = [*self._queues.values(), *self._broadcasts.values()]
        await asyncio.gather(*self._leaving, *(user.close() for user in users), return_exceptions=True)
        self._queues.clear()
        self._broadcasts.clear()
        if self._transport is not None:
            await self._transport.close()
