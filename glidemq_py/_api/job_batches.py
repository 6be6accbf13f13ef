"""`JobBatches`: creating and finding the job batches of a queue."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Final

from glidemq_py._api.job_batch import JobBatch
from glidemq_py._core.calls.adding import encode_row
from glidemq_py._core.keys import validate_existing_id, validate_job_id
from glidemq_py._core.misuse import known_methods
from glidemq_py._core.queue_options import Entry, JobInput, check_call, entry_of
from glidemq_py._core.times import DAY_MS, Milliseconds, to_ms
from glidemq_py._features import job_batches as calls
from glidemq_py._features.job_batches import BatchRef
from glidemq_py._job.middleware import add_within
from glidemq_py._partitions.layout import part_of_key, split_partition_id
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.parts import Area, ConnectedQueue
from glidemq_py.errors import GlideMQValidationError, JobBatchNotFoundError
from glidemq_py.telemetry.spans import carry_context
from glidemq_py.telemetry.state import TELEMETRY

Callbacks = dict[str, Entry]
"""The callbacks of a batch, by the option that gave them."""

_ID_LENGTH: Final = 200
_PAGE: Final = 500


async def _create(queue: ConnectedQueue, callbacks: Callbacks, batch_id: str | None, keep: Milliseconds) -> JobBatch:
    """Create a batch. New ones take turns in the parts; a given id chooses the part, unless another has it."""
    if batch_id is None:
        name = stem = f"batch-{secrets.token_hex(8)}"
    else:
        name = validate_job_id(batch_id, "batch_id")
        if len(name) > _ID_LENGTH or name.isdigit():
            problem = f"must be at most {_ID_LENGTH} characters, and not a number"
            raise GlideMQValidationError("batch_id", name, problem)
        stem = f"{name}-{secrets.token_hex(4)}"  # an id may be used again when its batch has expired
    kept, links = to_ms("keep", keep, minimum=1), await queue._links()
    found = None if batch_id is None else await _part_of(queue, links, name)
    link = found or links[queue._next_part() if batch_id is None else part_of_key(name, len(links))]
    rows = {
        option: encode_row(link, *entry, f"{option}.data") for option, entry in callbacks.items()
    }  # fmt: skip
    if TELEMETRY.on:
        carry_context(list(rows.values()))
    await link.call(
        calls.batch_create,
        name,
        stem,
        complete=rows.get("on_complete"),
        success=rows.get("on_success"),
        failure=rows.get("on_failure"),
        keep=kept,
        quiet=not queue.options.events,
        layout=link.layout or None,
    )
    return JobBatch(queue, link, name)


async def _part_of(queue: ConnectedQueue, links: Sequence[QueueLink], batch_id: str) -> QueueLink | None:
    """Return the first of several parts that has a batch with this id, beginning with that of its hash."""
    if len(links) == 1:
        return links[0]
    home = links[part_of_key(batch_id, len(links))]
    for some in ([home], [link for link in links if link is not home]):
        found = await queue._together(link.call(calls.batch_status, batch_id) for link in some)
        for link, status in zip(some, found, strict=True):
            if status:
                return link
    return None


async def _create_within(
    queue: ConnectedQueue, given: Mapping[str, JobInput | None], create: Callable[[Callbacks], Awaitable[JobBatch]]
) -> JobBatch:
    """Create a batch within the queue's middleware, which may change the data and headers of its callbacks.

    Args:
        queue: Queue of the batch, with its middleware.
        given: The callbacks, by option; None = no callback.
        create: Creates the batch with these callbacks.

    Raises:
        GlideMQValidationError: If a callback is invalid.
    """
    callbacks: Callbacks = {}
    for option, callback in given.items():
        if callback is not None:
            check_call(callback, queue.name, option)
            entry = entry_of(callback, queue.options.default_job_options, option)
            entry[2].check_place("callback", "is not accepted for callbacks of a batch", f"{option}.")
            callbacks[option] = entry

    async def create_changed(changed: Iterable[Entry]) -> JobBatch:
        return await create(dict(zip(callbacks, changed, strict=True)))

    return await add_within(
        queue.options.middleware, repeat(queue.name), callbacks.values(), create_changed,
        blocking=queue._runtime.is_blocking,
    )  # fmt: skip


async def _batches(queue: ConnectedQueue, link: QueueLink) -> AsyncIterator[JobBatch]:
    cursor = ""
    while True:
        page = await link.call(calls.batches, cursor, _PAGE)
        for name in dict.fromkeys(page.ids):
            yield JobBatch(queue, link, name)
        cursor = page.cursor
        if not cursor:
            return


@known_methods
class JobBatches(Area):
    """``queue.job_batches``: sets of jobs with callbacks."""

    __slots__ = ()

    async def create(
        self,
        *,
        on_complete: JobInput | None = None,
        on_success: JobInput | None = None,
        on_failure: JobInput | None = None,
        batch_id: str | None = None,
        keep: Milliseconds = DAY_MS,
    ) -> JobBatch:
        """Create a batch: a set of jobs with callbacks, which are jobs that are added to this queue.

        Args:
            on_complete: Job to add when the batch is closed and all its jobs have ended, whether they completed
                or failed.
            on_success: Job to add when the batch is closed and all its jobs have completed, be it after a failed
                job was requeued.
            on_failure: Job to add when the first job of the batch has failed permanently.
            batch_id: Id of the batch, up to 200 characters; see `validate_job_id`. None creates a random one. If
                the batch exists, it is returned unchanged.
            keep: How long a batch is kept after all its jobs have completed: ms or a timedelta, > 0. One with
                failed jobs is kept for 30 days.

        Returns:
            The batch. The ids of its callbacks begin with its id and end with ``-complete``, ``-success`` and
            ``-failure``.

        Raises:
            GlideMQValidationError: If an argument is invalid. Callbacks do not accept ``job_id``, ``parent``,
                ``depends_on``, ``deduplication`` and ``run_at``.
        """
        given = {"on_complete": on_complete, "on_success": on_success, "on_failure": on_failure}
        await self._queue._first()

        async def create(callbacks: Callbacks) -> JobBatch:
            return await self._queue._routed(lambda: _create(self._queue, callbacks, batch_id, keep))

        return await _create_within(self._queue, given, create)

    async def get(self, batch: str | BatchRef) -> JobBatch:
        """Return a batch of this queue, for example to add jobs to it.

        Args:
            batch: Its id, or the `BatchRef` that `Job.get_batch_ref` returns.

        Raises:
            JobBatchNotFoundError: If there is no such batch, or no longer.
            GlideMQValidationError: If ``batch`` is invalid, or of another queue.
        """
        if isinstance(batch, BatchRef):
            if batch.queue != self._queue.name:
                raise GlideMQValidationError("batch", batch, f"must be of this queue, {self._queue.name!r}")
            batch = batch.id
        links = await self._queue._links()
        number, own = split_partition_id(validate_existing_id(batch, "batch"))
        if len(links) == 1 or own == batch:
            link = await _part_of(self._queue, links, validate_job_id(batch, "batch"))
        else:
            link = links[number] if number < len(links) else None
        if link is None:
            raise JobBatchNotFoundError(batch, self._queue.name)
        found = JobBatch(self._queue, link, batch if len(links) == 1 else own)
        await found.get_status()
        return found

    def iter(self) -> AsyncIterator[JobBatch]:
        """Iterate over the batches of this queue that are open or have jobs that have not ended.

        The order is arbitrary. Makes one short call per about 500 batches. Batches that are created or finish
        meanwhile may be missing.
        """
        return self._queue._in_turn(lambda link: _batches(self._queue, link))
