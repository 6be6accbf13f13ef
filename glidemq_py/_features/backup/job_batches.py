"""Job batches of a restored queue."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Set as AbstractSet
from typing import Final

from glidemq_py._features.backup.calls import BackedUpKey, RestoredKey
from glidemq_py._features.backup.names import BATCH, BATCH_JOBS, text_of

FEATURE: Final = "job-batches"
"""Feature of a queue that has, or had, batches."""
_UNFINISHED: Final = b"batches"
_NO_TTL: Final = -1
_PENDING: Final = b"p"
_COUNTS: Final = {b"pending": _PENDING, b"completed": b"c", b"failed": b"f"}
"""Fields of a batch, and the state of the jobs that each counts (``lua/features/job_batches``)."""
_EVENTS: Final = (b"complete", b"success", b"failure")
"""Callbacks. The field ``<event>At`` says when one was added, as the job ``<stem>-<event>``."""


def unfinished_jobs(key: BackedUpKey) -> list[bytes]:
    """Return the jobs that have not ended, of a key that starts with `BATCH_JOBS`."""
    return [job for job, state in zip(key.content[::2], key.content[1::2], strict=True) if state == _PENDING]


class RestoredBatches:
    """The batches of a queue while it is restored.

    A batch, its jobs and its callbacks are backed up one after the other, and may change in between. So the jobs of
    each batch are counted again. If a callback was added during the backup but is not in it, the batch is restored
    open; it is closed after its jobs were restored, which adds the callback again.

    Args:
        started: When the backup began, epoch ms.
    """

    def __init__(self, started: int) -> None:
        self._started = started
        self._states: defaultdict[bytes, dict[bytes, bytes]] = defaultdict(dict)
        self._batches: list[BackedUpKey] = []

    def take(self, key: BackedUpKey) -> bool:
        """Note the key if it is one of a batch. Return True if it must be written later, as one of `rows`."""
        if key.suffix.startswith(BATCH_JOBS):
            # A page of many jobs may repeat some of another page.
            self._states[key.suffix[len(BATCH_JOBS) :]].update(zip(key.content[::2], key.content[1::2], strict=True))
        if not key.suffix.startswith(BATCH):
            return False
        self._batches.append(key)
        return True

    def rows(self, jobs: AbstractSet[str]) -> tuple[list[RestoredKey], list[str]]:
        """Return the batches, and the ids of those to close, after all other keys were noted.

        Args:
            jobs: Ids of all jobs of the backup.
        """
        rows: list[RestoredKey] = []
        to_close: list[str] = []
        unfinished: list[bytes] = []
        for key in self._batches:
            batch = key.suffix[len(BATCH) :]
            fields = dict(zip(key.content[::2], key.content[1::2], strict=True))
            states = Counter(self._states[batch].values())
            fields.update({field: b"%d" % states[state] for field, state in _COUNTS.items()})
            for event in _EVENTS:
                if self._was_missed(fields, batch, event, jobs):
                    del fields[event + b"At"]
            is_open = b"closed" not in fields or b"completeAt" not in fields
            if is_open and b"closed" in fields:
                del fields[b"closed"]
                to_close.append(text_of(batch))
            is_finished = not is_open and not states[_PENDING]
            if not is_finished:
                unfinished += batch, b"0"
            content = [text for pair in fields.items() for text in pair]
            rows.append(RestoredKey(key.suffix, key.kind, key.ttl if is_finished else _NO_TTL, content, 1))
        if unfinished:  # in addition to those that the backup has
            rows.append(RestoredKey(_UNFINISHED, b"zset", _NO_TTL, unfinished, 0))
        return rows, to_close

    def _was_missed(self, fields: dict[bytes, bytes], batch: bytes, event: bytes, jobs: AbstractSet[str]) -> bool:
        """Return whether the callback of an event was added during the backup, and is not in it."""
        added = fields.get(event + b"At", b"")
        return (
            added.isdigit()
            and int(added) >= self._started
            and text_of(fields.get(b"stem", batch) + b"-" + event) not in jobs
        )
