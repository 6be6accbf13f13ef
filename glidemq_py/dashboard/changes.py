"""Buttons and forms of the pages as actions of `_operate`; those that delete or change many jobs ask first."""

from __future__ import annotations

import json as stdlib_json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from glidemq_py._core import json_text as json
from glidemq_py._core.limits import RateLimit
from glidemq_py._operate.actions import (
    Action,
    AddJob,
    CancelJobs,
    CleanQueue,
    DrainQueue,
    PauseFairKey,
    PauseQueue,
    PauseSchedule,
    PromoteJobs,
    PurgeDeadLetters,
    PurgeFailures,
    QuietWorker,
    RemoveJobs,
    RemoveSchedule,
    ReplayDeadLetters,
    ReplayEdited,
    ResumeFairKey,
    ResumeQueue,
    ResumeSchedule,
    ResumeWorker,
    RetryEdited,
    RetryFailures,
    RetryJobs,
    RunSchedule,
    SetFairKeyLimits,
    SetGroupLimits,
    SetQueueLimits,
)
from glidemq_py.dashboard.visit import parse_filter
from glidemq_py.errors import GlideMQError

__all__ = ["CHANGES", "LABELS", "Change", "Form", "FormError"]

LABELS: Final = {
    "name": "Name", "data": "Data (JSON)", "options": "Options (JSON)", "key": "Key", "weight": "Weight",
    "concurrency": "Concurrency", "max": "Jobs", "duration": "Window of the rate limit, ms",
    "max_backlog": "Most waiting",
}  # fmt: skip
"""Fields that users type, and what the pages call them."""
_RATE: Final = ("concurrency", "max", "duration")


class FormError(GlideMQError, ValueError):
    """A field of a form is invalid, in the words of the page."""


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a submitted form, each a list of values; ``hidden``: see `parse_filter`."""

    fields: dict[str, list[str]]
    hidden: tuple[str, ...] = ()

    def text(self, name: str) -> str:
        """Return a field, or ""."""
        return self.fields.get(name, [""])[0]

    def all(self, name: str) -> tuple[str, ...]:
        """Return all values of a field."""
        return tuple(self.fields.get(name, ()))

    def json(self, name: str) -> Any:
        """Return a field that holds JSON; an empty one is null.

        Raises:
            FormError: it holds something else.
        """
        text = self.text(name)
        try:
            return json.loads(text) if text.strip() else None
        except ValueError:
            raise FormError(f"{LABELS.get(name, name)}: {_problem_of_json(text)}.") from None

    def whole(self, name: str) -> int | None:
        """Return a field that holds a whole number; None if it is empty.

        Raises:
            FormError: it holds something else.
        """
        text = self.text(name).strip().replace(",", "")
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            raise FormError(f"{LABELS.get(name, name)}: {text[:60]!r} is not a whole number.")
        return int(text)


def _problem_of_json(text: str) -> str:
    """Return the mistake in a text that is not JSON, with its position."""
    try:
        stdlib_json.loads(text)
    except stdlib_json.JSONDecodeError as error:
        return f"not valid JSON in line {error.lineno}, column {error.colno}: {error.msg}"
    except (ValueError, RecursionError):
        pass
    return "not valid JSON"  # only the standard library accepts it, such as NaN


@dataclass(frozen=True, slots=True)
class Change:
    """A kind of form.

    Attributes:
        action: Class of the action.
        says: Question of the page that asks for confirmation.
        done: Text of the result; ``{n}`` is the number of changed jobs, ``{s}`` the ending of the plural.
        given: Makes the arguments of the action but its queue from the form; or the names of its fields with the same
            names.
        asks: True if a page asks for confirmation first.
        doing: Heading of the page that shows the progress of a change of many jobs.
        typed: Fields that the user types: a rejected form shows them again.
    """

    action: type[Action]
    says: str
    done: str
    given: Callable[[Form], dict[str, Any]] | tuple[str, ...] = ()
    asks: bool = False
    doing: str = "Changing jobs"
    typed: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """`Action.kind`, which the visitor's access must allow."""
        return self.action.kind

    def create(self, form: Form) -> Action:
        """Make the action from the form."""
        given = self.given
        arguments = given(form) if callable(given) else {name: form.text(name) for name in given}
        return self.action(queue=form.text("q"), **arguments)

    def report(self, number: int) -> str:
        """Return the text of the result."""
        return self.done.format(n=f"{number:,}", s="" if number == 1 else "s") if number else "nothing changed"


def _jobs(form: Form) -> dict[str, Any]:
    ids = form.all("id")
    if not form.text("of_filter"):
        if not ids:
            raise FormError("Select at least one job, or all jobs that match.")
        return {"ids": ids}
    wanted, job_id = parse_filter(form.text("filter"), form.text("state") or None, form.hidden)
    if job_id is not None:
        return {"ids": (job_id,)}
    if "error_shape" in form.fields:  # a group of failures
        wanted = replace(
            wanted, name=form.text("job_name"), error_type=form.text("error_type"),
            error_shape=form.text("error_shape"),
        )  # fmt: skip
    return {"wanted": wanted}


def _failures(form: Form) -> dict[str, Any]:
    reason = form.text("reason")
    return {"reason": (reason,) if reason else (), "name": form.text("name") or None}


def _dead(form: Form) -> dict[str, Any]:
    return {"ids": form.all("id"), "subscription": form.text("subscription") or None}


def _edited(form: Form) -> dict[str, Any]:
    return {"id": form.text("id"), "data": form.json("data")}


def _limits(form: Form) -> dict[str, Any]:
    concurrency = form.whole("concurrency") or False
    most, window = form.whole("max"), form.whole("duration")
    if (most is None) != (window is None):
        raise FormError("A rate limit needs both a number of jobs and a window in ms.")
    rate = False if most is None or window is None else RateLimit(most, window)
    return {"concurrency": concurrency, "rate_limit": rate}


def _fair_key_limits(form: Form) -> dict[str, Any]:
    key, weight = form.text("key") or None, form.whole("weight")
    if key is None and weight is not None:
        raise FormError("A weight needs a fair key.")
    weight = None if key is None else weight or 1
    return {"key": key, "weight": weight, **_limits(form), "max_backlog": form.whole("max_backlog") or False}


def _add(form: Form) -> dict[str, Any]:
    options = form.json("options")
    if options is not None and not isinstance(options, dict):
        raise FormError('Options (JSON): must be an object such as {"delay": 5000}.')
    return {"name": form.text("name"), "data": form.json("data"), "options": options or {}}


CHANGES: Final[dict[str, Change]] = {
    "pause": Change(PauseQueue, "Pause the queue?", "queue paused"),
    "resume": Change(ResumeQueue, "Resume the queue?", "queue resumed"),
    "drain": Change(
        DrainQueue, "Delete all jobs that are ready to run?", "{n} job{s} deleted", (), True,
        "Deleting ready jobs",
    ),
    "clean": Change(
        CleanQueue, "Delete all these jobs?", "{n} job{s} deleted",
        ("state",), True, "Deleting jobs",
    ),
    "limits": Change(SetQueueLimits, "Set these limits?", "limits set", _limits, typed=_RATE),
    "group-limits": Change(
        SetGroupLimits, "Set the limits of the group?", "limits of the group set",
        lambda form: {"group": form.text("key"), **_limits(form)},
        typed=("key", *_RATE),
    ),
    "fair-key-limits": Change(
        SetFairKeyLimits, "Set these limits of fair keys?", "limits of fair keys set", _fair_key_limits,
        typed=("key", "weight", *_RATE, "max_backlog"),
    ),
    "add": Change(AddJob, "Add this job?", "job added", _add, typed=("name", "data", "options")),
    "retry": Change(
        RetryJobs, "Retry these jobs?", "{n} job{s} to be retried", _jobs, doing="Retrying jobs"
    ),
    "retry-edited": Change(
        RetryEdited, "Retry the job with this data?", "job to be retried with the new data", _edited,
        typed=("data",),
    ),
    "promote": Change(
        PromoteJobs, "Run these delayed jobs now?", "{n} job{s} made ready", _jobs,
        doing="Making delayed jobs ready",
    ),
    "cancel": Change(
        CancelJobs, "Cancel these jobs? Running ones stop.", "{n} job{s} cancelled", _jobs, True,
        "Cancelling jobs",
    ),
    "remove": Change(
        RemoveJobs, "Delete these jobs?", "{n} job{s} deleted", _jobs, True, "Deleting jobs"
    ),
    "retry-failures": Change(
        RetryFailures, "Retry all these failed jobs?", "{n} job{s} to be retried", _failures, True,
        "Retrying failed jobs",
    ),
    "purge-failures": Change(
        PurgeFailures, "Delete all these failed jobs?", "{n} failed job{s} deleted", _failures, True,
        "Deleting failed jobs",
    ),
    "replay": Change(
        ReplayDeadLetters, "Add these jobs to their queue again?", "{n} job{s} added again",
        _dead,
    ),
    "redeliver": Change(
        ReplayDeadLetters, "Deliver these messages again?", "{n} message{s} to be delivered again",
        _dead,
    ),
    "replay-edited": Change(
        ReplayEdited, "Add the job again with this data?", "job added again with the new data", _edited,
        typed=("data",),
    ),
    "purge-dead": Change(
        PurgeDeadLetters, "Delete these dead letters?", "{n} dead letter{s} deleted", _dead, True
    ),
    "pause-fair-key": Change(PauseFairKey, "Pause the fair key?", "fair key paused", ("key",)),
    "resume-fair-key": Change(ResumeFairKey, "Resume the fair key?", "fair key resumed", ("key",)),
    "quiet-worker": Change(
        QuietWorker, "Let the worker fetch no further jobs?", "worker fetches no further jobs",
        ("worker",),
    ),
    "resume-worker": Change(
        ResumeWorker, "Let the worker fetch jobs again?", "worker fetches jobs again",
        ("worker",),
    ),
    "pause-schedule": Change(
        PauseSchedule, "Pause the schedule? It adds no jobs until it is resumed.", "schedule paused",
        ("name",),
    ),
    "resume-schedule": Change(ResumeSchedule, "Resume the schedule?", "schedule resumed", ("name",)),
    "run-schedule": Change(RunSchedule, "Run the schedule now?", "job added", ("name",)),
    "remove-schedule": Change(
        RemoveSchedule, "Delete the schedule? Its jobs are kept.", "schedule deleted",
        ("name",), True,
    ),
}  # fmt: skip
"""Kinds of forms by the value of their field ``change``."""
