"""`Queue`: what producers and operators hold. It names and delegates; the work is in the files beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Generic, Literal, Self, Unpack, cast

from typing_extensions import TypeVar

from glidemq_py._api.bulk import BulkAdd, added_job
from glidemq_py._api.coalescer import AddCoalescer, Adder
from glidemq_py._api.control import QueueControl
from glidemq_py._client.connect import Connection
from glidemq_py._client.loop_transport import LoopConnection, LoopTransport
from glidemq_py._client.open_transport import open_transport
from glidemq_py._client.runtime import ASYNC_RUNTIME, Runtime
from glidemq_py._client.transport import Transport
from glidemq_py._core.calls.adding import AddCall, Row, add
from glidemq_py._core.checks import check_bool, check_int
from glidemq_py._core.job_options import JobOptions, JobOptionsDict
from glidemq_py._core.job_states import JobCounts, JobOutcome, WorkerInfo
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.names import parse_job_id, validate_job_name, validate_queue_name
from glidemq_py._core.queue_options import (
    DEFAULT_PREFIX,
    Compression,
    JobSpec,
    QueueOptions,
    Serializer,
    SerializerName,
)
from glidemq_py._core.serializers import serializer_of
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._features import metrics as figures
from glidemq_py._features.consistency.queue_api import QueueChecking
from glidemq_py._features.dead_letters.options import DeadLetterInput, parse_dead_letter_queue
from glidemq_py._features.dead_letters.queue_api import DeadLetters, declare_dead_letters
from glidemq_py._features.flows.remote_parents import attach_children, check_remote_parents, remote_parents
from glidemq_py._features.limits.queue_api import QueueLimits
from glidemq_py._features.metrics import JobLogs, Metrics
from glidemq_py._features.schedulers.queue_api import QueueSchedulers
from glidemq_py._features.search import Search
from glidemq_py._features.streams.queue_api import QueueStreams
from glidemq_py._features.suspend.queue_api import QueueSuspension
from glidemq_py._features.suspend.timeouts import SuspendTimeoutsTask
from glidemq_py._features.usage.queue_api import QueueUsageReading
from glidemq_py._features.vectors.queue_api import QueueVectors
from glidemq_py._job import Job, QueueLink, reading
from glidemq_py._job.reading import get_slice
from glidemq_py._job.rows import encode_row
from glidemq_py._job.waiting import LoopWaiter
from glidemq_py.errors import ClosedError, JobStateError, UnsupportedOptionError
from glidemq_py.telemetry.producing import observed, observed_add
from glidemq_py.telemetry.state import TELEMETRY

__all__ = ["Queue"]

DataT = TypeVar("DataT", default=Any)
ResultT = TypeVar("ResultT", default=Any)

_ADDS, _SWEEP = "adds", "sweep"
"""What a queue has in each event loop beside its connection."""


class Queue(
    QueueControl, QueueLimits, QueueChecking, QueueSchedulers, DeadLetters, QueueSuspension, QueueStreams,
    QueueUsageReading, QueueVectors,
    Generic[DataT, ResultT],
):  # fmt: skip
    """A queue of jobs; ``Queue[DataT, ResultT]`` names what its jobs carry and return.

    It connects when it is first used. Close it, or use it as ``async with``. Any number of event loops and threads may
    share it, and a forked process may use its parent's (docs/learn/event-loops.md): every loop gets a connection of its
    own, which is closed with the loop.

    Args:
        name: of the queue.
        connection: a URL, `ConnectionOptions`, an existing GLIDE client (never closed here), or None for
            ``GLIDEMQ_URL``, else a private embedded server.
        prefix: first part of every key.
        default_job_options: what a job gets where its own options say nothing.
        compression: "gzip" stores job data compressed.
        serializer: for data and results: "json" (the default), "msgpack", or an object of your own.
        events: False leaves out the `added` events.
        dead_letter_queue: name of the queue that gets a dead letter for every job that fails for good, or
            ``{"name": ..., "on": (...)}``; see `DeadLetterOptions`. It is a property of the queue: whoever ends a job
            goes by what was said last, by a queue or a worker. None leaves it as it is, False takes it away.

    Raises:
        GlideMQValidationError: an option cannot be; it is named with its value.
    """

    def __init__(
        self,
        name: str,
        connection: Connection = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        default_job_options: JobOptions | Mapping[str, Any] | None = None,
        compression: Compression = "none",
        serializer: Serializer | SerializerName | None = None,
        events: bool = True,
        dead_letter_queue: DeadLetterInput = None,
    ) -> None:
        self.name = validate_queue_name(name)
        self.options = QueueOptions(
            prefix=prefix, default_job_options=default_job_options, compression=compression, serializer=serializer,
            events=events, dead_letter_queue=parse_dead_letter_queue(dead_letter_queue, name),
        )  # fmt: skip
        self._keys = QueueKeys(prefix, name)
        self._defaults = self.options.default_job_options
        self._connection = connection
        self._transport = LoopTransport(f"queue {name!r}", self._open_here, self._runtime)
        self._current_loop = self._runtime.current_loop
        self._link: QueueLink | None = None
        self._adder: Adder | None = None  # of the event loop that added last
        self._dead_letters_declared = False
        self._closed = False

    _runtime: Runtime = ASYNC_RUNTIME
    _add_call: AddCall = staticmethod(add)

    # -- life ---------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Connect the running event loop now rather than at first use. Raises GlideMQConnectionError; a later use
        tries again.
        """
        link = await self._connected()
        if link.transport is self._transport:
            await self._transport.connected()

    async def _connected(self) -> QueueLink:
        if self._closed:
            raise ClosedError(f"queue {self.name!r} is closed")
        if self._link is None:
            await self._transport.connected()
            self._link = self._link_over(self._transport)
        return self._link

    def _link_over(self, transport: Transport) -> QueueLink:
        return QueueLink(
            transport=transport, keys=self._keys, waiter=LoopWaiter(self._transport, self._keys, self._runtime),
            serializer=serializer_of(self.options.serializer), compression=self.options.compression,
            runtime=self._runtime,
        )  # fmt: skip

    async def _open_here(self, connection: LoopConnection) -> None:
        """Connect the running event loop, and start what a queue runs in each."""
        TELEMETRY.look()
        transport, adder = await self._open()
        link = self._link_over(transport)
        if self.options.dead_letter_queue is not None and not self._dead_letters_declared:
            try:
                await declare_dead_letters(link, self.options)
            except BaseException:
                await transport.close()
                raise
            self._dead_letters_declared = True
        connection.transport = transport
        connection.part(_ADDS, lambda _: adder)
        if self._runtime is ASYNC_RUNTIME:
            connection.part(_SWEEP, lambda _: SuspendTimeoutsTask(link)).start()

    async def _open(self) -> tuple[Transport, Adder]:
        """Connect; the transport, and what sends single adds over it."""
        transport = await open_transport(self._connection)
        return transport, AddCoalescer(transport, self._keys.meta, not self.options.events, self._add_call)

    async def close(self) -> None:
        """Send what is still to be sent, and close the connections of all event loops, if they are ours; idempotent."""
        if self._closed:
            return
        self._closed = True
        await self._transport.close()
        if self._link is not None and self._link.transport is not self._transport:
            await self._link.transport.close()

    async def _adder_here(self) -> Adder:
        """What sends single adds in the running event loop."""
        connection = await self._transport.connected()
        adder = connection.part(_ADDS, self._no_adder)
        self._adder = adder
        return adder

    @staticmethod
    def _no_adder(_: Transport) -> Adder:
        raise AssertionError("a connection is opened together with its adder")

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"

    # -- adding -------------------------------------------------------------------------------------------

    def _options(self, given: Mapping[str, Any]) -> JobOptions:
        return JobOptions.of_job(self._defaults, JobOptions.parse(given)) if given else self._defaults

    async def add(self, name: str, data: DataT | None = None, **options: Unpack[JobOptionsDict]) -> Job[DataT, ResultT]:
        """Add a job. Adds that are awaited together travel together; a lone one waits for nothing.

        Args:
            name: what kind of work it is.
            data: anything the serializer takes.
            **options: see `JobOptions`.

        Returns:
            The job; its ``outcome`` says ``added``, ``duplicate`` where one of that ``job_id`` stands already, or
            what `deduplication` made of it: ``skipped`` (the job is the one that stands) or ``replaced``.

        Raises:
            GlideMQValidationError: an option or the data cannot be; nothing was sent.
            JobCostError: it costs more than its group's token bucket holds; nothing was added.
            JobNotFoundError, JobStateError: its parent is gone, or has ended; nothing was added.
            ServerOutOfMemoryError: the server is at maxmemory; nothing was added.
            AmbiguousResultError: the reply was lost: the job may have been added. With a ``job_id`` of your own,
                adding it again is safe.
            GlideMQConnectionError: the server cannot be reached. ClosedError: the queue is closed.
        """
        link = self._link
        if link is None or self._closed:
            link = await self._connected()
        job_options = self._options(cast("Mapping[str, Any]", options))
        row = encode_row(link, validate_job_name(name), data, job_options)
        if job_options.parent is not None:
            return await self._add_child(link, name, data, job_options, row)
        adder = self._adder
        if adder is None or adder.loop is not self._current_loop():
            adder = await self._adder_here()
        if TELEMETRY.on:
            now, result = await observed_add(adder.add, self.name, row, job_options)
        else:
            now, result = await adder.add(row)
        return added_job(link, name, data, job_options, now, result)

    async def _add_child(self, link: QueueLink, name: str, data: Any, options: JobOptions, row: Row) -> Job[Any, Any]:
        parents = remote_parents(link, (options,))
        await check_remote_parents(link, parents)
        adder = await self._adder_here()
        if TELEMETRY.on:
            now, result = await observed_add(adder.add, self.name, row, options)
        else:
            now, result = await adder.add(row)
        for parent in parents:
            await attach_children(link, parent, (result,))
        return added_job(link, name, data, options, now, result)

    async def add_bulk(
        self, jobs: Iterable[JobSpec | tuple[str] | tuple[str, Any] | tuple[str, Any, Mapping[str, Any] | None]]
    ) -> list[Job[DataT, ResultT]]:
        """Add many jobs: ``(name, data, options)`` tuples or `JobSpec` objects, in chunks that are atomic each.

        Everything is checked before anything is sent.

        Returns:
            A job for every position, its ``outcome`` as in `add`.

        Raises:
            GlideMQValidationError: a row cannot be; it is named by its position, and nothing was sent.
            BulkAddError: some rows were not added, or may not have been; it holds the outcome of every position.
        """
        link = await self._connected()
        bulk = BulkAdd(link, jobs, self._defaults, not self.options.events, self._add_call)
        if TELEMETRY.on:
            return await observed("add_bulk", self.name, bulk.rows, bulk.run)
        return await bulk.run()

    async def add_and_wait(
        self,
        name: str,
        data: DataT | None = None,
        *,
        wait_timeout: Milliseconds = 30_000,
        **options: Unpack[JobOptionsDict],
    ) -> ResultT:
        """Add a job and return its result once a worker has completed it.

        Args:
            wait_timeout: how long to wait for the end, ms or timedelta; the job goes on if it is exceeded.

        Raises:
            JobFailedError: it failed for good. WaitTimeoutError: it did not end in time.
            JobStateError: a job of that ``job_id`` or ``deduplication`` stands already.
            UnsupportedOptionError: the job would be removed when it ends, so its result could not be read.
            and what `add` raises.
        """
        timeout = to_ms("wait_timeout", wait_timeout, minimum=1)
        job_options = self._options(cast("Mapping[str, Any]", options))
        for option in ("remove_on_complete", "remove_on_fail"):
            if getattr(job_options, option) not in (None, False):
                raise UnsupportedOptionError(option, getattr(job_options, option), "cannot be used with add_and_wait")
        await (await self._connected()).waiter.start()
        job = await self.add(name, data, **options)
        if job.outcome not in (JobOutcome.ADDED, JobOutcome.REPLACED):
            raise JobStateError(job.id, f"there already ({job.outcome})", "add and wait for")
        return await job.wait_until_finished(timeout)

    # -- reading ------------------------------------------------------------------------------------------

    async def get_job(self, job_id: str, *, exclude_data: bool = False) -> Job[DataT, ResultT] | None:
        """A job by its id; None if there is none. With ``exclude_data`` its data stays on the server, and is None."""
        bare = check_bool("exclude_data", exclude_data)
        return await reading.get_job(await self._connected(), parse_job_id(job_id), bare)

    def iter_jobs(
        self, state: str, page: int = 500, *, exclude_data: bool = False
    ) -> AsyncIterator[Job[DataT, ResultT]]:
        """Iterate over the jobs in a state: waiting, active, delayed, prioritized, completed, failed, group-waiting,
        suspended or waiting-children; with ``exclude_data`` without their data. A call brings at most ``page``
        (1..1000) of them, and never more than 200, for the server's sake.

        A job that keeps its state all the while comes exactly once, whatever others do. A job that enters or
        leaves the state meanwhile may come or not.
        """
        return self._iterate(reading.listable(state), page, check_bool("exclude_data", exclude_data))

    async def _iterate(self, state: Any, page: int, bare: bool) -> AsyncIterator[Job[DataT, ResultT]]:
        async for job in reading.iterate(await self._connected(), state, page, bare=bare):
            yield job

    async def get_jobs(
        self, state: str, start: int = 0, end: int = -1, *, exclude_data: bool = False
    ) -> list[Job[DataT, ResultT]]:
        """Jobs in a state by position, oldest (or most urgent) first; ``end`` inclusive, -1 = the last. With
        ``exclude_data`` their data stays on the server, and is None."""
        bare = check_bool("exclude_data", exclude_data)
        return await get_slice(await self._connected(), reading.listable(state), start, end, bare=bare)

    async def get_job_counts(self) -> JobCounts:
        """How many jobs are in each state. One call whose cost does not grow with the queue; where more than 500 groups
        are there, or more than 256 priorities in use, one more for every 500, or 256, of them."""
        return await reading.get_counts(await self._connected())

    async def get_job_count_by_types(self) -> JobCounts:
        """The same as `get_job_counts`, by the name that peers know."""
        return await self.get_job_counts()

    async def count(self) -> int:
        """Jobs that are yet to be taken: waiting, delayed, prioritized and parked in their groups."""
        counts = await self.get_job_counts()
        return counts.waiting + counts.delayed + counts.prioritized + counts.group_waiting

    async def get_workers(self) -> list[WorkerInfo]:
        """Live workers of this queue, in any process and language, oldest first."""
        return await reading.get_workers(await self._connected())

    def iter_search_jobs(
        self,
        state: str | None = None,
        name: str | None = None,
        data: Mapping[str, Any] | None = None,
        *,
        exclude_data: bool = False,
    ) -> AsyncIterator[Job[DataT, ResultT]]:
        """Iterate over the jobs that match, page by page; each page is short for the server. Leave off when you like.

        Args:
            state: one that `iter_jobs` takes; None = all of these, one after the other.
            name: the whole name.
            data: pairs that the job's data, a mapping, must hold at its top level. Keys are texts as they are, no
                paths; a value must be equal all through, as the serializer stores it.
            exclude_data: those found have no data; without ``data``, it stays on the server.

        Raises:
            GlideMQValidationError: a state that cannot be listed, a key that is no text, a value that no job can hold.
        """
        bare, listed = check_bool("exclude_data", exclude_data), None if state is None else reading.listable(state)
        return self._found(Search(listed, name, data, bare, serializer_of(self.options.serializer)))

    async def _found(self, search: Search) -> AsyncIterator[Job[DataT, ResultT]]:
        async for job in search.run(await self._connected()):
            yield job

    async def search_jobs(
        self,
        state: str | None = None,
        name: str | None = None,
        data: Mapping[str, Any] | None = None,
        limit: int = 100,
        *,
        exclude_data: bool = False,
    ) -> list[Job[DataT, ResultT]]:
        """The first ``limit`` jobs of `iter_search_jobs`, which tells what the arguments mean and what it raises."""
        most = check_int("limit", limit, 1, 2**31)
        found: list[Job[DataT, ResultT]] = []
        async for job in self.iter_search_jobs(state, name, data, exclude_data=exclude_data):
            found.append(job)
            if len(found) == most:
                break
        return found

    async def get_metrics(self, kind: Literal["completed", "failed"], start: int = 0, end: int = -1) -> Metrics:
        """How many jobs ended, by the minute of the last day.

        Args:
            kind: "completed" or "failed".
            start, end: which minutes of those in which jobs ended, by position; ``end`` inclusive, negative
                numbers count from the newest (-60, -1: the last sixty).
        """
        return await figures.get_metrics(await self._connected(), kind, start, end)

    async def get_job_logs(self, job_id: str, start: int = 0, end: int = -1) -> JobLogs:
        """A job's log lines by position, ``end`` inclusive, negative numbers from the newest; and how many it has."""
        return await figures.get_job_logs(await self._connected(), parse_job_id(job_id), start, end)
