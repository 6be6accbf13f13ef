"""The options `attempts`, `backoff` and `fallbacks` (other ways to run a job), and when a failed attempt is retried."""

from __future__ import annotations

import difflib
import math
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from json import JSONEncoder
from typing import Any, Final, TypedDict, cast

from glidemq_py._core.checks import Converted, OptionValue, check_text, option, parse_nested
from glidemq_py._core.times import MAX_DURATION_MS, Milliseconds, to_ms
from glidemq_py.errors import GlideMQValidationError, JobRevokedError, UnrecoverableError

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


class _RequiredKeys(TypedDict):
    model: str


class FallbackDict(_RequiredKeys, total=False):
    """`Fallback` as a mapping."""

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
