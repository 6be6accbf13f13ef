"""Changes as values: each names its subject, can be counted first, and returns a report.

`perform` runs one through an `Operator`, whose `Access` must allow its `kind`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any, ClassVar, Final, NamedTuple

from glidemq_py._api.job_queue import Queue
from glidemq_py._core.checks import snake_case
from glidemq_py._core.record import JobState
from glidemq_py._operate.access import NEEDED, Role
from glidemq_py._operate.lists import BroadcastActionError
from glidemq_py._operate.operating import Operator
from glidemq_py._operate.snapshots import record

Progress = Callable[[int], None]
"""Called with the number of jobs done so far."""

ACTIONS: Final[dict[str, Any]] = {}
"""The classes of all changes, by their names."""
RATE: Final = ("concurrency", "max", "duration")
"""Fields of the forms of limits that users type."""
MAX_LISTED: Final = 1_000
"""Ids and problems in a result."""


@record
class Problem:
    """A job of an action that could not be changed.

    Attributes:
        id: Id of the job or entry.
        error: Why.
        missing: True if it does not exist.
    """

    id: str
    error: str
    missing: bool = False


def absent(subject: str) -> Problem:
    """Return the problem of a subject that does not exist."""
    return Problem(id=subject, error="does not exist", missing=True)


@record
class ActionResult:
    """Result of an action.

    Attributes:
        done: Number of jobs (or queues, schedules, groups) changed.
        ids: Ids of the jobs added or changed, at most 1,000; empty for actions on whole queues.
        problems: The jobs that could not be changed, at most 1,000.
        detail: What else is to be reported, such as the outcome of an add; '' = nothing.
    """

    done: int
    ids: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    detail: str = ""


def nothing(problem: Problem) -> ActionResult:
    """Return the result of an action on one thing that could not be changed."""
    return ActionResult(done=0, problems=(problem,))


def past_of(text: str) -> str:
    """Return a text that begins with a verb after it was done: "pause it" becomes "paused it"."""
    verb, space, rest = text.partition(" ")
    return f"{verb.removesuffix('e').replace('cancel', 'cancell')}ed{space}{rest}"


class Button(NamedTuple):
    """How the pages offer an action.

    Attributes:
        change: Name of its form.
        asks: Question of the page that asks for confirmation.
        done: Text of the result; ``{n}`` is the number of changed jobs, ``{s}`` the ending of the plural.
        doing: Heading of the page that shows the progress of a change of many jobs.
        typed: Fields that the user types: a rejected form shows them again.
        label: Text of the button on the pages of jobs.
        states: States of the jobs whose pages have it.
    """

    change: str
    asks: str
    done: str
    doing: str = "Changing jobs"
    typed: tuple[str, ...] = ()
    label: str = ""
    states: tuple[JobState | None, ...] = ()


@record
class Action(ABC):
    """A change of one queue."""

    kind: ClassVar[str]
    """Name of the change, as in `Access.actions`; by default that of the class in snake_case."""
    role: ClassVar[Role] = "operator"
    """The least role whose users may make it."""
    command: ClassVar[str] = ""
    """Noun and verb of the command that is derived from it; "" = none."""
    button: ClassVar[Button | None] = None
    """How the pages offer it."""
    button_of_messages: ClassVar[Button | None] = None
    """The same of a broadcast, if it differs."""
    route: ClassVar[tuple[str, Mapping[str, Any]] | None] = None
    """The path of its POST request below that of the queue, and the JSON of the response."""
    subject: ClassVar[str] = "job"
    """Noun for the ids of `ActionResult.problems`, such as "schedule"."""
    destroys: ClassVar[bool] = False
    """True if it deletes or cancels what cannot be brought back."""
    calls: ClassVar[str] = ""
    """The method of the queue that makes the change, with the fields as its arguments; "" = `make` is overridden."""
    says: ClassVar[str] = ""
    """What it does, for questions: a template with its fields, and ``{jobs}`` for their number."""
    said: ClassVar[str] = ""
    """The same after it was done; "" = the past tense of `says`."""
    says_of_messages: ClassVar[str] = ""
    """The same of a broadcast, if it differs."""
    instead: ClassVar[str] = ""
    """What to do instead if the queue is a broadcast, with ``{queue}`` for its name; "" = it applies to both."""

    queue: str

    def __init_subclass__(cls, **declared: Any) -> None:
        """Declare the subclass: each keyword is one of the class attributes above."""
        if declared and not cls.__name__.startswith("_"):
            declared = {"kind": snake_case(cls.__name__).lstrip("_"), **declared}
        for name, value in declared.items():
            setattr(cls, name, value)
        if "kind" in vars(cls):
            ACTIONS[cls.__name__] = cls
            NEEDED[cls.kind] = cls.role

    @property
    def of(self) -> str:
        """Kind of the jobs that it changes, such as "failed"; "" = any."""
        return ""

    @property
    def question(self) -> str:
        """`says` of this action."""
        return self.says

    @property
    def for_broadcasts(self) -> str:
        """What to do instead if the queue is a broadcast; "" = the action applies to it."""
        return self.instead.format(queue=self.queue)

    def text(self, template: str, jobs: str) -> str:
        """Return a text of it; ``jobs``: the number of jobs in words."""
        return template.format(jobs=jobs, **{each.name: getattr(self, each.name) for each in fields(self)})

    async def count(self, operator: Operator) -> int | None:
        """Return how many jobs it would change now; None if it does not change jobs."""
        return None

    async def missing(self, operator: Operator) -> tuple[str, ...]:
        """Return which of the jobs or schedules that it names do not exist now."""
        return ()

    async def run(self, operator: Operator, queue: Queue, progress: Progress) -> ActionResult:
        """Make the change, and return its result."""
        return await self.make(queue) or ActionResult(done=1)

    async def make(self, queue: Queue) -> ActionResult | None:
        """Make the change by a few calls of the queue; None = one thing was changed."""
        given = [getattr(self, each.name) for each in fields(self) if each.name != "queue"]
        found = await attrgetter(self.calls)(queue)(*given)
        return None if found or self.subject == "job" else nothing(absent(*given))


@record
class Step:
    """The result of a part of a change of many jobs.

    Attributes:
        done: Number of jobs changed by this part.
        position: Where the change continues after this part; "" = it has ended.
        ids: Ids of the jobs changed, if they are known.
        problems: The jobs that could not be changed.
    """

    done: int
    position: str
    ids: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


@record
class ManyAction(Action):
    """A change of any number of jobs, in steps of a few short calls.

    It can end after each step, and another process can continue at the position of the last one: jobs that it has
    changed do not match any more. Jobs that are added meanwhile are not changed.
    """

    @abstractmethod
    def steps(self, operator: Operator, queue: Queue, position: str = "") -> AsyncGenerator[Step]:
        """Make the change step by step; ``position``: that of the last step of an interrupted change."""

    async def run(self, operator: Operator, queue: Queue, progress: Progress) -> ActionResult:
        """See `Action`."""
        done, ids, problems = 0, list[str](), list[Problem]()
        async for step in self.steps(operator, queue):
            done += step.done
            ids = [*ids, *step.ids][:MAX_LISTED]
            problems = [*problems, *step.problems][:MAX_LISTED]
            progress(done)
        return ActionResult(done=done, ids=tuple(ids), problems=tuple(problems))


async def perform(operator: Operator, action: Action, progress: Progress | None = None) -> ActionResult:
    """Make a change.

    Raises:
        AccessDeniedError: The operator's access does not allow it.
        BroadcastActionError: The queue is a broadcast, which does not support it.
        GlideMQError: The queue rejects it, or the server cannot be reached.
    """
    operator.access.check_action(action.kind, action.queue)
    await check_kind(operator, action)
    return await action.run(operator, await operator.queue(action.queue), progress or (lambda done: None))


async def count(operator: Operator, action: Action) -> int | None:
    """Return how many jobs a change would affect now; None if it does not affect jobs."""
    operator.access.check_read(action.queue)
    await check_kind(operator, action)
    return await action.count(operator)


async def check_kind(operator: Operator, action: Action) -> None:
    """Raise BroadcastActionError if the queue is a broadcast, which does not support the action."""
    if action.for_broadcasts and await operator.is_broadcast(action.queue):
        raise BroadcastActionError(action.queue, action.for_broadcasts)


async def missing(operator: Operator, action: Action) -> tuple[str, ...]:
    """Return which of the jobs or schedules that a change names do not exist now."""
    operator.access.check_read(action.queue)
    return await action.missing(operator)
