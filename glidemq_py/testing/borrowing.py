"""Borrow a service's own worker for a test: its jobs go to the test's server until the test ends."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any, Final

from glidemq_py._api.queue import Queue
from glidemq_py._client.connect import Connection
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.queue_options import QueueOptions
from glidemq_py._worker.worker import Worker
from glidemq_py.errors import GlideMQError

__all__ = ["Borrowing"]


@dataclass(slots=True)
class _Place:
    """The connection, queue and keys that a worker uses."""

    connection: Connection
    queue_name: str
    options: QueueOptions
    keys: QueueKeys
    queue: Queue[Any, Any] | None = None

    @classmethod
    def of(cls, worker: Worker) -> _Place:
        return cls(worker._connection, worker.queue_name, worker._queue_options, worker._keys, worker._queue)

    def apply(self, worker: Worker) -> None:
        worker._connection, worker.queue_name = self.connection, self.queue_name
        worker._queue_options, worker._keys, worker._queue = self.options, self.keys, self.queue


class Borrowing:
    """Redirects a worker's jobs to a queue of a test, until `end`.

    The most recent borrowing that has not ended is in effect. A borrowing that was never ended (its test failed before
    it closed the test worker) does not block later ones.

    Args:
        worker: a worker that is not running.
        queue: the queue to which its tasks add their jobs until `end`.

    Raises:
        GlideMQError: if the worker is running.
    """

    def __init__(self, worker: Worker, queue: Queue[Any, Any]) -> None:
        if worker.is_running:
            raise GlideMQError(f"{worker!r} is running; TestWorker.of needs a worker that is not")
        self._worker = worker
        owner = _BORROWED.get(worker)
        if owner is None:
            owner = _BORROWED[worker] = _Borrowed(_Place.of(worker))
        prefix = queue.options.prefix
        options = replace(worker._queue_options, prefix=prefix)
        self.place: Final = _Place(queue._connection, queue.name, options, QueueKeys(prefix, queue.name))
        owner.borrowings.append(weakref.ref(self))
        owner.apply(worker)

    async def end(self) -> None:
        """Restore the worker, and close the queue that its tasks used meanwhile. Idempotent."""
        owner = _BORROWED.get(self._worker)
        if owner is not None:
            owner.borrowings = [each for each in owner.borrowings if each() not in (None, self)]
            owner.apply(self._worker)
            if not owner.borrowings:
                del _BORROWED[self._worker]
        queue, self.place.queue = self.place.queue, None
        if queue is not None:
            await queue.close()


class _Borrowed:
    """The active borrowings of one worker, oldest first."""

    def __init__(self, own: _Place) -> None:
        self._own = self._applied = own
        self.borrowings: list[weakref.ref[Borrowing]] = []

    def apply(self, worker: Worker) -> None:
        """Redirect the worker to its most recent borrowing, or restore it if there is none."""
        self._applied.queue = worker._queue
        living = [found for each in self.borrowings if (found := each()) is not None]
        self._applied = living[-1].place if living else self._own
        self._applied.apply(worker)


_BORROWED: Final[weakref.WeakKeyDictionary[Worker, _Borrowed]] = weakref.WeakKeyDictionary()
