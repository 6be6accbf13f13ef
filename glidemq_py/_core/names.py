"""Validation of queue names, key prefixes, job names and job ids, and the job ids that gateways make.

Keys are built in `glidemq_py._core.keys`. A gateway's id is a UUIDv7 that contains the number of the queue, as some
commands have the id only. After the version and variant bits, it has 48 bits of milliseconds, a counter of 12 bits, the
queue's number of 24 bits, 30 random bits, and 8 check bits. The check bits distinguish these ids from UUIDs that
clients have chosen. One in 256 of those passes, so a reader looks in the queue first and in the index of chosen ids
then.
"""

from __future__ import annotations

import re
import zlib
from functools import lru_cache
from typing import Final

from glidemq_py._core.checks import check_text
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.errors.base import show_value

NAME_LENGTH: Final = 256
"""Maximum length of a queue name, prefix or job id, in UTF-16 code units."""
JOB_NAME_LENGTH: Final = 1024
"""Maximum length of a job name, in UTF-16 code units."""
MAX_NUMERIC_ID: Final = 10**13
"""Largest custom id that consists of digits only. Above 10**14, the id counter of a Node peer prints exponents."""
PARTITION_MARK: Final = "~p~"
PARTITION: Final = re.compile(r"~p~[0-9a-z]{4}\Z")
"""The end of the name of a partition, after that of its queue."""
PARTITION_LENGTH: Final = len(PARTITION_MARK) + 4

_PLAIN_ID: Final = re.compile(r"[A-Za-z_\-.@][A-Za-z0-9_\-.@]{0,127}", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_STRUCTURE: Final = re.compile(r"[{}:]")
_BRACES: Final = re.compile(r"[{}]")
_GLOB: Final = re.compile(r"[*?\[\]\\]")
_DIGITS: Final = re.compile(r"[0-9]+")

_NO_STRUCTURE: Final = "must not contain any of { } :"
_NO_BRACES: Final = "must not contain { or }; only the queue name is the cluster hash tag"
_NO_GLOB: Final = "must not contain any of the glob characters * ? [ ] \\"
_NO_CONTROL: Final = "must not contain control characters"


def partition_home(name: str) -> str | None:
    """Return the name of the partitioned queue that may have a partition with this name; None if it is none."""
    return name[:-PARTITION_LENGTH] or None if PARTITION.search(name) is not None else None


def validate_queue_name(name: object, option: str = "name") -> str:
    r"""Check a queue name: 1 to 256 characters, no control characters and none of `{ } : * ? [ ] \`.

    Braces and the colon are key syntax (the name is the cluster hash tag). With glob characters, the SCAN of a Node
    peer on this queue would match the keys of other queues.

    Raises:
        GlideMQValidationError: the name is invalid.
    """
    text = check_text(option, name, maximum=NAME_LENGTH)
    if _STRUCTURE.search(text) is not None:
        # The gateway escapes the names of its clients so. A text that is not shown as it is may contain a password.
        escaped, is_shown = text.replace(":", "%3A"), show_value(text) == repr(text)
        is_escaped = is_shown and not _BRACES.search(text)
        hint = f"; a gateway client's queue of this name is {escaped!r} here" if is_escaped else ""
        raise GlideMQValidationError(option, text, _NO_STRUCTURE + hint)
    _reject(option, text, _GLOB, _NO_GLOB)
    _reject(option, text, _CONTROL, _NO_CONTROL)
    return text


def validate_prefix(prefix: object, option: str = "prefix") -> str:
    r"""Check a key prefix: 1 to 256 characters, no control characters, none of `{ } * ? [ ] \`."""
    text = check_text(option, prefix, maximum=NAME_LENGTH)
    _reject(option, text, _BRACES, _NO_BRACES)
    _reject(option, text, _GLOB, _NO_GLOB)
    _reject(option, text, _CONTROL, _NO_CONTROL)
    return text


def validate_job_name(name: object, option: str = "name") -> str:
    """Check a job name: a non-empty string of at most 1024 characters."""
    if type(name) is str and name.isascii() and 0 < len(name) <= JOB_NAME_LENGTH:
        return name
    return check_text(option, name, maximum=JOB_NAME_LENGTH)


def validate_job_id(job_id: object, option: str = "job_id") -> str:
    """Check the custom id of a new job: 1 to 256 characters, no control characters, none of `{ } :`, no `||`.

    Ids that consist of digits only advance the queue's id counter. `007` and numbers above 10**13 would break the
    counter and are rejected. `||` separates id and subscription in the scheduled set.
    """
    if isinstance(job_id, str) and _PLAIN_ID.fullmatch(job_id) is not None:
        return job_id
    text = validate_existing_id(job_id, option)
    if "||" in text:
        problem = "must not contain '||'; to build it from the id of another job, use Job.id_prefix instead of Job.id"
        raise GlideMQValidationError(option, text, problem)
    if _DIGITS.fullmatch(text) is not None:
        if text[0] == "0":
            raise GlideMQValidationError(option, text, "a numeric id must not start with 0")
        if len(text) > 14 or int(text) > MAX_NUMERIC_ID:
            raise GlideMQValidationError(option, text, f"a numeric id must be at most {MAX_NUMERIC_ID:,}")
    return text


def validate_reference_id(job_id: object, option: str = "job_id") -> str:
    """Check the id of a job to wait for: one that a new job may have, or that after the number of its partition."""
    if isinstance(job_id, str):
        number, mark, own = job_id.partition("||")
        if mark and len(number) <= 3 and _DIGITS.fullmatch(number) is not None:
            validate_job_id(own, option)
            return job_id
    return validate_job_id(job_id, option)


def validate_existing_id(job_id: object, option: str = "job_id") -> str:
    """Check the id of a job to look up: 1 to 256 characters, no control characters, none of `{ } :`.

    A peer may have added the job, so every id that is valid in a key is accepted.
    """
    if isinstance(job_id, str) and _PLAIN_ID.fullmatch(job_id) is not None:
        return job_id
    text = check_text(option, job_id, maximum=NAME_LENGTH)
    _reject(option, text, _STRUCTURE, _NO_STRUCTURE)
    _reject(option, text, _CONTROL, _NO_CONTROL)
    return text


def parse_job_id(job_id: object, option: str = "job_id") -> str:
    """Return the id of a job to look up as a string; an int is converted. Reject anything else, such as a `Job`."""
    if type(job_id) is int:
        return str(job_id)
    return validate_existing_id(job_id, option)


def _reject(option: str, text: str, forbidden: re.Pattern[str], problem: str) -> None:
    if forbidden.search(text) is not None:
        raise GlideMQValidationError(option, text, problem)


COUNTER_BITS: Final = 12
RANDOM_BITS: Final = 30
CHECK_BITS: Final = 8
_LOW, _COUNTER, _CHECK = 2**62 - 1, 2**COUNTER_BITS - 1, 2**CHECK_BITS - 1
_LENGTH: Final = 36
_SHAPE: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.ASCII)


def queue_numbers_key(prefix: str) -> str:
    """Return the key of the numbers of queues and partitions: field ``q:<name>``."""
    return f"{prefix}:gateway:queues"


def check_bits(content: int) -> int:
    """Return the check bits of the 114 bits that stand before them, without version and variant."""
    return zlib.crc32(content.to_bytes(15, "big")) & _CHECK


def is_uuid7(job_id: str) -> bool:
    """Return whether an id is a UUIDv7, made here or by a client."""
    return _SHAPE.fullmatch(job_id) is not None


def queue_number(job_id: str) -> int | None:
    """Return the number of the queue in an id, or None if the id was not made here."""
    return _queue_number(job_id) if len(job_id) == _LENGTH else None


@lru_cache(maxsize=16_384)  # an id is read when its job is fetched, reported, and named by events
def _queue_number(job_id: str) -> int | None:
    if _SHAPE.fullmatch(job_id) is None:
        return None
    value = int(job_id.replace("-", ""), 16)
    high, low = value >> 64, value & _LOW
    moment = (high >> 16) << COUNTER_BITS | (high & _COUNTER)
    rest = low >> CHECK_BITS
    # `check_bits`, without a function of its own.
    if (zlib.crc32((moment << 54 | rest).to_bytes(15, "big")) ^ low) & _CHECK:
        return None
    return rest >> RANDOM_BITS
