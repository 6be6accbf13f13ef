"""Which names are accepted for queues, prefixes, jobs and job ids.

Sources: spec/data-model section 1, wrinkles W63 (ids that break the id counter) and W93 (glob characters).
Only rules on names live here; building keys from names is the wire's business.
"""

from __future__ import annotations

import re
from typing import Final

from glidemq_py._core.checks import check_text
from glidemq_py.errors import GlideMQValidationError

NAME_LENGTH: Final = 256
"""Longest queue name, prefix and job id, in UTF-16 code units."""
JOB_NAME_LENGTH: Final = 1024
"""Longest job name, in UTF-16 code units."""
MAX_NUMERIC_ID: Final = 10**13
"""Largest custom id made of digits only; beyond 10**14 the counter of a Node peer prints exponents."""

_PLAIN_ID: Final = re.compile(r"[A-Za-z_\-.@][A-Za-z0-9_\-.@]{0,127}", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_STRUCTURE: Final = re.compile(r"[{}:]")
_BRACES: Final = re.compile(r"[{}]")
_GLOB: Final = re.compile(r"[*?\[\]\\]")
_DIGITS: Final = re.compile(r"[0-9]+")


def validate_queue_name(name: object, option: str = "queue name") -> str:
    r"""Check a queue name: 1..256 characters, no control characters and none of `{ } : * ? [ ] \`.

    Braces and the colon are key syntax (the name is the cluster hash tag); glob characters would let a Node
    peer's SCAN on this queue reach into other queues. Raises `GlideMQValidationError`.
    """
    text = check_text(option, name, maximum=NAME_LENGTH)
    _refuse(option, text, _STRUCTURE, "must not contain any of { } :")
    _refuse(option, text, _GLOB, r"must not contain any of * ? [ ] \ (they are patterns to other readers)")
    _refuse(option, text, _CONTROL, "must not contain control characters")
    return text


def validate_prefix(prefix: object, option: str = "prefix") -> str:
    r"""Check a key prefix: 1..256 characters, no control characters, none of `{ } * ? [ ] \`."""
    text = check_text(option, prefix, maximum=NAME_LENGTH)
    _refuse(option, text, _BRACES, "must not contain { or }: the queue name alone is the cluster hash tag")
    _refuse(option, text, _GLOB, r"must not contain any of * ? [ ] \ (they are patterns to other readers)")
    _refuse(option, text, _CONTROL, "must not contain control characters")
    return text


def validate_job_name(name: object, option: str = "name") -> str:
    """Check a job's name: a non-empty string of at most 1024 characters."""
    if type(name) is str and name.isascii() and 0 < len(name) <= JOB_NAME_LENGTH:
        return name
    return check_text(option, name, maximum=JOB_NAME_LENGTH)


def validate_job_id(job_id: object, option: str = "job_id") -> str:
    """Check a custom job id: 1..256 characters, no control characters, none of `{ } :`, no `||`.

    Ids of digits only move the queue's id counter, so `007` and numbers above 10**13 are refused: they would
    break it. `||` separates id and subscription in the scheduled set.
    """
    if isinstance(job_id, str) and _PLAIN_ID.fullmatch(job_id) is not None:
        return job_id
    text = validate_known_id(job_id, option)
    if "||" in text:
        raise GlideMQValidationError(option, text, "must not contain '||'")
    if _DIGITS.fullmatch(text) is not None:
        if text[0] == "0":
            raise GlideMQValidationError(option, text, "an id of digits only must not start with 0")
        if len(text) > 14 or int(text) > MAX_NUMERIC_ID:
            raise GlideMQValidationError(option, text, f"an id of digits only must be <= {MAX_NUMERIC_ID}")
    return text


def validate_known_id(job_id: object, option: str = "job_id") -> str:
    """Check the id of a job that is looked for. A peer may have added it, so no more is asked than that a key can have
    it: 1..256 characters, no control characters, none of `{ } :`.
    """
    if isinstance(job_id, str) and _PLAIN_ID.fullmatch(job_id) is not None:
        return job_id
    text = check_text(option, job_id, maximum=NAME_LENGTH)
    _refuse(option, text, _STRUCTURE, "must not contain any of { } :")
    _refuse(option, text, _CONTROL, "must not contain control characters")
    return text


def validate_given_id(job_id: object, option: str = "job_id") -> str:
    """The same of what a caller gives, who may write the number of a counted id as one. A job in place of its id, or
    None, would only be looked for in vain: it is refused.
    """
    if type(job_id) is int:
        return str(job_id)
    return validate_known_id(job_id, option)


def _refuse(option: str, text: str, forbidden: re.Pattern[str], problem: str) -> None:
    if forbidden.search(text) is not None:
        raise GlideMQValidationError(option, text, problem)
