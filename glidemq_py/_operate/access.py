"""`Access`: permission to read and change queues; and the readings, which need only that of an observer."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args

from glidemq_py.errors import GlideMQError


class AccessDeniedError(GlideMQError):
    """The access of an `Operator` does not allow the operation; nothing was read or changed."""


_M = TypeVar("_M", bound=Callable[..., Any])
Role = Literal["observer", "producer", "operator"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
"""Roles: each may do what those before it may. An observer reads, a producer adds jobs, an operator changes them."""


class Reading(NamedTuple):
    """A method of `Operator` that returns a list, a count or one thing, and changes nothing.

    Attributes:
        name: Of the method.
        subject: What it is about: queue, job, failure, entry, schedule, flow, worker, batch, group or event.
        text: What it returns.
        shared_ms: How long those who look at the same time may get the same value, ms.
        role: The least role whose users may call it.
    """

    name: str
    subject: str
    text: str
    shared_ms: int
    role: Role = "observer"


READINGS: Final[dict[str, Reading]] = {}
"""All readings, by the names of their methods."""


def reading(subject: str, shared_ms: int = 0) -> Callable[[_M], _M]:
    """Return the decorator that declares a method as a `Reading`."""

    def declare(method: _M) -> _M:
        text = (method.__doc__ or "").partition("\n")[0]
        READINGS[method.__name__] = Reading(method.__name__, subject, text, shared_ms)
        return method

    return declare


NEEDED: Final[dict[str, Role]] = {}
"""The least role for each kind of action."""


def suffices(role: Role, needed: Role) -> bool:
    """Return True if a role may do what needs another one."""
    return ROLES.index(role) >= ROLES.index(needed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Permission to read and change queues.

    Attributes:
        queues: Glob patterns of the names of the queues that may be seen; None = all.
        actions: Kinds of the allowed actions, such as "pause_queue" (`Action.kind`); None = all.
        user: Whose access it is, for the audit stream.
        role: What the user may do at most.
    """

    queues: Collection[str] | None = None
    actions: Collection[str] | None = None
    user: str = ""
    role: Role = "operator"

    def may_see(self, queue: str) -> bool:
        """Return True if the queue may be read."""
        return self.queues is None or any(fnmatchcase(queue, pattern) for pattern in self.queues)

    def may_perform(self, kind: str, queue: str) -> bool:
        """Return True if actions of this kind may be performed on the queue."""
        is_allowed = suffices(self.role, NEEDED.get(kind, "operator")) and (
            self.actions is None or kind in self.actions
        )
        return is_allowed and self.may_see(queue)

    def check_read(self, queue: str) -> None:
        """Raise AccessDeniedError if the queue may not be read."""
        if not self.may_see(queue):
            raise AccessDeniedError(f"queue {queue!r}: no permission to read it")

    def check_action(self, kind: str, queue: str) -> None:
        """Raise AccessDeniedError if actions of this kind may not be performed on the queue."""
        if not self.may_perform(kind, queue):
            raise AccessDeniedError(f"queue {queue!r}: no permission for {kind!r}")


FULL_ACCESS: Final = Access()
READ_ONLY: Final = Access(role="observer")
