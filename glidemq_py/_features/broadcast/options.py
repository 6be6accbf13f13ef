"""The options of messages and subscriptions, and the matching of subjects.

Options that a broadcast does not support are rejected. A subject is a sequence of tokens separated by dots. In a
pattern, ``*`` matches one token, and ``>`` all remaining tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypedDict

from glidemq_py._core.checks import check_text
from glidemq_py._core.deduplication import DeduplicationInput
from glidemq_py._core.job_options import BackoffInput, JobOptions
from glidemq_py._core.names import JOB_NAME_LENGTH, NAME_LENGTH
from glidemq_py._core.times import Milliseconds
from glidemq_py.errors import GlideMQValidationError

MAX_PATTERNS: Final = 100
_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f]")
_MAGIC: Final = re.compile(r"[^\w\s]", re.ASCII)


def match_subject(pattern: str, subject: str) -> bool:
    """Return True if the subject matches: ``*`` matches any one token, a final ``>`` one or more tokens.

    Args:
        pattern: the pattern.
        subject: the subject.

    Raises:
        GlideMQValidationError: the pattern is invalid (such as a ``>`` before its end), or the subject is not a str.
    """
    return _matches(_tokens(pattern), subject)


def compile_subject_matcher(patterns: Iterable[str] | None) -> Callable[[str], bool] | None:
    """Return a function that checks a subject against the patterns, or None (no filter) if there are no patterns.

    Raises:
        GlideMQValidationError: a pattern is invalid.
    """
    compiled = [_tokens(pattern) for pattern in parse_subjects("patterns", patterns)]
    if not compiled:
        return None
    return lambda subject: any(_matches(tokens, subject) for tokens in compiled)


def parse_subjects(option: str, value: Any) -> tuple[str, ...]:
    """Return the validated patterns of a subscription; () = all subjects.

    Raises:
        GlideMQValidationError: a pattern is invalid, or there are too many.
    """
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise GlideMQValidationError(option, value, "must be a list of patterns")
    given: list[Any] = [*value]
    patterns: tuple[str, ...] = tuple(given)
    if len(patterns) > MAX_PATTERNS:
        raise GlideMQValidationError(option, len(patterns), f"must be at most {MAX_PATTERNS} patterns")
    for i, pattern in enumerate(patterns):
        _tokens(pattern, f"{option}[{i}]")
    return patterns


def lua_patterns(patterns: Sequence[str]) -> list[str] | None:
    """Return the patterns as Lua patterns for the server, or None if every subject matches."""
    found: list[str] = []
    for pattern in patterns:
        tokens = _tokens(pattern)
        if tokens == [">"]:
            return None
        words = ["[^.]*" if word == "*" else _MAGIC.sub(r"%\g<0>", word) for word in tokens]
        if tokens[-1] == ">":
            words[-1] = ".*"
        found.append("^" + "%.".join(words) + "$")
    return found or None


def _tokens(pattern: object, option: str = "subject pattern") -> list[str]:
    text = check_text(option, pattern, maximum=JOB_NAME_LENGTH)
    if _CONTROL_CHARACTER.search(text) is not None:
        raise GlideMQValidationError(option, text, "must not contain control characters")
    tokens = text.split(".")
    if ">" in tokens[:-1]:
        raise GlideMQValidationError(option, text, "'>' must be the last token")
    return tokens


def _matches(pattern: list[str], subject: str) -> bool:
    if not isinstance(subject, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise GlideMQValidationError("subject", subject, "must be a str")
    tokens = subject.split(".")
    if pattern[-1] == ">":
        pattern = pattern[:-1]
        if len(tokens) <= len(pattern):
            return False
    elif len(tokens) != len(pattern):
        return False
    return all(word in ("*", token) for word, token in zip(pattern, tokens, strict=False))


class PublishOptionsDict(TypedDict, total=False):
    """The keyword options of `Broadcast.publish`; see `JobOptions` for meaning and units."""

    delay: Milliseconds | None
    run_at: datetime | None
    attempts: int | None
    backoff: BackoffInput | None
    job_id: str | None
    ttl: Milliseconds | None
    timeout: Milliseconds | None
    stack_trace_limit: int | None
    deduplication: DeduplicationInput | None
    headers: Mapping[str, str] | None


_INTERNAL: Final = ("workers", "wakers")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_ENTRY: Final = re.compile(r"[0-9]{1,20}(-[0-9]{1,20})?", re.ASCII)


def check_message_options(options: JobOptions, where: str = "") -> JobOptions:
    """Return the options if a broadcast supports all of them.

    Raises:
        GlideMQValidationError: an option is not supported.
    """
    options.check_place("message", "is not supported by broadcasts: {}", where)
    if options.deduplication is not None and options.deduplication.mode != "throttle":
        raise GlideMQValidationError(
            where + "deduplication.mode", options.deduplication.mode,
            "is not supported by broadcasts, whose messages never finish as a whole; use 'throttle'",
        )  # fmt: skip
    return options


def validate_subscription(name: object, option: str = "subscription") -> str:
    """Return a valid subscription name: 1..256 characters, not blank, no control characters.

    Raises:
        GlideMQValidationError: the name is invalid.
    """
    text = check_text(option, name, maximum=NAME_LENGTH)
    if not text.strip():
        raise GlideMQValidationError(option, text, "must not be blank")
    if _CONTROL.search(text) is not None:
        raise GlideMQValidationError(option, text, "must not contain control characters")
    if text in _INTERNAL:
        raise GlideMQValidationError(option, text, "is a reserved name")
    return text


def validate_start(value: object, option: str = "start_from") -> str:
    """Return a valid start of a new subscription: "$" (now), "0-0" (the oldest stored message), or an entry id.

    Raises:
        GlideMQValidationError: the start is invalid.
    """
    if value == "$":
        return "$"
    if isinstance(value, str) and _ENTRY.fullmatch(value) is not None:
        return value if "-" in value else value + "-0"
    raise GlideMQValidationError(option, value, "must be '$', '0-0' or the id of a stream entry")
