"""`Queue`: the client of producers and operators.

It adds and reads jobs. The other methods are functions of their features, which the end of the class lists.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, Self, Unpack, cast

from typing_extensions import TypeVar

from glidemq_py._api import administration, leasing
from glidemq_py._api.adds import Plan, add_routed, added_job, entries_of
from glidemq_py._api.coalescer import AddCoalescer
from glidemq_py._api.job_batch import JoinAndAdd
from glidemq_py._client.loop_transport import LoopConnection, LoopPart, LoopTransport
from glidemq_py._client.runtime import ASYNC_RUNTIME, Runtime
from glidemq_py._client.transport import Connection, Transport, check_connection, open_transport
from glidemq_py._core.calls.adding import AddCall, Adder, add_to_layout, encode_row
from glidemq_py._core.checks import check_bool, check_int, lists_options
from glidemq_py._core.job_options import JobOptions, unsupported_in
from glidemq_py._core.keys import DEFAULT_PREFIX, QueueKeys, validate_job_name, validate_queue_name
from glidemq_py._core.logs import LogLevel
from glidemq_py._core.misuse import AsyncOnly, former_names, known_arguments, known_methods, reject_positional_options
from glidemq_py._core.option_dicts_twin import JobOptionsDict
from glidemq_py._core.option_values import parse_tags_filter
from glidemq_py._core.payload import PAYLOAD_LIMIT, serializer_of
from glidemq_py._core.queue_options import (
    Compression,
    DeadLetterInput,
    Durability,
    DurableInput,
    Entry,
    JobInput,
    QueueOptions,
    Serializer,
    SerializerName,
    parse_dead_letter_queue,
    parse_durable,
)
from glidemq_py._core.record import ADDED_OUTCOMES, JobCounts, WorkerInfo
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._features import metrics as figures
from glidemq_py._features import (
    queue_list,
    streams,
    suspend,
)
from glidemq_py._features.consistency import queue_api as consistency
from glidemq_py._features.dead_letters import declare_dead_letters
from glidemq_py._features.dependencies import Relations
from glidemq_py._features.durability import Confirmer
from glidemq_py._features.durable_adds import DurableAdds, add_marked
from glidemq_py._features.leases import WakeUps
from glidemq_py._features.metrics import JobLogs, Metrics
from glidemq_py._features.suspend import SuspendTimeoutsTask
from glidemq_py._job import reading
from glidemq_py._job.job import Job
from glidemq_py._job.middleware import Middleware, add_within
from glidemq_py._job.reading import between, get_slice
from glidemq_py._job.waiting import LoopWaiter
from glidemq_py._partitions.layout import MAX_PARTITIONS, Layout, Partition
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.parts import ConnectedQueue, PartQueues
from glidemq_py._partitions.routing import routing_key
from glidemq_py.errors import (
    GlideMQValidationError,
    JobStateError,
    LayoutChangedError,
)
from glidemq_py.telemetry.spans import observed_add
from glidemq_py.telemetry.state import TELEMETRY

if TYPE_CHECKING:
    from glidemq_py._api.areas import Jobs, Settings, Vectors
    from glidemq_py._api.dead_letters import DeadLetters
    from glidemq_py._api.job_batches import JobBatches
    from glidemq_py._api.leasing import Leases
    from glidemq_py._features.backup.area import Backups
    from glidemq_py._features.failures import Failures
    from glidemq_py._features.fair_keys import FairKeys
    from glidemq_py._features.limits import Groups, Limits
    from glidemq_py._features.metrics_by_name import NamedMetrics
    from glidemq_py._features.remote_control import Workers
    from glidemq_py._features.schedulers.area import Schedulers
    from glidemq_py._features.timeline import Timelines
    from glidemq_py._features.usage_summaries import Usage

DataT = TypeVar("DataT", default=Any)
ResultT = TypeVar("ResultT", default=Any)
P = TypeVar("P", bound=LoopPart)

_NAMES_KEPT = 1_000
_ADDS, _LISTING, _SWEEP, _WAKES = "adds", "listing", "sweep", "wakes"
"""Parts that a queue has per event loop, in addition to its connection. Their keys are the queue and one of these: all
partitions of a queue share its connection."""


@former_names
@known_methods
class Queue(ConnectedQueue, AsyncOnly, Generic[DataT, ResultT]):
    """Add jobs to a queue, read them, and manage the queue.

    In ``Queue[DataT, ResultT]``, the parameters are the types of the jobs' data and results.

    A queue connects at first use. Close it, or use it in an ``async with`` block. Several event loops and threads may
    share a queue, and a forked process may use its parent's (docs/learn/event-loops.md). Each event loop has its own
    connection, which closes with the loop.

    Args:
        name: Name of the queue.
        connection: A URL, `ConnectionOptions`, an existing GLIDE client (never closed by the queue),
            or None. None means ``GLIDEMQ_URL`` if set, otherwise the server of `glidemq dev`, or a private one.
        prefix: First part of every key.
        default_job_options: Options of added jobs; the options of a single job take precedence.
        compression: "gzip" stores job data compressed; "none" (the default) does not.
        serializer: Serializer of data and results: "json" (the default), "msgpack", or a `Serializer` object.
        events: If False, no `added` events are written.
        dead_letter_queue: Name of the queue that receives a dead-letter entry for every job that fails permanently, or
            ``{"name": ..., "on": (...)}``; see `DeadLetterOptions`. The setting is stored with the queue and applies to
            all workers; the value set last by a queue or worker wins. None keeps the stored setting, False removes it.
        durable: True if adds return only when the job is in the append-only file on the server's disk; or a
            `Durability`, also for replicas.
        middleware: Instances of `Middleware` around every add and every block of `lease`, the outermost first.
        partitions: Number of partitions, 1 to 256, of a queue that one core of a server cannot serve
            (docs/learn/partitions.md). It is stored with the queue before its first job, and cannot be changed; later
            it may be omitted.

    Raises:
        GlideMQValidationError: If an option is invalid. The message contains the option and its value.
    """

    name: str
    """Name of the queue."""
    options: QueueOptions
    """Options of the queue."""

    @known_arguments("queue")
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
        durable: DurableInput = None,
        middleware: Sequence[Middleware] | None = None,
        partitions: int | None = None,
    ) -> None:
        self.name = validate_queue_name(name)
        if connection is not None:
            check_connection(connection, blocking=self._runtime.is_blocking)
        self.options = QueueOptions(
            prefix=prefix, default_job_options=default_job_options, compression=compression, serializer=serializer,
            events=events, dead_letter_queue=parse_dead_letter_queue(dead_letter_queue, name), durable=durable,
            middleware=middleware,
        )  # fmt: skip
        self._durable = self.options.durable
        self._middleware = self.options.middleware
        self._keys = QueueKeys(prefix, name)
        self._defaults = self.options.default_job_options
        self._connection = connection
        self._transport = LoopTransport(f"queue {name!r}", self._open_here, self._runtime)
        self._current_loop = self._runtime.current_loop
        self._link: QueueLink | None = None
        self._wanted_partitions = None if partitions is None else check_int("partitions", partitions, 1, MAX_PARTITIONS)
        self._partitions: PartQueues | None = None
        self._layout_known = False
        self._layout_read_at: float | None = None
        self._layout_renewed_at = 0.0
        self._partition: Partition | None = None
        self._shown_name = name
        """Name of the queue; of a partition, that of the whole queue."""
        self._adder: Adder | None = None  # of the event loop that added last
        self._dead_letters_declared = False
        self._closed = False
        self._lease_owner = secrets.token_hex(8)
        self._known_names: set[str] = set()
        """Names that are known to be valid."""

    _runtime: Runtime = ASYNC_RUNTIME
    _adder_type = AddCoalescer
    _part_type: type[Queue]
    """Type of its partitions. Subclasses of applications may have constructors with other arguments."""
    _parts_count = 1
    _payload_limit = PAYLOAD_LIMIT
    _may_suspend = True
    """Whether its jobs may be suspended: then their timeouts are polled for."""

    # -- connection ---------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Connect now instead of at first use.

        The connection is that of the running event loop.

        Raises:
            GlideMQConnectionError: If the server cannot be reached. The next use tries again.
            ClosedError: If the queue is closed.
        """
        link = await self._plain_link()
        if link is None or link.transport is self._transport:
            await self._transport.connected()

    def _link_over(self, transport: Transport) -> QueueLink:
        return QueueLink(
            transport=transport, keys=self._keys, waiter=LoopWaiter(self._transport, self._keys),
            serializer=serializer_of(self.options.serializer), compression=self.options.compression,
            runtime=self._runtime, payload_limit=self._payload_limit, partition=self._partition,
            layout=self._layout_number, parts=self._parts_count,
        )  # fmt: skip

    async def _open_here(self, connection: LoopConnection) -> None:
        """Connect the running event loop and start the queue's tasks in it."""
        TELEMETRY.detect_providers()
        transport = await open_transport(self._connection)
        try:
            if not self._layout_known:
                await self._find_partitions(transport)
            await self._declare_parts(transport)
        except BaseException:
            await transport.close()
            raise
        connection.transport = transport
        await self._begin_parts(connection, transport)

    def _partition_queue(self, name: str, partition: Partition, layout: Layout) -> Queue[DataT, ResultT]:
        """Return a partition of this queue, as a queue that uses this one's connection.

        Args:
            name: Name of the partition.
            partition: Its number.
            layout: The layout.
        """
        given = {option: value for option, value in vars(self.options).items() if option != "middleware"}
        queue: Queue[DataT, ResultT] = self._part_type(name, self._connection, **given)
        queue._partition, queue._shown_name, queue._layout_known = partition, self.name, True
        queue._transport, queue._payload_limit = self._transport, self._payload_limit
        queue._layout_number, queue._add_call = layout.number, add_to_layout(layout.number)
        queue._parts_count = layout.partitions
        queue._link = queue._link_over(self._transport)
        return queue

    async def _disconnect(self) -> None:
        """Send the pending adds and disconnect. The next use connects, and finds or creates a layout.

        What has been read from its partitions uses the same transport, and remains usable.
        """
        self._partitions, self._layout_known, self._link, self._adder = None, False, None, None
        await self._transport.disconnect()

    async def _declare_parts(self, transport: Transport) -> None:
        """Store the options of the queue that apply to all workers."""
        if self.options.dead_letter_queue is None:
            return
        for queue in self._parts:
            await queue._declare(transport)

    async def _declare(self, transport: Transport) -> None:
        """Store the options of the queue that apply to all workers, unless this was done before."""
        if not self._dead_letters_declared:
            await declare_dead_letters(self._link_over(transport), self.options)
            self._dead_letters_declared = True

    def _begin_here(self, connection: LoopConnection, transport: Transport) -> None:
        link = self._link_over(transport)
        connection.part((self, _ADDS), partial(self._make_adder, add_call=self._add_call))
        listing = connection.part((self, _LISTING), lambda _: queue_list.ExistingQueueTask(link))
        listing.start()
        listing.end_with_loop()
        if self._may_suspend:
            sweep = connection.part((self, _SWEEP), lambda _: SuspendTimeoutsTask(link))
            sweep.start()
            sweep.end_with_loop()

    def _make_adder(self, transport: Transport | Confirmer, add_call: AddCall, is_durable: bool = False) -> Any:
        """Return an object that sends single adds over the connection."""
        return self._adder_type(transport, self._keys.meta, not self.options.events, add_call, gather=is_durable)

    async def close(self) -> None:
        """Send the pending adds, then close the connections.

        Closes the connections of all event loops, except a client passed by the caller. Idempotent.
        """
        if self._closed:
            return
        self._closed = True
        await self._transport.close()
        if self._link is not None and self._link.transport is not self._transport:
            await self._link.transport.close()

    async def _adder_here(self) -> Adder:
        """Return the adder of the running event loop."""
        adder: Adder = await self._part(_ADDS, partial(self._make_adder, add_call=self._add_call))
        self._adder = adder
        return adder

    async def _part(self, key: object, make: Callable[[Transport], P]) -> P:
        """Return the part of this queue for the event loop in which it waits; create it on first use."""

        async def find() -> P:
            return (await self._transport.connected()).part((self, key), make)

        return await self._runtime.there(find())

    async def _durable_adds(self, durability: Durability) -> DurableAdds:
        """Return the adder of the running event loop for durable adds."""

        def make(transport: Transport) -> DurableAdds:
            confirmer = Confirmer(transport, self._keys.meta, self._runtime, durability)
            adder = self._make_adder(confirmer, add_marked(self._layout_number), is_durable=True)
            return DurableAdds(adder, confirmer, self._runtime)

        return await self._part(durability, make)

    async def _confirmer(self, durability: Durability) -> Confirmer:
        return (await self._durable_adds(durability)).confirmer

    async def _wake_ups(self) -> WakeUps:
        """Return the wake-ups of the running event loop, for fetches that wait."""
        return await self._part(_WAKES, lambda transport: WakeUps(transport, self._keys))

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Queue {self._shown_name!r}>"

    # -- adding -------------------------------------------------------------------------------------------

    def _check_name(self, name: object) -> str:
        valid = validate_job_name(name)
        if len(self._known_names) < _NAMES_KEPT:
            self._known_names.add(valid)
        return valid

    def _options(self, given: Mapping[str, Any]) -> JobOptions:
        return JobOptions.of_job(self._defaults, JobOptions.parse(given)) if given else self._defaults

    @lists_options(JobOptions, JobOptionsDict)
    async def add(
        self,
        name: str,
        data: DataT | None = None,
        *misplaced: Never,
        durable: DurableInput = None,
        **options: Unpack[JobOptionsDict],
    ) -> Job[DataT, ResultT]:
        """Add a job to the queue.

        Concurrent adds of one event loop are sent in batches; a single add is sent immediately.

        Args:
            name: Name of the job: which handler or task processes it.
            data: Any value that the serializer accepts.
            *misplaced: Rejected: options are keyword arguments, not a dict.
            durable: As for `Queue`; None means the queue's option.
            **options: Fields of `JobOptions`, for example ``delay=5_000``.

        Returns:
            The job. Its ``outcome`` is ``added``; ``duplicate`` if a job with this ``job_id`` exists; with
            ``deduplication`` also ``skipped`` (the returned job is the existing one), ``replaced`` or ``staged``.

        Raises:
            GlideMQValidationError: If an option or the data is invalid. Nothing was sent.
            GlideMQValidationError: If ``cost`` exceeds the capacity of the group's token bucket. Nothing was added.
            FairKeyFullError: If the ``fair_key`` has its maximum backlog. Nothing was added.
            JobNotFoundError: If the job's parent, or a job in ``depends_on``, does not exist. Nothing was added.
            JobStateError: If the job's parent has already ended. Nothing was added.
            ServerOutOfMemoryError: If the server has reached ``maxmemory``. Nothing was added.
            AmbiguousResultError: If the reply was lost. The job may have been added; adding it again is safe if you
                set ``job_id``, while the job is kept.
            DurabilityError: If the server did not confirm a ``durable`` job in time. The job may exist.
            GlideMQError: If the queue is being obliterated. Nothing was added.
            GlideMQConnectionError: If the server cannot be reached.
            ClosedError: If the queue is closed.
        """
        if misplaced:
            reject_positional_options(misplaced)
        link = self._link
        if link is None or self._closed:
            link = await self._plain_link()
        job_options = self._options(cast("Mapping[str, Any]", options)) if options else self._defaults
        if type(name) is not str or name not in self._known_names:
            name = self._check_name(name)
        durability = self._durable if durable is None else parse_durable(durable)
        if (
            durability is not None or job_options.parent is not None or job_options.depends_on is not None
            or TELEMETRY.on or self._middleware
        ):  # fmt: skip
            return await self._add_within_middleware(name, data, job_options, durability)
        part: Queue = self
        if link is None:
            assert self._partitions is not None
            part = self._partitions.part_of(routing_key(job_options))
            link = await part._connected()
        adder = part._adder
        if adder is None or adder.loop is not self._current_loop():
            adder = await part._adder_here()
        row = encode_row(link, name, data, job_options)
        try:
            now, result = await adder.add(row)
        except LayoutChangedError as error:
            return await self._add_one(name, data, job_options, durability, error)
        if not link.is_listed:
            await queue_list.register(link)
        return added_job(link, name, data, job_options, now, result)

    async def _add_within_middleware(
        self, name: str, data: Any, options: JobOptions, durability: Durability | None
    ) -> Job:
        async def add(changed: Iterable[Entry]) -> Job:
            ((_, data, options),) = changed
            return await self._add_one(name, data, options, durability)

        return await add_within(
            self._middleware, (self._shown_name,), ((name, data, options),), add,
            blocking=self._runtime.is_blocking, is_one=True,
        )  # fmt: skip

    async def _add_one(
        self, name: str, data: Any, options: JobOptions, durability: Durability | None,
        refusal: LayoutChangedError | None = None,
    ) -> Job:  # fmt: skip
        """Add a job below the middleware, which never sees that it is routed again."""
        return await add_routed(
            self, partial(routing_key, options), lambda queue: queue._add_here(name, data, options, durability), refusal
        )  # fmt: skip

    async def _add_here(self, name: str, data: Any, options: JobOptions, durability: Durability | None) -> Job:
        """Add a checked job to this queue or partition. Raises `LayoutChangedError` too."""
        link, adder, relations = await self._connected(), self._adder, None
        if options.parent is None and options.depends_on is None:
            row = encode_row(link, name, data, options)
        else:
            relations = Relations(self._shown_name, {0: options}, {})
            for error in (await relations.check(link, {0: self.name})).values():
                raise error
            row = relations.row(0, link, name, data, options)
        if durability is not None:
            adder = await self._durable_adds(durability)
        elif adder is None or adder.loop is not self._current_loop():
            adder = await self._adder_here()
        if TELEMETRY.on:
            now, result = await observed_add(adder.add, self._shown_name, link.transport, row, options)
        else:
            now, result = await adder.add(row)
        if not link.is_listed:
            await queue_list.register(link)
        if relations is not None:
            (result,) = await relations.register(link, (0,), [result], (row,))
        return added_job(link, name, data, options, now, result)

    async def add_bulk(
        self,
        jobs: Iterable[JobInput],
        *,
        durable: DurableInput = None,
    ) -> list[Job[DataT, ResultT]]:
        """Add many jobs in few round trips.

        All jobs are validated before the first is sent. They are sent in chunks, and each chunk is atomic.

        Args:
            jobs: ``(name, data, options)`` tuples (only the name is needed), mappings of these, or `JobSpec` objects.
            durable: As for `Queue`; None means the queue's option. One confirmation serves all jobs.

        Returns:
            One job per input, in the same order, with the ``outcome`` described in `Queue.add`.

        Raises:
            GlideMQValidationError: If a job is invalid. The option names its position (``jobs[3].delay``); nothing was
                sent.
            BulkAddError: If some jobs were not added, or may not have been. Its ``results`` has the job or the
                exception per position.
        """
        return await self._add_all(jobs, durable)

    async def _add_all(
        self, jobs: Iterable[Any], durable: DurableInput = None, around: JoinAndAdd | None = None
    ) -> list[Job]:
        """Add jobs within the middleware, which may change them; see also `ConnectedQueue`."""
        link = await self._first_connected()
        durability = self._durable if durable is None else parse_durable(durable)

        async def add(entries: Iterable[Entry]) -> list[Job]:
            return await Plan(self, link, entries, durability, around).run()

        return await add_within(
            self._middleware, repeat(self._shown_name), entries_of(jobs, self._defaults, self._shown_name), add,
            blocking=self._runtime.is_blocking,
        )  # fmt: skip

    @lists_options(JobOptions, JobOptionsDict)
    async def add_and_wait(
        self,
        name: str,
        data: DataT | None = None,
        *misplaced: Never,
        wait_timeout: Milliseconds = 30_000,
        **options: Unpack[JobOptionsDict],
    ) -> ResultT:
        """Add a job, wait until a worker has completed it, and return its result.

        Raises the errors of `Queue.add` as well.

        Args:
            name: Name of the job: which handler or task processes it.
            data: Any value that the serializer accepts.
            *misplaced: Rejected: options are keyword arguments, not a dict.
            wait_timeout: How long to wait for the job to end, in ms or as a timedelta, > 0. After a timeout the job
                continues.
            **options: Fields of `JobOptions`.

        Returns:
            The value that the handler returned.

        Raises:
            JobFailedError: If the job failed permanently.
            WaitTimeoutError: If the job did not end in time.
            JobStateError: If a job with this ``job_id`` or ``deduplication`` id already exists.
            GlideMQValidationError: If ``remove_on_complete`` or ``remove_on_fail`` is set: the result of a removed job
                cannot be read.
        """
        if misplaced:
            reject_positional_options(misplaced)
        timeout = to_ms("wait_timeout", wait_timeout, minimum=1)
        job_options = self._options(cast("Mapping[str, Any]", options))
        for option in unsupported_in("wait"):
            if getattr(job_options, option) not in (None, False):
                raise GlideMQValidationError(option, getattr(job_options, option), "cannot be used with add_and_wait")
        link = await self._plain_link()
        if link is not None:
            await link.waiter.start()
        job = await self.add(name, data, **options)
        if job.outcome not in ADDED_OUTCOMES:
            message = f"job {job.id!r} already exists ({job.outcome})"
            raise JobStateError(job.id, str(job.outcome), "add and wait for", message)
        return await job.wait_until_finished(timeout)

    # -- reading ------------------------------------------------------------------------------------------

    async def get_job(self, job_id: str, *, exclude_data: bool = False) -> Job[DataT, ResultT] | None:
        """Return the job with this id, or None.

        Args:
            job_id: Id of the job.
            exclude_data: If True, the job's data is not read; `Job.data` is None.
        """
        bare = check_bool("exclude_data", exclude_data)
        return await self._of(job_id, lambda link, own: reading.get_job(link, own, bare))

    def iter_jobs(
        self, state: str, page: int = 500, *, exclude_data: bool = False, tags: str | Iterable[str] | None = None
    ) -> AsyncIterator[Job[DataT, ResultT]]:
        """Iterate over the jobs in a state.

        A job that stays in the state during the iteration is returned exactly once. A job that enters or leaves the
        state during the iteration may be returned or not.

        Args:
            state: "waiting", "active", "delayed", "prioritized", "completed", "failed", "group-waiting", "suspended" or
                "waiting-children".
            page: Jobs per server call, 1 to 1000. A call never reads more than 200, to keep it short for the server.
            exclude_data: If True, the jobs' data is not read; `Job.data` is None.
            tags: A tag or several: only jobs with all of these. The server selects them.

        Raises:
            GlideMQValidationError: If an argument is invalid.
        """
        bare = check_bool("exclude_data", exclude_data)
        listed, only = reading.listable(state), parse_tags_filter(tags)
        return self._in_turn(lambda link: reading.iterate(link, listed, page, bare=bare, tags=only))

    async def get_jobs(
        self,
        state: str,
        start: int = 0,
        end: int = -1,
        *,
        exclude_data: bool = False,
        tags: str | Iterable[str] | None = None,
    ) -> list[Job[DataT, ResultT]]:
        """Return the jobs in a state between two positions, oldest (or most urgent) first.

        Args:
            state: A state that `Queue.iter_jobs` accepts.
            start: First position, >= 0.
            end: Last position, inclusive; -1 is the last job.
            exclude_data: If True, the jobs' data is not read; `Job.data` is None.
            tags: A tag or several: only jobs with all of these. Positions count these jobs, so the jobs before the
                first position are read too.

        Raises:
            GlideMQValidationError: If an argument is invalid.
        """
        bare, listed = check_bool("exclude_data", exclude_data), reading.listable(state)
        if parse_tags_filter(tags):
            return await between(self.iter_jobs(state, exclude_data=bare, tags=tags), start, end)
        return await get_slice(await self._links(), listed, start, end, bare=bare)

    async def get_job_counts(self) -> JobCounts:
        """Return the number of jobs per state.

        Makes one server call, whose cost does not depend on the number of jobs, plus one more per further 500 ordering
        groups and per further 256 priorities in use.
        """
        return reading.added_counts(await self._each(reading.get_counts))

    async def count(self) -> int:
        """Return the number of jobs that no worker has fetched: waiting, delayed, prioritized and group-waiting."""
        counts = await self.get_job_counts()
        return counts.waiting + counts.delayed + counts.prioritized + counts.group_waiting

    async def get_workers(self) -> list[WorkerInfo]:
        """Return the live workers of this queue, oldest first, including those of other processes and languages."""
        return reading.merged_workers(await self._each(reading.get_workers))

    async def search_jobs(
        self,
        state: str | None = None,
        name: str | None = None,
        data: Mapping[str, Any] | None = None,
        limit: int = 100,
        *,
        exclude_data: bool = False,
        tags: str | Iterable[str] | None = None,
    ) -> list[Job[DataT, ResultT]]:
        """Return the first ``limit`` jobs that match all given criteria.

        Args:
            state: A state that `Queue.iter_jobs` accepts; None searches all of them, one after the other.
            name: The complete job name.
            data: Keys and values that the job's data must contain; see `Queue.jobs.iter_search`.
            limit: Maximum number of jobs, >= 1.
            exclude_data: If True, `Job.data` of the results is None.
            tags: A tag or several: only jobs with all of these.

        Raises:
            GlideMQValidationError: If the state cannot be listed, a key is not a string, or a value cannot be
                serialized.
        """
        most = check_int("limit", limit, 1, 2**31)
        found: list[Job[DataT, ResultT]] = []
        async for job in self.jobs.iter_search(state, name, data, exclude_data=exclude_data, tags=tags):
            found.append(job)
            if len(found) == most:
                break
        return found

    async def get_metrics(self, kind: Literal["completed", "failed"], start: int = 0, end: int = -1) -> Metrics:
        """Return how many jobs ended per minute, for the last 24 hours.

        Only minutes in which jobs ended are stored. ``start`` and ``end`` select stored minutes by position; negative
        numbers count from the newest: ``start=-60, end=-1`` are the last sixty.

        Args:
            kind: "completed" or "failed".
            start: First position.
            end: Last position, inclusive.
        """
        return await figures.get_metrics(self, kind, start, end)

    async def get_job_logs(
        self, job_id: str, start: int = 0, end: int = -1, *, level: LogLevel | None = None
    ) -> JobLogs:
        """Return log lines of a job, and how many it has.

        Args:
            job_id: Id of the job.
            start: First position, oldest line first; negative numbers count from the newest.
            end: Last position, inclusive.
            level: Only lines with this level or a higher one: "debug", "info", "warning", "error" or "critical".
                Positions and count are those of these lines; all lines of the job are read.

        Raises:
            GlideMQValidationError: If an argument is invalid.
        """
        return await self._of(job_id, lambda link, own: figures.get_job_logs(link, own, start, end, level))

    # -- administration -----------------------------------------------------------------------------------

    pause = administration.pause
    resume = administration.resume
    is_paused = administration.is_paused
    drain = administration.drain
    clean = administration.clean
    retry_jobs = administration.retry_jobs
    obliterate = administration.obliterate

    remove = administration.remove
    revoke = administration.revoke
    promote = administration.promote
    check = consistency.check
    signal = suspend.signal
    read_stream = streams.read_stream
    fetch = leasing.fetch
    lease = leasing.lease

    # -- areas --------------------------------------------------------------------------------------------

    @property
    def jobs(self) -> Jobs[DataT, ResultT]:
        """Further operations on jobs, given their ids or states."""
        from glidemq_py._api.areas import Jobs

        return Jobs(self)

    @property
    def limits(self) -> Limits:
        """Limits of the whole queue, and of jobs with a name."""
        from glidemq_py._features.limits import Limits

        return Limits(self)

    @property
    def groups(self) -> Groups:
        """Limits of ordering groups."""
        from glidemq_py._features.limits import Groups

        return Groups(self)

    @property
    def fair_keys(self) -> FairKeys:
        """Fair shares of keys, and their limits."""
        from glidemq_py._features.fair_keys import FairKeys

        return FairKeys(self)

    @property
    def schedulers(self) -> Schedulers:
        """Jobs that are added by a cron expression, an interval or a calendar."""
        from glidemq_py._features.schedulers.area import Schedulers

        return Schedulers(self)

    @property
    def failures(self) -> Failures:
        """Failed jobs by reason, and what happens to them."""
        from glidemq_py._features.failures import Failures

        return Failures(self)

    @property
    def dead_letters(self) -> DeadLetters:
        """The entries of this queue in its dead letter queue."""
        from glidemq_py._api.dead_letters import DeadLetters

        return DeadLetters(self)

    @property
    def leases(self) -> Leases:
        """Reports of many leases in one call; `fetch` and `lease` return them."""
        from glidemq_py._api.leasing import Leases

        return Leases(self)

    @property
    def workers(self) -> Workers:
        """Commands to the running workers; `get_workers` lists them."""
        from glidemq_py._features.remote_control import Workers

        return Workers(self)

    @property
    def job_batches(self) -> JobBatches:
        """Sets of jobs with callbacks."""
        from glidemq_py._api.job_batches import JobBatches

        return JobBatches(self)

    @property
    def backups(self) -> Backups:
        """Backups in a directory or an object store."""
        from glidemq_py._features.backup.area import Backups

        return Backups(self)

    @property
    def usage(self) -> Usage:
        """Tokens, costs and budgets that jobs have reported."""
        from glidemq_py._features.usage_summaries import Usage

        return Usage(self)

    @property
    def vectors(self) -> Vectors[DataT, ResultT]:
        """Search among the embeddings of jobs."""
        from glidemq_py._api.areas import Vectors

        return Vectors(self)

    @property
    def timelines(self) -> Timelines:
        """Every change of a job's state."""
        from glidemq_py._features.timeline import Timelines

        return Timelines(self)

    @property
    def metrics_by_name(self) -> NamedMetrics:
        """Durations, waits and outcomes per job name."""
        from glidemq_py._features.metrics_by_name import NamedMetrics

        return NamedMetrics(self)

    @property
    def settings(self) -> Settings:
        """What is stored with the queue and applies to all its clients."""
        from glidemq_py._api.areas import Settings

        return Settings(self)


Queue._part_type = Queue

"""A queue, or a partition, of any data and results."""
