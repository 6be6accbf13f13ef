"""Buttons and forms of the pages as actions of `_operate`; those that delete or change many jobs ask first."""

from __future__ import annotations

import json as stdlib_json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast

from glidemq_py._core import json_text as json
from glidemq_py._core.limits import RateLimit
from glidemq_py._operate.actions import (
    Action,
    AddJob,
    CancelJobs,
    CleanQueue,
    DrainQueue,
    JobsAction,
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
        kind: `Action.kind`, which the visitor's access must allow.
        says: Question of the page that asks for confirmation.
        done: Text of the result; ``{n}`` is the number of changed jobs, ``{s}`` the ending of the plural.
        create: Makes the action from the form.
        asks: True if a page asks for confirmation first.
        doing: Heading of the page that shows the progress of a change of many jobs.
        typed: Fields that the user types: a rejected form shows them again.
    """

    kind: str
    says: str
    done: str
    create: Callable[[Form], Action]
    asks: bool = False
    doing: str = "Changing jobs"
    typed: tuple[str, ...] = ()

    def report(self, number: int) -> str:
        """Return the text of the result."""
        return self.done.format(n=f"{number:,}", s="" if number == 1 else "s") if number else "nothing changed"


def _jobs(kind: type[JobsAction]) -> Callable[[Form], Action]:
    def create(form: Form) -> Action:
        ids = form.all("id")
        if ids and not form.text("of_filter"):
            return kind(queue=form.text("q"), ids=ids)
        if not form.text("of_filter"):
            raise FormError("Select at least one job, or all jobs that match.")
        wanted, job_id = parse_filter(form.text("filter"), form.text("state") or None, form.hidden)
        if job_id is not None:
            return kind(queue=form.text("q"), ids=(job_id,))
        if "error_shape" in form.fields:  # a group of failures
            wanted = replace(
                wanted, name=form.text("job_name"), error_type=form.text("error_type"),
                error_shape=form.text("error_shape"),
            )  # fmt: skip
        return kind(queue=form.text("q"), wanted=wanted)

    return create


def _failures(kind: type[RetryFailures | PurgeFailures]) -> Callable[[Form], Action]:
    def create(form: Form) -> Action:
        reason, name = form.text("reason"), form.text("name")
        return kind(queue=form.text("q"), reason=(reason,) if reason else (), name=name or None)

    return create


def _dead(kind: type[ReplayDeadLetters | PurgeDeadLetters]) -> Callable[[Form], Action]:
    return lambda form: kind(
        queue=form.text("q"), ids=form.all("id"), subscription=form.text("subscription") or None
    )  # fmt: skip


def _of_queue(kind: type[PauseQueue | ResumeQueue | DrainQueue]) -> Callable[[Form], Action]:
    return lambda form: kind(queue=form.text("q"))


def _rate(form: Form) -> RateLimit | Literal[False]:
    most, window = form.whole("max"), form.whole("duration")
    if (most is None) != (window is None):
        raise FormError("A rate limit needs both a number of jobs and a window in ms.")
    return False if most is None or window is None else RateLimit(most, window)


def _limits(form: Form) -> Action:
    number = form.whole("concurrency") or False
    return SetQueueLimits(queue=form.text("q"), concurrency=number, rate_limit=_rate(form))


def _group_limits(form: Form) -> Action:
    number = form.whole("concurrency") or False
    return SetGroupLimits(queue=form.text("q"), group=form.text("key"), concurrency=number, rate_limit=_rate(form))


def _fair_key_limits(form: Form) -> Action:
    key, weight = form.text("key") or None, form.whole("weight")
    if key is None and weight is not None:
        raise FormError("A weight needs a fair key.")
    return SetFairKeyLimits(
        queue=form.text("q"), key=key, weight=None if key is None else weight or 1,
        concurrency=form.whole("concurrency") or False, rate_limit=_rate(form),
        max_backlog=form.whole("max_backlog") or False,
    )  # fmt: skip


def _add(form: Form) -> Action:
    given = form.json("options")
    if given is not None and not isinstance(given, dict):
        raise FormError('Options (JSON): must be an object such as {"delay": 5000}.')
    options = cast("dict[str, Any]", given or {})
    return AddJob(queue=form.text("q"), name=form.text("name"), data=form.json("data"), options=options)


CHANGES: Final[dict[str, Change]] = {
    "pause": Change("pause_queue", "Pause the queue?", "queue paused", _of_queue(PauseQueue)),
    "resume": Change("resume_queue", "Resume the queue?", "queue resumed", _of_queue(ResumeQueue)),
    "drain": Change(
        "drain_queue", "Delete all jobs that are ready to run?", "{n} job{s} deleted", _of_queue(DrainQueue), True,
        "Deleting ready jobs",
    ),
    "clean": Change(
        "clean_queue", "Delete all these jobs?", "{n} job{s} deleted",
        lambda form: CleanQueue(queue=form.text("q"), state=form.text("state")), True, "Deleting jobs",
    ),
    "limits": Change("limit_queue", "Set these limits?", "limits set", _limits, typed=_RATE),
    "group-limits": Change(
        "limit_group", "Set the limits of the group?", "limits of the group set", _group_limits,
        typed=("key", *_RATE),
    ),
    "fair-key-limits": Change(
        "limit_fair_key", "Set these limits of fair keys?", "limits of fair keys set", _fair_key_limits,
        typed=("key", "weight", *_RATE, "max_backlog"),
    ),
    "add": Change("add_job", "Add this job?", "job added", _add, typed=("name", "data", "options")),
    "retry": Change(
        "retry_jobs", "Retry these jobs?", "{n} job{s} to be retried", _jobs(RetryJobs), doing="Retrying jobs"
    ),
    "retry-edited": Change(
        "retry_jobs", "Retry the job with this data?", "job to be retried with the new data",
        lambda form: RetryEdited(queue=form.text("q"), id=form.text("id"), data=form.json("data")),
        typed=("data",),
    ),
    "promote": Change(
        "promote_jobs", "Run these delayed jobs now?", "{n} job{s} made ready", _jobs(PromoteJobs),
        doing="Making delayed jobs ready",
    ),
    "cancel": Change(
        "cancel_jobs", "Cancel these jobs? Running ones stop.", "{n} job{s} cancelled", _jobs(CancelJobs), True,
        "Cancelling jobs",
    ),
    "remove": Change(
        "remove_jobs", "Delete these jobs?", "{n} job{s} deleted", _jobs(RemoveJobs), True, "Deleting jobs"
    ),
    "retry-failures": Change(
        "retry_failures", "Retry all these failed jobs?", "{n} job{s} to be retried", _failures(RetryFailures), True,
        "Retrying failed jobs",
    ),
    "purge-failures": Change(
        "purge_failures", "Delete all these failed jobs?", "{n} failed job{s} deleted", _failures(PurgeFailures), True,
        "Deleting failed jobs",
    ),
    "replay": Change(
        "replay_dead_letters", "Add these jobs to their queue again?", "{n} job{s} added again",
        _dead(ReplayDeadLetters),
    ),
    "redeliver": Change(
        "replay_dead_letters", "Deliver these messages again?", "{n} message{s} to be delivered again",
        _dead(ReplayDeadLetters),
    ),
    "replay-edited": Change(
        "replay_dead_letters", "Add the job again with this data?", "job added again with the new data",
        lambda form: ReplayEdited(queue=form.text("q"), id=form.text("id"), data=form.json("data")),
        typed=("data",),
    ),
    "purge-dead": Change(
        "purge_dead_letters", "Delete these dead letters?", "{n} dead letter{s} deleted", _dead(PurgeDeadLetters), True
    ),
    "pause-fair-key": Change(
        "pause_fair_key", "Pause the fair key?", "fair key paused",
        lambda form: PauseFairKey(queue=form.text("q"), key=form.text("key")),
    ),
    "resume-fair-key": Change(
        "resume_fair_key", "Resume the fair key?", "fair key resumed",
        lambda form: ResumeFairKey(queue=form.text("q"), key=form.text("key")),
    ),
    "quiet-worker": Change(
        "quiet_worker", "Let the worker fetch no further jobs?", "worker fetches no further jobs",
        lambda form: QuietWorker(queue=form.text("q"), worker=form.text("worker")),
    ),
    "resume-worker": Change(
        "resume_worker", "Let the worker fetch jobs again?", "worker fetches jobs again",
        lambda form: ResumeWorker(queue=form.text("q"), worker=form.text("worker")),
    ),
    "pause-schedule": Change(
        "pause_schedule", "Pause the schedule? It adds no jobs until it is resumed.", "schedule paused",
        lambda form: PauseSchedule(queue=form.text("q"), name=form.text("name")),
    ),
    "resume-schedule": Change(
        "resume_schedule", "Resume the schedule?", "schedule resumed",
        lambda form: ResumeSchedule(queue=form.text("q"), name=form.text("name")),
    ),
    "run-schedule": Change(
        "run_schedule", "Run the schedule now?", "job added",
        lambda form: RunSchedule(queue=form.text("q"), name=form.text("name")),
    ),
    "remove-schedule": Change(
        "remove_schedule", "Delete the schedule? Its jobs are kept.", "schedule deleted",
        lambda form: RemoveSchedule(queue=form.text("q"), name=form.text("name")), True,
    ),
}  # fmt: skip
"""Kinds of forms by the value of their field ``change``."""
