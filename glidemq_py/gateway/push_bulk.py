"""Adding the jobs of a command: all or none, each in the partition of its key. A queue without partitions has one part.

The key is the unique key, the group, or the id that the client has chosen. Jobs without one go to one partition per 250
jobs. Then the gateway makes their ids, which contain the number of the partition.

Up to `ROWS_AT_ONCE` jobs of one partition are added in one atomic call, together with those of other commands. Others
are staged in all partitions first, then committed in one step, and then added piece by piece: no worker sees a part of
a refused push, and a committed one is added even if this process dies.

A commit cannot refuse a job. So jobs that may be refused are added by a call per partition, and deleted again if one of
them is refused: those with a parent or dependencies, durable ones, and those of groups while groups have limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from graphlib import TopologicalSorter
from typing import Any, Final, cast

from glidemq_py._api.adds import Part, Plan, Routes, added_job, rerouted
from glidemq_py._api.coalescer import AddCoalescer
from glidemq_py._api.job_queue import Queue
from glidemq_py._core.calls import administration, pieces
from glidemq_py._core.calls.adding import DATA, Row, request
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.logs import get_logger
from glidemq_py._core.option_values import JobRef
from glidemq_py._core.queue_options import Durability, parse_durable
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
    FairKeyFullError,
    GlideMQError,
    JobNotFoundError,
    LayoutChangedError,
    PartitionedQueueError,
    StagedWriteError,
)
from glidemq_py.gateway.names import wire_name
from glidemq_py.gateway.push_options import (
    JOB_FIELDS,
    Push,
    again,
    chosen_id,
    key_of,
    missing_job,
    once_more,
    push_of,
    reject_two_keys,
    take_back,
)
from glidemq_py.gateway.push_rows import (
    ID,
    NAME,
    GroupSize,
    added_rows,
    group_size,
    new_row,
    set_group_sizes,
    usual_row,
    with_id,
)
from glidemq_py.gateway.session import Way
from glidemq_py.gateway.state import GatewayState
from glidemq_py.gateway.table import CommandError, check_all, is_map
from glidemq_py.telemetry.spans import observed_add
from glidemq_py.telemetry.state import TELEMETRY

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
    """The jobs of a command; PUSH has one.

    A job whose chosen id is that of an unfinished job is not added again; of two with one id, the first is added.

    Args:
        state: The gateway.
        queue: The queue.
        given: Their fields, unchecked.
        is_many: Whether errors name the position of a job.

    Attributes:
        way: How they are added, once they are checked. They are sent at once, in one call, unless they go alone.
    """

    def __init__(
        self, state: GatewayState, queue: Queue, given: Sequence[Any], *, is_many: bool = True
    ) -> None:  # fmt: skip
        self._is_many = is_many
        self._state, self._ids, self._queue, self._given = state, state.ids, queue, given
        self._claimed: dict[str, str] = {}
        """The entries of the chosen ids that were claimed."""
        self._is_complete = True
        """Whether all jobs are added, and not only committed."""
        self._clear()

    def _clear(self) -> None:
        self.way = Way.TOGETHER
        self._made: list[tuple[Row, JobOptions]] = []
        """The rows and the options of the jobs."""
        self._pushes: dict[int, Push] = {}
        """Those with other than usual options."""
        self._places: dict[int, int] = {}
        """The positions in the rows by the positions of the jobs; empty while each job has a row of its own."""
        self._keys: dict[int, str] = {}
        """What chooses the partitions of jobs."""
        self._chosen: dict[int, str] = {}
        """The ids that the client has chosen."""
        self._by_id: dict[str, int] = {}
        """Positions of these jobs by their ids, as this package stores them."""
        self._sizes: dict[int, GroupSize] = {}
        """The maximum sizes of the groups of jobs."""
        self._sent: list[tuple[Queue, Sequence[int], list[Row]]] = []
        """The jobs that were sent to each partition, and their rows with their ids there."""
        self._is_durable = self._is_related = False
        """Whether a job is durable; whether one has a parent or dependencies."""

    async def add(self, added: Callable[[], None] | None = None) -> list[str]:
        """Add the jobs, which were checked, all or none; return their ids on the wire.

        Args:
            added: Called when they were added, and are not yet durable.

        Raises:
            CommandError: If a job is invalid or refused. None was added, except those that have started meanwhile.
            GlideMQError: If a call failed.
        """
        try:
            wire = await self._add(added)
        except LayoutChangedError as error:
            wire = await rerouted(partial(self._add_again, added), error)
        if self._claimed and self._is_complete:
            self._ids.chosen.added(self._claimed)
        return [wire[self._places.get(i, i)] for i in range(len(self._given))] if self._places else wire

    async def _add_again(self, added: Callable[[], None] | None, refusal: LayoutChangedError | None) -> list[str]:
        # Of many commands that were refused together, the first one renews the layout, also for the others.
        if refusal is None or not self._queue._is_renewed_after(refusal):
            await self._queue._renew_layout(refused=True)
        self._clear()
        await self.check()
        return await self._add(added)

    async def _add(self, added: Callable[[], None] | None) -> list[str]:
        try:
            if self.way is Way.ALONE:  # a client that leaves must not stop it halfway
                return await self._state.finished(self._add_alone())
            ((part, sent, rows),) = self._sent
            link = part._link or await part._connected()
        except PartitionedQueueError:
            raise LayoutChangedError from None  # nothing was added
        results = await self._reply(part, link, rows, added) if rows else []
        if not link.is_listed:
            await register(link)
        self._note_added(part)
        if results == [row[ID] for row in rows]:
            return await self._wire_ids({}) if self._chosen else results
        return await self._outcomes(link, sent, results)

    async def _add_alone(self) -> list[str]:
        return await (self._add_staged() if await self._is_staged() else self._add_at_once())

    async def check(self) -> None:
        """Check and encode the jobs, and choose their partitions.

        Raises:
            CommandError: If a job is invalid.
            GlideMQValidationError: The same.
        """
        ids, queue, given = self._ids, self._queue, self._given
        if len(given) > MOST_JOBS:
            raise CommandError(f"jobs must have at most {MOST_JOBS} items")
        link, made = queue._link or await queue._first_connected(), self._made
        routes = None if queue._partitions is None else Routes(queue)
        for number, each in enumerate(given):
            if number % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
                await asyncio.sleep(0)  # other connections are served meanwhile
            where = f"jobs[{number}].data" if self._is_many else "data"
            usual = usual_row(queue, link, ids, each, where) if each.__class__ is dict else None
            if usual is not None:
                made.append(usual)
            elif not await self._check_unusual(link, number, each):
                continue
            if self._places:
                self._places[number] = len(made) - 1
            if routes is not None:
                routes.put(len(made) - 1, self._keys.get(len(made) - 1))
        self._parts: list[Part] = [(queue, range(len(made)))] if routes is None else routes.parts
        count = len(made)
        self._is_large = count > ROWS_AT_ONCE or (
            count > 1 and sum([_size(row) for row, _ in made[:-1]]) >= _CHARS_AT_ONCE
        )
        if self._is_large:
            self._reject_refusable()
        is_many = count > 1 and (self._is_durable or TELEMETRY.on)
        if self._is_large or len(self._parts) > 1 or self._is_related or is_many:
            self.way = Way.ALONE
        elif routes is None and not self._pushes:
            self._sent.append((queue, range(count), [row for row, _ in made]))
        else:
            self.way = Way.DURABLE if self._is_durable else Way.TOGETHER
            await self._place(*self._parts[0])

    def _prefix(self, number: int) -> str:
        return f"jobs[{number}]: " if self._is_many else ""

    async def _check_unusual(self, link: QueueLink, number: int, given: Any) -> bool:
        """Check and encode a job; return False if an earlier one has its id."""
        ids, queue, i = self._ids, self._queue, len(self._made)
        try:
            if not is_map(given):
                raise CommandError("must be a map")
            fields = check_all(JOB_FIELDS, given)
            push = await push_of(ids, queue.name, fields, self._beside)
            if queue._partitions is not None:
                reject_two_keys(queue, fields, push[2])
            chosen, size = chosen_id(fields), group_size(fields)
        except CommandError as error:
            raise CommandError(f"{self._prefix(number)}{error}") from None
        made = new_row(queue, link, given, push, number if self._is_many else None)
        self._is_durable = self._is_durable or fields["durable"]
        if chosen is not None and (place := self._by_id.setdefault(push[2]["job_id"], i)) != i:
            self._places = self._places or {at: at for at in range(number)}
            self._places[number] = place
            return False
        if chosen is not None:
            self._chosen[i] = chosen
        if size is not None:
            self._sizes[i] = size
        key = key_of(fields, push[2])
        if key is not None:
            self._keys[i] = key
        self._is_related = self._is_related or not _REFERENCES.keys().isdisjoint(push[2])
        self._pushes[i] = push
        self._made.append(made)
        return True

    @cached_property
    def _beside(self) -> set[str]:
        """The ids that the client has chosen for jobs of the command."""
        named = (each.get(name) for each in self._given if is_map(each) for name in ("jobId", "customId"))
        return {each for each in named if isinstance(each, str)}

    def _number_of(self, i: int) -> int:
        """Return the position of a job as it was given."""
        return next((number for number, at in self._places.items() if at == i), i)

    def _push_at(self, i: int) -> Push:
        row = self._made[i][0]
        return self._pushes.get(i) or (str(row[NAME]), None, {"job_id": row[ID]})

    def _reject_refusable(self) -> None:
        """Reject what only a call of its own can check or confirm."""
        size = f"a PUSHB of more than {ROWS_AT_ONCE} jobs or {_CHARS_AT_ONCE} characters"
        if self._is_durable:
            raise CommandError(f"durable is not supported in {size}")
        for i, (_, _, options) in self._pushes.items():
            for option, field in _REFERENCES.items():
                if option in options:
                    raise CommandError(f"{self._prefix(self._number_of(i))}{field} is not supported in {size}")

    async def _is_staged(self) -> bool:
        """Return whether the jobs are too many for a call, or go to several partitions, and none may be refused."""
        if self._is_large or len(self._parts) == 1 or self._is_durable or self._is_related or self._sizes:
            return self._is_large
        groups = [part for part, mine in self._parts if any("fair_key" in self._push_at(i)[2] for i in mine)]
        links = [await part._connected() for part in groups]
        return not any(
            await asyncio.gather(*(link.command("EXISTS", f"{link.keys.stem}{_GROUP_LIMITS}") for link in links))
        )

    async def _place(self, part: Queue, mine: Sequence[int]) -> tuple[Sequence[int], list[Row]]:
        """Claim the chosen ids of jobs for a partition, and set the sizes of their groups.

        Returns:
            The jobs that no unfinished one has the id of, and their rows with their ids in the partition.
        """
        chosen, ids = [self._chosen[i] for i in mine if i in self._chosen], self._ids
        known = await ids.claim(part.name, chosen, self._claimed) if chosen else ()
        sent = [i for i in mine if self._chosen.get(i) not in known] if known else mine
        await set_group_sizes(self._queue, [self._sizes[i] for i in sent if i in self._sizes] if self._sizes else ())
        rows = [self._made[i][0] for i in sent]
        if part.name != self._queue.name:  # else the ids are those of the partition
            for at, i in enumerate(sent):
                if at % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
                    await asyncio.sleep(0)
                if i not in self._chosen:
                    rows[at] = with_id(rows[at], await ids.make(part.name))
        self._sent.append((part, sent, rows))
        return sent, rows

    def _wire_id(self, i: int, row: Row) -> str:
        return self._chosen.get(i) or cast("str", row[ID])

    async def _wire_ids(self, results: Mapping[int, Job]) -> list[str]:
        """Return the ids of all jobs, given those that were sent."""
        wire: list[str] = [self._wire_id(i, row) for i, (row, _) in enumerate(self._made)]
        for _, sent, rows in self._sent:
            for i, row in zip(sent, rows, strict=True):
                job = results.get(i)
                if job is None or job._stored_id == row[ID]:
                    wire[i] = self._wire_id(i, row)
                else:
                    wire[i] = await self._ids.on_wire(self._queue.name, job.id)
        return wire

    def _note_added(self, part: Queue) -> None:
        if part is not self._queue and (hub := self._state.hubs.get(part.name)):
            hub.look()

    # -- together with other commands -------------------------------------------------------------------------

    async def _outcomes(self, link: QueueLink, sent: Sequence[int], results: Sequence[Any]) -> list[str]:
        """Return the ids on the wire from the results of the rows.

        Raises:
            CommandError: If a job was refused.
        """
        jobs: dict[int, Job] = {}
        failures: dict[int, GlideMQError] = {}
        for i, result in zip(sent, results, strict=True):
            name, data, _ = self._push_at(i)
            try:
                jobs[i] = added_job(link, name, data, self._made[i][1], 0, result)
            except GlideMQError as error:
                failures[i] = error
        if failures:
            raise await self._refused({**jobs, **failures})
        return await self._wire_ids(jobs)

    async def _reply(
        self, part: Queue, link: QueueLink, rows: list[Row], added: Callable[[], None] | None
    ) -> list[Any]:  # fmt: skip
        """Return the result of each row."""
        adder = part._adder
        if self._is_durable:
            adds = await part._durable_adds(cast("Durability", parse_durable(True)))
            return [(await again(lambda: adds.add(rows[0], added)))[1]]
        if not isinstance(adder, AddCoalescer):
            adder = cast("AddCoalescer", await part._adder_here())
        if hub := self._state.hubs.get(part.name):
            hub.expect_job()
        if TELEMETRY.on:
            add, options = adder.add, self._made[0][1]
            return [(await again(lambda: observed_add(add, part._shown_name, link.transport, rows[0], options)))[1]]
        try:
            return (await adder.start(rows))[1]
        except AmbiguousResultError as lost:
            return (await once_more(lost, lambda: adder.start(rows), lambda: added_rows(link, rows)))[1]

    async def _refused(self, results: Mapping[int, Any]) -> CommandError:
        """Delete the jobs that were added, unless they have started; return the error of the first other one."""
        i, error = next((i, each) for i, each in sorted(results.items()) if isinstance(each, Exception))
        if isinstance(error, JobNotFoundError):
            what = missing_job(error, self._push_at(i)[2])
        elif isinstance(error, FairKeyFullError) and len(self._given) == 1:
            size = f" of {self._sizes[i][1]}" if i in self._sizes else ""
            return CommandError(f"Group {error.key} has reached its maximum size{size}")
        else:
            what = str(error)
        is_of_call = isinstance(error, CommandError) or (
            len(results) > 1 and all(each is error for each in results.values())
        )
        message = what if is_of_call else f"{self._prefix(self._number_of(i))}{what}"
        placed = {
            i: (part, str(row[ID]))
            for part, sent, rows in self._sent
            for i, row in zip(sent, rows, strict=True)
            if isinstance(each := results.get(i), AmbiguousResultError)
            or (isinstance(each, Job) and each.outcome in ADDED_OUTCOMES)
        }
        needed = {
            i: [self._by_id[each] for each in self._push_at(i)[2].get("depends_on", ()) if each in self._by_id]
            for i in placed
        }
        waiting_first = [*TopologicalSorter(needed).static_order()][::-1]
        return CommandError(
            message + await take_back(self._queue.name, [placed[i] for i in waiting_first if i in placed])
        )

    # -- one call per partition -------------------------------------------------------------------------------

    async def _add_at_once(self) -> list[str]:
        entries = [(*self._push_at(i)[:2], options) for i, (_, options) in enumerate(self._made)]
        durability, link = parse_durable(True) if self._is_durable else None, await self._queue._first_connected()
        plan = Plan(
            self._queue, link, entries, durability, self._add_some, self._by_id, [row for row, _ in self._made],
            self._keys,
        )  # fmt: skip
        try:
            await plan.run(None if self._is_related else self._parts)  # then dependencies come first
        except BulkAddError:
            raise await self._refused(dict(enumerate(plan.results))) from None
        return await self._wire_ids({i: each for i, each in enumerate(plan.results) if each is not _EXISTS})

    async def _add_some(self, plan: Plan, part: Queue, mine: Sequence[int]) -> None:
        """Add jobs of a plan to a partition, with the ids that it makes."""
        results, relations = plan.results, plan.relations
        try:
            sent, rows = await self._place(part, mine)
        except CommandError as error:
            return plan.fail(mine, error)
        for i, row in zip(sent, rows, strict=True):
            plan.rows[i] = row
            if relations is not None:  # it names jobs by the ids in their options
                name, data, given = self._push_at(i)
                plan.entries[i] = name, data, part._options({**given, "job_id": row[ID]})
        if sent:
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

    # -- staged -----------------------------------------------------------------------------------------------

    async def _add_staged(self) -> list[str]:
        for part, mine in self._parts:
            await self._place(part, mine)
        staged = [each for each in self._sent if each[1]]
        wire = await self._wire_ids({})
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
        self, part: Queue, link: QueueLink, sent: Sequence[int], rows: Sequence[Row], wire: list[str]
    ) -> None:  # fmt: skip
        """Set the ids on the wire of jobs whose unique key is that of an existing job, which has prevented them."""
        keyed = {str(row[ID]): i for i, row in zip(sent, rows, strict=True) if "deduplication" in self._push_at(i)[2]}
        missing = dict(keyed)
        for some in pieces([*keyed], ROWS_AT_ONCE):
            for job_id, _ in await link.call(administration.records, some, ("timestamp",)):
                missing.pop(job_id, None)
        for left in pieces([*missing.values()], _HOLDERS_TOGETHER):
            keys = [self._push_at(i)[2]["deduplication"]["id"] for i in left]
            holders = await asyncio.gather(*map(part.jobs.get_deduplicated, keys))
            for i, holder in zip(left, holders, strict=True):
                if holder is not None:
                    wire[i] = await self._ids.on_wire(self._queue.name, holder.id)

    async def _stage(self, parts: Sequence[tuple[Queue, Sequence[Row]]]) -> bool:
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
