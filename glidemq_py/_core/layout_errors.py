"""The refusal of a partition. `Queue` handles it: it reads the layout again and repeats the call."""

from __future__ import annotations

import time

from glidemq_py.errors import GlideMQError


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
