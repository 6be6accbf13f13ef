"""Adding jobs to a partitioned queue: each goes to the partition of its key, or to the former one that has its jobs.

Every call has the number of the layout that its jobs were routed by. If the queue has another one, nothing is added:
the layout is read again, and the jobs are routed again.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, TypeVar

from glidemq_py._api.bulk import CHUNK_ROWS, BulkAdd, pair_of, spec_of
from glidemq_py._api.partitioned_relations import REROUTED, Divided, Stages, dependencies_within, reject_unmet
from glidemq_py._core.checks import check_iterable
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.layout_errors import JobMovedError, LayoutChangedError
from glidemq_py._features import queue_list
from glidemq_py._features.durability.options import Durability
from glidemq_py._features.job_batches.batch import JoinAndAdd
from glidemq_py._features.partitions.routing import moving_row, routing_key
from glidemq_py._job.job import Job
from glidemq_py.errors import BulkAddError, GlideMQError, GlideMQValidationError

if TYPE_CHECKING:
    from glidemq_py._api.job_queue import Queue
    from glidemq_py._api.partitioned import PartitionedQueue

__all__ = ["Use", "add_after_change", "add_all", "add_one", "add_rest", "add_routed"]

T = TypeVar("T")

_ATTEMPTS: Final = 20
"""Times that a job is routed. More than two are needed only if the layout changes again and again."""
_POSITION: Final = re.compile(r"jobs\[(\d+)\]")


def _partitions(home: Queue[Any, Any]) -> PartitionedQueue:
    found = home._partitions
    if found is None:
        raise LayoutChangedError(f"queue {home.name!r} has no partitions any more; open it again")
    return found


Use = Callable[["Queue[Any, Any]"], Awaitable[T]]


async def _with_partition(home: Queue[Any, Any], options: JobOptions, use: Use[T]) -> T:
    """Call ``use`` with the partition of a new job, again if the job has been refused there."""
    key = routing_key(options)
    order = home._add_order()
    if order is None:
        return await _routed(home, options, key, use)
    await order.begin()
    try:
        if key is None or not (order.is_in_turn(key) or _may_move(_partitions(home), options, key)):
            return await _routed(home, options, key, use)
        async with order.turn(key):
            return await _routed(home, options, key, use)
    finally:
        order.end()


def _may_move(self: PartitionedQueue, options: JobOptions, key: str) -> bool:
    """Return whether an add may find that a key has no jobs in a former partition any more."""
    if len(self.layout.counts) == 1 or (options.ordering is None and options.deduplication is None):
        return False
    return any(self.may_have(before, key, options.job_id is not None) for before in self.layout.homes(key)[:-1])


async def _routed(home: Queue[Any, Any], options: JobOptions, key: str | None, use: Use[T]) -> T:
    try:
        return await _use_partition(home, options, key, use)
    except LayoutChangedError as error:
        return await _rerouted(home, options, use, error)


async def _rerouted(home: Queue[Any, Any], options: JobOptions, use: Use[T], refusal: LayoutChangedError) -> T:
    """Read the layout and add the job again. Jobs that are routed again keep their order, one after the other."""
    order = home._add_order()
    async with nullcontext() if order is None else order.rerouting:
        for left in reversed(range(_ATTEMPTS)):
            # Of many adds that were refused together, the first one renews the layout, also for the others.
            if left < _ATTEMPTS - 1 or not home._is_renewed_after(refusal):
                await home._renew_layout(refusal)
            try:
                return await _use_partition(home, options, routing_key(options), use)
            except LayoutChangedError as error:
                if not left:
                    raise
                refusal = error
    raise AssertionError


async def _use_partition(home: Queue[Any, Any], options: JobOptions, key: str | None, use: Use[T]) -> T:
    self = _partitions(home)
    if key is None or len(self.layout.counts) == 1:
        return await use(self.queues[self.partition_of(key)])
    *former, number = self.layout.homes(key)
    row = moving_row(options, key) if former else None
    if row is None:
        return await use(self.queues[number])
    if options.job_id is not None:
        (only,) = await self.former_of([(key, row)])
        former = [] if only is None else [only]
    for before in former:
        if not self.may_have(before, key, options.job_id is not None):
            continue
        try:
            return await use(self.former(before))
        except JobMovedError:
            if options.job_id is None:
                self.note_moved(before, key)
    return await use(self.queues[number])


async def add_routed(
    home: Queue[Any, Any], options: JobOptions, use: Use[T], refusal: LayoutChangedError | None = None
) -> T:  # fmt: skip
    """Let ``use`` add a job to its partition, again if the job has been refused there.

    Args:
        home: The queue.
        options: Options of the job that may choose its partition.
        use: Adds the job to the partition that it is called with.
        refusal: Why the job was not added to the queue before: it has been partitioned meanwhile.
    """
    if refusal is None:
        return await _with_partition(home, options, use)
    order = home._add_order()
    if order is not None:
        order.resume()
    try:
        return await _rerouted(home, options, use, refusal)
    finally:
        if order is not None:
            order.end()


async def add_one(
    home: Queue[Any, Any], options: JobOptions, name: str, data: Any, durability: Durability | None
) -> Job[Any, Any]:
    """Add a checked job of `Queue.add`."""
    return await add_routed(home, options, lambda queue: queue._add_here(name, data, options, durability))


async def add_after_change(
    home: Queue[Any, Any], options: JobOptions, name: str, data: Any, durability: Durability | None,
    refusal: LayoutChangedError,
) -> Job[Any, Any]:  # fmt: skip
    """Add a job that was refused because the queue has been partitioned meanwhile."""
    return await add_routed(home, options, lambda queue: queue._add_here(name, data, options, durability), refusal)


async def add_all(
    home: Queue[Any, Any], jobs: Iterable[Any], durability: Durability | None, join: JoinAndAdd | None = None,
    ids: Mapping[str, int] | None = None,
) -> list[Job[Any, Any]]:  # fmt: skip
    """Add the jobs of a bulk: one bulk per partition.

    Args:
        home: The queue.
        jobs: As in `Queue.add_bulk`.
        durability: As in `Queue.add_bulk`.
        join: Adds the jobs of each partition instead, after they have joined a batch.
        ids: As in `divide`.

    Raises:
        GlideMQValidationError: If a job is invalid. The option names its position; nothing was sent.
        BulkAddError: If some jobs were not added, or may not have been.
    """
    given = list(check_iterable("jobs", jobs, "jobs"))
    return await _add_from(home, given, [LayoutChangedError()] * len(given), durability, None, join, ids)


async def _add_from(
    home: Queue[Any, Any], given: Sequence[Any], results: list[Any], durability: Durability | None,
    failed: GlideMQError | None, join: JoinAndAdd | None, ids: Mapping[str, int] | None = None,
) -> list[Job[Any, Any]]:  # fmt: skip
    """Add the jobs that were not routed to the right partition so far. Raises the errors of `add_all`."""
    positions = [at for at, result in enumerate(results) if isinstance(result, REROUTED)]
    for _ in range(_ATTEMPTS):
        try:
            failed = await _add_some(_partitions(home), given, positions, durability, results, join, ids) or failed
        except LayoutChangedError as error:  # while the former partitions were read
            await home._renew_layout(error)
            continue
        positions = [at for at in positions if isinstance(results[at], REROUTED)]
        if not positions:
            break
        await _renew_after(home, results)
    if any(isinstance(each, GlideMQError) for each in results):
        raise BulkAddError(results) from (failed.__cause__ if isinstance(failed, BulkAddError) else failed)
    return results


async def add_rest(
    home: Queue[Any, Any],
    jobs: Iterable[Any],
    durability: Durability | None,
    error: BulkAddError,
    join: JoinAndAdd | None = None,
) -> list[Job[Any, Any]]:
    """Add the jobs of a bulk that were refused because the queue has been partitioned meanwhile."""
    await _renew_after(home, error.results)
    return await _add_from(home, list(jobs), list(error.results), durability, error, join)


async def _renew_after(home: Queue[Any, Any], results: Iterable[Any]) -> None:
    """Read the layout again if it was refused."""
    refusals = {(each.stored, each.used): each for each in results if isinstance(each, LayoutChangedError)}
    if refusals:
        await home._renew_layout(*refusals.values())


async def _add_some(
    self: PartitionedQueue, given: Sequence[Any], positions: Sequence[int], durability: Durability | None,
    results: list[Any], join: JoinAndAdd | None, ids: Mapping[str, int] | None,
) -> GlideMQError | None:  # fmt: skip
    """Add the jobs at these positions; write their results. Return the error of a part, if there is one."""
    divided = await divide(self, given, positions, ids)
    failed: GlideMQError | None = None
    await reject_unmet(self, divided, results)
    stages = Stages(self.home.name, divided, results)
    for stage in range(stages.count):
        calls: list[tuple[list[int], Awaitable[list[Job[Any, Any]]]]] = []
        for queue, mine in stages.parts(stage):
            some = [given[i] for i in mine]
            bulk = await _checked(queue, some, mine)
            if join is not None:
                calls.append((mine, join(queue, some)))
            elif durability is not None:
                calls.append((mine, queue._add_all(await queue._connected(), some, durability)))
            else:
                calls.append((mine, _run_bulk(queue, bulk)))
        for (mine, _), added in zip(calls, await self.together(_settled(call) for _, call in calls), strict=True):
            if isinstance(added, BulkAddError):
                failed, found = added, added.results
            elif isinstance(added, GlideMQError):
                failed, found = added, [added] * len(mine)
            else:
                found = added
            for i, result in zip(mine, found, strict=True):
                results[i] = result
    return failed


async def divide(
    self: PartitionedQueue, jobs: Sequence[Any], positions: Sequence[int], ids: Mapping[str, int] | None = None,
    between: Callable[[], Awaitable[object]] | None = None,
) -> Divided:  # fmt: skip
    """Return the positions of the jobs of each partition. Jobs without a key go to one partition per chunk.

    Args:
        self: The partitions.
        jobs: The jobs, as in `Queue.add_bulk`.
        positions: Those to divide.
        ids: Positions of the jobs by their custom ids, which then need not be in the options; None: they are.
        between: Awaited after each chunk, so that a large bulk does not block the event loop.

    Raises:
        GlideMQValidationError: If a job is invalid, or jobs depend on one another in a cycle.
    """
    defaults = self.home._defaults
    moving = len(self.layout.counts) > 1
    divided: dict[int, list[int]] = {}
    undecided: list[tuple[int, str, list[object]]] = []
    related: dict[int, JobOptions] = {}
    found: dict[str, int] = {}
    turn = left = 0
    for count, i in enumerate(positions, 1):
        if between is not None and count % CHUNK_ROWS == 0:
            await between()
        options = defaults
        if pair_of(jobs[i]) is None:
            options = spec_of(jobs[i], i, defaults)[2]
            if options.parent is not None or options.depends_on is not None:
                related[i] = options
            if options.job_id is not None:
                found[options.job_id] = i
        try:
            key = routing_key(options)
        except GlideMQValidationError as error:
            raise _at(error, i) from None
        if key is None:
            if not left:
                turn, left = self.next_partition(), CHUNK_ROWS
            number, left = turn, left - 1
        else:
            row = moving_row(options, key) if moving else None
            if row is not None and len(self.layout.homes(key)) > 1:
                undecided.append((i, key, row))
                continue
            number = self.partition_of(key)
        divided.setdefault(number, []).append(i)
    taken = await _divide_former(self, undecided, divided)
    parts = [*((self.queues[number], mine) for number, mine in divided.items()), *taken]
    if ids is not None and related:
        divided_now = set(positions)
        found = {job_id: i for job_id, i in ids.items() if i in divided_now}
    return Divided(parts, related, dependencies_within(self.home.name, related, found))


async def _divide_former(
    self: PartitionedQueue, undecided: Sequence[tuple[int, str, list[object]]], divided: dict[int, list[int]]
) -> list[tuple[Queue[Any, Any], list[int]]]:
    """Return the positions of the jobs for former partitions; add the others to ``divided``."""
    former: dict[int, list[int]] = {}
    found = await self.former_of([(key, row) for _, key, row in undecided])
    for (i, key, _), number in zip(undecided, found, strict=True):
        if number is not None:
            former.setdefault(number, []).append(i)
        else:
            divided.setdefault(self.partition_of(key), []).append(i)
    for mine in divided.values():
        mine.sort()
    return [(self.former(number), mine) for number, mine in former.items()]


async def _checked(queue: Queue[Any, Any], jobs: list[Any], positions: list[int]) -> BulkAdd:
    """Return the add of the jobs of one partition, which are valid."""
    link = await queue._connected()
    try:
        return BulkAdd(link, jobs, queue._defaults, not queue.options.events, queue._add_call)
    except GlideMQValidationError as error:
        found = _POSITION.match(error.option)
        raise error if found is None else _at(error, positions[int(found[1])]) from None


async def _run_bulk(queue: Queue[Any, Any], bulk: BulkAdd) -> list[Job[Any, Any]]:
    link = await queue._connected()
    added = await queue._run_bulk(bulk)
    if not link.is_listed and added:
        await queue_list.register(link)
    return added


async def _settled(call: Awaitable[T]) -> T | GlideMQError:
    try:
        return await call
    except GlideMQError as error:
        return error


def _at(error: GlideMQValidationError, position: int) -> GlideMQValidationError:
    """Let the error name the position of the job in the whole bulk."""
    where = f"jobs[{position}]"
    replaced = _POSITION.sub(where, error.option, count=1)
    error.option = replaced if replaced.startswith(where) else f"{where}.{error.option}"
    error.args = (error.option, *error.args[1:])
    return error
