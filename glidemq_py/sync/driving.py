"""The objects inside the blocking classes: the asynchronous classes over a blocking transport."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, cast

from typing_extensions import TypeVar

from glidemq_py._api.bulk import AddTransport
from glidemq_py._api.flow_producer import FlowProducer
from glidemq_py._api.job_queue import Queue
from glidemq_py._api.producer import Producer
from glidemq_py._api.queue_events import QueueEvents
from glidemq_py._client.connect import BlockingConnection
from glidemq_py._client.driven_transport import DrivenTransport
from glidemq_py._client.runtime import BLOCKING_RUNTIME
from glidemq_py._client.transport import Transport
from glidemq_py._core.calls.adding import AddCall, Added, Adder, Row
from glidemq_py._features.broadcast.broadcast import Broadcast
from glidemq_py._features.job_batches.batch import JobBatch as BatchCore
from glidemq_py._features.leases.lease import Lease as LeaseCore
from glidemq_py._features.leases.queue_api import LeaseContext, LeaseReport
from glidemq_py._features.vectors.options import VectorMatch
from glidemq_py._job.blocking import BlockingJob
from glidemq_py._job.job import Job
from glidemq_py.sync.lease_context import BlockingLeaseContext

if TYPE_CHECKING:
    from glidemq_py.sync.batches import JobBatch
    from glidemq_py.sync.leases import Lease

__all__ = ["BroadcastCore", "EventsCore", "FlowCore", "ProducerCore", "QueueCore", "batch_of",
           "context_of", "leases_of",
           "report_of", "twin_if_any", "twin_of",
           "twins_by_name",
           "twins_in_matches", "twins_of"]  # fmt: skip

DataT = TypeVar("DataT", default=Any)
ResultT = TypeVar("ResultT", default=Any)


class _Adds:
    """Sends each add of a thread as one call; GLIDE multiplexes the threads over one connection."""

    __slots__ = ("_add_call", "_meta", "_quiet", "_transport")

    def __init__(self, transport: AddTransport, meta: str, quiet: bool, add_call: AddCall) -> None:
        self._transport = transport
        self._meta = meta
        self._quiet = quiet
        self._add_call = add_call

    @property
    def loop(self) -> None:
        return None

    async def add(self, row: Row, /) -> Added:
        reply = await self._transport.call(self._add_call(self._meta, (row,), self._quiet))
        (result,) = reply.results
        return reply.now, result

    async def close(self) -> None:
        return None


class QueueCore(Queue[DataT, ResultT], Generic[DataT, ResultT]):
    """A queue whose coroutines never suspend."""

    _runtime = BLOCKING_RUNTIME

    async def _open(self) -> Transport:
        return DrivenTransport.connect(cast("BlockingConnection", self._connection))

    def _make_adder(self, transport: AddTransport, add_call: AddCall, is_durable: bool = False) -> Adder:
        return _Adds(transport, self._keys.meta, not self.options.events, add_call)


QueueCore._part_type = QueueCore


class ProducerCore(Producer[DataT], Generic[DataT]):
    """A producer whose coroutines never suspend."""

    _queue_type = QueueCore


class FlowCore(FlowProducer):
    """A flow producer whose coroutines never suspend."""

    _runtime = BLOCKING_RUNTIME

    async def _open(self) -> Transport:
        return DrivenTransport.connect(cast("BlockingConnection", self._connection))


class BroadcastCore(Broadcast[DataT], Generic[DataT]):
    """A broadcast whose coroutines never suspend."""

    _queue_type = QueueCore


class EventsCore(QueueEvents):
    """Events whose coroutines never suspend."""

    _runtime = BLOCKING_RUNTIME

    async def _open(self) -> Transport:
        return DrivenTransport.connect(cast("BlockingConnection", self._connection))


def twin_of(job: Job[DataT, ResultT]) -> BlockingJob[DataT, ResultT]:
    """Return the job as a `BlockingJob`."""
    return BlockingJob(job)


def twin_if_any(job: Job[DataT, ResultT] | None) -> BlockingJob[DataT, ResultT] | None:
    """Return the job as a `BlockingJob`, or None."""
    return None if job is None else BlockingJob(job)


def twins_of(jobs: list[Job[DataT, ResultT]]) -> list[BlockingJob[DataT, ResultT]]:
    """Return the jobs as `BlockingJob` objects."""
    return [BlockingJob(job) for job in jobs]


def twins_by_name(jobs: dict[str, Job[DataT, ResultT]]) -> dict[str, BlockingJob[DataT, ResultT]]:
    """Return the jobs of a DAG as `BlockingJob` objects."""
    return {name: BlockingJob(job) for name, job in jobs.items()}


def twins_in_matches(
    matches: list[VectorMatch[Job[DataT, ResultT]]],
) -> list[VectorMatch[BlockingJob[DataT, ResultT]]]:
    """Return the results of a vector search with `BlockingJob` objects."""
    return [VectorMatch(BlockingJob(match.job), match.score) for match in matches]


def batch_of(batch: BatchCore) -> JobBatch:
    """Return the batch with blocking methods."""
    from glidemq_py.sync.batches import JobBatch  # it imports this module

    return JobBatch(batch)


def leases_of(leases: list[LeaseCore[Any, Any]]) -> list[Lease[Any, Any]]:
    """Return the leases with blocking methods."""
    from glidemq_py.sync.leases import Lease  # it imports this module

    return [Lease(lease) for lease in leases]


def report_of(report: LeaseReport[LeaseCore[Any, Any]]) -> LeaseReport[Lease[Any, Any]]:
    """Return the report with leases that have blocking methods."""
    return LeaseReport(report.outcomes, leases_of(report.leases))


def context_of(context: LeaseContext) -> BlockingLeaseContext:
    """Return the context for a ``with`` block."""
    return BlockingLeaseContext(context, leases_of)
