"""What tests use of the inside: the modules behind the public API, private attributes, and partitions.

A test of behavior needs none of it. The functions find the calls that a crash would cut, the tasks of a worker that
others consider dead, and the partition of a job.
"""

# ruff: noqa: F401
from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, overload

import pytest

from glidemq_py import FlowProducer, Job, Queue, QueueEvent, QueueEvents
from glidemq_py._api import job_queue, queue_events
from glidemq_py._api import lease_ending as ending
from glidemq_py._api import lease_exchange as exchanging
from glidemq_py._api.backup_schedule import BackupSchedule
from glidemq_py._api.dead_letters import replay_entry
from glidemq_py._api.lease_exchange import completed_row
from glidemq_py._api.parts import PartQueues
from glidemq_py._client import (
    async_transport,
    busy_poll,
    direct,
    embedded,
    failures,
    glide_faults,
    library_source,
    reachability,
    reservations,
    runtime,
    server_check,
    shared_clients,
    shared_reads,
    stream_reads,
)
from glidemq_py._client.async_client import create_async, glide
from glidemq_py._client.async_transport import AsyncTransport
from glidemq_py._client.call_retry import CallRetry, classify, translate
from glidemq_py._client.connect import check_connection, open_transport
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.connection_url import is_clearly_path
from glidemq_py._client.embedded import free_port, start_embedded
from glidemq_py._client.event_reader import QUEUE_EVENTS, EventReader
from glidemq_py._client.failures import CallOutcome, Interruptions, classify_reply, meaning_of
from glidemq_py._client.glide_config import config_of
from glidemq_py._client.library_source import WIRE_VERSION, Library, Variant, assemble, lua_root
from glidemq_py._client.loop_transport import LoopConnection, LoopTransport
from glidemq_py._client.memory import Clock, MemoryServer
from glidemq_py._client.memory.server import Waiter, _Read
from glidemq_py._client.memory.store import CommandError
from glidemq_py._client.portal import BlockingTransport, drive, portal
from glidemq_py._client.runtime import ASYNC_RUNTIME
from glidemq_py._client.server_check import findings_of
from glidemq_py._client.shared_reads import READERS_PER_LINE, SharedReader
from glidemq_py._client.threads import Work
from glidemq_py._client.transport import Transport as transport_Transport
from glidemq_py._core import json_text, record
from glidemq_py._core.calls import Call, adding, administration, declared, declared_keys, pack, reading, unpack, working
from glidemq_py._core.calls.adding import AddReply, Row, add, encode_row, request, row, stored_row
from glidemq_py._core.calls.administration import (
    Obliterated,
    clean,
    drain,
    remove,
    requeue_job,
    set_settings,
    update_job_progress,
)
from glidemq_py._core.calls.reading import count_delayed, count_parked, gauges, page
from glidemq_py._core.calls.working import (
    COMPLETED,
    COMPLETED_PLAIN,
    AttemptStatus,
    BudgetCharge,
    ExchangeFlags,
    ExchangeReply,
    Finished,
    NameMetrics,
    NameMetricsReport,
    RecoverStalledReply,
    WakeChannel,
    exchange,
    heartbeat,
    leave,
    reattach,
    waiting_children,
)
from glidemq_py._core.checked_options import OptionValue, parse_nested
from glidemq_py._core.checks import Mismatch, check_callable, check_iterable
from glidemq_py._core.command_line import parse_duration
from glidemq_py._core.job_options import (
    NO_OPTIONS,
    UNSUPPORTED,
    JobOptions,
    read_stored_options,
    unsupported_in,
)
from glidemq_py._core.keys import (
    QueueKeys,
    flow_key,
    hash_tag,
    split_member,
    usage_registry_key,
    validate_prefix,
    validate_queue_name,
)
from glidemq_py._core.limits import Ordering, OrderingDict
from glidemq_py._core.logs import escape_control, get_logger, show_id
from glidemq_py._core.misuse import CONNECTION_OPTIONS, FOREIGN_NAMES
from glidemq_py._core.names import partition_home
from glidemq_py._core.option_dicts_twin import JobOptionsDict, PublishOptionsDict
from glidemq_py._core.payload import (
    JSON_SERIALIZER,
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
from glidemq_py._features import broadcast as broadcast_calls
from glidemq_py._features import durable_adds as durability_adding
from glidemq_py._features import limits, queue_list, results, staged_writes, suspend, typed_values, vectors
from glidemq_py._features import outbox as features_outbox
from glidemq_py._features.backup import creating as backup_creating
from glidemq_py._features.backup import manifest as backup_parts
from glidemq_py._features.backup import records, restoring
from glidemq_py._features.backup.creating import create_backup
from glidemq_py._features.backup.manifest import BackupInfo, parse_manifest
from glidemq_py._features.backup.names import text_of
from glidemq_py._features.backup.records import RecordReader
from glidemq_py._features.backup.restoring import restore_backup
from glidemq_py._features.backup.store import BackupStore
from glidemq_py._features.broadcast import lua_patterns
from glidemq_py._features.cleaning import delete_jobs
from glidemq_py._features.client_workers import STALE_MS
from glidemq_py._features.consistency import calls as consistency_calls
from glidemq_py._features.consistency.checking import CheckReport, ConsistencyScan, FindingKind
from glidemq_py._features.durable_adds import Marks
from glidemq_py._features.failed_attempts import (
    FailedAttempt,
    FailureReason,
    last_run_time,
    last_start,
    read_failed_attempts,
    requeues,
)
from glidemq_py._features.failure_policy import PolicyReply, run_failure_policy
from glidemq_py._features.failures import FailureRow, failure_stats, failures_page
from glidemq_py._features.fair_keys import set_fair_limits
from glidemq_py._features.flows import calls
from glidemq_py._features.flows.calls import ChildOutcome, children_ended, flow_step, flow_withdraw
from glidemq_py._features.flows.plan import plan_dag, plan_tree
from glidemq_py._features.leases import tokens as leases_calls
from glidemq_py._features.leases.tokens import decode_token, encode_token
from glidemq_py._features.metrics_by_name import _page_call as metrics_page
from glidemq_py._features.outbox import Outbox, OutboxEntry, OutboxReply, dead_letter_id, dead_letter_queue, outbox
from glidemq_py._features.queue_list import shard_key, shard_keys
from glidemq_py._features.schedulers import queue_api as schedulers_queue_api
from glidemq_py._features.schedulers.cron import CronPattern, instants, next_instant, parse_cron, pattern_in_words
from glidemq_py._features.schedulers.entry import PAUSED, FireRow, schedulers_due, schedulers_fire, schedulers_read
from glidemq_py._features.schedulers.firing import MISSED_AFTER_MS, SchedulerTask, plan
from glidemq_py._features.staged_writes import StageReply, WriteId, WriteStatus, finish_writes, run_async
from glidemq_py._features.suspend import suspended
from glidemq_py._features.timeline import read_timeline
from glidemq_py._features.usage import charge_budget, check_budget, create_budget, usage_minutes
from glidemq_py._features.usage import send_usage as report_usage
from glidemq_py._job import run, waiting
from glidemq_py._job.reading import listed_states, read_jobs
from glidemq_py._job.run import FinishedAttempt, Run
from glidemq_py._partitions import creating, layout
from glidemq_py._partitions.layout import (
    MAX_PARTITIONS,
    Layout,
    Partition,
    hash_slot,
    partition_id,
    partition_names,
    partition_of_key,
    partition_slots,
    shares,
    split_partition_id,
)
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.routing import candidates, routing_key
from glidemq_py._partitions.stored import (
    create_partitions,
    layout_text,
    parse_layout,
    restore_layout,
    store_layout,
    stored,
)
from glidemq_py._web.serving import server_config
from glidemq_py._worker import (
    background,
    components,
    failure_log,
    idle_queues,
    lanes,
    metrics_sender,
    opening,
    shutdown,
    source,
    timeouts,
    wake,
    wake_channel,
)
from glidemq_py._worker import broadcasts as broadcast_worker
from glidemq_py._worker import heartbeat as worker_heartbeat
from glidemq_py._worker.base_worker import BaseWorker as base_worker_BaseWorker
from glidemq_py._worker.command.arguments import TargetError, WorkerArguments, parse_size, read_arguments
from glidemq_py._worker.command.health import check_health
from glidemq_py._worker.command.target import load_workers
from glidemq_py._worker.fetch_calls import MAX_ROWS, Exchange, Failure, Invalidate, Pipelined, Reattach, Step
from glidemq_py._worker.heartbeat import Heartbeat, heartbeats
from glidemq_py._worker.listeners import WORKER_EVENTS
from glidemq_py._worker.maintenance import libraries, peers, queues
from glidemq_py._worker.maintenance import outbox as maintenance_outbox
from glidemq_py._worker.maintenance.flows import RemoteFlows, UnfinishedFlowsTask, WaitingParentsTask
from glidemq_py._worker.maintenance.peers import PeerDetection
from glidemq_py._worker.metrics_sender import INTERVAL_S
from glidemq_py._worker.options import WorkerOptions, parse_failure_log
from glidemq_py._worker.results import status_after_lost_reply
from glidemq_py._worker.slot_pool import PRIORITIES_S, TURN_S, TURNS, PooledEngine, QueueOfEngines, SlotPool
from glidemq_py.sync import Queue as BlockingQueue

if TYPE_CHECKING:
    from glidemq_py._client.transport import Transport
    from glidemq_py._worker.base_worker import BaseWorker


def job_with(data: Any) -> Job:
    """Return job 7 with these data, as a worker has it."""
    link: Any = QueueLink.__new__(QueueLink)
    link.partition = None
    job: Job = Job(link, "7", "welcome")
    job._data = data
    return job


def link_over(transport: Any, **options: Any) -> QueueLink[Any]:
    """Return the link of queue 'q' over a transport that a test has made."""
    return QueueLink(transport=transport, keys=QueueKeys("glide", "q"), waiter=None, **options)  # type: ignore[arg-type]


async def check_parents(queue: Queue) -> bool:
    """Check a page of the parents that wait, as a worker does after a while; return whether there are more."""
    task = WaitingParentsTask(link=await queue._connected(), outbox_pending=lambda: None, age=0)
    return await task.run_once()


async def finish_flows(queue: Queue) -> int:
    """Finish or withdraw the flows that a producer has left unfinished; return their number."""
    return await UnfinishedFlowsTask(link=await queue._connected(), age=0).run_once()


@overload
def connected(owner: Queue) -> Awaitable[QueueLink]: ...
@overload
def connected(owner: FlowProducer) -> Awaitable[Transport]: ...
def connected(owner: Queue | FlowProducer) -> Awaitable[Any]:
    """Connect; return the link of a queue, or the transport of a producer of flows."""
    return owner._connected()


def link_of(owner: Any) -> QueueLink[Any]:
    """Return the link of a connected queue, of a job, or of a maintenance task."""
    assert owner._link is not None
    found: QueueLink[Any] = owner._link
    return found


def keys_of(owner: Any) -> QueueKeys:
    """Return the names of the keys of a queue, or of the queue of a worker."""
    found: QueueKeys = owner._keys
    return found


async def read_events(events: QueueEvents) -> list[QueueEvent]:
    """Return the next events that a reader of events gets by one read, which may be none."""
    return [*await events._read()]


async def run_failure_policies(queue: Queue[Any, Any]) -> list[PolicyReply]:
    """Execute the failure policy of each partition once, as a worker does."""
    return [await call(part, run_failure_policy(keys_of(part).meta, True)) for part in queue._parts]


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
    return list(transport._nodes._open.values())


def without_direct_connections(monkeypatch: pytest.MonkeyPatch):
    """Let new connections make all calls through GLIDE."""
    monkeypatch.setattr(direct, "_pack", None)


def forget_registered_libraries():
    """Let this process register its library again, as another process does."""
    libraries._registered.clear()


async def call(queue: Queue, what: Call[Any]) -> Any:
    """Make one call of the function library; return its reply."""
    return await (await queue._connected()).transport.call(what)


def set_transport(owner: Any, transport: Any) -> Any:
    """Let a producer of flows use another transport; return it."""
    owner._transport = transport
    return transport


def opened(worker: BaseWorker) -> Any:
    """Return what a started worker has opened: its fetching, heartbeat and background tasks, or its lanes."""
    assert worker._life.parts is not None
    return worker._life.parts


def fetching_of(worker: BaseWorker) -> Any:
    """Return the fetching of a started worker of one queue."""
    assert worker._fetching is not None
    return worker._fetching


async def die(worker: BaseWorker):
    """End the heartbeats of a worker: others consider it dead."""
    parts = opened(worker)
    for each in [lane.background for lane in parts.lanes] if hasattr(parts, "lanes") else [parts]:
        if each is not None:
            await each.heartbeat.close()


def parts_of(queue: Queue) -> tuple[Queue, ...]:
    """Return a queue for each partition."""
    assert queue._partitions is not None
    return queue._partitions.queues


def layout_of(queue: Queue[Any, Any]) -> Any:
    """Return what a queue knows of its partitions."""
    assert queue._partitions is not None
    return queue._partitions.layout


def sandbox_of(worker: BaseWorker) -> Any:
    """Return the processes of a worker."""
    return worker._sandbox


async def scheduler_tasks(queue: Queue) -> list[SchedulerTask]:
    """Return the tasks that fire the schedulers of a queue, one for each partition."""
    await queue.connect()
    return [SchedulerTask(link=await part._connected()) for part in queue._parts]


def adds_are_under_way(queue: BlockingQueue[Any, Any]) -> bool:
    """Return whether an add of a blocking queue waits for its reply."""
    return bool(queue._core._adder.is_busy)  # type: ignore[union-attr]


def tasks_of_portal() -> list[str]:
    """Return the names of the tasks that run for blocking code."""

    async def names() -> list[str]:
        return [task.get_name() for task in asyncio.all_tasks()]

    return portal().run(names())


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
    return gateway._hubs


def feeds_of(gateway: Any) -> Any:
    """Return the feeds of events of a gateway by the names of their queues."""
    return gateway._feeds


def sessions_of(gateway: Any) -> Any:
    """Return the sessions of the clients of a gateway."""
    return gateway._sessions


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
