"""`Access`: permission to read and change queues."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from glidemq_py.errors import GlideMQError


class AccessDeniedError(GlideMQError):
    """The access of an `Operator` does not allow the operation; nothing was read or changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Permission to read and change queues.

    Attributes:
        queues: Glob patterns of the names of the queues that may be seen; None = all.
        actions: Kinds of the allowed actions, such as "pause_queue" (`Action.kind`); None = all.
        user: Whose access it is, for the audit stream.
    """

    queues: Collection[str] | None = None
    actions: Collection[str] | None = None
    user: str = ""

    def may_see(self, queue: str) -> bool:
        """Return True if the queue may be read."""
        return self.queues is None or any(fnmatchcase(queue, pattern) for pattern in self.queues)

    def may_perform(self, kind: str, queue: str) -> bool:
        """Return True if actions of this kind may be performed on the queue."""
        return self.may_see(queue) and (self.actions is None or kind in self.actions)

    def check_read(self, queue: str) -> None:
        """Raise AccessDeniedError if the queue may not be read."""
        if not self.may_see(queue):
            raise AccessDeniedError(f"queue {queue!r}: no permission to read it")

    def check_action(self, kind: str, queue: str) -> None:
        """Raise AccessDeniedError if actions of this kind may not be performed on the queue."""
        if not self.may_perform(kind, queue):
            raise AccessDeniedError(f"queue {queue!r}: no permission for {kind!r}")


FULL_ACCESS: Final = Access()
READ_ONLY: Final = Access(actions=())
