"""PUSHB to a partitioned queue: all jobs or none, each in the partition of its key.

Jobs without a key go to one partition per 250 jobs. If all go to one partition, one atomic call adds them. Otherwise
they are staged in all partitions first, and committed in one step, as larger commands are.

A commit cannot refuse a job. So jobs that may be refused are added by a call per partition, and deleted again if one of
them is refused: those with a parent or dependencies, durable ones, and those of groups while groups have limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from graphlib import TopologicalSorter
from typing import Any, Final, NamedTuple

from glidemq_py._api.adds import Part, Plan, Routes
from glidemq_py._api.job_queue import Queue
from glidemq_py._api.partitioned import PartitionedQueue
from glidemq_py._core.calls import pieces
from glidemq_py._core.calls.adding import DATA, Row
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.job_references import JobRef
from glidemq_py._core.job_states import ADDED_OUTCOMES
from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py._core.queue_options import parse_durable
from glidemq_py._partitions.layout import split_partition_id
from glidemq_py._partitions.stored import read_layout
from glidemq_py.errors import AmbiguousResultError, BulkAddError, GlideMQError, JobNotFoundError
from glidemq_py.gateway.group_limits import GroupSize, group_size, set_group_sizes
from glidemq_py.gateway.job_ids import JobIds
from glidemq_py.gateway.pushing import JOB_FIELDS, Push, chosen_id, missing_job, push_of
from glidemq_py.gateway.routed import reject_two_keys, routing_of
from glidemq_py.gateway.rows import row_of
from glidemq_py.gateway.table import CommandError, check_all, is_map
from glidemq_py.gateway.taking_back import take_back

__all__ = ["RoutedBulk", "check_layout"]

_ATTEMPTS: Final = 20
_TOGETHER: Final = 50
_BETWEEN_TURNS: Final = 250
"""Jobs that are checked or encoded in one turn of the event loop."""
_REFERENCES: Final = ("parent", "depends_on")
_GROUP_LIMITS: Final = "fair-limits"
"""Key of a queue or partition that exists while groups have limits."""


class _Part(NamedTuple):
    queue: Queue[Any, Any]
    rows: list[Row]


class _Known:
    """The result of a job that was not added, because its chosen id is that of an unfinished one."""

    outcome = "duplicate"

    def __init__(self, chosen: str) -> None:
        self.id = chosen


class RoutedBulk:
    """The jobs of a command.

    Args:
        ids: Makes and reads ids.
        queue: The queue.
        given: Their fields, unchecked.
        added: Called with the name of each partition that has got jobs.
        claimed: The entries of their chosen ids, as far as they were claimed before.
    """

    def __init__(
        self, ids: JobIds, queue: Queue[Any, Any], given: Sequence[Any], added: Callable[[str], None],
        claimed: dict[str, str],
    ) -> None:  # fmt: skip
        self._ids, self._queue, self._given, self._added = ids, queue, given, added
        self.pushes: list[Push] = []
        self.chosen: list[str | None] = []
        self._routing: list[JobOptions] = []
        """The options of each job that choose its partition or refer to other jobs."""
        self._by_id: dict[Any, int] = {}
        """Position of the first job with each chosen id, as this package stores it."""
        self._needed: dict[int, list[int]] = {}
        """Positions of the jobs that a job waits for, if there are any."""
        self._claimed = claimed
        self._placed: dict[int, tuple[Queue[Any, Any], str]] = {}
        """Partition and id in it of each job that was added, or may have been."""
        self._made: dict[tuple[int, str], str] = {}
        """Ids by position and name of the partition: an add whose reply was lost is repeated with the same id."""
        self._is_complete = True
        """Whether all jobs are added, and not only committed."""
        self.is_durable = False
        self._is_related = False
        """Whether a job has a parent or dependencies."""
        self.chars = 0
        """Characters of the data of all jobs but the last one."""

    async def check(self) -> None:
        """Check the jobs.

        Raises:
            CommandError: If a job is invalid.
            GlideMQValidationError: The same.
        """
        ids, queue, given = self._ids, self._queue, self._given
        named = [each.get(name) for each in given if is_map(each) for name in ("jobId", "customId")]
        beside = {each for each in named if isinstance(each, str)}
        link = await queue._first_connected()
        sizes, last = list[GroupSize | None](), 0
        for number, each in enumerate(given):
            if number % _BETWEEN_TURNS == _BETWEEN_TURNS - 1:
                await _turn()
            if not is_map(each):
                raise CommandError(f"jobs[{number}]: must be a map")
            try:
                fields = check_all(JOB_FIELDS, each)
                push = await push_of(ids, queue.name, fields, beside)
                reject_two_keys(queue, fields, push[2])
                routing = routing_of(fields, push[2])
                sizes.append(group_size(fields))
                self.chosen.append(chosen_id(fields))
            except CommandError as error:
                raise CommandError(f"jobs[{number}]: {error}") from None
            self.chars, last = self.chars + last, len(str(row_of(queue, link, push, number)[0][DATA]))
            self.pushes.append(push)
            routing |= {option: push[2][option] for option in _REFERENCES if option in push[2]}
            self._routing.append(queue._options(routing))
            self.is_durable = self.is_durable or fields["durable"]
            self._is_related = self._is_related or "depends_on" in push[2] or "parent" in push[2]
        named_jobs = [(number, self.pushes[number][2]) for number, each in enumerate(self.chosen) if each is not None]
        self._by_id = {options["job_id"]: number for number, options in reversed(named_jobs)}
        for number, (_, _, options) in enumerate(self.pushes if self._is_related else ()):
            self._needed[number] = [self._by_id[each] for each in options.get("depends_on", ()) if each in self._by_id]
        await set_group_sizes(queue, sizes)

    async def add(self, stage: Callable[[Sequence[_Part]], Any], *, is_large: bool) -> list[str]:
        """Add the jobs; return their ids on the wire.

        Args:
            stage: Stages, commits and adds the rows of several partitions.
            is_large: They are too many for a call per partition.

        Raises:
            CommandError: If a job is refused. None was added, except those that have started meanwhile.
            GlideMQError: If a call failed.
        """
        first = {chosen: number for number, chosen in reversed(list(enumerate(self.chosen))) if chosen is not None}
        numbers = [at for at, chosen in enumerate(self.chosen) if chosen is None or first[chosen] == at]
        found: list[str] | None = None
        if is_large or not (self.is_durable or self._is_related):
            found = await self._add_divided(numbers, stage, is_large)
        if found is None:
            found = await self._add_at_once(numbers)
        if self._is_complete:
            self._ids.chosen.added(self._claimed)
        wire = dict(zip(numbers, found, strict=True))
        return [wire[at] if at in wire else wire[first[str(self.chosen[at])]] for at in range(len(self.chosen))]

    # -- one call per partition -------------------------------------------------------------------------------

    async def _add_at_once(self, numbers: Sequence[int]) -> list[str]:
        plan = await self._plan(numbers)
        try:
            return [await self._on_wire(job) for job in await plan.run()]
        except BulkAddError as error:
            raise CommandError(await self._taken_back(numbers, error.results)) from None

    async def _plan(self, numbers: Sequence[int]) -> Plan:
        places = {at: place for place, at in enumerate(numbers)}
        ids = {job_id: places[at] for job_id, at in self._by_id.items() if at in places}
        entries = [(self.pushes[at][0], None, self._routing[at]) for at in numbers]
        durability = parse_durable(True) if self.is_durable else None
        link = await self._queue._first_connected()
        return Plan(self._queue, link, entries, durability, partial(self._add_some, numbers), ids)

    async def _on_wire(self, job: Any) -> str:
        return job.id if isinstance(job, _Known) else await self._ids.on_wire(self._queue.name, job.id)

    async def _add_some(
        self, numbers: Sequence[int], plan: Plan, part: Queue[Any, Any], mine: Sequence[int]
    ) -> None:  # fmt: skip
        """Add jobs of a plan, given their positions in it, to a partition, with the ids that it makes."""
        results = plan.results
        try:
            known = await self._claim(part, [numbers[i] for i in mine])
        except CommandError as error:
            return plan.fail(mine, GlideMQError(str(error)))
        sent = [i for i in mine if self.chosen[numbers[i]] not in known]
        for i in sent:
            name, data, options = await self._push_to(part, numbers[i])
            plan.replace(i, (name, data, part._options(options)))
        if sent:
            await plan.send(part, sent)
            if any(isinstance(results[i], AmbiguousResultError) and not results[i].timed_out for i in sent):
                for i in sent:
                    results[i] = None
                await plan.send(part, sent)  # the ids make it safe
            self._added(part.name)
        for i in mine:
            chosen = str(self.chosen[numbers[i]])
            if results[i] is None:
                results[i] = _Known(chosen)
                found = await self._ids.find(chosen) if plan.relations is not None else None
                if found is not None and plan.relations is not None:
                    number, own = split_partition_id(found[1])
                    plan.relations.added[i] = JobRef(self._queue._parts[number].name, own)
            elif isinstance(results[i], AmbiguousResultError):
                self._placed[numbers[i]] = part, str(plan.entries[i][2].job_id)
            elif not isinstance(results[i], BaseException) and results[i].outcome in ADDED_OUTCOMES:
                self._placed[numbers[i]] = part, results[i]._stored_id
        return None

    async def _claim(self, part: Queue[Any, Any], numbers: Sequence[int]) -> set[str | None]:
        """Claim the chosen ids for a partition; return those of unfinished jobs."""
        chosen = [each for at in numbers if (each := self.chosen[at]) is not None]
        return {*await self._ids.claim(part.name, chosen, self._claimed)} if chosen else set()

    async def _push_to(self, part: Queue[Any, Any], at: int) -> Push:
        name, data, options = self.pushes[at]
        if self.chosen[at] is None:
            made = self._made.get((at, part.name))
            if made is None:
                made = self._made[at, part.name] = await self._ids.make(part.name)
            options = {**options, "job_id": made}
        return name, data, options

    async def _taken_back(self, numbers: Sequence[int], results: Sequence[Any]) -> str:
        """Delete the jobs that were added, unless they have started; return the error of the first other one."""
        message = ""
        for at, each in zip(numbers, results, strict=True):
            if isinstance(each, BaseException):
                what = missing_job(each, self.pushes[at][2]) if isinstance(each, JobNotFoundError) else str(each)
                message = f"jobs[{at}]: {what}"
                break
        within = {at: self._needed.get(at, ()) for at in self._placed}
        waiting_first = [*TopologicalSorter(within).static_order()][::-1]
        added = [self._placed[at] for at in waiting_first if at in self._placed]
        return message + await take_back(self._queue.name, added)

    # -- one call, or staged ----------------------------------------------------------------------------------

    async def _add_divided(
        self, numbers: Sequence[int], stage: Callable[[Sequence[_Part]], Any], is_large: bool
    ) -> list[str] | None:  # fmt: skip
        """Add the jobs as a whole; return their ids on the wire, or None if one of them may be refused."""
        for _ in range(_ATTEMPTS):
            try:
                return await self._add_divided_once(numbers, stage, is_large)
            except LayoutChangedError:
                if self._queue._partitions is None:
                    raise
                await self._queue._renew_layout(refused=True)
        raise GlideMQError(
            f"queue {self._queue.name!r}: other clients keep changing its partitions; add the jobs again"
        )

    async def _add_divided_once(
        self, numbers: Sequence[int], stage: Callable[[Sequence[_Part]], Any], is_large: bool
    ) -> list[str] | None:  # fmt: skip
        queue = self._queue
        partitions = queue._partitions
        if partitions is None:
            raise LayoutChangedError(f"queue {queue.name!r} has no partitions any more")
        divided = await self._divided(partitions, numbers)
        if not is_large:
            if len(divided) == 1:
                return await self._add_to_one(*divided[0])
            if await self._may_be_full(divided):
                return None
        parts: list[_Part] = []
        wire: dict[int, str] = {}
        for part, mine in divided:
            known = await self._claim(part, mine)
            link, rows = await part._connected(), list[Row]()
            for count, at in enumerate(mine, 1):
                if count % _BETWEEN_TURNS == 0:
                    await _turn()
                chosen = self.chosen[at]
                if chosen in known:
                    wire[at] = str(chosen)
                    continue
                push = await self._push_to(part, at)
                rows.append(row_of(part, link, push, at)[0])
                wire[at] = push[2]["job_id"] if chosen is None else chosen
            if rows:
                parts.append(_Part(part, rows))
        if parts:
            self._is_complete = await stage(parts)
        for part, _ in parts:
            self._added(part.name)
        wire |= await self._holders([at for at in numbers if "deduplication" in self.pushes[at][2]], wire)
        return [wire[at] for at in numbers]

    async def _divided(self, partitions: PartitionedQueue, numbers: Sequence[int]) -> list[Part]:
        routes = Routes(partitions)
        for count, at in enumerate(numbers, 1):
            if count % _BETWEEN_TURNS == 0:
                await _turn()
            routes.add(at, self._routing[at])
        return routes.parts

    async def _add_to_one(self, part: Queue[Any, Any], mine: Sequence[int]) -> list[str]:
        plan = await self._plan(mine)
        await self._add_some(mine, plan, part, range(len(mine)))
        await plan.confirm()
        for each in plan.results:
            if isinstance(each, LayoutChangedError):
                raise each
        if any(isinstance(each, GlideMQError) for each in plan.results):
            raise CommandError(await self._taken_back(mine, plan.results))
        return [await self._on_wire(job) for job in plan.results]

    async def _may_be_full(self, divided: Sequence[tuple[Queue[Any, Any], Sequence[int]]]) -> bool:
        """Return whether a partition has limits of groups, and gets jobs of groups."""
        links = [
            await part._connected()
            for part, mine in divided
            if any("fair_key" in self.pushes[at][2] for at in mine)
        ]  # fmt: skip
        found = await asyncio.gather(
            *(link.transport.command("EXISTS", f"{link.keys.stem}{_GROUP_LIMITS}") for link in links)
        )
        return any(found)

    async def _holders(self, numbers: Sequence[int], wire: Mapping[int, str]) -> dict[int, str]:
        """Return the ids of staged jobs with a unique key: that of the existing job if it has prevented a new one."""
        found: dict[int, str] = {}
        for some in pieces(numbers, _TOGETHER):
            ids = await asyncio.gather(*(self._holder(at, wire[at]) for at in some))
            found |= zip(some, ids, strict=True)
        return found

    async def _holder(self, at: int, job_id: str) -> str:
        key: Mapping[str, Any] = self.pushes[at][2]["deduplication"]
        try:
            found = await self._ids.find(job_id)
            if found is not None and await self._queue.get_job(found[1], exclude_data=True) is not None:
                return job_id
            holder = await self._queue.get_deduplication_job(key["id"])
            return job_id if holder is None else await self._ids.on_wire(self._queue.name, holder.id)
        except GlideMQError:  # the jobs are committed all the same
            return job_id


async def _turn() -> None:
    """Let other connections be served."""
    await asyncio.sleep(0)


async def check_layout(queue: Queue[Any, Any], routed_by: int) -> None:
    """Check that jobs were routed by the present layout of a queue.

    Raises:
        LayoutChangedError: If they were not.
        GlideMQError: If the server does not answer.
    """
    transport = (await queue._first_connected()).transport
    found = await read_layout(transport, queue._keys)
    stored = 0 if found is None else found.number
    if stored != routed_by:
        raise LayoutChangedError(queue.name, stored, routed_by)
