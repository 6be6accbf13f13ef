"""PUSHB: many jobs, all or none, each in the partition of its key. A queue without partitions has one part.

Jobs without a key go to one partition per 250 jobs. Up to `ROWS_AT_ONCE` jobs of one partition are added in one atomic
call. Others are staged in all partitions first, then committed in one step, and then added piece by piece: no worker
sees a part of a refused push, and a committed one is added even if this process dies.

A commit cannot refuse a job. So jobs that may be refused are added by a call per partition, and deleted again if one of
them is refused: those with a parent or dependencies, durable ones, and those of groups while groups have limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Coroutine, Sequence
from graphlib import TopologicalSorter
from typing import Any, Final, cast

from glidemq_py._api.adds import Part, Plan, Routes, rerouted
from glidemq_py._api.coalescer import AddCoalescer
from glidemq_py._api.job_queue import Queue
from glidemq_py._core.calls import administration, pieces
from glidemq_py._core.calls.adding import DATA, Row, request
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.logs import get_logger
from glidemq_py._core.option_values import JobRef
from glidemq_py._core.queue_options import parse_durable
from glidemq_py._core.record import ADDED_OUTCOMES
from glidemq_py._features.flows.plan import chunks
from glidemq_py._features.queue_list import register
from glidemq_py._features.staged_writes import (
    WriteId,
    decide_write,
    open_write,
    publish_write,
    run_async,
    stage,
    undo_write,
)
from glidemq_py._job.job import Job
from glidemq_py._partitions.layout import split_partition_id
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.stored import read_layout
from glidemq_py.errors import (
    AmbiguousResultError,
    BulkAddError,
    GlideMQError,
    JobNotFoundError,
    LayoutChangedError,
    PartitionedQueueError,
    StagedWriteError,
)
from glidemq_py.gateway.job_ids import JobIds
from glidemq_py.gateway.names import wire_name
from glidemq_py.gateway.push_one import key_of, reject_two_keys
from glidemq_py.gateway.push_options import JOB_FIELDS, Push, again, chosen_id, missing_job, push_of, take_back
from glidemq_py.gateway.push_rows import (
    ID,
    GroupSize,
    added_rows,
    group_size,
    remember_usual,
    row_of,
    set_group_sizes,
    usual_row,
    with_id,
)
from glidemq_py.gateway.session import Session, Way
from glidemq_py.gateway.table import CommandError, check_all, is_map
from glidemq_py.telemetry.state import TELEMETRY

__all__ = ["MOST_JOBS", "ROWS_AT_ONCE", "Bulk", "add_usual", "begin_usual", "usual_rows"]

_log = get_logger(__name__)

MOST_JOBS: Final = 100_000
ROWS_AT_ONCE: Final = 250
"""Jobs of one atomic call: about 2 ms of server time. As many are checked or encoded in a turn of the event loop."""
_CHARS_AT_ONCE: Final = 512 * 1_024
_PIECES_TOGETHER: Final = 8
_HOLDERS_TOGETHER: Final = 50
_WRITE_MS: Final = 60_000
"""Lifetime of staged jobs without any change, and of the memory of the write."""
_REFERENCES: Final = {"parent": "parentId", "depends_on": "dependsOn"}
_GROUP_LIMITS: Final = "fair-limits"
"""Key of a queue or partition that exists while groups have limits."""


def _size(row: Row) -> int:
    return len(row[DATA])  # type: ignore[arg-type]


_EXISTS: Final = object()
"""The result of a job that was not added, because an unfinished one has its id."""


class Bulk:
    """The jobs of a command.

    A job whose chosen id is that of an unfinished job is not added again; of two with one id, the first is added.

    Args:
        ids: Makes and reads ids.
        queue: The queue.
        given: Their fields, unchecked.
        added: Called with the name of each partition that has got jobs, if the queue is partitioned.
    """

    def __init__(
        self, ids: JobIds, queue: Queue[Any, Any], given: Sequence[Any], added: Callable[[str], None]
    ) -> None:  # fmt: skip
        self._ids, self._queue, self._given, self._added = ids, queue, given, added
        self._claimed: dict[str, str] = {}
        """The entries of the chosen ids that were claimed."""
        self._is_complete = True
        """Whether all jobs are added, and not only committed."""
        self._clear()

    def _clear(self) -> None:
        self._places: list[int] = []
        """The position, in what follows, of each job that was given: those with one chosen id have the same."""
        self._pushes: list[Push] = []
        """The jobs. Those with usual options have neither data nor other options than their id here."""
        self._rows: list[Row] = []
        self._options: list[JobOptions] = []
        self._keys: dict[int, str] = {}
        """What chooses the partitions of jobs."""
        self._chosen: dict[int, str] = {}
        """The ids that the client has chosen."""
        self._by_id: dict[str, int] = {}
        """Positions of these jobs by their ids, as this package stores them."""
        self._sizes: dict[int, GroupSize] = {}
        """The maximum sizes of the groups of jobs."""
        self._sent: list[tuple[Queue[Any, Any], Sequence[int]]] = []
        """The jobs that were sent to each partition."""
        self._is_durable = self._is_related = False
        """Whether a job is durable; whether one has a parent or dependencies."""

    async def add(self) -> list[str]:
        """Add the jobs, all or none; return their ids on the wire.

        Raises:
            CommandError: If a job is invalid or refused. None was added, except those that have started meanwhile.
            GlideMQError: If a call failed.
        """
        found = await rerouted(self._add)
        if self._is_complete:
            self._ids.chosen.added(self._claimed)
        return [found[i] for i in self._places]

    async def _add(self, refusal: LayoutChangedError | None) -> list[str]:
        if refusal is not None:
            await self._queue._renew_layout(refused=True)
        await self.check()
        try:
            return await (self._add_staged() if await self._is_staged() else self._add_at_once())
        except PartitionedQueueError:
            raise LayoutChangedError from None  # nothing was added

    async def check(self) -> None:
        """Check and encode the jobs, and choose their partitions.

        Raises:
            CommandError: If a job is invalid.
            GlideMQValidationError: The same.
        """
        ids, queue, given = self._ids, self._queue, self._given
        if len(given) > MOST_JOBS:
            raise CommandError(f"jobs must have at most {MOST_JOBS} items")
        self._clear()
        named = [each.get(name) for each in given if is_map(each) for name in ("jobId", "customId")]
        beside = {each for each in named if isinstance(each, str)}
        link, rows, routes = await queue._first_connected(), self._rows, Routes(queue)
        is_partitioned = queue._partitions is not None
        for number, each in enumerate(given):
            if number % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
                await asyncio.sleep(0)  # other connections are served meanwhile
            if not is_map(each):
                raise CommandError(f"jobs[{number}]: must be a map")
            i = len(rows)
            made = usual_row(queue, link, ids, each, f"jobs[{number}].data")
            if made is not None:
                push: Push = str(each["name"]), None, {"job_id": made[0][ID]}
            else:
                try:
                    fields = check_all(JOB_FIELDS, each)
                    push = await push_of(ids, queue.name, fields, beside)
                    if is_partitioned:
                        reject_two_keys(queue, fields, push[2])
                    chosen, size = chosen_id(fields), group_size(fields)
                except CommandError as error:
                    raise CommandError(f"jobs[{number}]: {error}") from None
                made = row_of(queue, link, push, number)
                self._is_durable = self._is_durable or fields["durable"]
                if chosen is None:
                    remember_usual(each, push)
                elif (place := self._by_id.setdefault(push[2]["job_id"], i)) != i:
                    self._places.append(place)
                    continue
                else:
                    self._chosen[i] = chosen
                if size is not None:
                    self._sizes[i] = size
                key = key_of(fields, push[2])
                if key is not None:
                    self._keys[i] = key
                self._is_related = self._is_related or not _REFERENCES.keys().isdisjoint(push[2])
            self._places.append(i)
            self._pushes.append(push)
            rows.append(made[0])
            self._options.append(made[1])
            if is_partitioned:
                routes.put(i, self._keys.get(i))
        self._parts: list[Part] = routes.parts if is_partitioned else [(queue, range(len(rows)))]
        self._is_large = len(rows) > ROWS_AT_ONCE or sum(map(_size, rows[:-1])) >= _CHARS_AT_ONCE
        if self._is_large:
            self._reject_refusable()

    def _reject_refusable(self) -> None:
        """Reject what only a call of its own can check or confirm."""
        size = f"a PUSHB of more than {ROWS_AT_ONCE} jobs or {_CHARS_AT_ONCE} characters"
        if self._is_durable:
            raise CommandError(f"durable is not supported in {size}")
        for i, (_, _, options) in enumerate(self._pushes if self._is_related else ()):
            for option, field in _REFERENCES.items():
                if option in options:
                    raise CommandError(f"jobs[{self._places.index(i)}]: {field} is not supported in {size}")

    async def _is_staged(self) -> bool:
        """Return whether the jobs are too many for a call, or go to several partitions, and none may be refused."""
        if self._is_large or len(self._parts) == 1 or self._is_durable or self._is_related or self._sizes:
            return self._is_large
        groups = [part for part, mine in self._parts if any("fair_key" in self._pushes[i][2] for i in mine)]
        links = [await part._connected() for part in groups]
        return not any(
            await asyncio.gather(*(link.command("EXISTS", f"{link.keys.stem}{_GROUP_LIMITS}") for link in links))
        )

    async def _place(self, part: Queue[Any, Any], mine: Sequence[int]) -> tuple[Sequence[int], list[Row]]:
        """Claim the chosen ids of jobs for a partition, and set the sizes of their groups.

        Returns:
            The jobs that no unfinished one has the id of, and their rows with their ids in the partition.
        """
        chosen, ids = [self._chosen[i] for i in mine if i in self._chosen], self._ids
        known = await ids.claim(part.name, chosen, self._claimed) if chosen else ()
        sent = [i for i in mine if self._chosen.get(i) not in known] if known else mine
        await set_group_sizes(self._queue, [self._sizes[i] for i in sent if i in self._sizes] if self._sizes else ())
        rows = [*map(self._rows.__getitem__, sent)]
        if part.name != self._queue.name:  # else the ids are those of the partition
            for at, i in enumerate(sent):
                if at % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
                    await asyncio.sleep(0)
                if i not in self._chosen:
                    rows[at] = with_id(rows[at], await ids.make(part.name))
        return sent, rows

    def _note_added(self, part: Queue[Any, Any]) -> None:
        if part is not self._queue:
            self._added(part.name)

    # -- one call per partition -------------------------------------------------------------------------------

    async def _add_at_once(self) -> list[str]:
        entries = [(name, data, options) for (name, data, _), options in zip(self._pushes, self._options, strict=True)]
        durability, link = parse_durable(True) if self._is_durable else None, await self._queue._first_connected()
        plan = Plan(
            self._queue, link, entries, durability, self._add_some, self._by_id, [*self._rows], self._keys
        )  # fmt: skip
        try:
            await plan.run(None if self._is_related else self._parts)  # then dependencies come first
        except BulkAddError:
            raise CommandError(await self._taken_back(plan)) from None
        wire: list[str] = []
        for i, (job, row) in enumerate(zip(plan.results, plan.rows, strict=True)):
            is_own = job is _EXISTS or job._stored_id == row[ID]
            wire.append(self._wire_id(i, row) if is_own else await self._ids.on_wire(self._queue.name, job.id))
        return wire

    def _wire_id(self, i: int, row: Row) -> str:
        return self._chosen.get(i) or cast("str", row[ID])

    async def _add_some(self, plan: Plan, part: Queue[Any, Any], mine: Sequence[int]) -> None:
        """Add jobs of a plan to a partition, with the ids that it makes."""
        results, relations = plan.results, plan.relations
        try:
            sent, rows = await self._place(part, mine)
        except CommandError as error:
            return plan.fail(mine, error)
        for i, row in zip(sent, rows, strict=True):
            plan.rows[i] = row
            if relations is not None:  # it names jobs by the ids in their options
                name, data, given = self._pushes[i]
                plan.entries[i] = name, data, part._options({**given, "job_id": row[ID]})
        if sent:
            self._sent.append((part, sent))
            await plan.send(part, sent)
            if any(isinstance(results[i], AmbiguousResultError) and not results[i].timed_out for i in sent):
                plan.clear(sent)
                await plan.send(part, sent)  # the ids make it safe
                is_refused = isinstance(results[sent[0]], LayoutChangedError)
                if is_refused and await added_rows(await part._connected(), rows):
                    plan.clear(sent)
            self._note_added(part)
        for i in mine:
            if results[i] is None:
                results[i] = _EXISTS
                found = None if relations is None else await self._ids.find(self._wire_id(i, plan.rows[i]))
                if found is not None and relations is not None:
                    number, own = split_partition_id(found[1])
                    relations.added[i] = JobRef(self._queue._parts[number].name, own)
        return None

    async def _taken_back(self, plan: Plan) -> str:
        """Delete the jobs that were added, unless they have started; return the error of the first other one."""
        results = plan.results
        i, error = next((i, each) for i, each in enumerate(results) if isinstance(each, Exception))
        what = missing_job(error, self._pushes[i][2]) if isinstance(error, JobNotFoundError) else str(error)
        is_of_call = isinstance(error, CommandError) or (len(results) > 1 and all(each is error for each in results))
        message = what if is_of_call else f"jobs[{self._places.index(i)}]: {what}"
        placed = {
            i: (part, str(plan.rows[i][ID]))
            for part, sent in self._sent
            for i in sent
            if isinstance(each := results[i], AmbiguousResultError)
            or (isinstance(each, Job) and each.outcome in ADDED_OUTCOMES)
        }
        needed = {
            i: [self._by_id[each] for each in self._pushes[i][2].get("depends_on", ()) if each in self._by_id]
            for i in placed
        }
        waiting_first = [*TopologicalSorter(needed).static_order()][::-1]
        return message + await take_back(self._queue.name, [placed[i] for i in waiting_first if i in placed])

    # -- staged -----------------------------------------------------------------------------------------------

    async def _add_staged(self) -> list[str]:
        wire, staged = [""] * len(self._rows), list[tuple[Queue[Any, Any], Sequence[int], list[Row]]]()
        for i, chosen in self._chosen.items():
            wire[i] = chosen
        for part, mine in self._parts:
            sent, rows = await self._place(part, mine)
            for i, row in zip(sent, rows, strict=True):
                wire[i] = self._wire_id(i, row)
            if sent:
                staged.append((part, sent, rows))
        if staged:
            self._is_complete = await self._stage([(part, rows) for part, _, rows in staged])
        for part, sent, rows in staged:
            link = await part._connected()
            if not link.is_listed:
                await register(link)
            self._note_added(part)
            with contextlib.suppress(GlideMQError):  # the jobs are added all the same
                await self._name_holders(part, link, sent, rows, wire)
        return wire

    async def _name_holders(
        self, part: Queue[Any, Any], link: QueueLink, sent: Sequence[int], rows: Sequence[Row], wire: list[str]
    ) -> None:  # fmt: skip
        """Set the ids on the wire of jobs whose unique key is that of an existing job, which has prevented them."""
        keyed = {str(row[ID]): i for i, row in zip(sent, rows, strict=True) if "deduplication" in self._pushes[i][2]}
        missing = dict(keyed)
        for some in pieces([*keyed], ROWS_AT_ONCE):
            for job_id, _ in await link.call(administration.records, some, ("timestamp",)):
                missing.pop(job_id, None)
        for left in pieces([*missing.values()], _HOLDERS_TOGETHER):
            keys = [self._pushes[i][2]["deduplication"]["id"] for i in left]
            holders = await asyncio.gather(*map(part.jobs.get_deduplicated, keys))
            for i, holder in zip(left, holders, strict=True):
                if holder is not None:
                    wire[i] = await self._ids.on_wire(self._queue.name, holder.id)

    async def _stage(self, parts: Sequence[tuple[Queue[Any, Any], Sequence[Row]]]) -> bool:
        """Stage the jobs, commit them, and add them; return False if some are committed and not added yet.

        After the commit, jobs that could not be added are added by the maintenance of the queue.

        Raises:
            LayoutChangedError: If the queue has other partitions now. Nothing was added.
            GlideMQError: If a call failed before the commit. Nothing was added.
        """
        queue = self._queue
        link = await queue._first_connected()
        transport, quiet = link.transport, not queue.options.events
        layout = 0 if queue._partitions is None else queue._partitions.layout.number
        write = WriteId(id=f"gateway-{secrets.token_hex(12)}", home=link.keys, ttl=_WRITE_MS, keep=_WRITE_MS)
        staged: list[tuple[QueueKeys, str, bytes]] = []
        winners: dict[str, list[tuple[str, int]]] = {}
        for part, rows in parts:
            for number, piece in enumerate(chunks(rows, ROWS_AT_ONCE, _size)):
                staged.append((part._keys, f"p{number}", request(piece, quiet)))
                winners.setdefault(part.name, []).append((f"p{number}", 1))
                await asyncio.sleep(0)  # other connections are served meanwhile
        try:
            await transport.call(open_write(write, create=True))
            others = [name for name in winners if name != queue.name]
            await asyncio.gather(*(transport.call(open_write(write, create=False, queue=name)) for name in others))
            for some in pieces(staged, _PIECES_TOGETHER):
                calls = [stage(write, keys, attempt, 0, blob, unique=False) for keys, attempt, blob in some]
                for (keys, _, _), reply in zip(some, await asyncio.gather(*map(transport.call, calls)), strict=True):
                    if reply.state != "open":
                        raise StagedWriteError(write.id, keys.name, reply.state)
            found = await read_layout(transport, queue._keys)
            stored = 0 if found is None else found.number
            if stored != layout:
                raise LayoutChangedError(queue.name, stored, layout)
            await run_async(transport, decide_write(write, winners))
        except GlideMQError:
            if await run_async(transport, undo_write(write)):
                raise
            # The commit was applied, and its reply lost.
        try:
            await run_async(transport, publish_write(write))
        except GlideMQError as error:
            # An error would let the client add the jobs again.
            _log.warning(
                "gateway: queue %r: some jobs of a committed PUSHB are not added yet; the maintenance of the queue "
                "adds them: %s", wire_name(queue.name), error,
            )  # fmt: skip
            return False
        return True


# -- jobs with usual options -------------------------------------------------------------------------------------------


async def usual_rows(
    ids: JobIds, queue: Queue[Any, Any], given: Sequence[Any]
) -> tuple[QueueLink, list[Row]] | None:  # fmt: skip
    """Return the queue's connection, and the rows of jobs; None unless `add_usual` can add them.

    It can if they fit into one call, and others with their options were checked before.

    Args:
        ids: Makes ids.
        queue: The queue.
        given: The fields of the jobs, unchecked.

    Raises:
        GlideMQValidationError: If data is too large.
    """
    try:
        link = await queue._connected()
    except PartitionedQueueError:
        return None
    rows = _usual_rows(ids, queue, link, given)
    return None if rows is None else (link, rows)


def _usual_rows(ids: JobIds, queue: Queue[Any, Any], link: QueueLink, given: Sequence[Any]) -> list[Row] | None:
    if len(given) > ROWS_AT_ONCE or TELEMETRY.on:
        return None
    rows, chars = list[Row](), 0
    for number, each in enumerate(given):
        made = usual_row(queue, link, ids, each, f"jobs[{number}].data") if is_map(each) else None
        if made is None:
            return None
        rows.append(made[0])
        chars += _size(made[0])
    return rows if chars <= _CHARS_AT_ONCE else None


_Added = tuple[int, list[Any]]
_Ids = list[str]
_Finish = Callable[["asyncio.Future[_Added]"], "_Ids | Coroutine[Any, Any, _Ids]"]


def begin_usual(
    session: Session, name: str, given: Sequence[Any]
) -> tuple[asyncio.Future[_Added], _Finish] | None:  # fmt: skip
    """Send the jobs of a command at once if `add_usual` can add them, and none of earlier commands wait.

    Args:
        session: The connection of the client.
        name: Name of the queue.
        given: The fields of the jobs, unchecked.

    Returns:
        A future of the reply, and a function that returns the ids on the wire when it is done. If the reply is an
        error, the function returns a coroutine with the results and errors of `add_usual` instead. None if nothing was
        sent.
    """
    state = session.state
    queue = None if session.unplaced else state.known_queue(name)
    if queue is None or queue._closed:
        return None
    link, adder = queue._link, queue._adder
    if link is None or not link.is_listed or not isinstance(adder, AddCoalescer):
        return None
    try:
        rows = _usual_rows(state.ids, queue, link, given)
    except GlideMQError:
        return None  # the handler answers with the error
    place = None if rows is None else session.push_order.enter_now(name, Way.TOGETHER)
    if rows is None or place is None:
        return None
    state.maintain(queue)
    was_busy = adder.is_busy
    added = adder.start(rows)
    if not was_busy:
        state.adding(name)

    def finish(added: asyncio.Future[_Added]) -> list[str] | Coroutine[Any, Any, list[str]]:
        if added.cancelled():
            place.leave()
            raise asyncio.CancelledError
        if added.exception() is not None:
            return rest(added)
        place.leave()
        return _ids_of(rows)

    async def rest(added: asyncio.Future[_Added]) -> list[str]:
        with place:
            return await add_usual(adder, link, rows, added)

    return added, finish


async def add_usual(
    adder: AddCoalescer, link: QueueLink, rows: list[Row], first: asyncio.Future[_Added] | None = None
) -> list[str]:  # fmt: skip
    """Add the jobs of `usual_rows`, all or none; return their ids on the wire.

    Args:
        adder: Sends the rows, together with those of other commands.
        link: Connection of the queue.
        rows: The rows.
        first: The call that has sent them, if there was one.

    Raises:
        LayoutChangedError: If the queue has got partitions meanwhile. Nothing was added.
        GlideMQError: If the call failed.
    """
    attempts = [adder.start(rows)] if first is None else [first]
    await again(lambda: attempts.pop() if attempts else adder.start(rows), lambda: added_rows(link, rows))
    if not link.is_listed:
        await register(link)
    return _ids_of(rows)


def _ids_of(rows: Sequence[Row]) -> list[str]:
    """Return the ids of new jobs, which no other jobs have: they are the results of the add too."""
    return [cast("str", row[ID]) for row in rows]
