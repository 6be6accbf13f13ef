"""PUSHB: many jobs, all or none.

Up to `ROWS_AT_ONCE` jobs are added in one atomic call. More are staged first, then committed in one step, and then
added piece by piece: no worker sees a part of a refused push, and a committed one is added even if this process
dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Container, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from glidemq_py._api.bulk import AddCoalescer, added_job
from glidemq_py._api.job_queue import Queue
from glidemq_py._core.calls import pieces, reading
from glidemq_py._core.calls.adding import DATA, Row, request
from glidemq_py._core.job_options import NO_OPTIONS, JobOptions
from glidemq_py._core.job_states import ADDED_OUTCOMES
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py._core.logs import get_logger
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
from glidemq_py._job.link import QueueLink
from glidemq_py.errors import (
    AmbiguousResultError,
    BulkAddError,
    GlideMQError,
    JobNotFoundError,
    PartitionedQueueError,
    StagedWriteError,
)
from glidemq_py.gateway.group_limits import GroupSize, group_size, set_group_sizes
from glidemq_py.gateway.job_ids import JobIds
from glidemq_py.gateway.names import wire_name
from glidemq_py.gateway.push_order import Way
from glidemq_py.gateway.pushing import JOB_FIELDS, Push, again, chosen_id, missing_job, push_of
from glidemq_py.gateway.routed_bulk import RoutedBulk, check_layout
from glidemq_py.gateway.rows import ID, added_rows, remember_usual, row_of, usual_row
from glidemq_py.gateway.table import CommandError, check_all, is_map
from glidemq_py.gateway.taking_back import take_back
from glidemq_py.telemetry.state import TELEMETRY

if TYPE_CHECKING:
    from glidemq_py.gateway.session import Session

__all__ = ["MOST_JOBS", "ROWS_AT_ONCE", "add_usual", "begin_usual", "push_many", "usual_rows"]

_log = get_logger(__name__)

MOST_JOBS: Final = 100_000
ROWS_AT_ONCE: Final = 250
"""Jobs of one atomic call: about 2 ms of server time."""
_CHARS_AT_ONCE: Final = 512 * 1_024
_SPECIAL: Final = ("durable", "dependsOn", "parentId")
_PIECES_TOGETHER: Final = 8
_WRITE_MS: Final = 60_000
"""Lifetime of staged jobs without any change, and of the memory of the write."""


async def push_many(
    ids: JobIds, queue: Queue[Any, Any], given: Sequence[Any], added: Callable[[str], None]
) -> list[str]:  # fmt: skip
    """Add jobs, all or none; return their ids on the wire.

    A job whose chosen id is that of an unfinished job is not added again; of two with one id, the first is added.

    Args:
        ids: Makes and reads ids.
        queue: The queue.
        given: The fields of the jobs, unchecked.
        added: Called with the name of each partition that has got jobs, if the queue is partitioned.

    Raises:
        CommandError: If a job is invalid or refused. Nothing was added.
        GlideMQError: If a call failed.
    """
    if len(given) > MOST_JOBS:
        raise CommandError(f"jobs must have at most {MOST_JOBS} items")
    claimed: dict[str, str] = {}
    try:
        return await _push_to_plain(ids, queue, given, claimed)
    except PartitionedQueueError:
        pass
    except LayoutChangedError:
        await queue._renew_layout(refused=True)
    routed = RoutedBulk(ids, queue, given, added, claimed)
    await routed.check()
    is_large = len(given) > ROWS_AT_ONCE or routed.chars > _CHARS_AT_ONCE
    if is_large:
        _check_staged(routed.pushes, routed.is_durable)

    async def stage_parts(parts: Sequence[tuple[Queue[Any, Any], list[Row]]]) -> bool:
        return await _add_staged(queue, parts)

    try:
        return await routed.add(stage_parts, is_large=is_large)
    except LayoutChangedError:
        if queue._partitions is not None:
            raise
        return await _push_to_plain(ids, queue, given, claimed)  # it was deleted, with its partitions


async def _push_to_plain(
    ids: JobIds, queue: Queue[Any, Any], given: Sequence[Any], claimed: dict[str, str]
) -> list[str]:  # fmt: skip
    """Add jobs to a queue without partitions; see `push_many`.

    Raises:
        PartitionedQueueError: If the queue has partitions.
        LayoutChangedError: If it has got them meanwhile. Nothing was added.
    """
    link = await queue._connected()
    bulk = await _checked(ids, queue, link, given)
    if not any(bulk.chosen):
        found, _ = await _add(queue, link, bulk)
        return [
            job_id if job_id == row[ID] else await ids.on_wire(queue.name, job_id)  # it has the id made here
            for job_id, row in zip(found, bulk.rows, strict=True)
        ]
    wire: list[str] = [each or given["job_id"] for each, (_, _, given) in zip(bulk.chosen, bulk.jobs, strict=True)]
    known = await ids.claim(queue.name, [each for each in bulk.chosen if each is not None], claimed)
    first = {job_id: number for number, job_id in reversed(list(enumerate(wire)))}
    numbers = [number for number, job_id in enumerate(wire) if first[job_id] == number and job_id not in known]
    added, is_complete = await _add(queue, link, bulk.part(numbers), numbers)
    if is_complete:
        ids.chosen.added(claimed)
    for number, job_id in zip(numbers, added, strict=True):
        if bulk.chosen[number] is None:
            wire[number] = await ids.on_wire(queue.name, job_id)
    return wire


class _Bulk(NamedTuple):
    """Jobs that were checked."""

    jobs: list[Push]
    """Those with usual options have neither data nor other options than their id here."""
    rows: list[Row]
    options: list[JobOptions]
    chosen: list[str | None]
    """The ids that the client has chosen."""
    sizes: list[GroupSize | None]
    """The maximum sizes of their groups."""
    is_durable: bool
    """Whether one of them is durable."""
    is_special: bool
    """Whether they need more than one call; then all have their data."""

    def part(self, numbers: Sequence[int]) -> _Bulk:
        """Return some of the jobs."""
        jobs, rows, options, chosen, sizes, is_durable, is_special = self
        return _Bulk(
            [jobs[number] for number in numbers], [rows[number] for number in numbers],
            [options[number] for number in numbers], [chosen[number] for number in numbers],
            [sizes[number] for number in numbers], is_durable, is_special,
        )  # fmt: skip


async def _add(
    queue: Queue[Any, Any], link: QueueLink, bulk: _Bulk, numbers: Sequence[int] | None = None
) -> tuple[list[str], bool]:  # fmt: skip
    """Add the jobs; return their ids in this package, and whether all are added already.

    Args:
        queue: The queue.
        link: Its connection.
        bulk: The jobs.
        numbers: Their numbers in the command; None = 0, 1, ...
    """
    jobs, rows = bulk.jobs, bulk.rows
    if not jobs:
        return [], True
    fits = len(rows) <= ROWS_AT_ONCE and sum(len(_data(row)) for row in rows[:-1]) <= _CHARS_AT_ONCE
    if not fits:
        _check_staged(jobs, bulk.is_durable)
    await set_group_sizes(queue, bulk.sizes)
    if fits and bulk.is_special:
        return await _add_specially(queue, jobs, numbers, durable=bulk.is_durable or None), True
    is_complete = True
    if fits:
        found = await _add_at_once(queue, link, bulk, numbers)
    else:
        is_complete = await _add_staged(queue, [(queue, rows)])
        try:
            found = await _ids(queue, link, jobs)
        except GlideMQError:  # the jobs are added all the same
            found = [options["job_id"] for _, _, options in jobs]
    if not link.is_listed:
        await register(link)
    return found, is_complete


def _data(row: Row) -> str:
    return cast("str", row[DATA])


async def _checked(ids: JobIds, queue: Queue[Any, Any], link: QueueLink, given: Sequence[Any]) -> _Bulk:
    """Check and encode the jobs."""
    named = [each.get(name) for each in given if is_map(each) for name in ("jobId", "customId")]
    beside = {each for each in named if isinstance(each, str)}
    is_durable = False
    is_special = TELEMETRY.on or any(is_map(each) and any(map(each.get, _SPECIAL)) for each in given)
    jobs, rows, checked, chosen = list[Push](), list[Row](), list[JobOptions](), list[str | None]()
    sizes = list[GroupSize | None]()
    for number, each in enumerate(given):
        if number % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
            await asyncio.sleep(0)  # other connections are served meanwhile
        if not is_map(each):
            raise CommandError(f"jobs[{number}]: must be a map")
        made = None if is_special else usual_row(queue, link, ids, each, f"jobs[{number}].data")
        if made is not None:
            jobs.append((str(each["name"]), None, {"job_id": made[0][ID]}))
            chosen.append(None)
            sizes.append(None)
        else:
            try:
                fields = check_all(JOB_FIELDS, each)
                push = await push_of(ids, queue.name, fields, beside)
                chosen.append(chosen_id(fields))
                sizes.append(group_size(fields))
            except CommandError as error:
                raise CommandError(f"jobs[{number}]: {error}") from None
            made = row_of(queue, link, push, number)
            if chosen[-1] is None:
                remember_usual(each, push)
            jobs.append(push)
            is_durable = is_durable or fields["durable"]
        rows.append(made[0])
        checked.append(made[1])
    return _Bulk(jobs, rows, checked, chosen, sizes, is_durable, is_special)


# -- one call --------------------------------------------------------------------------------------------------


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
        chars += len(_data(made[0]))
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
        A future of the reply, and a function that returns the ids on the wire when it is done. The function returns a
        coroutine with the results and errors of `add_usual` instead if the reply is not the usual one. None if nothing
        was sent.
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
    with contextlib.nullcontext() if adder.is_busy else state.adding_now(name):
        added = adder.start(rows)

    def finish(added: asyncio.Future[_Added]) -> list[str] | Coroutine[Any, Any, list[str]]:
        if added.cancelled():
            place.leave()
            raise asyncio.CancelledError
        if added.exception() is None:
            made = [row[ID] for row in rows]
            if added.result()[1] == made:
                place.leave()
                return cast("list[str]", made)
        return rest(added)

    async def rest(added: asyncio.Future[_Added]) -> list[str]:
        with place:
            return await add_usual(state.ids, queue, adder, link, rows, added)

    return added, finish


async def add_usual(
    ids: JobIds, queue: Queue[Any, Any], adder: AddCoalescer, link: QueueLink, rows: list[Row],
    first: asyncio.Future[_Added] | None = None,
) -> list[str]:  # fmt: skip
    """Add the jobs of `usual_rows`, all or none; return their ids on the wire.

    Args:
        ids: Makes and reads ids.
        queue: The queue.
        adder: Sends the rows, together with those of other commands.
        link: Connection of the queue.
        rows: The rows.
        first: The call that has sent them, if there was one.

    Raises:
        CommandError: If a job was refused. Nothing was added.
        LayoutChangedError: If the queue has got partitions meanwhile. Nothing was added.
        GlideMQError: If the call failed.
    """
    attempts = [adder.start(rows)] if first is None else [first]
    now, results = await again(
        lambda: attempts.pop() if attempts else adder.start(rows), lambda: added_rows(link, rows)
    )  # fmt: skip
    if not link.is_listed:
        await register(link)
    made = [cast("str", row[ID]) for row in rows]
    if results == made:
        return made  # the usual case
    jobs: list[Push] = [(cast("str", row[0]), None, {"job_id": job_id}) for row, job_id in zip(rows, made, strict=True)]
    found = await _ids_of(queue, link, jobs, [NO_OPTIONS] * len(jobs), (now, results), None)
    return [await ids.on_wire(queue.name, job_id) for job_id in found]


async def _add_at_once(
    queue: Queue[Any, Any], link: QueueLink, bulk: _Bulk, numbers: Sequence[int] | None
) -> list[str]:  # fmt: skip
    call = queue._add_call(link.keys.meta, bulk.rows, not queue.options.events)

    async def add() -> tuple[int, list[Any]]:
        reply = await link.transport.call(call)
        return reply.now, reply.results

    added = await again(add, lambda: added_rows(link, bulk.rows))
    return await _ids_of(queue, link, bulk.jobs, bulk.options, added, numbers)


async def _ids_of(
    queue: Queue[Any, Any], link: QueueLink, jobs: Sequence[Push], options: Sequence[JobOptions],
    added: tuple[int, Sequence[Any]], numbers: Sequence[int] | None,
) -> list[str]:  # fmt: skip
    """Return the ids in this package of jobs that were added in one call. If one was refused, take back the others.

    Args:
        queue: The queue.
        link: Its connection.
        jobs: The jobs.
        options: Their options.
        added: Time and results of the call.
        numbers: Numbers of the jobs in the command; None = 0, 1, ...

    Raises:
        CommandError: If one was refused.
    """
    now, replies = added
    results, existing = list[Any](), set[int]()
    for position, result in enumerate(replies):
        if type(result) is str:
            results.append(result)
            continue
        name, data, _ = jobs[position]
        try:
            job = added_job(link, name, data, options[position], now, result)
        except GlideMQError as error:
            results.append(error)
            continue
        results.append(job.id)
        if job.outcome not in ADDED_OUTCOMES:
            existing.add(position)
    if any(isinstance(each, GlideMQError) for each in results):
        raise CommandError(await _taken_back(queue, results, numbers, jobs, existing))
    return results


async def _add_specially(
    queue: Queue[Any, Any], jobs: list[Push], numbers: Sequence[int] | None, *, durable: bool | None
) -> list[str]:
    """Add jobs that need more than one call."""
    try:
        try:
            added = await queue.add_bulk(jobs, durable=durable)
        except BulkAddError as error:
            if not any(isinstance(each, AmbiguousResultError) and not each.timed_out for each in error.results):
                raise
            added = await queue.add_bulk(jobs, durable=durable)
    except BulkAddError as error:
        results, existing = list[Any](), set[int]()
        for position, each in enumerate(cast("Sequence[Any]", error.results)):
            results.append(each if isinstance(each, BaseException) else each.id)
            if not isinstance(each, BaseException) and each.outcome not in ADDED_OUTCOMES:
                existing.add(position)
        raise CommandError(await _taken_back(queue, results, numbers, jobs, existing)) from None
    return [job.id for job in added]


async def _taken_back(
    queue: Queue[Any, Any], results: Sequence[Any], numbers: Sequence[int] | None, jobs: Sequence[Push],
    existing: Container[int],
) -> str:  # fmt: skip
    """Delete the jobs of a bulk of which some were refused, unless they have started; return the error.

    Args:
        queue: The queue.
        results: The id or error of each job.
        numbers: Numbers of the jobs in the command; None = 0, 1, ...
        jobs: The jobs.
        existing: Positions of the results that are ids of jobs which existed before.
    """
    message, added = "", list[tuple[Queue[Any, Any], str]]()
    numbered = zip(range(len(results)) if numbers is None else numbers, results, jobs, strict=True)
    for position, (number, each, (_, _, options)) in enumerate(numbered):
        if position in existing:
            continue
        if isinstance(each, BaseException):
            what = missing_job(each, options) if isinstance(each, JobNotFoundError) else str(each)
            message = message or f"jobs[{number}]: {what}"
            if isinstance(each, AmbiguousResultError):
                added.append((queue, options["job_id"]))
        else:
            added.append((queue, each))
    return message + await take_back(queue.name, reversed(added))


# -- staged ----------------------------------------------------------------------------------------------------


def _check_staged(jobs: Sequence[Push], is_durable: bool) -> None:
    """Reject what only a call of its own can check or confirm."""
    size = f"a PUSHB of more than {ROWS_AT_ONCE} jobs or {_CHARS_AT_ONCE} characters"
    if is_durable:
        raise CommandError(f"durable is not supported in {size}")
    for number, (_, _, options) in enumerate(jobs):
        for option, field in (("depends_on", "dependsOn"), ("parent", "parentId")):
            if option in options:
                raise CommandError(f"jobs[{number}]: {field} is not supported in {size}")


def _pieces(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    start = chars = 0
    for end, row in enumerate(rows):
        if end > start and (end - start >= ROWS_AT_ONCE or chars > _CHARS_AT_ONCE):
            yield rows[start:end]
            start, chars = end, 0
        chars += len(_data(row))
    yield rows[start:]


async def _add_staged(queue: Queue[Any, Any], parts: Sequence[tuple[Queue[Any, Any], list[Row]]]) -> bool:
    """Stage the jobs, commit them, and add them; return False if some are committed and not added yet.

    Args:
        queue: The queue.
        parts: The queue or its partitions, with the rows of each.

    After the commit, jobs that could not be added are added by the maintenance of the queue.

    Raises:
        LayoutChangedError: If the queue has other partitions now. Nothing was added.
        GlideMQError: If a call failed before the commit. Nothing was added.
    """
    link = await queue._first_connected()
    transport, quiet = link.transport, not queue.options.events
    layout = 0 if queue._partitions is None else queue._partitions.layout.number
    write = WriteId(id=f"gateway-{secrets.token_hex(12)}", home=link.keys, ttl=_WRITE_MS, keep=_WRITE_MS)
    staged: list[tuple[QueueKeys, str, bytes]] = []
    winners: dict[str, list[tuple[str, int]]] = {}
    for part, rows in parts:
        for number, piece in enumerate(_pieces(rows)):
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
        await check_layout(queue, layout)
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
            "gateway: queue %r: some jobs of a committed PUSHB are not added yet; the maintenance of the queue adds "
            "them: %s", wire_name(queue.name), error,
        )  # fmt: skip
        return False
    return True


async def _ids(queue: Queue[Any, Any], link: QueueLink, jobs: Sequence[Push]) -> list[str]:
    """Return the ids of jobs after a staged write: that of the existing job, if a unique key has prevented one."""
    ids: list[str] = [options["job_id"] for _, _, options in jobs]
    keyed = {options["job_id"]: options["deduplication"]["id"] for _, _, options in jobs if "deduplication" in options}
    missing = dict(keyed)
    wanted = list(keyed)
    for piece in pieces(wanted, ROWS_AT_ONCE):
        call = reading.records(link.keys.meta, piece, ("timestamp",))
        for job_id, _ in await link.transport.call(call):
            missing.pop(job_id, None)
    holders: dict[str, str] = {}
    for job_id, key in missing.items():
        holder = await queue.get_deduplication_job(key)
        if holder is not None:
            holders[job_id] = holder.id
    return [holders.get(job_id, job_id) for job_id in ids]
