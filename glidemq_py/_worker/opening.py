"""Opening a worker before its first job: what it is opened with, its connection, and the user's lifespan.

The partitions of a queue are opened like several queues: each is a lane, and together they have the weight of their
queue (`with_partitions`).

The first connection is retried while the server is down, is loading its data, or fails over. The lifespan is entered
and left in a task of its own: some context managers (task groups, cancel scopes, timeouts) must be left by the task
that entered them, but a worker may be started and closed by different tasks.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import random
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

from glidemq_py._client.transport import Connection, Transport, open_transport
from glidemq_py._core.calls import administration
from glidemq_py._core.checks import check_callable
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.limits import RateLimit
from glidemq_py._core.logs import get_logger
from glidemq_py._core.queue_options import QueueOptions
from glidemq_py._partitions.layout import Layout, Partition, shares
from glidemq_py._worker.fetch_calls import QueueSource
from glidemq_py._worker.handlers import Routes
from glidemq_py._worker.heartbeat import CommandRunner
from glidemq_py._worker.listeners import Listeners
from glidemq_py._worker.options import WorkerOptions
from glidemq_py._worker.sandbox import Sandbox
from glidemq_py.errors import (
    ConnectionRejectedError,
    GlideMQConnectionError,
    GlideMQError,
    GlideMQValidationError,
)

_log = get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServedQueue:
    """One of the queues of a worker, or of their parts."""

    keys: QueueKeys
    options: QueueOptions
    weight: int
    partition: Partition | None = None
    """Of a partitioned queue: which part of it this is."""
    limiter: RateLimit | None = None
    """Of a partition: its share of the worker's ``limiter``."""
    tokens: int | None = None
    """Of a partition: its share of the worker's ``token_limiter``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerComponents:
    """The inputs for opening a worker; see `Worker`."""

    keys: QueueKeys
    connection: Connection
    queue_options: QueueOptions
    options: WorkerOptions
    routes: Routes
    consumer: str
    listeners: Listeners
    lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None
    sandbox: Sandbox | None = None
    source: QueueSource | None = None
    """Source of its jobs; None = the queue."""
    in_background: bool = True
    """False for tests: heartbeats, maintenance tasks and the wake-up reader are not started."""
    control: CommandRunner | None = None
    """Runs commands for the worker; None = it gets none."""
    queues: tuple[ServedQueue, ...] = ()
    """The queues of the worker; ``keys`` and ``queue_options`` are those of the first, or of a lane."""
    weighted: bool = False
    """True if the queues have weights; False for strict order."""
    partition: Partition | None = None
    """Of a partitioned queue: which part of it ``keys`` are."""
    layout_seen: Callable[[str, int], None] | None = None
    """Called with the name of a queue and the number of the layout of its partitions."""
    failed: Callable[[GlideMQError], None] | None = None
    """Closes the worker because of an error."""

    @property
    def queue_name(self) -> str:
        """Name of the queue; of a partition, that of the whole queue."""
        return self.keys.name if self.partition is None else self.partition.queue_name

    def layout_of(self, keys: QueueKeys) -> Callable[[int], None] | None:
        """Return the function to call with the number of a queue's layout; None for partitions but the first."""
        if self.layout_seen is None or (self.partition is not None and self.partition.number):
            return None
        return partial(self.layout_seen, keys.name)


_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 5.0


async def connect_patiently(
    connection: Connection,
    keys: QueueKeys,
    life: AsyncExitStack,
    listeners: Listeners,
    prepare: Callable[[Transport], Awaitable[T]],
) -> tuple[Transport, T]:
    """Connect, load the function library, and run ``prepare``; retry transient errors with growing pauses.

    Every transient error is logged as a WARNING and emitted as ``error`` to ``listeners``. ``life`` closes the
    transport.

    Returns:
        The transport and the return value of ``prepare``.

    Raises:
        ConnectionRejectedError: If the server rejects the connection, the password or the library.
    """
    pause, failed = _FIRST_PAUSE_S, False
    while True:
        try:
            transport = await open_transport(connection)
            life.push_async_callback(transport.close)
            await transport.call(administration.version(keys.meta))
            prepared = await prepare(transport)
            if failed:
                transport.interruptions.record()
            return transport, prepared
        except ConnectionRejectedError:
            await life.aclose()
            raise
        except GlideMQConnectionError as error:
            failed = True
            await life.aclose()
            jittered = pause * (0.5 + random.random())
            _log.warning("queue %r: worker cannot start yet: %s; retrying in %.1f s", keys.name, error, jittered)
            listeners.emit("error", error)
        await asyncio.sleep(jittered)
        pause = min(pause * 2, _LAST_PAUSE_S)


def consumer_name() -> str:
    """Return a unique consumer name. Node peers use `worker-...`, so recovery can distinguish the two kinds."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:48]
    return f"py-{host}-{os.getpid()}-{secrets.token_hex(4)}"


_DECORATE = "must be decorated with contextlib.asynccontextmanager"
_F = TypeVar("_F", bound=Callable[..., Any])


def check_lifespan(function: _F) -> _F:
    """Return the lifespan function if it is valid.

    Raises:
        GlideMQValidationError: If it cannot be called with the worker, or is an async (generator) function without
            `contextlib.asynccontextmanager`.
    """
    check_callable("lifespan", function, "worker")
    if inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function):
        raise GlideMQValidationError("lifespan", function, _DECORATE)
    return function


def entered(made: Any) -> LifespanTask:
    """Return a task that enters the context manager ``made`` by the lifespan function.

    Raises:
        GlideMQValidationError: If ``made`` is not an async context manager.
    """
    if not isinstance(made, AbstractAsyncContextManager):
        raise GlideMQValidationError("lifespan", made, f"is not an async context manager: the function {_DECORATE}")
    return LifespanTask(cast("AbstractAsyncContextManager[Any]", made))


class LifespanTask:
    """Enters a context manager at `open` and leaves it at `close`, both in one task."""

    def __init__(self, manager: AbstractAsyncContextManager[Any]) -> None:
        self._manager = manager
        self._opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self._task = asyncio.create_task(self._hold(), name="glidemq-lifespan")

    async def _hold(self) -> None:
        try:
            async with self._manager as context:
                self._opened.set_result(context)
                await self._over.wait()
        except BaseException as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)

    async def open(self) -> Any:
        """Return the value that the manager yields. Its errors are raised; cancellation cancels the entering."""
        try:
            return await asyncio.shield(self._opened)
        except BaseException:
            if not self._opened.done():
                self._task.cancel()
                await asyncio.wait({self._task})
                if not self._opened.cancelled():
                    self._opened.exception()  # marks it as retrieved
            raise

    async def close(self) -> None:
        """Leave the manager. Its errors are raised."""
        self._over.set()
        await self._task


def with_partitions(opening: WorkerComponents, layouts: Mapping[str, Layout]) -> WorkerComponents:
    """Return the worker with the partitions of its queues in place of those queues.

    Args:
        opening: The worker.
        layouts: The layout of each queue that has partitions.

    Raises:
        GlideMQValidationError: If the worker has an option that needs a queue without partitions.
        GlideMQValidationError: If the queues are served in strict order.
    """
    if not layouts:
        return opening
    first = next(iter(layouts))
    if len(opening.queues) > 1 and not opening.weighted:
        raise GlideMQValidationError(
            "queue_name", [queue.keys.name for queue in opening.queues],
            f"must be a mapping of names to weights: {first!r} is partitioned, which strict order does not support",
        )  # fmt: skip
    # Each queue keeps its share: its weight is divided by the number of its partitions, and all become integers.
    common = math.lcm(*(layout.partitions for layout in layouts.values()))
    lanes: list[ServedQueue] = []
    for queue in opening.queues:
        layout = layouts.get(queue.keys.name)
        if layout is None:
            lanes.append(replace(queue, weight=queue.weight * common))
            continue
        weight = queue.weight * common // layout.partitions
        limiters, tokens = _limiters(opening, queue.keys.name, layout.partitions)
        lanes += (
            ServedQueue(
                QueueKeys(queue.keys.prefix, name), queue.options, weight, Partition(number, queue.keys.name),
                limiters[number], tokens[number],
            )
            for number, name in enumerate(layout.names)
        )  # fmt: skip
    return replace(opening, queues=tuple(lanes), weighted=True)


def _limiters(
    opening: WorkerComponents, queue: str, partitions: int
) -> tuple[Sequence[RateLimit | None], Sequence[int | None]]:
    """Return the share of each partition in the limiter and the token limiter of a worker."""
    limiter, tokens = opening.options.limiter, opening.options.token_limiter
    none = [None] * partitions
    jobs = none if limiter is None else [
        RateLimit(each, limiter.duration) for each in _divided("limiter", limiter.max, queue, partitions)
    ]  # fmt: skip
    if tokens is None or tokens.scope == "worker":
        return jobs, none
    return jobs, _divided("token_limiter", tokens.max_tokens, queue, partitions)


def _divided(option: str, total: int, queue: str, partitions: int) -> list[int]:
    """Return the share of each partition."""
    if total < partitions:
        problem = f"must be at least {partitions}, the number of partitions of queue {queue!r}"
        raise GlideMQValidationError(option, total, problem)
    return shares(option, total, partitions)
