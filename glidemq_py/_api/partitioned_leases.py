"""Leases of a partitioned queue: fetched from its partitions in turn, and reported to the partition of each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

from glidemq_py._api.lease import Lease
from glidemq_py._api.lease_exchange import ROWS_PER_CALL, LeaseOutcome
from glidemq_py._api.leasing import MAX_WAIT_MS, LeaseReport, check_distinct
from glidemq_py._api.partitions_protocol import Partitions
from glidemq_py._core.calls.working import Expiry
from glidemq_py._core.checks import check_int, check_iterable
from glidemq_py._core.times import Milliseconds, monotonic, to_ms
from glidemq_py.errors import GlideMQError

_FIRST_PAUSE_S: Final = 0.02
_LAST_PAUSE_S: Final = 0.5
"""Longest time between two looks at all partitions while a fetch waits."""


async def fetch(
    self: Partitions, count: int = 1, *, wait: Milliseconds = 0, owner: str | None = None, **options: Any
) -> list[Lease[Any, Any]]:
    """See `Queue.fetch`. While it waits, it looks at all partitions, at least twice per second."""
    until = monotonic() + to_ms("wait", wait, maximum=MAX_WAIT_MS) / 1_000
    name = self.home._lease_owner if owner is None else owner
    pause = _FIRST_PAUSE_S
    while True:
        found = await _fetch_once(self, count, owner=name, **options)
        left = until - monotonic()
        if found or left <= 0:
            return found
        await self.home._runtime.there(asyncio.sleep(min(pause, left)))
        pause = min(2 * pause, _LAST_PAUSE_S)


async def _fetch_once(self: Partitions, count: int, **options: Any) -> list[Lease[Any, Any]]:
    found: list[Lease[Any, Any]] = []
    first = self.next_partition()
    try:
        for number in range(len(self.queues)):
            queue = self.queues[(first + number) % len(self.queues)]
            found += await queue.fetch(count - len(found) if found else count, **options)
            if len(found) >= count:
                break
    except BaseException:
        for lease in found:  # the call has failed: its caller does not get them
            with contextlib.suppress(GlideMQError):
                await lease.release()
        raise
    return found


def _divided(self: Partitions, leases: Sequence[Any]) -> list[tuple[Any, list[int]]]:
    """Return the positions of the leases of each partition. Others come first, for partition 0, which rejects them."""
    positions: dict[int, list[int]] = {}
    numbers = {queue._keys.base: number for number, queue in enumerate(self.queues)}
    for at, lease in enumerate(leases):
        keys = getattr(getattr(getattr(lease, "_core", lease), "_queue", None), "_keys", None)
        positions.setdefault(numbers.get(getattr(keys, "base", None), -1), []).append(at)
    return [(self.queues[max(0, number)], positions[number]) for number in sorted(positions)]


def _first(pair: Any) -> Any:
    """Return the lease of a pair; None for anything else, which partition 0 rejects."""
    try:
        lease, _ = pair
    except (TypeError, ValueError):
        return None
    return lease


async def complete_leases(
    self: Partitions, results: Iterable[tuple[Any, Any]], *, fetch_next: int = 0
) -> LeaseReport[Lease[Any, Any]]:
    """See `Queue.complete_leases`; one call per partition, and jobs are fetched from the partitions in turn."""
    return await _report(self, "complete_leases", "results", results, fetch_next)


async def fail_leases(
    self: Partitions, failures: Iterable[tuple[Any, Any]], *, retry: bool = True, fetch_next: int = 0
) -> LeaseReport[Lease[Any, Any]]:
    """See `Queue.fail_leases`."""
    return await _report(self, "fail_leases", "failures", failures, fetch_next, retry=retry)


async def _report(
    self: Partitions, method: str, option: str, pairs: Iterable[Any], fetch_next: int, **options: Any
) -> LeaseReport[Lease[Any, Any]]:
    given = list(check_iterable(option, pairs, "pairs"))
    more = check_int("fetch_next", fetch_next, 0, ROWS_PER_CALL)
    outcomes: list[Any] = [None] * len(given)
    reported = [_first(pair) for pair in given]
    check_distinct(option, reported)
    for queue, positions in _divided(self, reported):
        found = await getattr(queue, method)([given[at] for at in positions], **options)
        for at, outcome in zip(positions, found.outcomes, strict=True):
            outcomes[at] = outcome
    leases: list[Lease[Any, Any]] = []
    if more:
        like: Any = getattr(_first(given[0]), "_core", _first(given[0]))._options if given else None
        leases = await fetch(self, more) if like is None else await fetch(
            self, more, lock_duration=like.lock_duration, owner=like.owner or None,
            count_expiry=like.expiry is Expiry.FAILED_ATTEMPT,
        )  # fmt: skip
    return LeaseReport(outcomes, leases)


async def release_leases(self: Partitions, leases: Iterable[Any]) -> list[LeaseOutcome]:
    """See `Queue.release_leases`."""
    given = list(check_iterable("leases", leases, "leases"))
    check_distinct("leases", given)
    return await _change(self, "release_leases", given)


async def extend_leases(self: Partitions, leases: Iterable[Any], duration: Milliseconds) -> list[LeaseOutcome]:
    """See `Queue.extend_leases`."""
    return await _change(self, "extend_leases", leases, duration)


async def _change(self: Partitions, method: str, leases: Iterable[Any], *args: Any) -> list[LeaseOutcome]:
    given = list(check_iterable("leases", leases, "leases"))
    outcomes: list[Any] = [None] * len(given)
    for queue, positions in _divided(self, given):
        found = await getattr(queue, method)([given[at] for at in positions], *args)
        for at, outcome in zip(positions, found, strict=True):
            outcomes[at] = outcome
    return outcomes


async def release_owner(self: Partitions, owner: str | None = None) -> int:
    """See `Queue.release_owner`."""
    name = self.home._lease_owner if owner is None else owner
    return sum(await self.each("release_owner", name))
