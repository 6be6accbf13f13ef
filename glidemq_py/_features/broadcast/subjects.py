"""Subjects and subject patterns: tokens separated by dots; ``*`` matches one token, ``>`` all remaining tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from glidemq_py._core.checks import check_text
from glidemq_py._core.names import JOB_NAME_LENGTH
from glidemq_py.errors import GlideMQValidationError

__all__ = ["compile_subject_matcher", "lua_patterns", "match_subject", "parse_subjects"]

MAX_PATTERNS: Final = 100
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
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
        words = ["[^.]*" if token == "*" else _MAGIC.sub(r"%\g<0>", token) for token in tokens]
        if tokens[-1] == ">":
            words[-1] = ".*"
        found.append("^" + "%.".join(words) + "$")
    return found or None


def _tokens(pattern: object, option: str = "subject pattern") -> list[str]:
    text = check_text(option, pattern, maximum=JOB_NAME_LENGTH)
    if _CONTROL.search(text) is not None:
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
