"""`Visit`: a request for a page, with what it may read; its filter box; and the addresses of pages."""

from __future__ import annotations

import functools
import shlex
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Concatenate, Final, ParamSpec, TypeVar
from urllib.parse import urlencode

from glidemq_py._operate.access import Access
from glidemq_py._operate.conversion import redacted
from glidemq_py._operate.filters import FailureGroup, JobFilter, group_failures
from glidemq_py._operate.job_actions import in_state
from glidemq_py._operate.operating import Operator
from glidemq_py._operate.parsing import CRITERIA, Param
from glidemq_py._operate.snapshots import FlowNode, JobPage, JobSummary, MessagePage, QueueSnapshot
from glidemq_py.dashboard.options import DashboardOptions
from glidemq_py.dashboard.reading import Reader
from glidemq_py.errors import GlideMQError, GlideMQValidationError

_P = ParamSpec("_P")
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

    async def read(
        self, method: Callable[Concatenate[Operator, str, _P], Awaitable[_T]], *given: _P.args, **named: _P.kwargs
    ) -> _T:
        """Return what a reading returns about the page's queue, read once for all open pages."""
        return await self.reader.read(method, self.queue, *given, **named)

    async def flow(self, job_id: str, max_jobs: int) -> FlowNode | None:
        """Return the flow of a job; jobs of queues that the visitor may not see have no names."""
        read = functools.partial(self.operator.get_flow, self.queue, job_id, max_jobs=max_jobs)
        return await self.shared("flow", job_id, max_jobs, self.seen, read=read)

    async def grouped_failures(self, queue: str, count: int, **criteria: Any) -> tuple[list[FailureGroup], bool]:
        """Return the newest failures of a queue in groups; see `Operator.get_newest_failures`."""
        listed, is_cut = await self.operator.get_newest_failures(queue, count, **criteria)
        return group_failures(listed, round(time.time() * 1_000)), is_cut

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
    return {"queue": await visit.read(Operator.get_queue), "tab": tab}


KEYS: Final = ("state", "name", "id", "group", "fair", "tag", "since", "until", "data", "error", "type")
STATES: Final = (
    "waiting", "prioritized", "group-waiting", "active", "delayed", "waiting-children", "suspended", "completed",
    "failed",
)  # fmt: skip
_SUGGESTED: Final = 100
_FIELDS: Final = {"fair": "fair_key", "tag": "tags", "type": "error_type"}
_ERROR: Final = Param("", "")


def parse_filter(text: str, state: str | None, hidden: Iterable[str] = ()) -> tuple[JobFilter, str | None]:
    """Return the filter of a text, and the id of the only job that it names, if any.

    Args:
        text: words separated by spaces; quotes hold words together. A word without a key is an id.
        state: state of the jobs; None = all. A word ``state:failed`` has precedence.
        hidden: names of keys whose values the pages hide.

    Raises:
        GlideMQValidationError: a word has an unknown key or an ill-formed value, or compares a hidden value.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise GlideMQValidationError("filter", text, f"is not closed: {error}") from None
    found: dict[str, Any] = {"state": state}
    for word in words:
        key, colon, value = word.partition(":")
        if not colon or key not in KEYS:
            if colon and key.isalpha():
                raise GlideMQValidationError("filter", word, f"must begin with one of {', '.join(KEYS)} and a colon")
            key, value = "id", word
        if key == "state" and value not in STATES:
            raise GlideMQValidationError("filter", word, f"must name one of the states {', '.join(STATES)}")
        field = _FIELDS.get(key, key)
        param = CRITERIA.get(field, _ERROR)
        if param.is_many:
            found.setdefault(field, []).append(value)
        else:
            found[field] = param.read("filter", value) if param.read else value
    found |= {field: CRITERIA[field].read("filter", found[field]) for field in ("tags", "data") if field in found}
    if redacted(found.get("data"), hidden) != found.get("data"):
        raise GlideMQValidationError("filter", "data:***", "compares a value that these pages hide")
    job_id = found.pop("id", None)
    return JobFilter(**found), job_id


def without_state(text: str) -> str:
    """Return a valid filter without its words ``state:...``, which the page shows otherwise."""
    words = shlex.split(text)
    kept = [word for word in words if not word.startswith("state:")]
    return text if len(kept) == len(words) else shlex.join(kept)


def suggestions(jobs: Iterable[JobSummary], names: Iterable[str]) -> list[str]:
    """Return the suggestions of the filter box.

    Args:
        jobs: the jobs on the page, whose names, groups, fair keys, tags and types of errors are suggested.
        names: further names of jobs.
    """
    found: set[tuple[str, str]] = {("name", name) for name in names}
    for each in jobs:
        values = (("name", each.name), ("group", each.group), ("fair", each.fair_key), ("type", each.error_type))
        found.update((key, value) for key, value in values if value)
        found.update(("tag", tag) for tag in each.tags)
    known = sorted(found, key=lambda word: (KEYS.index(word[0]), word[1]))[:_SUGGESTED]
    return [
        *(f"{key}:{shlex.quote(value)}" for key, value in known),
        *(f"state:{state}" for state in STATES),
        "since:1h",
        "until:1h",
        *(f"{key}:" for key in ("id", "tag", "data", "group", "fair", "error", "type")),
    ]
