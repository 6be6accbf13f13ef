"""The batches of a partitioned queue: each is in one partition, with its callbacks; its jobs are in all of them.

New batches take turns; the hash of a given ``batch_id`` chooses the partition. As the id may be one that a partition
has made, all of them are looked through for an id that names no partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glidemq_py._api.adds import rerouted
from glidemq_py._api.job_batch import JobBatch
from glidemq_py._api.job_batches import create_in, create_within
from glidemq_py._api.partitions_protocol import Partitions
from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py._core.names import validate_existing_id, validate_job_id
from glidemq_py._features import job_batches as calls
from glidemq_py._features.job_batches import BatchRef
from glidemq_py._partitions.layout import Partition, partition_of_key, split_partition_id
from glidemq_py.errors import GlideMQValidationError, JobBatchNotFoundError


async def create_batch(self: Partitions, *, batch_id: str | None = None, **options: Any) -> JobBatch:
    """See `Queue.create_batch`."""
    given = {option: options.pop(option, None) for option in ("on_complete", "on_success", "on_failure")}

    return await create_within(
        self.home, given, lambda callbacks: _create(self, batch_id, {"callbacks": callbacks, **options})
    )


async def _create(self: Partitions, batch_id: str | None, options: Mapping[str, Any]) -> JobBatch:
    async def create(refusal: LayoutChangedError | None) -> JobBatch:
        if refusal is not None:
            await self.home._renew_layout(refused=True)
        parts: Partitions = self.home._partitions
        number = parts.next_partition() if batch_id is None else await _place_of(parts, batch_id)
        return shown_batch(parts, number, await create_in(parts.queues[number], batch_id=batch_id, **options))

    return await rerouted(create)


async def _place_of(self: Partitions, batch_id: str) -> int:
    """Return the partition that has the batch, or that of a new one with this id."""
    name = validate_job_id(batch_id, "batch_id")
    found = await _existing(self, name)
    return partition_of_key(name, len(self.queues)) if found is None else found


async def _existing(self: Partitions, batch_id: str) -> int | None:
    """Return the first partition that has a batch with this id, beginning with that of its hash."""
    home = partition_of_key(batch_id, len(self.queues))
    for numbers in ([home], [each for each in range(len(self.queues)) if each != home]):
        found: Sequence[bool] = await self.together(_has(self.queues[number], batch_id) for number in numbers)
        for number, exists in zip(numbers, found, strict=True):
            if exists:
                return number
    return None


async def _has(queue: Any, batch_id: str) -> bool:
    link = await queue._connected()
    return bool(await link.call(calls.batch_status, batch_id))


async def get_batch(self: Partitions, batch: str | BatchRef) -> JobBatch:
    """See `Queue.get_batch`; an id may name the partition."""
    if isinstance(batch, BatchRef):
        if batch.queue != self.home.name:
            raise GlideMQValidationError("batch", batch, f"must be of this queue, {self.home.name!r}")
        batch = batch.id
    number, own = split_partition_id(validate_existing_id(batch, "batch"))
    found: int | None = number if own != batch else await _existing(self, own)
    if found is None or found >= len(self.queues):
        raise JobBatchNotFoundError(batch, self.home.name)
    try:
        return shown_batch(self, found, await self.queues[found].get_batch(own))
    except JobBatchNotFoundError:
        raise JobBatchNotFoundError(batch, self.home.name) from None


def shown_batch(self: Partitions, number: int, batch: JobBatch) -> JobBatch:
    """Return the batch of a partition as that of the whole queue."""
    return JobBatch(self.queues[number], batch.id, self.home, Partition(number, self.home.name).id_of(batch.id))
