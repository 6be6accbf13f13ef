"""What people give to commands: the parameters, and the values of their texts: durations, times, JSON; and `span`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from glidemq_py.errors import GlideMQValidationError

if TYPE_CHECKING:
    from glidemq_py._core.limits import RateLimit

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SPAN: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(ms|s|m|h|d|w)")


def span_of(option: str, text: str) -> int:
    """Return the milliseconds of a duration with a unit, such as "90s", "5m" or "7d"."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise GlideMQValidationError(option, text, "must be a duration with a unit, such as 30s, 5m, 2h or 7d")
    return round(float(found[1]) * _UNITS_MS[found[2]])


def time_of(option: str, text: str | None) -> int | None:
    """Return epoch ms: of a date and time (local if without offset), or of a duration ago."""
    if text is None:
        return None
    if _SPAN.fullmatch(text.strip()):
        return max(0, round(time.time() * 1_000) - span_of(option, text))
    try:
        return max(0, round(datetime.fromisoformat(text.strip()).astimezone().timestamp() * 1_000))
    except (ValueError, OverflowError, OSError):
        problem = "must be a time such as 2026-11-23T06:00, or a duration ago such as 2h"
        raise GlideMQValidationError(option, text, problem) from None


def value_of(text: str) -> Any:
    """Return the value of JSON text, or the text itself if it is not JSON."""
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return text


def _reject_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")  # NaN and Infinity, which Python reads


def pairs_of(option: str, texts: Sequence[str]) -> dict[str, Any]:
    """Return the mapping of ``KEY=VALUE`` texts, whose values are JSON or else text."""
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise GlideMQValidationError(option, text, "must be KEY=VALUE")
        found[key] = value_of(value)
    return found


def rate_of(option: str, text: str) -> RateLimit:
    """Return the rate limit of a text such as "100/1m" or "5/s"."""
    from glidemq_py._core.limits import RateLimit

    number, slash, window = text.partition("/")
    if not slash or not number.isascii() or not number.isdigit() or len(number) > 12:
        raise GlideMQValidationError(option, text, "must be a number of jobs per window, such as 100/1m or 5/s")
    return RateLimit(int(number), span_of(option, window if window[:1].isdigit() else f"1{window}"))


def span(ms: float) -> str:
    """Return a duration in at most two units: ``850ms``, ``12s``, ``3m 20s``, ``2d 4h``."""
    if ms < 1_000:
        return f"{round(ms)}ms"
    left, parts = int(ms // 1_000), list[str]()
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        if left >= size and len(parts) < 2:
            parts.append(f"{left // size}{unit}")
            left %= size
        elif parts:
            break
    return " ".join(parts)


class Param(NamedTuple):
    """A parameter of a command, or a field of an action that people give.

    Attributes:
        name: ``QUEUE`` is an argument, ``--limit -n N`` an option with a value, ``--newest`` a flag.
        text: Its help.
        read: Returns its value from the name of the option and the text, or the texts. None = the text, or a number.
        of: What it names, for completion: "queue", "worker", "schedule", "state" or "reason", or the completion itself;
            "data" may be on stdin.
        words: Its values, for completion.
        is_many: True if it may be repeated.
        is_needed: True if it must be given, unless the command has a default.
        least: Its minimum.
        most: Its maximum.
        default: The text that is used if it is not given.
    """

    name: str
    text: str
    read: Callable[[str, Any], Any] | None = None
    of: Any = ""
    words: tuple[str, ...] = ()
    is_many: bool = False
    is_needed: bool = False
    least: float | None = None
    most: float | None = None
    default: str | None = None

    @property
    def flags(self) -> list[str]:
        """The names of the option; [] of an argument."""
        return [word for word in self.name.split() if word.startswith("-")]

    @property
    def metavar(self) -> str | None:
        """The name of its value; None of a flag."""
        return next((word for word in self.name.split() if not word.startswith("-")), None)


def _tuple(option: str, texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(texts)


def data_of(option: str, text: str) -> Any:
    """Return the value of JSON text, or the text itself."""
    return value_of(text)


def _content_of(option: str, texts: Sequence[str]) -> dict[str, Any] | None:
    return pairs_of(option, texts) or None


def limit_of(option: str, text: str) -> Any:
    return False if text in ("off", "0") else rate_of(option, text)


CRITERIA: Final[dict[str, Any]] = {
    "state": Param("--state STATE", "State of the jobs, such as waiting, delayed or failed.", of="state"),
    "name": Param("--name NAME", "Complete name of the jobs."),
    "since": Param("--since TIME", "Not before this time: 2026-11-23T06:00, or 2h (ago).", time_of),
    "until": Param("--until TIME", "Not after this time.", time_of),
    "data": Param(
        "--data KEY=VALUE", "Key and value (JSON, or text) that the data contains; repeatable.",
        _content_of, is_many=True,
    ),
    "group": Param("--group KEY", "Ordering key of the jobs."),
    "fair_key": Param("--fair-key KEY", "Fair key of the jobs."),
    "tags": Param("--tag TAG", "Tag of the jobs; repeated: all of them.", _tuple, is_many=True),
}  # fmt: skip
"""Those of `JobFilter`."""

PARAMETERS: Final = {
    "queue": Param("QUEUE", "Name of the queue.", of="queue", is_needed=True),
    "queues": Param("QUEUES", "Names of queues; default: queues in [tool.glidemq], else all.", of="queue"),
    "job_id": Param("ID", "Id of the job."),
    "ids": Param("IDS", "Ids of jobs.", _tuple, is_many=True),
    "value": Param("DATA", "Data: JSON, or text. '-' reads stdin.", data_of, of="data"),
    "batch": Param("ID", "Id of the batch.", is_needed=True),
    "worker": Param("WORKER", "Id of one worker; default: all workers of the queue.", of="worker"),
    **CRITERIA,
    "reason": Param(
        "--reason REASON",
        "Reason of the failure: explicit_fail (error), max_attempts_exceeded (error, last attempt), cancelled, "
        "timeout, ...; repeatable.",
        _tuple, of="reason", is_many=True,
    ),
    "subscription": Param("--subscription NAME", "Only entries of this subscription of a broadcast; default: of all."),
    "newest": Param("--newest", "List the jobs that ended last, newest first."),
    "limit": Param("--limit -n N", "Maximum number to list.", least=1, most=100_000),
    "timeout": Param("--timeout TIME", "Give up after this time.", span_of),
    "answers": Param("--timeout TIME", "How long to wait for answers.", span_of),
    "concurrency": Param("--concurrency N", "Active jobs; 0 = no limit.", least=0),
    "rate_limit": Param("--rate JOBS/TIME", "Jobs per window, such as 100/1m; off = no limit.", limit_of),
    "yes": Param("--yes -y", "Do not ask for confirmation."),
    "dry_run": Param("--dry-run", "Report what would be changed, and change nothing."),
    "url": Param("--url URL", "URL of the server; default: GLIDEMQ_URL, then [tool.glidemq]."),
    "prefix": Param("--prefix TEXT", "First part of every key; default: GLIDEMQ_PREFIX, then 'glide'."),
    "as_json": Param("--json", "Print JSON instead of a table."),
}  # fmt: skip
"""Those that several commands have, by the names of the arguments of their functions."""
