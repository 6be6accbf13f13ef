"""Backups of a partitioned queue: all partitions are in one, and are restored together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glidemq_py._api import plain_settings
from glidemq_py._api.partitioned_limits import trade_shares
from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py._features import queue_list
from glidemq_py._features.backup.manifest import BackupInfo
from glidemq_py._features.backup.restoring import BackedUpSettings, RestoreReport, RestoreSteps, restore_backup
from glidemq_py._features.backup.store import BackupStore
from glidemq_py._features.partitions.changing import advance_layout, replace_layout
from glidemq_py._features.partitions.deleting import remove_remains
from glidemq_py._features.partitions.layout import Layout, further_names, number_after
from glidemq_py._features.partitions.repairing import agreed_layout
from glidemq_py._features.partitions.stored import parse_layout
from glidemq_py.errors import BackupError, QueueNotEmptyError

if TYPE_CHECKING:
    from glidemq_py._api.job_queue import Queue
    from glidemq_py._api.partitioned import PartitionedQueue

__all__ = ["restore_partitions"]


async def restore_partitions(home: Queue[Any, Any], store: BackupStore, info: BackupInfo) -> RestoreReport:
    """Restore a backup that is, or into a queue that has been, partitioned. See `Queue.restore`."""
    before = await agreed_layout(home._transport, home._keys)
    following = _restored_layout(home, before, info)
    unused = following.names[1 if before is None else len(before.served) :]
    deleted = await remove_remains(home._transport, home._keys, unused)
    following = following._replace(number=max(following.number, deleted + 1))
    restored = home._with_layout(following)
    links = [await queue._connected() for queue in restored.queues[: len(info.sections)]]
    restored_names = {link.keys.name for link in links}
    others = [] if before is None else [name for name in before.served if name not in restored_names]

    if before is not None:
        await _reject_jobs(home, before, others)
    report = await restore_backup(links, store, info, _Steps(home, info, before, restored))
    for link in links:
        await queue_list.register(link)
    return report


class _Steps(RestoreSteps):
    """Replaces the layout; the settings of a queue without partitions then apply to all of them."""

    def __init__(
        self, home: Queue[Any, Any], info: BackupInfo, before: Layout | None, restored: PartitionedQueue
    ) -> None:
        self._home, self._info, self._before, self._restored = home, info, before, restored

    async def check(self, settings: BackedUpSettings) -> None:
        """See `RestoreSteps`."""
        if self._info.partitions:
            return
        info, count = self._info, len(self._restored.queues)
        problem = plain_settings.mismatch(settings, count)
        if problem is not None:
            raise BackupError(
                f"backup {info.id!r} of queue {info.queue!r} cannot be restored into {count} partitions: {problem}"
            )

    async def before_writing(self) -> None:
        """See `RestoreSteps`."""
        home, following = self._home, self._restored.layout
        call = replace_layout(home._keys.meta, self._before, following)
        stored = parse_layout(home.name, (await home._transport.call(call)).decode("utf-8", "replace"))
        if stored != following:
            raise LayoutChangedError(f"queue {home.name!r}: another client changed its partitions; restore it again")
        for queue in self._restored.queues[1:]:
            link = await queue._connected()
            await link.transport.call(advance_layout(link.keys.meta, following))
        await home._use_layout(following)

    async def after_writing(self, settings: BackedUpSettings) -> None:
        """See `RestoreSteps`."""
        if not self._info.partitions:
            await plain_settings.apply_to_partitions(self._home, self._restored, settings)
        else:
            await trade_shares(self._restored)


def _restored_layout(home: Queue[Any, Any], before: Layout | None, info: BackupInfo) -> Layout:
    """Return the layout of the restored queue.

    Under its own name, a queue gets the partitions that it had, as records name them. Keys of a queue without
    partitions are found in partition 0, as after its first `set_partitions`.
    """
    number = number_after(0 if before is None else before.number)
    known = (home.name,) if before is None else before.names
    if not info.partitions:
        assert before is not None
        return Layout(number, (1, before.partitions), known)
    names = tuple(each.name for each in info.partitions)
    if names[0] == home.name:
        return Layout(number, info.counts, names)
    return Layout(number, info.counts, further_names(known, len(names)))


async def _reject_jobs(home: Queue[Any, Any], before: Layout, names: list[str]) -> None:
    """Reject a queue with jobs in partitions into which nothing is restored."""
    for queue in home._with_layout(before).queues:
        if queue.name in names:
            counts = await queue.get_job_counts()
            if counts.unfinished or counts.completed or counts.failed:
                raise QueueNotEmptyError(home.name, "it has jobs")
