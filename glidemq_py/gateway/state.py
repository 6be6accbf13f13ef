"""`GatewayState`: the queues, hubs, feeds of events and ids that all clients of a gateway share."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final, Self, TypeVar

from glidemq_py._api.flow_producer import FlowProducer
from glidemq_py._api.job_queue import Queue
from glidemq_py._api.lease import Lease
from glidemq_py._client.event_reader import News
from glidemq_py._client.failures import repeated_level
from glidemq_py._client.transport import Connection, ConnectionSource, Transport, check_connection
from glidemq_py._core.calls import pieces
from glidemq_py._core.logs import get_logger
from glidemq_py._features.queue_list import register_again
from glidemq_py._features.remote_control import client_workers_key
from glidemq_py._partitions.link import QueueLink
from glidemq_py._web.clients import RepeatedWarnings, digest, is_known
from glidemq_py._worker.maintenance.queues import Maintenance
from glidemq_py._worker.wake_channel import wake_channels_of
from glidemq_py.errors import ClosedError, GlideMQConnectionError, GlideMQError, GlideMQValidationError
from glidemq_py.gateway.backups import BackupFigures
from glidemq_py.gateway.deadlines import Deadlines
from glidemq_py.gateway.events import EventFeed
from glidemq_py.gateway.fetched import Held, HeldJobs
from glidemq_py.gateway.figures import Figures, SharedRead
from glidemq_py.gateway.hub import Hub
from glidemq_py.gateway.job_ids import JobIds
from glidemq_py.gateway.job_objects import LIMIT
from glidemq_py.gateway.names import listed_queues, queue_of_part
from glidemq_py.gateway.options import GatewayOptions
from glidemq_py.gateway.partition_hubs import PartitionHubs
from glidemq_py.gateway.table import CommandError, Given
from glidemq_py.gateway.webhooks import Webhooks

_log = get_logger(__name__)

T = TypeVar("T")

_QUEUES_KEPT: Final = 10_000
_UNUSED_S: Final = 30.0
"""Queues that do not exist are forgotten if no client has named them for so long."""
_FORGET_S: Final = 10.0
"""Interval of the search for such queues."""
_RELEASED_PER_CALL: Final = 100
_SWEEP_S: Final = 10.0
_LIST_S: Final = 60.0
_REPAIR_S: Final = 2.0
"""Interval of the search for queues that need maintenance."""
_WATCH_S: Final = 1.0
"""Interval of the check of the partitions of queues from which clients fetch."""
_LAYOUT_S: Final = 9.0
"""Age at which the partitions of such a queue are read again. Its other methods read them after ten seconds."""
_WATCHED_TOGETHER: Final = 50


class GatewayState:
    """What the sessions of a gateway share. `Gateway` starts and closes it.

    Args:
        connection: As for `Gateway`.
        **options: Fields of `GatewayOptions`.

    Attributes:
        clients: The open TCP connections.
        warnings: Warnings about clients.
        http_clients: Open WebSockets (`websocket`) and streams of events (`sse`).
        ids: Makes and reads the ids of jobs. This and the following are set with the connection to the server.
        flows: Adds flows.
        webhooks: The webhooks that clients have registered.
    """

    ids: JobIds
    flows: FlowProducer
    webhooks: Webhooks

    def __init__(self, connection: Connection = None, **options: Any) -> None:
        self.options = GatewayOptions(**options)
        if connection is not None:
            check_connection(connection)
        from glidemq_py import __version__

        self.version = __version__
        self.digests = [digest(_encoded(token)) for token in self.options.tokens or ()]
        """Of the tokens; empty without authentication. They have equal lengths, so comparing them reveals none."""
        self.held = HeldJobs()
        self.deadlines = Deadlines()
        self.figures = Figures()
        self.backup_figures = BackupFigures()
        self.warnings = RepeatedWarnings(_log)
        self.http_clients: Counter[str] = Counter()
        self.clients: set[asyncio.BaseProtocol] = set()
        self._reads: dict[Any, SharedRead[Any]] = {}
        self._connection = connection
        self._client: ConnectionSource | None = None
        self._transport: Transport | None = None
        self._queues: OrderedDict[str, Queue] = OrderedDict()
        self._used_at: dict[str, float] = {}
        """When a client has last named each of these queues, by ``time.monotonic``."""
        self._listed: AbstractSet[str] = frozenset()
        """Names of all queues of the prefix when they were last read."""
        self.hubs: dict[str, Hub] = {}
        """Of queues and partitions, by the names of their keys."""
        self._part_hubs: dict[str, set[str]] = {}
        """Names of the partitions with hubs, by the name of the queue."""
        self._fetching: dict[str, Hub | PartitionHubs] = {}
        """What clients fetch from, by the name of the queue."""
        self._owner = secrets.token_hex(8)
        self._maintained: dict[str, _Maintained] = {}
        self._feeds: dict[str, EventFeed] = {}
        self._subscriptions: dict[Callable[[bytes], None], str] = {}
        """Names of the queues whose events clients get, by what sends them."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closing = False
        self._is_closed = False

    def accepts(self, token: str) -> bool:
        """Return whether a token is valid."""
        return is_known(_encoded(token), self.digests)

    async def shared(self, read: Callable[[Self], Awaitable[T]]) -> T:
        """Return the result of a read of all queues that begins after this call; see `SharedRead`."""
        return await self.reads(read).get()

    def reads(self, read: Callable[[Self], Awaitable[T]]) -> SharedRead[T]:
        """Return the reads of one kind, which concurrent callers share."""
        found = self._reads.get(read)
        if found is None:
            found = self._reads[read] = SharedRead(partial(read, self))
        return found

    @property
    def connections(self) -> int:
        """Number of open connections of clients."""
        return len(self.clients)

    def _used(self, name: str) -> Queue | None:
        """Return the queue of this name if it is open, and note that it is in use."""
        self._used_at[name] = time.monotonic()
        found = self._queues.get(name)
        if found is not None:
            self._queues.move_to_end(name)
        return found

    async def queue(self, name: str) -> Queue:
        """Return the queue of this name (that of this package, not the one of the protocol)."""
        found = self._used(name)
        if found is not None:
            return found
        if self._client is None or self._is_closed:
            raise ClosedError("the gateway is closed")
        found = self._queues[name] = Queue(name, self._client, prefix=self.options.prefix)
        found._payload_limit = LIMIT
        if self._transport is not None:
            self.ids.met(name)
        if len(self._queues) > _QUEUES_KEPT:
            self._start(self._close_queue(self._queues.popitem(last=False)[1]))
        return found

    async def part(self, name: str) -> Queue:
        """See `JobIds.part`."""
        return await self.ids.part(name)

    async def fetching(self, queue: Queue) -> Hub | PartitionHubs:
        """Return what clients fetch from, for a queue."""
        found = self._fetching.get(queue.name)
        if found is not None and found.partitions is queue._partitions:
            return found
        link = await queue._plain_link()
        if link is None:
            return self._use_partitions(queue)
        hub = self._fetching[queue.name] = await self.hub(queue.name)
        return hub

    def _use_partitions(self, queue: Queue) -> PartitionHubs:
        """Let clients fetch from the present partitions of a queue."""
        partitions, found = queue._partitions, self._fetching.get(queue.name)
        hubs: list[Hub] = []
        for part in queue._parts:
            assert part._link is not None, "the partitions share the connection of their queue"
            hub = self.hubs.get(part.name) or self._new_hub(part, part._link)
            hub.use(part, part._link)
            hubs.append(hub)
        if isinstance(found, PartitionHubs):
            found.use(partitions, hubs)
        else:
            found = self._fetching[queue.name] = PartitionHubs(partitions, hubs)
        return found

    async def _read_old_layouts(self) -> None:
        """Notice that other programs have changed the partitions of queues from which clients fetch."""
        now, old = asyncio.get_running_loop().time(), list[Queue]()
        for name, found in list(self._fetching.items()):
            queue = self._queues.get(name)
            if queue is None:
                continue
            if found.partitions is not queue._partitions:
                await (self.forget_parts(queue) if queue._partitions is None else self.fetching(queue))
            is_fetched = found.is_in_use or now - found.polled_at < _LAYOUT_S
            if is_fetched and time.monotonic() - (queue._layout_read_at or 0.0) >= _LAYOUT_S:
                old.append(queue)
        for some in pieces(old, _WATCHED_TOGETHER):
            await asyncio.gather(*(self._read_partitions(queue) for queue in some))

    async def _read_partitions(self, queue: Queue) -> None:
        with contextlib.suppress(GlideMQError):  # the commands of clients report it
            await queue._renew_layout()
            if queue._partitions is not None:
                await self.fetching(queue)

    async def hub(self, name: str) -> Hub:
        """Return the hub of the queue or partition of this name."""
        found = self.hubs.get(name)
        if found is not None and self._used(queue_of_part(name)) is not None:
            return found
        part = await self.part(name)
        link = await part._plain_link()
        if link is None:  # it turned out to be partitioned
            part = await self.part(name)
            link = await part._connected()
        return self.hubs.get(name) or self._new_hub(part, link)  # another command may have been faster

    def _new_hub(self, part: Queue, link: QueueLink) -> Hub:
        home = queue_of_part(part.name)
        if home != part.name:
            self._part_hubs.setdefault(home, set()).add(part.name)
        hub = self.hubs[part.name] = Hub(
            part, link, self._owner, wake_channels_of(self.transport), self.transport, self.options.max_completed
        )  # fmt: skip
        return hub

    def changed(self, fields: Given) -> None:
        """Let the hub of the queue that a command may have changed look for jobs. ACKB and FAIL leave through it."""
        queue, job_id = fields.get("queue"), fields.get("id")
        found: Hub | PartitionHubs | None = None
        if isinstance(queue, str):
            found = self._fetching.get(queue)
            if found.__class__ is PartitionHubs and ("job" in fields or "jobs" in fields):
                return  # `Bulk` has let the hubs look
        elif queue is None and isinstance(job_id, str):
            name = self.ids.known_queue(job_id)
            found = None if name is None else self.hubs.get(name)
        if found is not None:
            found.look()

    @contextlib.asynccontextmanager
    async def without_prefetched(self, fields: Given, *, reads: bool) -> AsyncGenerator[None]:
        """Let prefetched jobs return that a command may be about, and prefetch none within the block."""
        hubs = self._hubs_of(fields, reads=reads)
        for hub in hubs:
            hub.prefetch.stop()
        try:
            await asyncio.gather(*(hub.prefetched_returned() for hub in hubs))
            yield
        finally:
            for hub in hubs:
                hub.prefetch.resume()

    def _hubs_of(self, fields: Given, *, reads: bool) -> Sequence[Hub]:
        """Return the hubs with jobs that a command with these fields may be about."""
        name, job_id = fields.get("queue"), fields.get("id")
        if name is None and isinstance(job_id, str):
            if reads:
                return [hub for hub in self.hubs.values() if hub.prefetch.may_have(job_id)]
            name = self.ids.known_queue(job_id)
        if not isinstance(name, str):
            return tuple(self.hubs.values())
        hub = self.hubs.get(name)
        return () if hub is None else (hub,)

    async def _close_queue(self, queue: Queue) -> None:
        self._used_at.pop(queue.name, None)
        await self.forget_parts(queue)
        await queue.close()

    async def forget_parts(self, queue: Queue) -> None:
        """Close what uses the queue or its partitions; the next command opens it again."""
        fetching, maintained = self._fetching.pop(queue.name, None), self._maintained.pop(queue.name, None)
        names = (queue.name, *self._part_hubs.pop(queue.name, ()))
        hubs = [self.hubs.pop(name) for name in names if name in self.hubs]
        # From here on, a command may open them again.
        if isinstance(fetching, PartitionHubs):
            fetching.close()
        for hub in hubs:
            await hub.close()
        if maintained is not None:
            await maintained.close()

    async def subscribe(self, send: Callable[[bytes], None], queue: str) -> None:
        """Send the events of a queue to a client, instead of those of another one.

        Args:
            send: Sends frames to the client.
            queue: Name of the queue.
        """
        self.unsubscribe(send)
        feed = await self._feed(queue)
        feed.subscribers.add(send)  # the feed is kept while it starts
        self._subscriptions[send] = queue
        try:
            await feed.start()
        except BaseException:
            self.unsubscribe(send)
            raise

    def unsubscribe(self, send: Callable[[bytes], None]) -> None:
        """Send no more events to a client."""
        name = self._subscriptions.pop(send, None)
        feed = None if name is None else self._feeds.get(name)
        if name is None or feed is None:
            return
        feed.subscribers.discard(send)
        self._close_unused(name, feed)

    async def follow(self, queue: str, news: News) -> None:
        """Notify of new events of a queue from now on."""
        feed = await self._feed(queue)
        feed.followers.add(news)
        try:
            await feed.start()
        except BaseException:
            self.unfollow(queue, news)
            raise

    def unfollow(self, queue: str, news: News) -> None:
        """Notify no more."""
        feed = self._feeds.get(queue)
        if feed is not None:
            feed.followers.discard(news)
            self._close_unused(queue, feed)

    async def _feed(self, queue: str) -> EventFeed:
        feed = self._feeds.get(queue)
        if feed is None:
            opened = await self.queue(queue)
            made = EventFeed(opened, self._connection, self.ids, self._is_serving)
            feed = self._feeds.setdefault(queue, made)
        return feed

    def _is_serving(self, part: str) -> bool:
        hub = self.hubs.get(part)
        return hub is not None and hub.is_serving

    def _close_unused(self, queue: str, feed: EventFeed) -> None:
        if not feed.subscribers and not feed.followers:
            del self._feeds[queue]
            self._start(feed.close())

    def maintain(self, queue: Queue, *, now: bool = False) -> None:
        """Run the maintenance of a queue, unless another process does.

        Args:
            queue: The queue.
            now: If True, look at it now, because its next due time may have changed.
        """
        known = self._maintained.get(queue.name)
        if known is not None and known.partitions is queue._partitions:
            if now:
                known.wake()
        elif not self._is_closing:
            following = self._maintained[queue.name] = _Maintained(queue)
            if now:
                following.wake()
            self._start(self._begin_maintenance(following, known))

    async def _begin_maintenance(self, maintained: _Maintained, before: _Maintained | None) -> None:
        if before is not None:
            await before.close()
        try:
            await maintained.start()
        except GlideMQError as error:
            name = maintained.queue.name
            level = repeated_level(self._transport, error)
            _log.log(level, "gateway: queue %r: its maintenance did not start: %s", name, error)
            if self._maintained.get(name) is maintained:
                del self._maintained[name]

    async def _maintain_listed(self) -> None:
        """Run the maintenance of all queues of the prefix, also of those that no client has named since the start."""
        await self._list()
        for name in self._listed:
            with contextlib.suppress(GlideMQValidationError):  # the others are maintained
                self.maintain(await self.queue(name))

    async def _list(self) -> None:
        """Read the names of all queues of the prefix."""
        self._listed = frozenset(await listed_queues(self.transport, self.options.prefix))

    async def _forget_unused(self) -> None:
        """Close queues that no client has named for a long time, unless they exist: clients may name any number."""
        if not any(map(self._is_unused, self._used_at)):
            return
        await self._list()  # some may have been added since the last time
        for name in list(filter(self._is_unused, self._used_at)):
            queue = self._queues.get(name)
            if queue is None or (queue._link is not None and await register_again(queue._link)):
                continue
            if self._is_unused(name):  # no client has named it meanwhile
                self._queues.pop(name, None)
                await self.finished(self._close_queue(queue))

    def _is_unused(self, name: str) -> bool:
        """Return whether no client has named a queue for `_UNUSED_S`, it is not listed, and nothing uses it."""
        hub, used_at = self._fetching.get(name), self._used_at.get(name)
        in_use = name in self._listed or name in self._feeds or (hub is not None and hub.is_in_use)
        return used_at is not None and used_at < time.monotonic() - _UNUSED_S and not in_use

    async def _repair_numbers(self) -> None:
        """Write the numbers of queues again if the server has lost them, for example in a failover."""
        written = await self.ids.repair()
        if written:
            _log.warning("gateway: wrote the numbers of %d queues again, which the server had lost", written)

    async def _repeat(self) -> None:
        """Repeat what keeps this object in step with the server, until it is cancelled."""
        tasks = (
            (_LIST_S, self._maintain_listed), (_FORGET_S, self._forget_unused), (_WATCH_S, self._read_old_layouts),
            (_REPAIR_S, self._repair_numbers), (_SWEEP_S, self.ids.chosen.sweep),
        )  # fmt: skip
        await asyncio.gather(*(_every(seconds, work) for seconds, work in tasks))

    @property
    def transport(self) -> Transport:
        """The connection to the server of the queues, for commands that are about no queue."""
        if self._transport is None:  # HTTP requests may arrive before
            raise GlideMQConnectionError("the gateway has not reached its server yet; /ready shows when it has")
        return self._transport

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finished(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a part of a command that continues if the client leaves."""
        task = self._start(work)
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            task.add_done_callback(_log_bug)
            raise
        return task.result()

    def rejects(self, connection: asyncio.BaseProtocol, peer: str) -> bool:
        """Register a connection unless there are too many; return whether there are."""
        if self._is_closing or self.connections >= self.options.max_connections:
            self.warnings.warn("full", f"gateway: rejected a connection of {peer}: {self.connections} are open")
            return True
        self.clients.add(connection)
        return False

    def release_of(
        self, connection: object, workers: Iterable[str], running: Sequence[asyncio.Future[Any]]
    ) -> None:  # fmt: skip
        """Release the jobs of a lost connection, except those whose locks were renewed, and forget its workers.

        Args:
            connection: The session.
            workers: Ids of the workers that it has registered.
            running: Its running commands, which end first.
        """
        if not self._is_closed:
            self._start(self._release(connection, workers, running))

    async def _release(
        self, connection: object, workers: Iterable[str], running: Sequence[asyncio.Future[Any]]
    ) -> None:  # fmt: skip
        if running:
            await asyncio.wait(running)
        with contextlib.suppress(GlideMQError):
            if workers:
                await self.transport.command("HDEL", client_workers_key(self.options.prefix), *sorted(workers))
        held = sorted(self.held.take(connection), key=lambda each: each.queue)
        for name, of_queue in itertools.groupby(held, lambda each: each.queue):
            jobs = list(of_queue)
            for piece in pieces(jobs, _RELEASED_PER_CALL):
                try:
                    await self._release_some(await self.part(name), piece)
                except GlideMQError as error:
                    _log.warning("gateway: queue %r: jobs of a lost connection stay locked: %s", name, error)

    async def _release_some(self, queue: Queue, held: Sequence[Held]) -> None:
        link = await queue._connected()
        leases: list[Lease[Any, Any]] = [Lease.from_token(queue, each.token) for each in held]
        # A lease has the id with its partition, the key has the one within it.
        states = (link.command("HMGET", link.keys.job(each.facts.id), "state", "lease") for each in held)
        found = await asyncio.gather(*states)
        # Another gateway may have taken the report, or renewed the lock: then the deadline is not the one of the fetch.
        left = [
            lease for lease, each, (state, text) in zip(leases, held, found, strict=True)
            if state == b"active" and _deadline(text) == each.expires_at
        ]  # fmt: skip
        if left:
            await queue.leases.release(left)


async def _every(seconds: float, work: Callable[[], Awaitable[object]]) -> None:
    """Repeat a task about every so many seconds, also if it fails."""
    while True:
        try:
            await work()
        except GlideMQError as error:  # the commands of clients report it
            _log.debug("gateway: a periodic task failed: %s", error)
        except Exception:
            _log.exception("gateway: a periodic task failed")
        await asyncio.sleep(seconds * random.uniform(0.9, 1.1))


def _encoded(token: str) -> bytes:
    return token.encode("utf-8", "surrogatepass")


def _log_bug(task: asyncio.Task[Any]) -> None:
    """Log an error that no client gets any more, unless clients cause it."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, CommandError | GlideMQError):
        _log.error("gateway: a command failed after its client had left", exc_info=error)


class _Maintained:
    """The maintenance of a queue and its partitions.

    Args:
        queue: The queue.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.partitions: object = queue._partitions
        self._maintenance: Maintenance | None = None
        self._is_woken = False
        self._is_closed = False

    async def start(self) -> None:
        """Start, unless it is closed meanwhile.

        Raises:
            GlideMQError: If the server does not answer.
        """
        await self.queue._plain_link()
        self.partitions = self.queue._partitions
        if not self._is_closed:
            self._maintenance = Maintenance(self.queue._parts)
            await self._maintenance.start()
            if self._is_woken:
                self._maintenance.wake()

    def wake(self) -> None:
        """See `Maintenance.wake`."""
        self._is_woken = True
        if self._maintenance is not None:
            self._maintenance.wake()

    async def close(self) -> None:
        """Stop. Idempotent."""
        self._is_closed = True
        if self._maintenance is not None:
            await self._maintenance.close()


def _deadline(lease: bytes | None) -> int:
    """Return the deadline in the field ``lease`` of a record (lua/features/leases/leases.lua); 0 without one."""
    parts = (lease or b"").split(b"|", 3)
    return int(parts[2]) if len(parts) > 3 and parts[2].isdigit() else 0
