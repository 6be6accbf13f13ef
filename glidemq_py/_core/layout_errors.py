"""Signals of a partitioned queue whose layout changes. `Queue` handles them: it reads the layout and adds again."""

from __future__ import annotations

import time

from glidemq_py.errors import GlideMQError

__all__ = ["JobMovedError", "LayoutChangedError"]


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
            f"queue {self.queue!r}: the partition layout is {self.stored}, the client used {self.used}; nothing was "
            "added. Other clients keep changing the layout: add the job again"
        )


class JobMovedError(GlideMQError):
    """The key of a new job has no jobs in its former partition any more. The job was not added."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"job {self.name!r} was not added: its key moves to another partition; add it again"
