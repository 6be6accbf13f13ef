"""`Visit`: a request for a page, with what it may read; and the addresses of pages."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

from glidemq_py._operate.access import Access
from glidemq_py._operate.job_actions import in_state
from glidemq_py._operate.operating import JobFilter, Operator
from glidemq_py._operate.snapshots import FlowNode, JobPage, MessagePage, QueueSnapshot
from glidemq_py.dashboard.options import DashboardOptions
from glidemq_py.dashboard.reading import Reader
from glidemq_py.errors import GlideMQError

__all__ = ["MissingError", "Search", "Visit", "link", "of_queue", "search_of"]

_T = TypeVar("_T")


class MissingError(GlideMQError):
    """The subject of a page does not exist."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A request for a page.

    Attributes:
        arguments: Parameters of the URL.
        operator: Reads with the access of the visitor.
        reader: Reads values that pages share.
        options: Of the dashboard.
        is_stream: True if the page is open, and is read to be kept current.
    """

    arguments: dict[str, str]
    operator: Operator
    reader: Reader
    options: DashboardOptions
    is_stream: bool = False

    @property
    def access(self) -> Access:
        """Access of the visitor."""
        return self.operator.access

    @property
    def queue(self) -> str:
        """Name of the queue of the page, which the visitor may see.

        Raises:
            AccessDeniedError: The visitor may not see it.
        """
        name = self.arguments.get("q", "")
        self.access.check_read(name)
        return name

    async def shared(self, kind: str, *key: Any, read: Callable[[], Awaitable[_T]], lifetime: int = 0) -> _T:
        """Return a value of the page's queue, read once for all open pages.

        The key must contain everything else that ``read`` depends on. ``lifetime``: see `Reader.shared`.
        """
        return await self.reader.shared(kind, self.queue, *key, read=read, lifetime=lifetime)

    async def flow(self, job_id: str, max_jobs: int) -> FlowNode | None:
        """Return the flow of a job; jobs of queues that the visitor may not see have no names."""
        read = functools.partial(self.operator.get_flow, self.queue, job_id, max_jobs=max_jobs)
        return await self.shared("flow", job_id, max_jobs, self.seen, read=read)

    @property
    def seen(self) -> tuple[str, ...] | None:
        """Patterns of the queues that the visitor may see, as a part of keys; None = all."""
        return None if self.access.queues is None else tuple(sorted(self.access.queues))

    def may(self, kind: str) -> bool:
        """Return True if the visitor may make a change of this kind on the page's queue."""
        return self.access.may_perform(kind, self.arguments.get("q", ""))


def link(page: str, /, **arguments: Any) -> str:
    """Return the relative address of a page; arguments that are None or empty are omitted."""
    given = {name: value for name, value in arguments.items() if value not in (None, "")}
    return f"{page}?{urlencode(given)}" if given else page


@dataclass(frozen=True, slots=True)
class Search:
    """How far the pages of a filter have searched: at most `examined` of `total` jobs or messages."""

    examined: int
    total: int


def search_of(
    visit: Visit, wanted: JobFilter, page: JobPage | MessagePage, queue: QueueSnapshot, states: Iterable[str]
) -> Search | None:
    """Return how far this page and those before it have searched; None if the search is complete or has no filter."""
    if wanted.is_plain or not page.cursor:
        return None
    before = visit.arguments.get("searched", "")
    examined = page.examined + (int(before) if before.isdecimal() and len(before) < 16 else 0)
    return Search(examined, max(examined, sum(in_state(queue, state) for state in states)))


async def of_queue(visit: Visit, tab: str) -> dict[str, Any]:
    """Return what each page of a queue shows. Raises MissingError if the queue does not exist."""
    name = visit.queue
    if not await visit.operator.queue_exists(name):
        raise MissingError(f"queue {name!r} does not exist")
    return {"queue": await visit.reader.queue(name), "tab": tab}
