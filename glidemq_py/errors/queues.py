"""Errors of operations on a queue: adding, reading, managing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from glidemq_py.errors.base import DurabilityError, GlideMQError, StructuredError, _message_of


class BulkAddError(StructuredError):
    """Some jobs of a bulk add were not added, or not confirmed as durable.

    Attributes:
        results: one element per input position: the job, or the exception if it was not added. A `DurabilityError` is
            that of a job that was added, but not confirmed.
    """

    results: Sequence[object]

    @property
    def failed(self) -> int:
        """Return the number of positions with an exception."""
        return sum(isinstance(result, BaseException) for result in self.results)

    @property
    def unconfirmed(self) -> int:
        """Return how many of `failed` were added, but not confirmed as durable."""
        return sum(isinstance(result, DurabilityError) for result in self.results)

    def __str__(self) -> str:
        errors = (result for result in self.results if isinstance(result, BaseException))
        first = next(errors, None)
        reason = "" if first is None else f"; first error: {type(first).__name__}: {first}"
        missing, unconfirmed = self.failed - self.unconfirmed, self.unconfirmed
        counts = [f"{missing:,} of {len(self.results):,} jobs were not added"] if missing or not unconfirmed else []
        if unconfirmed:
            counts.append(f"{unconfirmed:,} job{' was' if unconfirmed == 1 else 's were'} added but not confirmed")
        return f"{', '.join(counts)}{reason}"


class BackupError(GlideMQError):
    """A backup cannot be written, read or restored."""


class QueueNotEmptyError(StructuredError, BackupError):
    """A queue that is to be restored is not empty; nothing was written.

    Attributes:
        queue: name of the queue.
        reason: why it is not empty.
    """

    queue: str
    reason: str

    def __str__(self) -> str:
        return f"queue {self.queue!r} cannot be restored: {self.reason}; restore to another queue, or obliterate it"


class FairKeyFullError(StructuredError):
    """The job's fair key has its maximum backlog; the job was not added. Add it later.

    Attributes:
        key: the fair key, or None.
        max_backlog: number of its ready jobs at which new ones are rejected, or None.
    """

    key: str | None = None
    max_backlog: int | None = None

    def __str__(self) -> str:
        if self.key is None:
            return _message_of(FairKeyFullError)
        most = "ready jobs" if self.max_backlog is None else f"{self.max_backlog:,} ready jobs"
        if self.max_backlog == 1:
            most = "1 ready job"
        return f"job was not added: fair key {self.key!r} has its maximum backlog of {most}"


class DuplicateJobError(StructuredError):
    """A job with this id already exists; nothing was added."""

    job_id: str
    queue: str

    def __str__(self) -> str:
        return f"queue {self.queue!r}: job {self.job_id!r} already exists; nothing was added"


_STAGED_WRITE_PROBLEMS: Final = {
    "lost": "staged rows are missing: they expired, or the server lost them",
    "absent": "expired: inactive for longer than the staging TTL",
    "aborted": "aborted",
    "full": "writes to more than 1,000 queues, of which each partition is one; divide the rows among several saves",
    "done": "already published",
    "committed": "already committed",
    "decided": "the save is decided, so every row becomes a job: a worker of the queue, or the next write to it, adds "
    "those that are still missing as soon as the server allows; do not save again",
    "unknown": "the connection was lost while it was committed, so it may be decided; to be sure, save again with this "
    "id as 'writeId': each row is added once",
    "repeated": "was saved before, so this save added nothing; to add these rows too, use another 'writeId'",
    "undecided": "failed before it was committed; none of its rows became a job",
    "contended": "other drivers keep deciding the same write; save again with the same writeId",
    "changed": "other writes to its queues were committed during every attempt; save again",
    "repartitioned": "its partitions were created or obliterated while rows were staged; save again",
}


class PartitionedQueueError(StructuredError):
    """The operation does not support queues with partitions; nothing was changed.

    Attributes:
        queue: name of the queue.
        partitions: number of its partitions.
    """

    queue: str
    partitions: int

    def __str__(self) -> str:
        return f"queue {self.queue!r} has {self.partitions} partitions, which this operation does not support"


class QueuePartitionsError(StructuredError):
    """A queue has another number of partitions than the caller wants; nothing was changed.

    A queue keeps the partitions that it was created with, before its first job. It can be moved to another number
    (docs/learn/partitions.md).

    Attributes:
        queue: name of the queue.
        stored: number of its partitions; 1 = it has none.
        wanted: number that the caller wants.
    """

    queue: str
    stored: int
    wanted: int

    def __str__(self) -> str:
        why = "cannot get partitions after its first job or limit"
        if self.stored > 1:
            why = f"keeps its {self.stored} partitions until it is obliterated"
        return (
            f"option 'partitions' = {self.wanted}: queue {self.queue!r} {why}; either add to another queue with that "
            "number and let workers serve both until this one is empty, or stop adding and restore a backup under "
            f"another name with partitions={self.wanted}"
        )


class UnsupportedFeatureError(StructuredError):
    """The queue uses a feature that this version of glidemq_py does not have; nothing was changed.

    Every call about the queue raises this, and a worker closes with it, because this version would mishandle the
    queue's jobs. Upgrade to the named version.

    Attributes:
        queue: name of the queue.
        feature: name of the feature.
        version: first version of glidemq_py that has it.
    """

    queue: str
    feature: str
    version: str

    def __str__(self) -> str:
        return (
            f"queue {self.queue!r} uses the feature {self.feature!r}, which this version of glidemq_py does not have; "
            f"upgrade to version {self.version} or later"
        )


class StagedWriteError(StructuredError):
    """A staged write cannot continue.

    Attributes:
        write: id of the write.
        queue: name of the queue.
        state: state of the write on the server; 'decided' = every row becomes a job, so do not save again; 'unknown' =
            it may be decided; 'repeated' = it was saved before; 'repartitioned' = a queue has other partitions now.
        cause: error that caused this one, or ''.
    """

    write: str
    queue: str
    state: str
    cause: str = ""

    def __str__(self) -> str:
        problem = _STAGED_WRITE_PROBLEMS.get(self.state, f"state {self.state}")
        return f"write {self.write!r} in queue {self.queue!r}: {problem}{f' ({self.cause})' if self.cause else ''}"


class DataLostError(GlideMQError):
    """Events or results of a queue were deleted before they were read.

    Attributes:
        queue: name of the queue.
        lost: "events" or "results".
        count: number of lost events or results; None if it is unknown: the queue was deleted and created again, or a
            failover has lost entries that were read before.
    """

    queue: str
    lost: str
    count: int | None

    def __init__(self, queue: str, lost: str, count: int | None) -> None:
        super().__init__(queue, lost, count)
        self.queue = queue
        self.lost = lost
        self.count = count if count is not None and count > 0 else None

    def __str__(self) -> str:
        if self.count is None:
            what = f"the {self.lost} were deleted, or a failover has lost some of them, before they were read"
        else:
            what = f"{self.count} {self.lost} were deleted before they were read; keep them longer"
        return f"queue {self.queue!r}: {what}; set failOnDataLoss=false to continue without them"


class WorkerNotFoundError(StructuredError):
    """No worker with this id is registered with the queue, or it is not one of this library.

    Attributes:
        worker: id of the worker.
    """

    worker: str

    def __str__(self) -> str:
        return f"worker {self.worker!r} not found"


class WorkerTimeoutError(StructuredError):
    """Workers did not answer a command in time: they died, have lost their connection, or are of an older version.

    Attributes:
        workers: ids of these workers.
        answered: ids of the workers that did answer.
    """

    workers: Sequence[str]
    answered: Sequence[str] = ()

    def __str__(self) -> str:
        shown = ", ".join(self.workers[:5]) + (", ..." if len(self.workers) > 5 else "")
        return f"no answer in time from {len(self.workers)} workers ({shown}); {len(self.answered)} answered"


class WorkerCommandError(StructuredError):
    """A worker could not run a command.

    Attributes:
        worker: id of the worker.
        reason: why, as the worker reports it.
    """

    worker: str
    reason: str

    def __str__(self) -> str:
        return f"worker {self.worker!r}: {self.reason}"


class LayoutChangedError(GlideMQError):
    """The partitions of the queue are others than the client knows. Nothing was added."""

    def __init__(self, queue: str = "", stored: int | None = None, used: int = 0) -> None:
        super().__init__(queue, stored, used)
        self.queue, self.stored, self.used = queue, stored, used
        self.raised_at = time.monotonic()

    def __str__(self) -> str:
        if self.stored is None:
            return f"{self.queue}; nothing was added" if self.queue else "nothing was added"
        return (
            f"queue {self.queue!r}: its partitions were created or obliterated meanwhile (layout {self.stored}, the "
            f"client used {self.used}); nothing was added: add the job again. If an obliterate was interrupted, call "
            "it again first"
        )
