"""Options of one job: validation, merging with the queue's defaults, and their text in the job's record.

The opts JSON has camelCase names and contains only the given options (docs/reference/data-model.md). The queue and the
worker implement the options; lua/core/enqueue.lua places a new job by `priority`, `lifo` and `delay`.

Unlike the options of new jobs, invalid stored options are never rejected (`read_stored_options`): peers in other
languages validate less (they accept negative delays and any backoff), and a worker must be able to run their jobs.
Invalid options are ignored.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cache, lru_cache
from json import JSONEncoder
from typing import TYPE_CHECKING, Any, Final, Literal, Self, Unpack, cast

from glidemq_py._core.checks import CheckedOptions, Converted, check_bool, check_choice, check_int, option
from glidemq_py._core.keys import validate_job_id
from glidemq_py._core.limits import Ordering, OrderingInput, check_tokens, validate_fair_key
from glidemq_py._core.misuse import OPTION_NAMES as OPTION_NAMES
from glidemq_py._core.misuse import reject_option
from glidemq_py._core.option_values import (
    DEPENDENCY_POLICIES,
    Backoff,
    BackoffInput,
    Deduplication,
    DeduplicationInput,
    DependenciesInput,
    DependencyPolicy,
    FailurePolicy,
    Fallback,
    FallbacksInput,
    Headers,
    JobRef,
    ParentInput,
    Retention,
    RetentionInput,
    TagsInput,
    dependencies_to_wire,
    parse_dependencies,
    parse_fallbacks,
    parse_headers,
    parse_parent,
    parse_retention,
    parse_tags,
    read_fallbacks,
    read_retention,
    retention_to_wire,
    tags_to_wire,
)
from glidemq_py._core.times import DAY_MS, SECOND_MS, Milliseconds, epoch_ms, to_instant, to_ms
from glidemq_py.errors import GlideMQValidationError

if TYPE_CHECKING:
    from glidemq_py._core.option_dicts_twin import JobOptionsDict

MAX_ATTEMPTS: Final = 1_000_000
MAX_PRIORITY: Final = 2047
"""Largest priority. With 2048, the score in the scheduled set would exceed 53 bits and lose its lowest bit."""

MAX_RANK: Final = 1_000_000
"""Largest rank; the smallest is its negative. Rank r from 1 to 2047 is the priority 2048 - r."""

MAX_TRACE_LINES: Final = 1_000_000
"""Largest `stack_trace_limit`."""

UNSUPPORTED: Final[Mapping[str, str]] = {
    "parents": "is an option of flows; use FlowProducer.add_dag for several parents",
    "wait_timeout": "is an option of Queue.add_and_wait",
    **dict.fromkeys(("repeat", "schedule", "scheduler"), "is an option of Queue.schedulers.upsert"),
}
"""Options that exist but are rejected here, with the reason."""

_ONE_ORDER: Final = "all subscriptions read the same stream in the same order"
_MESSAGES_KEPT: Final = "the broadcast's max_messages and max_age decide how long messages are kept"
_NO_DEPENDENCIES: Final = "messages wait for no jobs"

_OFF: Final = {
    "deduplication": None, "fair_key": None, "lifo": False, "ordering": None, "parent": None, "priority": 0, "rank": 0,
}  # fmt: skip
"""The values of options that override a default."""

_EXCLUSIVE: Final = {
    "lifo": ("ordering", "priority"), "fair_key": ("ordering", "lifo", "rank"), "parent": ("deduplication",),
}  # fmt: skip

_encode: Final = JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _job_id(_: str, value: object) -> str:
    return validate_job_id(value)


def _fallbacks_to_wire(fallbacks: tuple[Fallback, ...]) -> list[Any] | None:
    # An empty list only overrides the queue's default.
    return [fallback.to_wire() for fallback in fallbacks] or None


def _parent_to_wire(parent: JobRef) -> dict[str, str]:
    return {"queue": parent.queue, "id": parent.id}


@dataclass(frozen=True, init=False)
class JobOptions(CheckedOptions):
    """Options of a job. Durations are stored in milliseconds.

    They are accepted where a mapping of keyword options is, and unpacked as one: ``@worker.task(**options)``.

    None means "not given", so that a default of the queue or task applies. The options for which no other value means
    "off" override a default with None: `ttl`, `timeout`, `lock_duration`, `ordering`, `cost`, `fair_key` and
    `deduplication`.

    Args:
        delay: delay before the job becomes ready: milliseconds or a timedelta, 0 to ten years. Not with `run_at`.
        run_at: instant at which the job becomes ready (a naive datetime is in local time). If it is in the past, the
            job is ready immediately.
        attempts: maximum number of attempts, 0 to 1,000,000; 0 and 1 both mean one attempt.
        backoff: delay between attempts: a `Backoff`, a mapping of its fields, or a duration (fixed delay).
        job_id: custom id. If a job with this id exists, no job is added. See `validate_job_id`.
        priority: 0 to 2047; 1 is the most urgent, 0 runs after all priorities.
        rank: -1,000,000 to 1,000,000; higher ranks run first, 0 is the rank of jobs without priority. Rank 1 to 2047
            equals priority 2048 - rank. Not with `priority`.
        lifo: True: the job runs before jobs of its rank that have waited longer. Not with `priority` or `ordering`.
        ttl: the job fails as "expired" if it has not started after this time, in milliseconds or a timedelta; > 0.
        timeout: maximum duration of one attempt, in milliseconds or a timedelta; > 0.
        remove_on_complete: retention of the completed job. True or 0 removes it immediately, a number keeps that many
            jobs, `{"age": seconds, "count": number}` or `KeepJobs` limits both, False keeps all.
        remove_on_fail: the same for failed jobs.
        lock_duration: how long the lock is valid without a heartbeat, 1,000 to 86,400,000 ms or a timedelta. It can
            shorten the lock of a lease, not extend it.
        stack_trace_limit: maximum number of lines stored of the traceback of a failed attempt, 0 to 1,000,000: the last
            ones. 0 stores no traceback.
        ordering: ordering group of the job: an `Ordering`, a mapping of its fields, or the key. Not with `lifo`.
        cost: tokens charged to the group's token bucket, 0.001 to 10**9; 1 by default. Requires `ordering`.
        fair_key: jobs with different keys take turns, 1..256 characters, such as the name of a tenant. Jobs of one key
            run by `priority`, then in the order of their adds. Not with `lifo`, `rank` or `ordering`.
        deduplication: skip or replace duplicates: a `Deduplication` or a mapping of its fields.
        fallbacks: fallbacks for the attempts after the first, in order: models, mappings or `Fallback` objects, at
            most 100. Handlers read `Job.current_fallback`.
        parent: the job that waits for this one: a `Job`, a `JobRef`, or ``(queue, id)``. Not with `deduplication`.
        on_failure: effect on the parents if this job does not complete (it fails, expires, is revoked or removed):
            "fail_parent" (the default) fails them too, "ignore" lets them continue without its result, "remove"
            removes this job from their children, "wait" keeps them waiting for a retry of this job.
        depends_on: jobs that must complete before this one runs, at most 1,000: ids of jobs in the same queue, and
            for other queues `Job` or `JobRef` objects or ``(queue, id)`` pairs. They must exist, or be in the same
            bulk.
        on_dependency_failure: effect of a dependency that does not complete (it fails, expires, is revoked or
            removed): "wait" (the default) keeps this job waiting for a retry, "fail" fails it too, "ignore" lets it
            continue without the result, "remove" removes the dependency. Requires `depends_on`.
        headers: texts beside the data, such as a tenant or a request id: a mapping of names to strings, at most 100 and
            16,384 characters in all. Handlers read `Job.headers`; a `Middleware` may add some.
        tags: texts to find the job by, at most 20 of 64 characters. `Queue.search_jobs` and other methods that list
            jobs take them.

    Raises:
        GlideMQValidationError: an option is invalid.
    """

    # In the order of the opts JSON.
    job_id: str | None = option(_job_id, queue="id", callback=False, task="id")
    delay: Converted[int | None, Milliseconds | None] = option(to_ms)
    run_at: datetime | None = option(to_instant, stored=False, template=False, callback=False, proxy=False)
    priority: int | None = option(check_int, message=_ONE_ORDER, minimum=0, maximum=MAX_PRIORITY)
    rank: int | None = option(check_int, message=_ONE_ORDER, proxy=False, minimum=-MAX_RANK, maximum=MAX_RANK)
    lifo: bool | None = option(check_bool, message=_ONE_ORDER)
    attempts: int | None = option(check_int, minimum=0, maximum=MAX_ATTEMPTS)
    backoff: Converted[Backoff | None, BackoffInput | None] = option(
        Backoff.parse, encode=Backoff.to_wire, decode=Backoff.read
    )
    timeout: Converted[int | None, Milliseconds | None] = option(to_ms, none_overrides=True, minimum=1)
    ttl: Converted[int | None, Milliseconds | None] = option(to_ms, none_overrides=True, minimum=1)
    remove_on_complete: Converted[Retention | None, RetentionInput | None] = option(
        parse_retention, encode=retention_to_wire, decode=read_retention, message=_MESSAGES_KEPT, wait=False
    )
    remove_on_fail: Converted[Retention | None, RetentionInput | None] = option(
        parse_retention, encode=retention_to_wire, decode=read_retention, message=_MESSAGES_KEPT, wait=False
    )
    lock_duration: Converted[int | None, Milliseconds | None] = option(
        to_ms, none_overrides=True, message="set it on the workers",
        spark=False, minimum=SECOND_MS, maximum=DAY_MS)  # fmt: skip
    stack_trace_limit: int | None = option(check_int, proxy=False, spark=False, minimum=0, maximum=MAX_TRACE_LINES)
    ordering: Converted[Ordering | None, OrderingInput | None] = option(
        Ordering.parse, none_overrides=True, encode=Ordering.to_wire, decode=Ordering.read,
        message="subscriptions fetch messages in order; use a worker with concurrency 1 to keep it",
    )  # fmt: skip
    cost: float | None = option(
        check_tokens, none_overrides=True, message="messages have no ordering group", spark=False
    )
    fair_key: str | None = option(
        validate_fair_key, none_overrides=True, message="subscriptions fetch messages in order", proxy=False
    )
    deduplication: Converted[Deduplication | None, DeduplicationInput | None] = option(
        Deduplication.parse, none_overrides=True, encode=Deduplication.to_wire, flow=False, batch=False, callback=False
    )
    fallbacks: Converted[tuple[Fallback, ...] | None, FallbacksInput | None] = option(
        parse_fallbacks, encode=_fallbacks_to_wire, decode=read_fallbacks, proxy=False, spark=False,
        message="the current fallback would differ between subscriptions",
    )  # fmt: skip
    parent: Converted[JobRef | None, ParentInput | None] = option(
        parse_parent, encode=_parent_to_wire, queue="parent", flow=False, template=False, batch=False, callback=False,
        message="a message finishes once per subscription", proxy=False, spark=False,
    )  # fmt: skip
    on_failure: FailurePolicy | None = option(
        check_choice, message="messages have no parent", proxy=False, spark=False, choices=FailurePolicy
    )
    depends_on: Converted[tuple[JobRef, ...] | None, DependenciesInput | None] = option(
        parse_dependencies, encode=dependencies_to_wire, queue="dependency", flow=False, template=False,
        callback=False, message=_NO_DEPENDENCIES, proxy=False, spark=False,
    )  # fmt: skip
    on_dependency_failure: DependencyPolicy | None = option(
        check_choice, message=_NO_DEPENDENCIES, proxy=False, spark=False, choices=DependencyPolicy
    )
    headers: Converted[Headers | None, Mapping[str, str] | None] = option(
        parse_headers, encode=Headers.to_wire, proxy=False, spark=False
    )
    tags: Converted[tuple[str, ...] | None, TagsInput | None] = option(
        parse_tags, encode=tags_to_wire, message="subscriptions select messages by subject", proxy=False, spark=False
    )
    _batch: tuple[str, str] | None = field(default=None, init=False, repr=False, compare=False)
    _id_is_issued: bool = field(default=False, init=False, repr=False, compare=False)
    _wire_json: str | None = field(default=None, init=False, repr=False, compare=False)

    if TYPE_CHECKING:

        def __init__(self, **given: Unpack[JobOptionsDict]) -> None: ...

    def _check_given(self) -> None:
        if self.delay is not None and self.run_at is not None:
            raise GlideMQValidationError("run_at", self.run_at, "options 'delay' and 'run_at' are mutually exclusive")
        if self.rank is not None and self.priority is not None:
            raise GlideMQValidationError("rank", self.rank, "options 'rank' and 'priority' are mutually exclusive")
        _check_together(self)

    def _reject(self, name: str, value: object) -> None:
        _refuse(name, value)

    @classmethod
    def parse(cls, given: JobOptions | Mapping[str, Any] | None) -> JobOptions:
        """Return the options of a mapping of keyword options.

        Raises:
            UnknownOptionError: an option does not exist; the error suggests the most similar one.
            GlideMQValidationError: an option exists but is not supported here.
            GlideMQValidationError: a value is invalid.
        """
        if given is None:
            return NO_OPTIONS
        if isinstance(given, JobOptions):
            return given
        if not _is_mapping(given):
            raise GlideMQValidationError("options", given, f"must be a mapping, not {type(given).__name__}")
        if not given:
            return NO_OPTIONS
        try:
            return cls(**given)
        except TypeError:
            for name, value in given.items():
                if type(name) is not str:
                    _refuse(name, value)
            raise

    def keys(self) -> list[str]:
        """Return the names of the given options: ``queue.add("n", **options)``."""
        return [name for name in self.__dict__ if not name.startswith("_")]

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name]

    @staticmethod
    def merge(defaults: JobOptions, overrides: JobOptions) -> JobOptions:
        """Return `defaults` overridden by `overrides`.

        A given `delay` or `run_at` replaces both defaults; so does a given `priority` or `rank`. Without an `ordering`
        there is no `cost`. A given `attempts` of 1 removes the default `backoff` and `fallbacks`.

        Raises:
            GlideMQValidationError: the merged options are mutually exclusive.
        """
        if overrides is NO_OPTIONS or defaults is overrides:
            return defaults
        if defaults is NO_OPTIONS:
            return overrides
        merged = object.__new__(JobOptions)
        given, values = overrides.__dict__, merged.__dict__
        values.update(defaults.__dict__)
        if "delay" in given or "run_at" in given:
            values.pop("delay", None)
            values.pop("run_at", None)
        if "priority" in given or "rank" in given:
            values.pop("priority", None)
            values.pop("rank", None)
        values.update(given)
        values.pop("_wire_json", None)
        if merged.ordering is None and "cost" not in given:
            values.pop("cost", None)
        if given.get("attempts", 2) < 2:
            for name in {"backoff", "fallbacks"} - given.keys():
                values.pop(name, None)
        _check_together(merged, given)
        return merged

    @staticmethod
    def of_job(defaults: JobOptions, given: JobOptions) -> JobOptions:
        """Return the effective options of a job: `merge`, with a check that every option in ``given`` has an effect.

        Raises:
            GlideMQValidationError: the options are mutually exclusive, or a given option requires another one.
        """
        merged = JobOptions.merge(defaults, given)
        if given is not NO_OPTIONS:
            check_effect(given, merged)
        return merged

    @property
    def batch(self) -> tuple[str, str] | None:
        """Key base and id of the batch that the job has joined, and the stem of the batch, or None."""
        return self._batch

    def in_batch(self, batch: tuple[str, str], job_id: str) -> JobOptions:
        """Return the options of a job that has joined the ``batch`` (see `batch`) with this id.

        An id that the batch has issued is not stored as an option: it does not choose a partition.
        """
        joined = object.__new__(JobOptions)
        joined.__dict__.update(self.__dict__)
        joined.__dict__.update(_batch=batch, job_id=job_id)
        if self.job_id is None:
            joined.__dict__.update(_id_is_issued=True, _wire_json=self.to_wire_json())
        return joined

    def with_references(self, parent: JobRef | None, depends_on: tuple[JobRef, ...] | None) -> JobOptions:
        """Return the options with the same parent and dependencies, named by the queues that have these jobs."""
        placed = object.__new__(JobOptions)
        values = placed.__dict__
        values.update(self.__dict__)
        values.pop("_wire_json", None)
        if parent is not None:
            values["parent"] = parent
        if depends_on is not None:
            values["depends_on"] = depends_on
        return placed

    @property
    def run_at_ms(self) -> int | None:
        """Return `run_at` in milliseconds since 1970, or None."""
        return None if self.run_at is None else epoch_ms(self.run_at)

    @property
    def placed_rank(self) -> int | None:
        """Return the rank if no priority has it, or if the job is LIFO within it; None otherwise."""
        rank = self.rank
        return rank if rank and (self.lifo or not 0 < rank <= MAX_PRIORITY) else None

    @property
    def placed_priority(self) -> int:
        """Return the priority, or that of the rank; 0 if there is none."""
        rank = self.rank
        if rank is not None:
            return MAX_PRIORITY + 1 - rank if 0 < rank <= MAX_PRIORITY else 0
        return self.priority or 0

    def dependencies_to_row(self) -> list[object]:
        """Return the field ``dependencies`` of an `add` row (``lua/core/functions/add.lua``)."""
        refs = [text for ref in self.depends_on or () for text in ref]
        generation = secrets.token_hex(8) if any(refs[::2]) else False
        return [DEPENDENCY_POLICIES[self.on_dependency_failure or "wait"], refs, generation]

    def check_place(self, place: str, problem: str, where: str = "") -> Self:
        """Return the options if all given ones are supported in a place.

        Args:
            place: "queue" (as defaults), "task", "flow", "template" (of a scheduler), "batch", "callback" (of a batch)
                or "message" (of a broadcast).
            problem: text of the error; "{}" is the reason in the declaration of the option.
            where: place of the options, such as "jobs[3].", for the error.

        Raises:
            GlideMQValidationError: an option is not supported there.
        """
        for name, reason in unsupported_in(place).items():
            value = getattr(self, name)
            if value is not None and value != _OFF.get(name):
                raise GlideMQValidationError(where + name, value, problem.format(reason))
        return self

    def to_wire(self) -> dict[str, Any]:
        """Return the opts JSON as a dict: camelCase names, only the given options. `run_at` is not stored."""
        wire = super().to_wire()
        if self._id_is_issued:
            del wire["jobId"]
        if "rank" in wire and self.placed_rank is None:
            # Node peers know it as a priority.
            del wire["rank"]
            if self.placed_priority:
                wire["priority"] = self.placed_priority
        return wire

    def to_wire_json(self) -> str:
        """Return the opts JSON as compact text; computed once."""
        text = self._wire_json
        if text is None:
            text = _encode(self.to_wire())
            object.__setattr__(self, "_wire_json", text)
        return text


def _check_together(options: JobOptions, given: Mapping[str, Any] | None = None) -> None:
    """Reject mutually exclusive options. ``given``: the ones that are not defaults; None = all."""
    values = options.__dict__
    for first, others in _EXCLUSIVE.items():
        if values.get(first):
            for second in others:
                if values.get(second):
                    raise _exclusive(options, given, first, second)


def _exclusive(
    options: JobOptions, given: Mapping[str, Any] | None, first: str, second: str
) -> GlideMQValidationError:  # fmt: skip
    """Return the error for two options, one of which may be a default."""
    problem = f"options '{first}' and '{second}' are mutually exclusive"
    if given is None or (first in given) == (second in given):
        return GlideMQValidationError(first, getattr(options, first), problem)
    own, default = (first, second) if first in given else (second, first)
    hint = f"; pass {default}={_OFF[default]} to add the job without it"
    problem += f": {default!r} = {getattr(options, default)!r} is a default option of the queue or task{hint}"
    return GlideMQValidationError(own, getattr(options, own), problem)


def check_effect(own: JobOptions, merged: JobOptions, *, of_flow: bool = False) -> None:
    """Reject options that would have no effect on the job.

    Args:
        own: options given for the job itself. Defaults of the queue may have no effect on some jobs.
        merged: effective options, defaults included.
        of_flow: True if the job is part of a flow, which sets its parents.

    Raises:
        GlideMQValidationError: an option requires another one.
    """
    if (merged.attempts or 0) < 2:
        for name in ("backoff", "fallbacks"):
            if getattr(own, name):
                raise GlideMQValidationError(name, getattr(own, name), "requires 'attempts' of at least 2")
    if own.on_failure is not None and merged.parent is None and not of_flow:
        raise GlideMQValidationError("on_failure", own.on_failure, "requires 'parent'")
    if own.on_dependency_failure is not None and merged.depends_on is None:
        raise GlideMQValidationError("on_dependency_failure", own.on_dependency_failure, "requires 'depends_on'")


_DECODERS: Final = {each.name: each.metadata.get("decode") for each in fields(JobOptions)}
_STORED: Final = {key: (name, _DECODERS[name]) for name, key, _ in JobOptions._stored}


@cache
def unsupported_in(place: str) -> Mapping[str, str | Literal[False]]:
    """Return the options that are not supported in a place, with the reason or False; see `JobOptions.check_place`."""
    places = ((each.name, each.metadata.get("places", {})) for each in fields(JobOptions))
    return {name: reasons[place] for name, reasons in places if place in reasons}


NO_OPTIONS: Final = JobOptions()
"""The options of a job without options."""
NO_OPTIONS.to_wire_json()


def _refuse(name: object, value: object) -> None:
    """Raise an error for a name that is not an option, unless it is an unsupported option with the value None."""
    if not isinstance(name, str):
        raise GlideMQValidationError("options", name, f"option names must be strings, not {type(name).__name__}")
    reason = UNSUPPORTED.get(name)
    if reason is None:
        reject_option(name, value, sorted({*OPTION_NAMES, *UNSUPPORTED}))
    if value is not None:
        raise GlideMQValidationError(name, value, reason)


def _is_mapping(given: object) -> bool:
    return type(given) is dict or isinstance(given, Mapping)


def cost_error(cost: float | None, group: Ordering | str | None) -> GlideMQValidationError:
    """Return the error of a job that costs more than the token bucket of its ordering group holds."""
    key = group.key if isinstance(group, Ordering) else group
    problem = f"exceeds the token bucket capacity of ordering group {key!r}; the job was not added"
    return GlideMQValidationError("cost", cost or 1, problem)


@lru_cache(maxsize=1024)
def read_stored_options(text: str) -> JobOptions:
    """Return the options of a stored job, given the text of its `opts` field; invalid options are ignored.

    Similar jobs have the same text, so the last 1024 texts are cached.
    """
    if text == "{}":
        return NO_OPTIONS
    try:
        stored = json.loads(text)
    except (ValueError, RecursionError):
        return NO_OPTIONS
    if not isinstance(stored, dict):
        return NO_OPTIONS
    kept: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", stored).items():
        field = _STORED.get(key)
        if field is None or value is None:
            continue
        name, decode = field
        try:
            # Each option is parsed alone: one invalid value must not affect the others.
            kept[name] = getattr(JobOptions(**{name: value if decode is None else decode(value)}), name)
        except GlideMQValidationError:
            continue
    if kept.get("lifo") and ("ordering" in kept or kept.get("priority")):
        del kept["lifo"]  # the server ignores it in this combination
    if "rank" in kept:
        kept.pop("priority", None)
    if kept.get("lifo") or "ordering" in kept or "rank" in kept:
        kept.pop("fair_key", None)
    if "deduplication" in kept:
        kept.pop("parent", None)
    return JobOptions(**kept) if kept else NO_OPTIONS
