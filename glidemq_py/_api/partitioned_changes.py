"""Changing the number of partitions of a queue while it is in use (docs/design/partitions.md).

The new partitions get the settings of the queue first. Then one call replaces the layout, and from then on jobs without
a key are added by the new one. A key stays in its former partition for as long as it has jobs there. When no former
partition has jobs of such keys any more, the former layouts are removed. Each step is a bounded call, and a change that
was interrupted is continued by calling `set_partitions` again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from glidemq_py._api.partitioned_batches import has_batches, has_temporary
from glidemq_py._api.partitioned_limits import trade_shares
from glidemq_py._api.partitioned_writes import CHANGING, is_changing
from glidemq_py._core import json_text as json
from glidemq_py._core.calls import Call
from glidemq_py._core.checks import check_int
from glidemq_py._core.gateway_ids import queue_number, queue_numbers_key
from glidemq_py._core.job_options import read_stored_options
from glidemq_py._core.job_states import JobCounts
from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py._features.fair_keys.options import EACH_KEY, NAME_PREFIX, NameLimits
from glidemq_py._features.limits.options import GlobalLimits, RateLimit
from glidemq_py._features.partitions.changing import (
    SettingsPage,
    advance_layout,
    copy_settings,
    dedup_keys,
    hold_limits,
    keys_in_use,
    replace_layout,
    settings_page,
)
from glidemq_py._features.partitions.deleting import remove_remains
from glidemq_py._features.partitions.layout import MAX_PARTITIONS, Layout, partition_of_key
from glidemq_py._features.partitions.options import QueuePartitions
from glidemq_py._features.partitions.repairing import agreed_layout
from glidemq_py._features.partitions.routing import routing_key
from glidemq_py._features.partitions.stored import SETTINGS_NUMBER, layout_text, parse_layout
from glidemq_py._features.staged_writes import writes
from glidemq_py.errors import GlideMQError, GlideMQValidationError, PermissionDeniedError

if TYPE_CHECKING:
    from glidemq_py._api.job_queue import Queue
    from glidemq_py._api.partitioned import PartitionedQueue

__all__ = [
    "CHOOSING",
    "copy_to_partitions",
    "divide_limits",
    "forget_limits",
    "get_partitions",
    "limits_of",
    "set_partitions",
]

T = TypeVar("T")

_STATES: Final = (
    "waiting-children", "delayed", "suspended", "group-waiting", "prioritized", "waiting", "active", "completed",
    "failed",
)  # fmt: skip
"""In the order in which a job goes through them: one that moves on while they are listed is seen in a later one."""
_ENDED: Final = ("completed", "failed")
_PAGE: Final = 500
_SETTLING: Final = "settling"
"""Field of the meta keys of all partitions: the number of the layout, while jobs of former layouts are looked for."""
_WITHOUT_SHARE: Final = ("globalConcurrency", "1", "temporaryLimits", "1|share|0|0|0")
"""Fields of the meta key of a partition that starts no job: its share of the queue's concurrency has ended."""
_ATTEMPTS: Final = 20
"""Times that a change copies the settings. More than two are needed only if they change again and again."""
CHOOSING: Final = ("ordering", "fair_key", "deduplication", "job_id")
"""Options of a job that choose its partition."""


def _shown(layout: Layout) -> QueuePartitions:
    return QueuePartitions(
        count=layout.partitions, serving=len(layout.served), is_settled=len(layout.counts) == 1, names=layout.served
    )


async def get_partitions(self: Any) -> QueuePartitions:
    """Return the partitions of the queue.

    Returns:
        How many partitions get new jobs, and whether others still have some. A queue without partitions has 1.
    """
    home: Queue[Any, Any] = self
    await home._plain_link()
    await home._renew_layout()
    found = home._partitions
    return _shown(Layout.plain(home.name) if found is None else found.layout)


async def set_partitions(self: Any, count: int) -> QueuePartitions:
    """Change the number of partitions while the queue is in use (docs/learn/partitions.md, "Changing the number").

    No job is moved. Jobs with an ordering key, a ``job_id`` or a ``deduplication`` id go to their former partition
    for as long as it has jobs with that key. Call it again with the same number to complete the change: as soon as
    no such jobs are left, clients no longer look at the former partitions. Clients and workers need not be
    restarted, but those of versions before 0.2.0 are refused from then on. A call that looks for such jobs reads
    the options of all jobs, of the kept finished ones too.

    Other clients may change settings meanwhile; calls that change limits of the queue wait.

    Args:
        count: Number of partitions, 1 to 256.

    Returns:
        The partitions as they are now. ``is_settled`` is True if the change is complete: at once, without jobs.

    Raises:
        GlideMQValidationError: If ``count`` is invalid, a limit of the queue is smaller, or a scheduler creates
            jobs with an option that would choose a partition. Nothing was changed.
        GlideMQError: If another client changed the number at the same time.
    """
    check_int("count", count, 1, MAX_PARTITIONS)
    await self._plain_link()
    try:
        return await _change(self, count)
    except LayoutChangedError as error:  # a partition has a later layout than this change
        raise _changed_meanwhile(self) from error


def _changed_meanwhile(home: Queue[Any, Any]) -> GlideMQError:
    return GlideMQError(
        f"queue {home.name!r}: another client changed the number of partitions; call set_partitions again"
    )


async def _change(home: Queue[Any, Any], count: int) -> QueuePartitions:
    for _ in range(_ATTEMPTS):
        done = await _try_to_change(home, count)
        if done is not None:
            return done
    raise _settings_keep_changing(home)


def _settings_keep_changing(home: Queue[Any, Any]) -> GlideMQError:
    return GlideMQError(f"queue {home.name!r}: other clients keep changing its settings; call set_partitions again")


async def _try_to_change(home: Queue[Any, Any], count: int) -> QueuePartitions | None:
    """Change the number of partitions, or complete the change. Return None if settings have changed meanwhile."""
    known = home._partitions
    stored = await agreed_layout(home._transport, home._keys, () if known is None else known.layout.names)
    layout = Layout.plain(home.name) if stored is None else stored
    if layout.partitions == count:
        return await _settle(home, layout)
    following = layout.changed(count)
    # A failover may have lost a layout that had the new partitions already.
    if await agreed_layout(home._transport, home._keys, following.names) != stored:
        return None
    deleted = await remove_remains(home._transport, home._keys, following.names[len(layout.served) :])
    following = following._replace(number=max(following.number, deleted + 1))
    before, after = home._with_layout(layout), home._with_layout(following)
    settings = await _settings_number(home)
    await _check_schedulers(before)
    limits = await limits_of(home, before)
    _check_shares(limits, len(after.queues))
    if not await _note(home, limits, following.number, settings):
        return None
    for queue in after.queues[len(before.queues) :]:
        await _clear(queue, following.number, deleted, limits)
    await copy_to_partitions(before, after, layout)
    await divide_limits(home, after, limits)
    if not await _publish(home, stored, following, after, settings):
        return None
    await trade_shares(after)
    await forget_limits(home)
    if any([await _has_jobs(queue) for queue in before.queues]):
        return _shown(following)
    return await _settle(home, following)


async def _publish(
    home: Queue[Any, Any], before: Layout | None, following: Layout, after: PartitionedQueue, settings: int = -1
) -> bool:
    """Replace the layout; then let all partitions refuse clients that do not know it.

    Returns False, and changes nothing, if settings have changed since ``settings`` was read.
    """
    reply = await home._transport.call(replace_layout(home._keys.meta, before, following, settings))
    text = reply.decode("utf-8", "replace")
    if text == ("" if before is None else layout_text(before)):
        return False
    if parse_layout(home.name, text) != following:
        raise _changed_meanwhile(home)
    await home._use_layout(following)
    await _advance(after, following)
    return True


async def _advance(self: PartitionedQueue, layout: Layout) -> None:
    for queue in self.queues[1:]:
        link = await queue._connected()
        await link.transport.call(advance_layout(link.keys.meta, layout))


# -- settings --------------------------------------------------------------------------------------------------


async def _check_schedulers(before: PartitionedQueue) -> None:
    for scheduler in await before.run("get_job_schedulers", (), {}):
        for option in CHOOSING:
            if getattr(scheduler.options, option) is not None:
                raise GlideMQValidationError(
                    "template", option,
                    f"scheduler {scheduler.name!r} creates jobs with {option!r}, which would choose a partition; "
                    "remove it, or create it without this option",
                )  # fmt: skip


async def _clear(queue: Queue[Any, Any], number: int, deleted: int, limits: _Limits) -> None:
    """Remove settings and limits from a time when the queue had more partitions, before the partition is used again.

    It has no share of the queue's concurrency until the others give it one. Rounds of trading that have begun before
    have no effect on it.
    """
    is_limited = limits.concurrency is not None or limits.concurrency_ttl is not None
    share = ["shareRound", "0", *(_WITHOUT_SHARE if is_limited else ())]
    await _send(queue, copy_settings(queue._keys.meta, share, [], [], used_from=number, deleted=deleted))
    async for page in _pages(queue):
        if page.groups:
            await _send(queue, copy_settings(queue._keys.meta, [], [], [[key, []] for key, _ in page.groups]))


async def copy_to_partitions(before: PartitionedQueue, after: PartitionedQueue, layout: Layout) -> None:
    """Copy the settings to the further partitions, and the limits of keys from their partition to the new one."""
    used, count = len(layout.served), after.layout.partitions
    for number, queue in enumerate(before.queues):
        await _remove_foreign_limits(queue, number, layout)
    for number, queue in enumerate(before.queues):
        async for page in _pages(queue):
            limits = dict(zip(page.limits[::2], page.limits[1::2], strict=True))
            moving: dict[int, tuple[list[str], list[list[Any]]]] = {}
            for key, limit in limits.items():
                if not key.startswith("\0") and layout.homes(key)[-1] == number:
                    moving.setdefault(partition_of_key(key, count), ([], []))[0].extend((key, limit))
            for key, group in page.groups:
                if layout.homes(key)[-1] == number:
                    moving.setdefault(partition_of_key(key, count), ([], []))[1].append([key, group])
            for target, other in enumerate(after.queues):
                settings = page.settings if number == 0 and target >= used else []
                mine, groups = moving.get(target, ([], [])) if target != number else ([], [])
                if number == 0 and target >= used and EACH_KEY in limits:
                    mine = [*mine, EACH_KEY, limits[EACH_KEY]]
                if settings or mine or groups:
                    await _send(before.home, copy_settings(other._keys.meta, settings, mine, groups))
    kept = await before.queues[0].get_result_retention()
    for queue in after.queues[used:] if kept else ():
        await queue.set_result_retention(kept)


async def _remove_foreign_limits(queue: Queue[Any, Any], number: int, layout: Layout) -> None:
    """Remove limits of keys that have no jobs here: earlier changes, or an incomplete one, have left them."""

    def is_foreign(key: str) -> bool:
        return not key.startswith("\0") and number not in layout.homes(key)

    async for page in _pages(queue):
        limits = [each for key in page.limits[::2] if is_foreign(key) for each in (key, "")]
        groups: list[list[Any]] = [[key, []] for key, _ in page.groups if is_foreign(key)]
        if limits or groups:
            await _send(queue, copy_settings(queue._keys.meta, [], limits, groups))


async def _pages(queue: Queue[Any, Any]) -> AsyncIterator[SettingsPage]:
    cursor, following = "", True
    while following:
        page = await _send(queue, settings_page(queue._keys.meta, cursor))
        yield page
        cursor = page.cursor
        following = bool(cursor)


async def _set(queue: Queue[Any, Any], field: str, text: str) -> None:
    """Set a field of a partition's meta key."""
    await _send(queue, copy_settings(queue._keys.meta, [field, text], [], []))


async def _send(queue: Queue[Any, Any], call: Call[T]) -> T:
    return await queue._transport.call(call)


# -- limits ----------------------------------------------------------------------------------------------------


class _Limits(NamedTuple):
    """The limits of the whole queue while they are divided among other partitions."""

    concurrency: int | None
    concurrency_ttl: int | None
    rate: tuple[int, int] | None
    rate_ttl: int | None
    names: dict[str, tuple[int | None, tuple[int, int] | None]]


async def limits_of(home: Queue[Any, Any], before: PartitionedQueue) -> _Limits:
    """Return the limits of the queue: those that an interrupted change has stored, or the sums of the shares."""
    found: GlobalLimits = await before.run("get_global_limits", (), {})
    pending = await _pending(home, before.layout)
    if pending is not None:  # the concurrency is not divided by changes
        return pending._replace(concurrency=found.concurrency, concurrency_ttl=found.concurrency_ttl)
    names: dict[str, tuple[int | None, tuple[int, int] | None]] = {}
    async for page in _pages(before.queues[0]):
        for key in page.limits[::2]:
            if key.startswith(NAME_PREFIX):
                name = key.removeprefix(NAME_PREFIX)
                of_name: NameLimits = await before.run("get_name_limits", (name,), {})
                names[name] = (of_name.concurrency, _pair(of_name.rate_limit))
    return _Limits(found.concurrency, found.concurrency_ttl, _pair(found.rate_limit), found.rate_limit_ttl, names)


def _pair(rate: RateLimit | None) -> tuple[int, int] | None:
    return None if rate is None else (rate.max, rate.duration)


async def _pending(home: Queue[Any, Any], layout: Layout) -> _Limits | None:
    """Return the limits that an interrupted change has stored, if the shares may not be complete yet."""
    text = (await home._transport.command("HGET", home._keys.meta, CHANGING) or b"").decode()
    if not is_changing(text, layout):
        return None
    found: Any = json.loads(text)
    names = {name: (number, rate and tuple(rate)) for name, (number, rate) in found["names"].items()}
    rate = found["rate"]
    return _Limits(found["concurrency"], found["concurrency_ttl"], rate and tuple(rate), found["rate_ttl"], names)


async def _hold_limits(home: Queue[Any, Any], before: PartitionedQueue, number: int) -> _Limits:
    """Return the limits of the queue, and let no client change them until they are divided."""
    for _ in range(_ATTEMPTS):
        settings = await _settings_number(home)
        limits = await limits_of(home, before)
        if await _note(home, limits, number, settings):
            return limits
    raise _settings_keep_changing(home)


async def _settings_number(home: Queue[Any, Any]) -> int:
    """Return how many changes of settings and limits were counted (`partitioned_writes`)."""
    return int(await home._transport.command("HGET", home._keys.meta, SETTINGS_NUMBER) or 0)


async def _note(home: Queue[Any, Any], limits: _Limits, number: int, settings: int) -> bool:
    """Store the limits, with the number of the coming layout, until all partitions have their share of them.

    Returns False, and changes nothing, if settings have changed since ``settings`` was read.
    """
    text = json.dumps(limits._asdict() | {"number": number})
    return bool(await _send(home, hold_limits(home._keys.meta, text, settings)))


async def forget_limits(home: Queue[Any, Any]) -> None:
    """Remove the limits that `_note` has stored: all partitions have their share."""
    await _send(home, copy_settings(home._keys.meta, [CHANGING, ""], [], []))


def _check_shares(limits: _Limits, partitions: int) -> None:
    """Raise GlideMQValidationError if a limit is too small to be divided."""
    numbers = {"concurrency": limits.concurrency, "max": limits.rate and limits.rate[0]}
    for name, (concurrency, rate) in limits.names.items():
        numbers |= {f"concurrency of name {name!r}": concurrency, f"max of name {name!r}": rate and rate[0]}
    for option, number in numbers.items():
        if number is not None and number < partitions:
            raise GlideMQValidationError(
                "count", partitions, f"must be at most the limit {option!r} of the queue, {number}"
            )


async def divide_limits(home: Queue[Any, Any], after: PartitionedQueue, limits: _Limits) -> None:
    """Give each partition its share in rates and in limits of job names; they trade those of the concurrency.

    The sum of the shares never exceeds the limits: the former partitions come first. Jobs that run keep running, so
    the former partitions may have more active jobs of a name than their shares until these end.
    """
    if limits.rate is not None:
        await after.run("set_global_rate_limit", limits.rate, {"ttl": limits.rate_ttl})
    for name, (concurrency, rate) in limits.names.items():
        if concurrency is not None or rate is not None:
            options = {"concurrency": concurrency, "rate_limit": None if rate is None else RateLimit(*rate)}
            await after.run("set_name_limits", (name,), options)


# -- completing a change ---------------------------------------------------------------------------------------


async def _settle(home: Queue[Any, Any], layout: Layout) -> QueuePartitions:
    """Remove the former layouts if no partition has jobs of theirs any more."""
    before = home._with_layout(layout)
    if len(layout.counts) == 1:
        pending = await _pending(home, layout)
        if pending is not None:  # the call that completed the change was interrupted
            await divide_limits(home, before, pending)
            await trade_shares(before)
            await forget_limits(home)
        return _shown(layout)
    await _advance(before, layout)
    for number, queue in enumerate(before.queues):
        await _set(queue, _SETTLING, str(layout.number))
        if await _has_moving_jobs(queue, number, layout):
            for other in before.queues[: number + 1]:
                await _set(other, _SETTLING, "")
            return _shown(layout)
    following = layout.settled()
    after = home._with_layout(following)
    limits = await _hold_limits(home, before, following.number)
    if not await _publish(home, layout, following, after):
        raise _changed_meanwhile(home)
    await _advance(before, following)
    if len(after.queues) < len(before.queues):
        await divide_limits(home, after, limits)
        await trade_shares(after)
    await forget_limits(home)
    return _shown(following)


async def _has_moving_jobs(queue: Queue[Any, Any], number: int, layout: Layout) -> bool:
    """Return whether a partition has a job whose key belongs to another one, or any job if it gets no new ones.

    Reads the options of every job, of the kept finished ones too. Twice, as a job may return to a state that has been
    listed: it is retried, released or requeued. Whether an ordering key has jobs is decided by one call per key.
    """
    if number >= layout.partitions and (
        await queue.get_job_schedulers() or await _has_jobs(queue) or await has_batches(queue)
        or await has_temporary(queue, "flow-mark:") or await _has_writes(queue)
    ):  # fmt: skip
        return True
    for _ in range(2):
        if await _lists_moving_jobs(queue, number, layout):
            return True
    return await _has_ordered_jobs(queue, number, layout) or await _has_unique_jobs(queue, number, layout)


async def _has_jobs(queue: Queue[Any, Any]) -> bool:
    counts: JobCounts = await queue.get_job_counts()
    return bool(counts.unfinished or counts.completed or counts.failed)


async def _has_writes(queue: Queue[Any, Any]) -> bool:
    """Return whether a partition has unfinished writes of Spark, whose rows may still become jobs."""
    return bool(await _send(queue, writes(queue._keys)))


async def _lists_moving_jobs(queue: Queue[Any, Any], number: int, layout: Layout) -> bool:
    known = await _gateway_number(queue)
    for state in _STATES:
        async for job in queue.iter_jobs(state, _PAGE, exclude_data=True):
            if number >= layout.partitions or _is_moving(job, number, layout, state in _ENDED, known):
                return True
    return False


async def _gateway_number(queue: Queue[Any, Any]) -> int | None:
    """Return the number in the ids that gateways make for jobs of a partition; None if they have made none."""
    link = await queue._connected()
    try:
        found = await link.transport.command("HGET", queue_numbers_key(link.keys.prefix), f"q:{queue.name}")
    except PermissionDeniedError:
        return None
    return int(found) if found is not None and found.isdigit() else None


async def _has_ordered_jobs(queue: Queue[Any, Any], number: int, layout: Layout) -> bool:
    """Return whether an ordering key has jobs here and belongs elsewhere. Keys without jobs get none from then on."""
    link = await queue._connected()
    cursor: Any = b"0"
    while True:
        cursor, pairs = await link.transport.command("HSCAN", link.keys.ordering, cursor, "COUNT", str(_PAGE))
        keys = [name.decode("utf-8", "replace") for name in pairs[::2]]
        moving = [key for key in keys if partition_of_key(key, layout.partitions) != number]
        for start in range(0, len(moving), _PAGE):
            rows = [[key, False, True, False] for key in moving[start : start + _PAGE]]
            if any(await link.transport.call(keys_in_use(link.keys.meta, layout.number, rows))):
                return True
        if cursor == b"0":
            return False


async def _has_unique_jobs(queue: Queue[Any, Any], number: int, layout: Layout) -> bool:
    link = await queue._connected()
    start = 0
    while True:
        ids = await link.transport.call(dedup_keys(link.keys.meta, start, _PAGE))
        if any(partition_of_key(key, layout.partitions) != number for key in ids):
            return True
        if len(ids) < _PAGE:
            return False
        start += _PAGE


def _is_moving(job: Any, number: int, layout: Layout, has_ended: bool, known: int | None) -> bool:
    """Return whether the key of a job belongs to another partition.

    Args:
        job: The job.
        number: Number of its partition.
        layout: The present layout.
        has_ended: Whether the job has finished.
        known: See `_gateway_number`. Such an id names the partition, so it chooses none; `_has_unique_jobs` decides
            about a unique key beside it.
    """
    options = read_stored_options(cast("str", job._opts_text))
    if known is not None and options.job_id is not None and queue_number(options.job_id) == known:
        return False
    if has_ended and options.job_id is None:
        return False
    try:
        key = routing_key(options)
    except GlideMQError:
        return False  # it was added to this partition without regard to its keys
    return key is not None and partition_of_key(key, layout.partitions) != number
