"""What the generated blocking classes use: the asynchronous classes over the portal, and conversions of results."""

from __future__ import annotations

from typing import Any, Generic, Self

from typing_extensions import TypeVar

from glidemq_py._api.broadcast import Broadcast
from glidemq_py._api.coalescer import AddCoalescer
from glidemq_py._api.flow_producer import FlowProducer
from glidemq_py._api.job_queue import Queue
from glidemq_py._api.lease import Lease as LeaseCore
from glidemq_py._api.leasing import LeaseReport
from glidemq_py._api.producer import Producer
from glidemq_py._api.queue_events import QueueEvents
from glidemq_py._client.portal import BLOCKING_RUNTIME, portal
from glidemq_py._client.runtime import Twin
from glidemq_py._client.threads import Entry, LoopThread
from glidemq_py._core.calls.adding import Added, Row
from glidemq_py._features.vectors import VectorMatch
from glidemq_py._job.job import Job
from glidemq_py._job.job_twin import BlockingJob
from glidemq_py.errors import GlideMQValidationError

__all__ = [
    "BroadcastCore",
    "FlowProducerCore",
    "LeaseTwin",
    "ProducerCore",
    "QueueCore",
    "QueueEventsCore",
    "twin_if_any",
    "twin_of",
    "twins_by_name",
    "twins_in_matches",
    "twins_of",
]  # fmt: skip

DataT = TypeVar("DataT", default=Any)
ResultT = TypeVar("ResultT", default=Any)


class _Add(Entry[Added]):
    """A row that a thread adds, as the future that an `AddCoalescer` sets."""

    __slots__ = ("_adds", "_row")

    def __init__(self, thread: LoopThread, adds: AddCoalescer, row: Row) -> None:
        super().__init__(thread)
        self._adds = adds
        self._row = row

    def begin(self) -> None:
        """See `Entry.begin`."""
        if not self._is_done:
            self._adds.put((self._row,), self)

    def _abandon(self) -> None:
        self.cancel()  # at once: the loop may be about to send it

    def set_result(self, result: tuple[int, list[Any]]) -> None:
        """See `Entry.set_result`."""
        now, (row,) = result
        super().set_result((now, row))

    def set_exception(self, error: BaseException) -> None:
        """See `Entry.set_exception`. Each thread raises an object of its own, with its own traceback."""
        own = type(error).__new__(type(error), *error.args)
        own.args = error.args
        own.__dict__.update(error.__dict__)
        own.__cause__ = error.__cause__
        super().set_exception(own)


class _Adds(AddCoalescer):
    """Sends the adds of threads: a lone one in its thread, if the connection can, and others together in the portal."""

    __slots__ = ()

    async def add(self, row: Row) -> Added:
        """See `Adder.add`."""
        thread = portal()
        if thread.is_here():
            return await super().add(row)
        lone = None if self._in_flight else getattr(self._transport, "call_in_thread", None)
        reply = lone and lone(self._add_call(self._meta, (row,), self._quiet))
        return (reply.now, reply.results[0]) if reply else await _Add(thread, self, row)


class QueueCore(Queue[DataT, ResultT], Generic[DataT, ResultT]):
    """A queue whose coroutines are stepped in threads, and wait in the portal."""

    _runtime = BLOCKING_RUNTIME
    _adder_type = _Adds


QueueCore._part_type = QueueCore


class ProducerCore(Producer[DataT], Generic[DataT]):
    """A producer whose coroutines are stepped in threads."""

    _queue_type = QueueCore


class FlowProducerCore(FlowProducer):
    """A flow producer whose coroutines are stepped in threads."""

    _runtime = BLOCKING_RUNTIME


class BroadcastCore(Broadcast[DataT], Generic[DataT]):
    """A broadcast whose coroutines are stepped in threads."""

    _queue_type = QueueCore


class QueueEventsCore(QueueEvents):
    """Events whose coroutines are stepped in threads."""

    _runtime = BLOCKING_RUNTIME


class LeaseTwin(Twin[LeaseCore[DataT, ResultT]], Generic[DataT, ResultT]):
    """Base of the blocking `Lease`."""

    __slots__ = ()

    @classmethod
    def from_token(cls, queue: Any, token: str) -> Self:
        """Return the lease of a token, in any process that can reach the queue's server. Nothing is sent.

        Args:
            queue: The queue from which the job was fetched.
            token: The `token` of the lease.

        Raises:
            GlideMQValidationError: If the token is malformed, or of another queue, or ``queue`` is not a queue.
        """
        core = getattr(queue, "_core", None)
        if not isinstance(core, QueueCore):
            kind = f"{type(queue).__module__}.{type(queue).__name__}"
            raise GlideMQValidationError("queue", queue, f"must be a glidemq_py.sync.Queue, not {kind}")
        return cls(LeaseCore.from_token(core, token))

    @classmethod
    def _of_all(cls, leases: list[LeaseCore[Any, Any]]) -> list[Self]:
        """Return leases with blocking methods."""
        return [cls(each) for each in leases]

    @classmethod
    def _of_report(cls, report: LeaseReport[LeaseCore[Any, Any]]) -> LeaseReport[Self]:
        """Return a report with leases that have blocking methods."""
        return LeaseReport(report.outcomes, cls._of_all(report.leases))


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
