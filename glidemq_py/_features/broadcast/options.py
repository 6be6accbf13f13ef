"""What may be said of a message and of a subscription; whatever a broadcast cannot honour is refused (W33)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final, TypedDict

from glidemq_py._core.checks import check_text
from glidemq_py._core.job_options import BackoffInput, JobOptions
from glidemq_py._core.names import NAME_LENGTH
from glidemq_py._core.times import Milliseconds
from glidemq_py._features.deduplication import DeduplicationInput
from glidemq_py.errors import GlideMQValidationError, UnsupportedOptionError

__all__ = ["PublishOptionsDict", "check_message_options", "validate_start", "validate_subscription"]


class PublishOptionsDict(TypedDict, total=False):
    """The keyword options of `Broadcast.publish`; see `JobOptions` for meaning and units."""

    delay: Milliseconds | None
    run_at: datetime | None
    attempts: int | None
    backoff: BackoffInput | None
    job_id: str | None
    ttl: Milliseconds | None
    timeout: Milliseconds | None
    deduplication: DeduplicationInput | None


_ONE_ORDER: Final = "a message has one place in the stream that every subscription reads"
_KEPT: Final = "messages are kept by the broadcast's max_messages and max_age, whatever becomes of them"
_REFUSED: Final[Mapping[str, str]] = {
    "priority": _ONE_ORDER,
    "lifo": _ONE_ORDER,
    "ordering": "each subscription takes messages in their order; a worker of concurrency 1 keeps it",
    "cost": "it is for groups, and a message belongs to none",
    "parent": "a message ends once for every subscription, so nobody can wait for its end",
    "on_failure": "a message has no parent",
    "fallbacks": "which of them is current differs by subscription",
    "remove_on_complete": _KEPT,
    "remove_on_fail": _KEPT,
    "lock_duration": "it is the workers' own",
}
_INTERNAL: Final = ("workers", "wakers")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_ENTRY: Final = re.compile(r"[0-9]{1,20}(-[0-9]{1,20})?", re.ASCII)


def check_message_options(options: JobOptions, where: str = "") -> JobOptions:
    """The options, if all of them can be honoured. Raises UnsupportedOptionError, which names the one that cannot."""
    for option, why in _REFUSED.items():
        value = getattr(options, option)
        if value is not None and not (value in (0, False) and option in ("priority", "lifo")):
            raise UnsupportedOptionError(where + option, value, f"cannot be used with a broadcast: {why}")
    if options.deduplication is not None and options.deduplication.mode != "throttle":
        raise UnsupportedOptionError(
            where + "deduplication.mode", options.deduplication.mode,
            "cannot be used with a broadcast, where no message ever has ended: use 'throttle'",
        )  # fmt: skip
    return options


def validate_subscription(name: object, option: str = "subscription") -> str:
    """Check a subscription's name: not blank, 1..256 characters, no control ones. Raises GlideMQValidationError."""
    text = check_text(option, name, maximum=NAME_LENGTH)
    if not text.strip():
        raise GlideMQValidationError(option, text, "must not be blank")
    if _CONTROL.search(text) is not None:
        raise GlideMQValidationError(option, text, "must not contain control characters")
    if text in _INTERNAL:
        raise GlideMQValidationError(option, text, "is a name that queues use themselves")
    return text


def validate_start(value: object, option: str = "start_from") -> str:
    """Check where a new subscription begins: "$" (now), "0-0" (with the oldest message there is), or an entry id."""
    if value == "$":
        return "$"
    if isinstance(value, str) and _ENTRY.fullmatch(value) is not None:
        return value if "-" in value else value + "-0"
    raise GlideMQValidationError(option, value, "must be '$', '0-0' or the id of a stream entry")
