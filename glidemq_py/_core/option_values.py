"""Values of job options: deduplication, headers, tags, retention, references to other jobs, backoff, fallbacks.

Also when a failed attempt is retried, and after which delay.
"""

from __future__ import annotations

import difflib
import json
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from json import JSONEncoder
from typing import Any, Final, Literal, NamedTuple, Protocol, Required, TypedDict, cast, runtime_checkable

from glidemq_py._core.checks import (
    Converted,
    OptionValue,
    check_bool,
    check_choice,
    check_int,
    check_iterable,
    check_mapping,
    check_text,
    option,
    parse_nested,
)
from glidemq_py._core.keys import validate_queue_name, validate_reference_id
from glidemq_py._core.times import MAX_DURATION_MS, Milliseconds, to_ms
from glidemq_py.errors import GlideMQValidationError, JobRevokedError, UnrecoverableError

ID_LENGTH: Final = 256
DeduplicationMode = Literal["simple", "throttle", "debounce"]
DeduplicationEnd = Literal["started", "ended"]


class DeduplicationDict(TypedDict, total=False):
    """`Deduplication` as a mapping."""

    id: Required[str]
    ttl: Milliseconds
    mode: DeduplicationMode
    until: DeduplicationEnd
    extend: bool
    replace: bool


class Deduplication(OptionValue, prefix="deduplication"):
    """Deduplicate jobs by ``id``: an add is skipped, or replaces a job that was added before with the same id.

    The options of the new job decide, not those of the existing one.

    Args:
        id: deduplication id, 1..256 characters.
        ttl: ms or timedelta, how long an added job counts as a duplicate. Required by "throttle" and ``extend``,
            optional for "simple" and "debounce".
        mode: "simple" skips an add while the previous job has not ended and, with a ``ttl``, was added less than
            ``ttl`` ago. "throttle" skips adds for ``ttl`` after the
            last job added. "debounce" replaces the previous job if it is delayed or, with a priority, still waiting;
            it skips the add if that job is ready or active. Without a ``ttl``, "debounce" depends on the state of the
            previous job only.
        until: "ended": the previous job counts until it has completed or failed; "started": until a worker has
            started it. Not with "throttle".
        extend: True: a skipped add starts the ``ttl`` again.
        replace: True, with "simple": the new job replaces the previous one if that has not started. If it is active,
            the new job waits until it has ended (outcome ``staged``); of several such jobs the last one is kept.

    Raises:
        GlideMQValidationError: an option is invalid; the error names it and its value.
    """

    id: str = option(check_text, maximum=ID_LENGTH)
    ttl: Converted[int | None, Milliseconds | None] = option(to_ms, default=None, minimum=1)
    mode: DeduplicationMode = option(check_choice, default="simple", choices=DeduplicationMode)
    until: DeduplicationEnd = option(
        check_choice, default="ended", omit_default=True, kw_only=True, choices=DeduplicationEnd
    )
    extend: bool = option(check_bool, default=False, omit_default=True, kw_only=True)
    replace: bool = option(check_bool, default=False, omit_default=True, kw_only=True)

    def _check_given(self) -> None:
        if self.mode == "throttle" and self.ttl is None:
            raise GlideMQValidationError("deduplication.ttl", None, "is required for mode 'throttle'")
        if self.extend and self.ttl is None:
            raise GlideMQValidationError("deduplication.extend", True, "requires 'ttl'")
        if self.replace and self.mode != "simple":
            raise GlideMQValidationError("deduplication.replace", True, "requires the mode 'simple'")
        if self.until == "started" and self.mode == "throttle":
            raise GlideMQValidationError("deduplication.until", self.until, "cannot be used with mode 'throttle'")

    @classmethod
    def parse(cls, option: str, value: object) -> Deduplication:
        """Return a `Deduplication` from one or from a mapping of its fields."""
        return parse_nested(option, value, cls)

    def to_row(self) -> list[object]:
        """Return field 12 of an `add` row (``lua/core/functions/add.lua``)."""
        row: list[object] = [self.id, self.ttl or 0, self.mode]
        more = [self.until == "started", self.extend, self.replace]
        return row + more if any(more) else row


DeduplicationInput = Deduplication | DeduplicationDict
"""Accepted values of the option `deduplication`."""


MAX_HEADERS: Final = 100
MAX_CHARS: Final = 16_384
"""Maximum length of all names and values together, characters."""


class Headers(Mapping[str, str]):
    """Headers of a job: an immutable, hashable mapping of names to texts.

    Args:
        values: names and texts.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return repr(self._values)

    def to_wire(self) -> dict[str, str] | None:
        """Return the stored form; None if there are no headers."""
        return self._values or None


NO_HEADERS: Final = Headers({})


def parse_headers(option: str, value: Any) -> Headers:
    """Return checked headers.

    Raises:
        GlideMQValidationError: a name or value is not a text, or there are too many or too long ones.
    """
    if isinstance(value, Headers):
        return value
    given: Any = value
    if not isinstance(given, Mapping):
        raise GlideMQValidationError(option, value, "must be a mapping of names to texts")
    given = cast("Mapping[object, object]", given)
    kept: dict[str, str] = {}
    for name, text in given.items():
        if not isinstance(name, str) or not name:
            raise GlideMQValidationError(option, name, "names must be non-empty strings")
        if not isinstance(text, str):
            raise GlideMQValidationError(f"{option}.{name}", text, f"must be a string, not {type(text).__name__}")
        kept[name] = text
    if len(kept) > MAX_HEADERS:
        raise GlideMQValidationError(option, len(kept), f"at most {MAX_HEADERS} headers are allowed")
    chars = sum(len(name) + len(text) for name, text in kept.items())
    if chars > MAX_CHARS:
        raise GlideMQValidationError(
            option, chars, f"names and values must have at most {MAX_CHARS:,} characters; use the job's data"
        )
    try:
        "".join([*kept, *kept.values()]).encode()
    except UnicodeEncodeError:
        raise GlideMQValidationError(option, value, "must be text that UTF-8 can encode") from None
    return Headers(kept)


def read_headers(stored: object) -> Headers:
    """Return the headers of a stored job. Entries of others that are not texts are left out."""
    if not isinstance(stored, Mapping):
        return NO_HEADERS
    given = cast("Mapping[object, object]", stored)
    return Headers({name: text for name, text in given.items() if isinstance(name, str) and isinstance(text, str)})


MAX_TAGS: Final = 20
MAX_LENGTH: Final = 64
"""Maximum length of a tag, characters."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")

TagsInput = Sequence[str]


def parse_tags(option: str, value: Any) -> tuple[str, ...]:
    """Return checked tags, each once.

    Raises:
        GlideMQValidationError: If it is not an iterable of texts, or has too many or too long ones.
    """
    tags = tuple(dict.fromkeys(_tag(option, tag) for tag in check_iterable(option, value, "tags")))
    if len(tags) > MAX_TAGS:
        raise GlideMQValidationError(option, tags, f"has {len(tags)} tags; must have at most {MAX_TAGS}")
    return tags


def _tag(option: str, tag: object) -> str:
    text = check_text(option, tag, maximum=MAX_LENGTH)
    if _CONTROL.search(text):
        raise GlideMQValidationError(option, text, "must not contain control characters")
    return text


def parse_tags_filter(value: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the tags that jobs must have, given one, several or None."""
    if value is None:
        return ()
    return (_tag("tags", value),) if isinstance(value, str) else parse_tags("tags", value)


def tags_to_wire(tags: tuple[str, ...]) -> list[str] | None:
    """Return the stored form; None if there are no tags: these only override the queue's default."""
    return list(tags) or None


def read_tags(stored: object) -> tuple[str, ...]:
    """Return the tags in the options of a stored job; a peer's values of other types are ignored."""
    if not isinstance(stored, list):
        return ()
    return tuple(tag for tag in cast("list[object]", stored) if isinstance(tag, str))


def encoded_tags(tags: Iterable[str]) -> list[str]:
    """Return the texts that the stored options of a job with these tags contain."""
    return [json.dumps(tag, ensure_ascii=False) for tag in tags]


_MAX_AGE_S: Final = MAX_DURATION_MS // 1_000
_MAX_COUNT: Final = 2**31 - 1


class KeepJobsDict(TypedDict, total=False):
    """`KeepJobs` as a mapping."""

    age: int | timedelta
    count: int


def _seconds(option: str, value: object) -> int:
    if isinstance(value, timedelta):
        whole, rest = divmod(value, timedelta(seconds=1))
        value = whole + bool(rest)
    return check_int(option, value, 1, _MAX_AGE_S, unit=" (seconds) or a timedelta")


class KeepJobs(OptionValue, kw_only=True):
    """Keep finished jobs up to a maximum age, a maximum number, or both.

    Args:
        age: maximum age in seconds (not milliseconds; glide-mq uses seconds too) or a timedelta; > 0.
        count: number of newest jobs to keep; > 0.

    Raises:
        GlideMQValidationError: an option is invalid, or neither was given.
    """

    age: Converted[int | None, int | timedelta | None] = option(_seconds, default=None)
    count: int | None = option(check_int, default=None, minimum=1, maximum=_MAX_COUNT)

    def _check_given(self) -> None:
        if self.age is None and self.count is None:
            raise GlideMQValidationError("KeepJobs", {}, "requires 'age' (seconds), 'count', or both")


Retention = bool | int | KeepJobs
"""A validated retention option; 0 is converted to True."""
RetentionInput = bool | int | KeepJobs | KeepJobsDict
"""Accepted values of `remove_on_complete` and `remove_on_fail`."""


def parse_retention(option: str, value: object) -> Retention | None:
    """Return a valid retention option. 0 becomes True (keep none), because glide-mq reads 0 as "keep all"."""
    if value is None or value is True or value is False or isinstance(value, KeepJobs):
        return value
    if isinstance(value, int):
        return check_int(option, value, 0, _MAX_COUNT) or True
    if not isinstance(value, Mapping):
        raise GlideMQValidationError(
            option, value, "must be a bool, a number of jobs to keep, or {'age': seconds, 'count': number}"
        )
    given = check_mapping(option, cast("object", value), ("age", "count"))
    age, count = given.get("age"), given.get("count")
    if age is None and count is None:
        raise GlideMQValidationError(option, given, "requires 'age' (seconds), 'count', or both")
    age = None if age is None else _seconds(f"{option}.age", age)
    if count is not None and check_int(f"{option}.count", count, 0, _MAX_COUNT) == 0:
        return True  # keep none, regardless of age
    return KeepJobs(age=age, count=count)


def read_retention(stored: Any) -> Any:
    """Return a stored retention as glide-mq for Node reads it: 0 means keep all. This package never writes 0."""
    if not isinstance(stored, Mapping):
        return stored or False
    return KeepJobs.from_wire(cast("Mapping[str, Any]", stored)) or False


def retention_to_wire(value: Retention) -> bool | int | dict[str, Any]:
    """Return the option as in the opts JSON. True replaces 0, which a Node peer would read as "keep all"."""
    return value.to_wire() if isinstance(value, KeepJobs) else value


def kept(value: Retention | None) -> int | tuple[int, int]:
    """Return the option in the form of reports: 0 = keep the job, 1 = delete it, or (count, age in seconds)."""
    if value is None or value is False:
        return 0
    if value is True:
        return 1
    if isinstance(value, KeepJobs):
        return (value.count or 0, value.age or 0)
    return (value, 0)


FailurePolicy = Literal["fail_parent", "ignore", "remove", "wait"]


class JobRef(NamedTuple):
    """A reference to a job: its queue and its id.

    Attributes:
        queue: name of the queue.
        id: id of the job.
    """

    queue: str
    id: str


class ParentDict(TypedDict):
    """A `JobRef` written as a mapping."""

    queue: str
    id: str


@runtime_checkable
class _JobLike(Protocol):
    id: str

    @property
    def queue_name(self) -> str: ...


ParentInput = JobRef | tuple[str, str] | ParentDict | _JobLike
"""A value of ``parent``: a `Job`, a `JobRef`, ``(queue, id)``, or ``{"queue": ..., "id": ...}``."""


def parse_parent(option: str, value: object) -> JobRef:
    """Return the parent as a `JobRef`.

    Raises:
        GlideMQValidationError: the value of ``option`` is invalid.
    """
    if isinstance(value, _JobLike):
        return JobRef(value.queue_name, value.id)
    if isinstance(value, Mapping):
        given = cast("Mapping[str, Any]", value)
        if set(given) != {"queue", "id"}:
            raise GlideMQValidationError(option, given, "must have the keys 'queue' and 'id'")
        queue, job_id = given["queue"], given["id"]
    else:
        parts: Any = value
        if not isinstance(value, tuple) or len(parts) != 2:
            raise GlideMQValidationError(option, parts, "must be a job, a pair (queue, id) or a mapping of the two")
        queue, job_id = parts
    return JobRef(validate_queue_name(queue, f"{option}.queue"), validate_reference_id(job_id, f"{option}.id"))


MAX_DEPENDENCIES: Final = 1_000
DependencyPolicy = Literal["wait", "fail", "ignore", "remove"]
DEPENDENCY_POLICIES: Final = {"wait": "wait", "fail": "fail_parent", "ignore": "ignore", "remove": "remove"}
"""The policies, each with its name in records."""

DependenciesInput = Iterable[str | ParentInput]
"""A value of ``depends_on``: ids of jobs in the same queue, and references to jobs in any queue."""


def parse_dependencies(option: str, value: object) -> tuple[JobRef, ...]:
    """Return the dependencies without duplicates; the queue of a plain id is "".

    Raises:
        GlideMQValidationError: the value of ``option`` is invalid.
    """
    if isinstance(value, (str, bytes, Mapping, JobRef)) or not isinstance(value, Iterable):
        raise GlideMQValidationError(option, cast("Any", value), "must be a list of job ids, jobs or pairs (queue, id)")
    given: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
    if len(given) > MAX_DEPENDENCIES:
        raise GlideMQValidationError(option, len(given), f"must have at most {MAX_DEPENDENCIES:,} jobs")
    if not given:
        raise GlideMQValidationError(option, given, "must not be empty")
    return tuple(dict.fromkeys(_reference(f"{option}[{i}]", each) for i, each in enumerate(given)))


def _reference(option: str, value: object) -> JobRef:
    if isinstance(value, str):
        return JobRef("", validate_reference_id(value, option))
    if isinstance(value, JobRef) and not value.queue:
        return JobRef("", validate_reference_id(value.id, option))
    return parse_parent(option, value)


def dependencies_to_wire(dependencies: tuple[JobRef, ...]) -> list[str | dict[str, str]]:
    """Return the stored form: an id, or queue and id."""
    return [{"queue": each.queue, "id": each.id} if each.queue else each.id for each in dependencies]


BackoffStrategy = Callable[[int, BaseException], int | timedelta]
"""(number of failures, from 1; the exception) -> delay before the next attempt, in ms or as a timedelta."""

BACKOFF_TYPES: Final = ("fixed", "exponential")
"""The types that every worker knows."""

_TYPE_LENGTH: Final = 256
_MISSPELLED: Final = 0.85
"""From this similarity on, a type counts as a misspelled one of `BACKOFF_TYPES`."""
# From this exponent on, every delay above zero exceeds MAX_DURATION_MS: no larger power is computed.
_MAX_EXPONENT: Final = MAX_DURATION_MS.bit_length()


def _check_type(option: str, value: object) -> str:
    """Return a type of backoff; reject "exponetial" and "Fixed", but not "exponential2", which may be a strategy."""
    kind = check_text(option, value, maximum=_TYPE_LENGTH)
    if kind in BACKOFF_TYPES:
        return kind
    lower = kind.lower()
    near = difflib.get_close_matches(lower, BACKOFF_TYPES, 1, cutoff=_MISSPELLED)
    if near and (lower == near[0] or near[0] not in lower):
        problem = f"is not a type of backoff; did you mean {near[0]!r}? (a strategy of a worker needs another name)"
        raise GlideMQValidationError(option, value, problem)
    return kind


def _check_jitter(option: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise GlideMQValidationError(option, value, f"must be a number from 0 to 1, not {type(value).__name__}")
    if not 0 <= value <= 1:  # NaN fails this as well
        raise GlideMQValidationError(option, value, "must be a number from 0 to 1")
    return float(value)


class BackoffDict(TypedDict, total=False):
    """A backoff written as a mapping; see `Backoff`."""

    type: str
    delay: Milliseconds
    jitter: float
    max_delay: Milliseconds


class Backoff(OptionValue, prefix="backoff"):
    """Delay between the attempts of a job.

    Args:
        type: "fixed", "exponential", or the name of a backoff strategy of the worker. A misspelling of the first two
            is rejected.
        delay: base delay, ms or timedelta.
        jitter: 0.0..1.0; up to this fraction of the delay is added at random.
        max_delay: upper bound of the delay, jitter included, ms or timedelta; None = ten years.

    Raises:
        GlideMQValidationError: an option is invalid; the error names it and its value.
    """

    type: str = option(_check_type)
    delay: Converted[int, Milliseconds] = option(to_ms, default=0)
    jitter: float = option(_check_jitter, default=0.0, omit_default=True, kw_only=True)
    # Node peers ignore `maxDelay`, which glide-mq does not have.
    max_delay: Converted[int | None, Milliseconds | None] = option(to_ms, default=None, kw_only=True)

    def _check_given(self) -> None:
        if self.max_delay is not None and self.max_delay < self.delay:
            raise GlideMQValidationError("backoff.max_delay", self.max_delay, f"must be >= the delay ({self.delay} ms)")

    @classmethod
    def parse(cls, option: str, value: object) -> Backoff:
        """Return a `Backoff` from one, from a duration (type "fixed"), or from a mapping of its fields."""
        if isinstance(value, timedelta) or (isinstance(value, int) and not isinstance(value, bool)):
            return cls("fixed", to_ms(option, value))
        given: Any = value
        if isinstance(value, Mapping) and given.get("type") in BACKOFF_TYPES and given.get("delay") is None:
            raise GlideMQValidationError(option, given, "requires a 'delay' in milliseconds")
        return parse_nested(option, given, cls, ", a duration")

    @classmethod
    def read(cls, stored: object) -> object:
        """Return a backoff from stored JSON; other types as they are. Other clients may write types that `add` rejects.

        Raises:
            GlideMQValidationError: another field is invalid, or the type is none at all.
        """
        if not isinstance(stored, Mapping):
            return stored
        given = cls.from_wire(cast("Mapping[str, Any]", stored))
        kind = check_text("backoff.type", given.pop("type", ""), maximum=_TYPE_LENGTH)
        backoff = cls(BACKOFF_TYPES[0], **given)
        backoff.__dict__["type"] = kind
        return backoff

    def compute(self, attempts_made: int, rng: Callable[[], float] = random.random) -> int:
        """Return the delay after ``attempts_made`` failed attempts, in ms.

        "fixed": ``delay``. "exponential": ``delay * 2**(attempts_made - 1)``. Any other type: as "fixed", which applies
        if the worker has no strategy with that name. Then up to ``jitter`` of that is added, and the sum is rounded and
        limited to ``max_delay``.

        Args:
            attempts_made: number of failed attempts, this one included.
            rng: source of random numbers in [0, 1).
        """
        value = self.delay
        if self.type == "exponential":
            value *= 1 << min(max(attempts_made - 1, 0), _MAX_EXPONENT)
        if self.jitter > 0.0:
            value = math.floor(value + rng() * self.jitter * value + 0.5)
        longest = MAX_DURATION_MS if self.max_delay is None else self.max_delay
        return min(value, longest)


BackoffInput = Backoff | BackoffDict | Milliseconds
"""Types of the option `backoff`. A bare duration is a fixed delay."""

_PERMANENT: Final = (UnrecoverableError, JobRevokedError)


def is_retried(
    error: BaseException, retry_on: tuple[type[BaseException], ...] | None, no_retry_on: tuple[type[BaseException], ...]
) -> bool:
    """Return whether a job may be retried after an error, if it has attempts left.

    Args:
        error: Error of the attempt. `UnrecoverableError` and a revocation are permanent.
        retry_on: Errors that are retried; None: all.
        no_retry_on: Errors that are not retried.
    """
    if isinstance(error, (*_PERMANENT, *no_retry_on)):
        return False
    return retry_on is None or isinstance(error, retry_on)


def retry_delay(
    backoff: Backoff | None, failures: int, error: BaseException, strategies: Mapping[str, BackoffStrategy] | None
) -> int:
    """Return the delay until the next attempt, in ms.

    Args:
        backoff: The job's option; None: no delay.
        failures: Number of failed attempts, this one included.
        error: Error of the attempt.
        strategies: The worker's own strategies by type.

    Raises:
        GlideMQValidationError: A strategy returned something else than whole milliseconds or a timedelta. Whatever a
            strategy raises is raised as well.
    """
    if backoff is None:
        return 0
    strategy = (strategies or {}).get(backoff.type)
    if strategy is None:
        return backoff.compute(failures)
    return to_ms(f"backoff strategy {backoff.type!r}", strategy(failures, error))


MAX_FALLBACKS: Final = 100
MAX_TEXT: Final = 1_024
MAX_METADATA: Final = 65_536
"""Most characters of the JSON of a fallback's metadata."""
_encode: Final = JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class FallbackDict(TypedDict, total=False):
    """`Fallback` as a mapping."""

    model: Required[str]
    provider: str
    metadata: Mapping[str, Any]


def _check_text(option: str, value: object) -> str:
    return check_text(option, value, maximum=MAX_TEXT)


def _check_metadata(option: str, metadata: Any) -> dict[str, Any]:
    if not isinstance(metadata, Mapping):
        raise GlideMQValidationError(option, metadata, "must be a mapping")
    given = cast("Mapping[object, Any]", metadata)
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if not isinstance(name, str):
            raise GlideMQValidationError(option, given, "keys must be str")
        fields[name] = value
    try:
        size = len(_encode(fields))
    except (TypeError, ValueError, RecursionError) as error:
        raise GlideMQValidationError(option, given, f"is not JSON: {error}") from None
    if size > MAX_METADATA:
        raise GlideMQValidationError(option, given, f"must be at most {MAX_METADATA} characters of JSON")
    return fields


def _metadata_to_wire(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    return dict(metadata) or None


class Fallback(OptionValue, prefix="fallbacks"):
    """An alternative to use after an attempt has failed.

    Args:
        model: name of the model, 1..1,024 characters.
        provider: provider of the model, 1..1,024 characters, or None.
        metadata: mapping of JSON values for the handler, at most 65,536 characters of JSON.

    Raises:
        GlideMQValidationError: an option is invalid; the error names it and its value.
    """

    model: str = option(_check_text)
    provider: str | None = option(_check_text, default=None, kw_only=True)
    metadata: Converted[Mapping[str, Any], Mapping[str, Any] | None] = option(
        _check_metadata, default=None, encode=_metadata_to_wire, kw_only=True
    )

    def _check_given(self) -> None:
        self.__dict__.setdefault("metadata", {})


FallbacksInput = Sequence[Fallback | FallbackDict | str]
"""Accepted values of the option `fallbacks`; a str is a model."""


def parse_fallbacks(option: str, given: object) -> tuple[Fallback, ...]:
    """Return valid fallbacks; otherwise raise GlideMQValidationError, which names the position."""
    items: Any = given
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence):
        raise GlideMQValidationError(option, items, f"must be a list of fallbacks, not {type(items).__name__}")
    if len(items) > MAX_FALLBACKS:
        raise GlideMQValidationError(option, items, f"must have at most {MAX_FALLBACKS} entries")
    return tuple(_parse(f"{option}[{position}]", item) for position, item in enumerate(items))


def _parse(option: str, item: object) -> Fallback:
    return parse_nested(option, {"model": item} if isinstance(item, str) else item, Fallback)


def read_fallbacks(stored: Any) -> tuple[Fallback, ...]:
    """Parse the fallbacks of a stored job. The chain ends before the first invalid one, since positions matter."""
    if not isinstance(stored, list):
        return ()
    kept: list[Fallback] = []
    items = cast("Any", stored)
    for item in items[:MAX_FALLBACKS]:
        known: object = item
        if isinstance(item, dict):
            known = Fallback.from_wire(cast("dict[str, Any]", item))
        try:
            kept.append(_parse("fallbacks", known))
        except GlideMQValidationError:
            break
    return tuple(kept)


def current_fallback(chain: Sequence[Fallback], index: int) -> Fallback | None:
    """Return the fallback of an attempt; ``index`` is its position in the chain, 0 = no fallback in use."""
    return chain[index - 1] if 0 < index <= len(chain) else None
