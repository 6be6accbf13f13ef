"""Requeues in a partitioned queue: a key has jobs in one partition only (docs/design/partitions.md, "Requeues")."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from glidemq_py._client.transport import JobTransport
from glidemq_py._core.calls.administration import KeyedJob, requeue_keyed
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py._features.partitions.changing import keys_in_use
from glidemq_py._features.partitions.layout import Layout, partition_home
from glidemq_py._features.partitions.repairing import agreed_layout
from glidemq_py._features.partitions.stored import read_layout

__all__ = ["MOVED", "requeue"]

MOVED: Final = "moved"
"""Outcome of a job whose key belongs to another partition."""
_ATTEMPTS: Final = 20
"""Times that the layout is read. More than two are needed only if it changes again and again."""
_KEYS_PER_CALL: Final = 500


class _Key(NamedTuple):
    """A key of a job: a new job with it must be in the partition of the others."""

    text: str
    is_ordering: bool
    ttl: int | None
    """Of the deduplication id, ms; None = it is none."""

    def row(self, *, is_home: bool) -> list[object]:
        """Return the row of `keys_in_use`. The present partition may have a custom id that new jobs look for."""
        has_id = is_home and not self.text.isdecimal()
        dedup = False if self.ttl is None else [self.text, self.ttl, "simple"]
        return [self.text, self.text if has_id else False, self.is_ordering, dedup]


def _keys(job: KeyedJob) -> list[_Key]:
    ordering, unique = job.ordering, job.deduplication
    if isinstance(ordering, str) and ordering == unique:
        return [_Key(ordering, True, job.ttl)]
    keys = [_Key(ordering, True, None)] if isinstance(ordering, str) else []
    return [*keys, _Key(unique, False, job.ttl)] if isinstance(unique, str) else keys


async def requeue(
    transport: JobTransport, keys: QueueKeys, jobs: Iterable[Sequence[Any]], *, completed: bool = False
) -> list[str]:
    """Requeue finished jobs whose key has no jobs in another partition, and has not left theirs.

    Args:
        transport: The connection.
        keys: Keys of the partition.
        jobs: The jobs, as `KeyedJob` or the rows that the library has returned.
        completed: Whether completed jobs are requeued too.

    Returns:
        The outcome of each job: "ok", or why it was not requeued.
    """
    given = [KeyedJob(*job) for job in jobs]
    if not given:
        return []
    queue = QueueKeys(keys.prefix, partition_home(keys.name) or keys.name)
    layout = await read_layout(transport, queue)
    for left in reversed(range(_ATTEMPTS)):
        try:
            return await _requeue(transport, keys, layout, given, completed)
        except LayoutChangedError:
            if not left:
                raise
            layout = await agreed_layout(transport, queue, () if layout is None else layout.names)
    raise AssertionError


async def _requeue(
    transport: JobTransport, keys: QueueKeys, layout: Layout | None, jobs: Sequence[KeyedJob], completed: bool
) -> list[str]:
    outcomes = [MOVED] * len(jobs)
    if layout is None or keys.name not in layout.served:
        return outcomes
    own = layout.served.index(keys.name)
    moved = await _with_jobs_elsewhere(transport, keys.prefix, layout, own, jobs)
    kept = [at for at in range(len(jobs)) if at not in moved]
    rows = [[jobs[at].id, *_at_home(layout, own, jobs[at]), jobs[at].retries] for at in kept]
    if rows:
        replies = await transport.call(requeue_keyed(keys.meta, layout.number, rows, completed))
        for at, reply in zip(kept, replies, strict=True):
            outcomes[at] = reply
    return outcomes


def _at_home(layout: Layout, own: int, job: KeyedJob) -> list[bool]:
    """Return for the ordering key and for the deduplication id whether this is their present partition."""
    return [isinstance(key, str) and layout.homes(key)[-1] == own for key in (job.ordering, job.deduplication)]


async def _with_jobs_elsewhere(
    transport: JobTransport, prefix: str, layout: Layout, own: int, jobs: Sequence[KeyedJob]
) -> set[int]:
    """Return the positions of the jobs with a key that has jobs in another partition, or that may get some there."""
    moved: set[int] = set()
    asked: dict[tuple[int, bool], list[tuple[int, list[object]]]] = {}
    for at, job in enumerate(jobs):
        for key in _keys(job):
            homes = layout.homes(key.text)
            if own not in homes:
                moved.add(at)
            for number in homes:
                if number != own:
                    is_home = number == homes[-1]
                    asked.setdefault((number, is_home), []).append((at, key.row(is_home=is_home)))
    for (number, is_home), some in asked.items():
        meta = QueueKeys(prefix, layout.names[number]).meta
        rows = [(at, row) for at, row in some if at not in moved]
        for start in range(0, len(rows), _KEYS_PER_CALL):
            page = rows[start : start + _KEYS_PER_CALL]
            call = keys_in_use(meta, layout.number, [row for _, row in page], peek=is_home)
            for (at, _), state in zip(page, await transport.call(call), strict=True):
                if state:
                    moved.add(at)
    return moved
