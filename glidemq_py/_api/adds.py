"""The one way to add: jobs are encoded, routed to the partitions of their queue, related to other jobs, and sent.

A plain queue is one partition, and `Queue.add` adds one job. Encoding and routing are plain functions; only sending
waits. Every call has the number of the layout that its jobs were routed by. If the partition has another one, nothing
is added: the layout is read again, and the jobs are routed again.

All jobs of a bulk are validated and encoded first, then sent in chunks per partition. A chunk is atomic, and small
enough not to block the server. The next chunk is packed while one is in flight. There is never more than one in flight:
GLIDE does not keep the order of concurrent commands, and jobs must keep theirs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from glidemq_py._core.calls.adding import DATA, AddReply, Row, encode_row
from glidemq_py._core.checks import check_iterable, name_within
from glidemq_py._core.job_options import NO_OPTIONS, JobOptions, cost_error
from glidemq_py._core.option_values import JobRef
from glidemq_py._core.queue_options import Durability, Entry, check_call, entry_of
from glidemq_py._core.record import ADDED_OUTCOMES, JobOutcome
from glidemq_py._features import queue_list
from glidemq_py._features.dependencies import Relations, invalid_parent, missing_dependency
from glidemq_py._features.durable_adds import Marks, marked_call
from glidemq_py._features.flows.plan import chunks
from glidemq_py._job.job import Job
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.parts import ConnectedQueue, PartQueues
from glidemq_py._partitions.routing import Numbers, routing_key
from glidemq_py.errors import (
    BulkAddError,
    DurabilityError,
    FairKeyFullError,
    GlideMQConnectionError,
    GlideMQError,
    GlideMQValidationError,
    JobNotFoundError,
    JobStateError,
    LayoutChangedError,
)
from glidemq_py.telemetry.spans import observed
from glidemq_py.telemetry.state import TELEMETRY

T = TypeVar("T")

CHUNK_ROWS: Final = 250
_ATTEMPTS: Final = 20
"""Times that a job is routed. More than two are needed only if the queue is created again and again."""

Part = tuple[Any, Sequence[int]]
"""A queue or partition, and the positions of the jobs that are added to it."""


async def rerouted(
    add: Callable[[LayoutChangedError | None], Awaitable[T]], refusal: LayoutChangedError | None = None
) -> T:
    """Call ``add``, again with the error if a queue or partition has refused the jobs, as it has another layout."""
    for left in reversed(range(_ATTEMPTS)):
        try:
            return await add(refusal)
        except LayoutChangedError as error:
            if not left:
                raise
            refusal = error
    raise AssertionError


async def add_routed(
    home: ConnectedQueue, key: Callable[[], str | None], use: Callable[[Any], Awaitable[T]],
    refusal: LayoutChangedError | None = None,
) -> T:  # fmt: skip
    """Let ``use`` add a job to its queue or partition, again if the job has been refused there.

    Args:
        home: The queue.
        key: Returns the routing key of the job, if the queue is partitioned.
        use: Adds the job to the queue or partition that it is called with.
        refusal: Why the job was not added to the queue before: it has been partitioned meanwhile.
    """

    async def add(refusal: LayoutChangedError | None) -> T:
        # Of many adds that were refused together, the first one renews the layout, also for the others.
        if refusal is not None and not home._is_renewed_after(refusal):
            await home._renew_layout(refused=True)
        if home._link is None and home._partitions is None:
            await home._plain_link()
        parts = home._partitions
        return await use(home if parts is None else parts.part_of(key()))

    return await rerouted(add, refusal)


def entries_of(jobs: Iterable[Any], defaults: JobOptions, queue: str) -> Iterator[Entry]:
    """Yield the jobs of a bulk for a queue, with a fast path for (name, data) tuples of a name validated before."""
    known = set[str]()
    for i, job in enumerate(check_iterable("jobs", jobs, "jobs")):
        if job.__class__ is tuple and len(job) == 2:
            name, data = job
            if type(name) is str and name in known:
                yield name, data, defaults
                continue
        check_call(job, queue, f"jobs[{i}]")
        entry = entry_of(job, defaults, f"jobs[{i}]")
        known.add(entry[0])
        yield entry


class Routes:
    """Divides jobs among the partitions of a queue. Jobs without a key go to one partition per chunk."""

    def __init__(self, home: ConnectedQueue) -> None:
        self._queues, partitions = home._parts, home._partitions
        self._numbers: Numbers | None = None
        if partitions is not None:
            self._numbers = Numbers(len(self._queues), partitions.next_partition, CHUNK_ROWS)
        self._parts: dict[int, list[int]] = {}

    def put(self, i: int, key: str | None) -> None:
        """Choose the partition of the job at this position, given its routing key."""
        number = 0 if self._numbers is None else self._numbers.next(key)
        self._parts.setdefault(number, []).append(i)

    @property
    def parts(self) -> list[Part]:
        """The partitions that get jobs."""
        return [(self._queues[number], mine) for number, mine in self._parts.items()]


class Plan:
    """The jobs of a bulk, from their rows to their results.

    Args:
        home: The queue.
        entries: The jobs.
        durability: What to wait for; None = nothing.
        around: Awaited with this plan, a queue or partition and the positions of jobs, instead of `send`, which it
            calls. It may `replace` the jobs before.
        ids: Positions of the jobs by their custom ids, which then need not be in the options; None: they are.
        rows: The jobs, if they are encoded already.
        keys: Their routing keys by position, if these are not those of their options.

    Raises:
        GlideMQValidationError: If a job is invalid. The option names its position; nothing was sent.
    """

    def __init__(
        self, home: ConnectedQueue, link: QueueLink, entries: Iterable[Entry], durability: Durability | None = None,
        around: Callable[[Any, Any, Sequence[int]], Awaitable[None]] | None = None,
        ids: Mapping[str, int] | None = None, rows: list[Row] | None = None,
        keys: Mapping[int, str] | None = None,
    ) -> None:  # fmt: skip
        self._home, self._link, self._marks, self._around, self._keys = home, link, Marks(durability), around, keys
        self.entries: list[Entry] = []
        self.rows: list[Row] = [] if rows is None else rows
        """The encoded jobs."""
        related: dict[int, JobOptions] = {}
        encoded, kept = None if rows is not None else self.rows, self.entries
        for entry in entries:
            name, data, options = entry
            try:
                if encoded is not None:
                    encoded.append(encode_row(link, name, data, options))
            except GlideMQValidationError:
                encode_row(link, *entry, f"jobs[{len(kept)}].data")  # raises again, with the position
                raise
            if options is not NO_OPTIONS and (options.parent is not None or options.depends_on is not None):
                related[len(kept)] = options
            kept.append(entry)
        self.given = self.entries if around is None else list(self.entries)
        """The jobs by whose options they are routed, also if others have replaced them."""
        self.results: list[Any] = [None] * len(self.rows)
        """The job or the error by position; None until it is known."""
        self._failed = False
        self._partitions: PartQueues | None = None
        self._order: Sequence[int] = range(len(self.rows))
        self.relations: Relations | None = None
        if related:
            if ids is None:
                ids = {each.job_id: i for i, (*_, each) in enumerate(self.entries) if each.job_id is not None}
            self.relations = Relations(home.name, related, ids)
            self._order = self.relations.order(len(self.rows))

    def replace(self, i: int, entry: Entry) -> None:
        """Replace a job before it is sent. Raises GlideMQValidationError."""
        self.entries[i], self.rows[i] = entry, encode_row(self._link, *entry, f"jobs[{i}].data")

    async def run(self, parts: list[Part] | None = None) -> list[Job]:
        """Add all jobs and return them in order.

        Args:
            parts: Where they are added, if they are routed already.

        Raises:
            BulkAddError: If some jobs were not added, or may not have been.
        """
        pending = self._order
        for left in reversed(range(_ATTEMPTS)):
            await self._add(pending, parts)
            pending = [i for i in pending if isinstance(self.results[i], LayoutChangedError)] if self._failed else ()
            if not pending or not left:
                break
            await self._home._renew_layout(refused=True)
            self.clear(pending)
            parts = None
        for piece, reason in await self._marks.confirm():
            for i in piece:
                if isinstance(self.results[i], Job):
                    self.fail((i,), DurabilityError(reason, self.results[i].id))
        self._raise_failure(range(len(self.rows)))
        return self.results

    def _raise_failure(self, positions: Iterable[int]) -> None:
        failure = next((i for i in positions if isinstance(self.results[i], Exception)), None) if self._failed else None
        if failure is not None:
            raise BulkAddError(self.results) from self.results[failure]

    async def _add(self, pending: Sequence[int], parts: list[Part] | None) -> None:
        """Route jobs that are to be sent, and send them: dependencies before the jobs in other partitions."""
        home, relations = self._home, self.relations
        await home._plain_link()
        self._partitions = home._partitions
        if parts is None:
            parts = [(home, pending)]
            if self._partitions is not None:
                routes = Routes(home)
                for i in pending:
                    routes.put(i, self._key(i) if self._keys is None else self._keys.get(i))
                parts = routes.parts
        for queue, _ in parts:
            await self._marks.cover(queue._keys.meta, queue._confirmer)
        if relations is None:
            return await self._send_all(parts)
        part_of = {i: queue.name for queue, mine in parts for i in mine}
        errors = await relations.check(self._link, {i: part_of[i] for i in relations.options if i in part_of})
        for i, error in errors.items():
            self.fail((i,), error)
        while left := [i for i in pending if self.results[i] is None]:
            ready = self._ready(left, part_of)
            if not ready:
                break
            await self._send_all([(queue, [i for i in mine if i in ready]) for queue, mine in parts])
        # Others wait for jobs that were refused, so they are routed again too.
        self.fail([i for i in pending if self.results[i] is None], LayoutChangedError())
        return None

    def _key(self, i: int) -> str | None:
        try:
            return routing_key(self.given[i][2])
        except GlideMQValidationError as error:
            name_within(error, f"jobs[{i}]")
            raise

    def _ready(self, pending: Sequence[int], part_of: Mapping[int, str]) -> set[int]:
        """Return the jobs whose dependencies were added, or are added by the same calls; reject those without."""
        assert self.relations is not None
        ready = set[int]()
        for i in pending:
            needed = self.relations.within.get(i, {})
            for ref, at in needed.items():
                done = self.results[at]
                if done is None or isinstance(done, LayoutChangedError):
                    if at not in ready or part_of[at] != part_of[i]:
                        break
                elif isinstance(done, Exception):
                    self.fail((i,), missing_dependency(JobRef(self._home.name, ref.id)))
                    break
            else:
                ready.add(i)
        return ready

    async def _send_all(self, parts: Sequence[Part]) -> None:
        if self._partitions is None:
            await self._send_within(*parts[0])
        else:
            await self._home._together(self._send_to(queue, mine) for queue, mine in parts if mine)

    def _send_within(self, queue: ConnectedQueue, mine: Sequence[int]) -> Awaitable[None]:
        return self.send(queue, mine) if self._around is None else self._around(self, queue, mine)

    async def _send_to(self, queue: ConnectedQueue, mine: Sequence[int]) -> None:
        try:
            await self._send_within(queue, mine)
        except GlideMQError as error:
            self.fail(mine, error)

    def clear(self, positions: Sequence[int]) -> None:
        """Let jobs have no result, so that they can be sent again."""
        for i in positions:
            self.results[i] = None

    def fail(self, positions: Sequence[int], error: Exception) -> None:
        """Let an error be the result of jobs."""
        for i in positions:
            self.results[i], self._failed = error, True

    async def send(self, queue: ConnectedQueue, mine: Sequence[int]) -> None:
        """Send jobs to a queue or partition, and set their results."""
        link, relations = await queue._connected(), self.relations
        if relations is not None:
            for i in mine:
                if i in relations.options:
                    self.rows[i] = relations.row(i, link, *self.entries[i])
                relations.added[i] = JobRef(queue.name, self.entries[i][2].job_id or "")
        work = partial(self._send_chunks, queue, link, mine)
        with contextlib.suppress(BulkAddError):
            if TELEMETRY.on:
                rows = [self.rows[i] for i in mine]
                await observed("add_bulk", queue._shown_name, queue._transport, rows, work)
            else:
                await work()
            if not link.is_listed and mine:
                await queue_list.register(link)

    async def _send_chunks(self, queue: ConnectedQueue, link: QueueLink, mine: Sequence[int]) -> None:
        """Send jobs. Raises BulkAddError if some were not added; all have results then."""
        meta, quiet, add, rows = link.keys.meta, not queue.options.events, queue._add_call, self.rows
        in_flight: tuple[Sequence[int], Awaitable[AddReply | GlideMQError]] | None = None
        for piece in chunks(mine, CHUNK_ROWS, lambda i: len(rows[i][DATA])):  # type: ignore[arg-type]
            if self._marks.durability is not None:
                await self._marks.renew()
                add = marked_call(queue._layout_number, self._marks.next(piece, meta))
            call = add(meta, [*map(rows.__getitem__, piece)], quiet)
            reply = None if in_flight is None else await in_flight[1]
            if isinstance(reply, GlideMQError):
                break
            begun: Awaitable[AddReply | GlideMQError]
            begun = work = self._call(link, piece, call)
            if len(piece) < len(mine):
                # Send it before creating the previous chunk's jobs and before packing the next chunk.
                begun = await link.runtime.begin(work)
            if in_flight is not None and reply is not None:
                self._read_reply(link, in_flight[0], reply)
            in_flight = piece, begun
        if in_flight is not None:
            reply = await in_flight[1]
            if isinstance(reply, GlideMQError):
                self.fail(in_flight[0], reply)
                self._marks.drop(in_flight[0])
                if not isinstance(reply, LayoutChangedError):
                    reply = GlideMQConnectionError("not sent: an earlier part of the bulk failed")
                self.fail([i for i in mine if self.results[i] is None], reply)
            else:
                self._read_reply(link, in_flight[0], reply)
        self._raise_failure(mine)

    async def _call(self, link: QueueLink, piece: Sequence[int], call: Any) -> AddReply | GlideMQError:
        try:
            reply: AddReply = await link.transport.call(call)
            if self.relations is None:
                return reply
            rows = [self.rows[i] for i in piece]
            return AddReply(reply.now, await self.relations.register(link, piece, reply.results, rows))
        except GlideMQError as error:
            return error

    def _read_reply(self, link: QueueLink, piece: Sequence[int], reply: AddReply) -> None:
        now, entries, results = reply.now, self.entries, self.results
        for i, result in zip(piece, reply.results, strict=True):
            try:
                name, data, options = entries[i]
                results[i] = added_job(link, name, data, options, now, result)
            except (FairKeyFullError, GlideMQValidationError, JobNotFoundError, JobStateError) as error:
                self.fail((i,), error)


def added_job(link: QueueLink, name: str, data: Any, options: JobOptions, now: int, result: Any) -> Job:
    """Return the job of a row's result.

    Raises:
        GlideMQValidationError: If the job was rejected because of its ``cost``.
        FairKeyFullError: If the fair key of the job has its maximum backlog.
        JobNotFoundError: If its parent, or a job that it depends on, does not exist.
        JobStateError: If its parent has already ended.
        GlideMQValidationError: If a job with its ordering key waits for it.
    """
    if type(result) is str:
        job: Job = Job(link, result, name)
        job.timestamp = now
    elif isinstance(result, Exception):
        raise result
    else:
        outcome, job_id = result
        if outcome == "cost":
            raise cost_error(options.cost, options.ordering)
        if outcome == "backlog":
            raise FairKeyFullError(options.fair_key, int(job_id))
        if outcome == "parent":
            assert options.parent is not None
            raise invalid_parent(options.parent, job_id)
        if outcome == "dependency":
            is_given = link.partition is None or any(ref.id == job_id for ref in options.depends_on or ())
            shown = job_id if is_given or link.partition is None else link.partition.id_of(job_id)
            raise JobNotFoundError(shown, f"in queue {link.queue_name!r} (depends_on)")
        job = Job(link, job_id, name)
        job.outcome = JobOutcome(outcome)
        if job.outcome in ADDED_OUTCOMES:
            job.timestamp = now
    job._data = data
    if options is NO_OPTIONS:
        return job
    if job.outcome is JobOutcome.ADDED or job.outcome in ADDED_OUTCOMES:
        job._given = options
        job._delay = options.delay or 0
    if options.priority or options.rank:
        job.priority, job._rank = options.placed_priority, options.placed_rank
    return job
