"""What tests use of the inside: the modules behind the public API, private attributes, and partitions.

A test of behavior needs none of it. The functions find the calls that a crash would cut, the tasks of a worker that
others consider dead, and the partition of a job.
"""

# ruff: noqa: F401
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, overload

import pytest

from glidemq_py import FlowProducer, Job, Queue, QueueEvent, QueueEvents
from glidemq_py._api import dead_letters, lease, lease_exchange, queue_events
from glidemq_py._client import (
    async_client,
    busy_poll,
    call_retry,
    connection_options,
    direct,
    embedded,
    event_reader,
    failures,
    glide_faults,
    library_source,
    loop_transport,
    runtime,
    shared_clients,
    shared_reads,
    stream_reads,
    threads,
)
from glidemq_py._client.async_client import config_of, create_async, glide
from glidemq_py._client.async_transport import AsyncTransport
from glidemq_py._client.library_source import WIRE_VERSION, Library, Variant, assemble, lua_root
from glidemq_py._client.memory import Clock, MemoryServer
from glidemq_py._client.memory.server import Waiter, _Read
from glidemq_py._client.memory.store import CommandError
from glidemq_py._client.portal import BlockingTransport, drive, portal
from glidemq_py._client.transport import Transport, check_connection, open_transport
from glidemq_py._core import checks, command_line, json_text, keys, logs, misuse, record
from glidemq_py._core.calls import Call, adding, administration, declared, declared_keys, pack, unpack, working
from glidemq_py._core.calls.adding import AddReply, Row, add, encode_row, request, row, stored_row
from glidemq_py._core.job_options import NO_OPTIONS, UNSUPPORTED, read_stored_options, unsupported_in
from glidemq_py._core.keys import (
    QueueKeys,
    flow_key,
    hash_slot,
    hash_tag,
    split_member,
    usage_registry_key,
    validate_prefix,
    validate_queue_name,
)
from glidemq_py._core.payload import (
    PAYLOAD_LIMIT,
    check_size,
    decode_data,
    decode_progress,
    decode_result,
    encode_data,
    encode_json,
    encode_result,
)
from glidemq_py._core.queue_options import QueueOptions
from glidemq_py._core.times import MAX_DURATION_MS, MAX_EPOCH_MS, epoch_ms, to_instant, to_ms
from glidemq_py._features import (
    broadcast,
    cleaning,
    durable_adds,
    failed_attempts,
    failure_policy,
    fair_keys,
    leases,
    limits,
    outbox,
    queue_list,
    remote_control,
    results,
    staged_writes,
    suspend,
    timeline,
    typed_values,
    usage,
    vectors,
)
from glidemq_py._features.backup import records
from glidemq_py._features.backup.manifest import parse_manifest
from glidemq_py._features.consistency import checking
from glidemq_py._features.failures import FailureRow
from glidemq_py._features.flows import calls, plan
from glidemq_py._features.schedulers import area, entry, firing
from glidemq_py._features.schedulers.cron import CronPattern, instants, next_instant, parse_cron, pattern_in_words
from glidemq_py._job import run, waiting
from glidemq_py._job.reading import listed_states, read_jobs
from glidemq_py._job.run import FinishedAttempt
from glidemq_py._partitions import layout, parts, routing, stored
from glidemq_py._partitions.layout import (
    MAX_PARTITIONS,
    Layout,
    Partition,
    partition_id,
    partition_names,
    partition_of_key,
    partition_slots,
    shares,
    split_partition_id,
)
from glidemq_py._partitions.link import QueueLink
from glidemq_py._web.serving import server_config
from glidemq_py._worker import (
    base_worker,
    batches,
    broadcasts,
    closing,
    failure_log,
    fetch_calls,
    fetch_engine,
    heartbeat,
    lane,
    lanes,
    listeners,
    opening,
    options,
    queue_lanes,
    shutdown,
    slot_pool,
    timeouts,
    wake,
    wake_channel,
)
from glidemq_py._worker import results as worker_results
from glidemq_py._worker.command import target
from glidemq_py._worker.command.arguments import TargetError, WorkerArguments, parse_size, read_arguments
from glidemq_py._worker.fetch_calls import MAX_ROWS, Exchange, Failure, Invalidate, Pipelined, Reattach, Step, Throttle
from glidemq_py._worker.maintenance import libraries, queues
from glidemq_py._worker.maintenance import outbox as maintenance_outbox
from glidemq_py._worker.results import status_after_lost_reply
from glidemq_py.options import JobOptionsDict, PublishOptionsDict
from glidemq_py.sync import Queue as BlockingQueue

if TYPE_CHECKING:
    from glidemq_py._client.transport import Transport
    from glidemq_py._worker.base_worker import BaseWorker

AREAS = [name for name, value in vars(Queue).items() if isinstance(value, property) and not name.startswith("_")]
"""Areas of a `Queue`, such as ``queue.limits``."""


def areas(queue: Any) -> dict[str, type[Any]]:
    """Return the classes of a queue's areas by name."""
    return {name: type(getattr(queue, name)) for name in AREAS}


def around(patch: pytest.MonkeyPatch, owner: Any, name: str, called: Callable[..., Any]):
    """Let a function of a module, class or object run as ``called(function, *arguments)``."""
    original = getattr(owner, name)

    def run_around(*args: Any, **named: Any) -> Any:
        return called(original, *args, **named)

    patch.setattr(owner, name, run_around)


def changed(given: Any, **values: Any) -> Any:
    """Return a row or token of a call with these values instead of its own."""
    return given._replace(**values)


def job_with(data: Any) -> Job:
    """Return job 7 with these data, as a worker has it."""
    link: Any = QueueLink.__new__(QueueLink)
    link.partition = None
    job: Job = Job(link, "7", "welcome")
    job._data = data
    return job


def link_over(transport: Any, **given: Any) -> QueueLink[Any]:
    """Return the link of queue 'q' over a transport that a test has made."""
    return QueueLink(transport=transport, keys=QueueKeys("glide", "q"), waiter=None, **given)  # type: ignore[arg-type]


async def check_parents(queue: Queue) -> bool:
    """Check a page of the parents that wait, as a worker does after a while; return whether there are more."""
    task = maintenance_outbox.WaitingParentsTask(link=await connected(queue), outbox_pending=lambda: None, age=0)
    return await task.run_once()


async def finish_flows(queue: Queue) -> int:
    """Finish or withdraw the flows that a producer has left unfinished; return their number."""
    return await maintenance_outbox.UnfinishedFlowsTask(link=await connected(queue), age=0).run_once()


@overload
def connected(owner: Queue) -> Awaitable[QueueLink]: ...
@overload
def connected(owner: FlowProducer) -> Awaitable[Transport]: ...
def connected(owner: Queue | FlowProducer) -> Awaitable[Any]:
    """Connect; return the link of a queue, or the transport of a producer of flows."""
    return owner._connected()


def set_link(queue: Any, link: Any):
    """Let a queue use a link that a test has made."""
    queue._link = link


def link_of(owner: Any) -> QueueLink[Any]:
    """Return the link of a connected queue, of a job, or of a maintenance task."""
    found: QueueLink[Any] = owner._link
    assert found is not None
    return found


def keys_of(owner: Any) -> QueueKeys:
    """Return the names of the keys of a queue, or of the queue of a worker."""
    found: QueueKeys = owner._keys
    return found


async def read_events(events: QueueEvents) -> list[QueueEvent]:
    """Return the next events that a reader of events gets by one read, which may be none."""
    return [*await events._read()]


async def run_failure_policies(queue: Queue[Any, Any]) -> list[failure_policy.PolicyReply]:
    """Execute the failure policy of each partition once, as a worker does."""
    return [await call(part, failure_policy.run_failure_policy(keys_of(part).meta, True)) for part in parts_of(queue)]


def connections_of(events: QueueEvents) -> list[Any]:
    """Return the connections that a reader of events has open."""
    return [*events._connections]


def client_of(transport: Any) -> Any:
    """Return the GLIDE client of a transport."""
    return transport.glide.client


def set_client(transport: Any, client: Any):
    """Let a transport use another GLIDE client."""
    transport.glide.client = client


def direct_connections(transport: Any) -> list[direct.DirectConnection]:
    """Return the direct connections that calls of a transport use."""
    return list(transport._nodes.open.values())


def reserved_reads() -> Mapping[Any, int]:
    """Return the number of blocking reads that are reserved in this process, by server."""
    return shared_reads._reserved


def without_direct_connections(monkeypatch: pytest.MonkeyPatch):
    """Let new connections make all calls through GLIDE."""
    monkeypatch.setattr(direct, "_pack", None)


def forget_registered_libraries():
    """Let this process register its library again, as another process does."""
    libraries._registered.clear()


async def call(queue: Queue, what: Call[Any]) -> Any:
    """Make one call of the function library; return its reply."""
    return await (await connected(queue)).transport.call(what)


def set_transport(owner: Any, transport: Any) -> Any:
    """Let a producer of flows use another transport; return it."""
    owner._transport = transport
    return transport


def opened(worker: BaseWorker) -> Any:
    """Return the lanes of a started worker."""
    found = worker._life.lanes
    assert found is not None
    return found


def lane_of(worker: BaseWorker) -> Any:
    """Return the first lane of a started worker: its fetching, wake-ups, runner, heartbeats and tasks."""
    return opened(worker).lanes[0]


def fetching_of(worker: BaseWorker) -> Any:
    """Return the fetching of a started worker of one queue."""
    return lane_of(worker).fetching


async def die(worker: BaseWorker):
    """End the heartbeats of a worker: others consider it dead."""
    for each in opened(worker).lanes:
        if each.background is not None:
            await each.background.heartbeat.close()


def parts_of(queue: Queue[Any, Any]) -> tuple[Queue, ...]:
    """Return a queue for each partition, or the queue itself."""
    return tuple(queue._parts)


def layout_of(queue: Any) -> Any:
    """Return what a queue knows of its partitions."""
    return queue._partitions.layout


def sandbox_of(worker: BaseWorker) -> Any:
    """Return the processes of a worker."""
    return worker._sandbox


async def scheduler_tasks(queue: Queue) -> list[firing.SchedulerTask]:
    """Return the tasks that fire the schedulers of a queue, one for each partition."""
    await queue.connect()
    return [firing.SchedulerTask(link=await connected(part)) for part in parts_of(queue)]


def adds_are_under_way(queue: BlockingQueue[Any, Any]) -> bool:
    """Return whether an add of a blocking queue waits for its reply."""
    return bool(queue._core._adder.is_busy)  # type: ignore[union-attr]


def tasks_of_portal() -> list[str]:
    """Return the names of the tasks that run for blocking code."""

    async def listed() -> list[str]:
        return [task.get_name() for task in asyncio.all_tasks()]

    return portal().run(listed())


def settable_clock(monkeypatch: pytest.MonkeyPatch):
    """Let clients load a library that reads the clock of a queue from its key ``clock``."""
    library = assemble(settable_clock=True)
    monkeypatch.setitem(shared_clients._by_loop, portal().loop, {})  # blocking queues of earlier tests may have clients
    for module in ("async_transport", "memory.server"):
        monkeypatch.setattr(f"glidemq_py._client.{module}.assemble", lambda: library)


def partition_of(job_id: str) -> int:
    """Return the partition of a job."""
    return split_partition_id(job_id)[0]


def keyed(partition: int, partitions: int, prefix: str = "k") -> str:
    """Return a routing key of a partition."""
    return next(f"{prefix}{n}" for n in range(10_000) if partition_of_key(f"{prefix}{n}", partitions) == partition)


def connection_of(owner: Any) -> Any:
    """Return the connection that a queue or a worker was given."""
    return owner._connection


def hubs_of(gateway: Any) -> Any:
    """Return the hubs of a gateway by the names of their queues."""
    return gateway.hubs


def feeds_of(gateway: Any) -> Any:
    """Return the feeds of events of a gateway by the names of their queues."""
    return gateway._feeds


def sessions_of(gateway: Any) -> Any:
    """Return the sessions of the clients of a gateway."""
    return gateway.clients


async def forget_unused(gateway: Any) -> set[str]:
    """Let only this forget queues that a gateway has not used for a while; return the names of those that it knows."""
    for duty in gateway._duties:
        duty.cancel()
    await gateway._forget_unused()
    return {*gateway._queues, *gateway._used_at}


async def back_up(gateway: Any, queue: Any):
    """Let a gateway back up a queue, if that is due."""
    await gateway._backups._back_up(queue)


def look_at(reader: Any, at: float):
    """Set when a reader of Spark looks for results again."""
    reader._next_look = at


def losses_of(reader: Any) -> list[int | None]:
    """Return a list that gets the numbers of entries that a reader of Spark reports as lost."""
    found: list[int | None] = []
    reader._lost = found.append
    return found
