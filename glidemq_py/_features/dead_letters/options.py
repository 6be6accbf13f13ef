"""The option ``dead_letter_queue``: the target queue, and which outcomes create an entry."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal, TypedDict, cast

from glidemq_py._core.checked_options import Converted, OptionValue, option, parse_nested
from glidemq_py._core.checks import check_choice
from glidemq_py._core.names import validate_queue_name
from glidemq_py.errors import GlideMQValidationError

EndKind = Literal["failed", "stalled", "expired", "cost", "revoked", "malformed"]
_KINDS: Final = ("failed", "stalled", "expired", "cost", "revoked", "malformed")
_DEFAULT: Final = ("failed", "stalled", "expired", "cost")
_OPTION: Final = "dead_letter_queue"


class DeadLetterOptionsDict(TypedDict, total=False):
    """`DeadLetterOptions` written as a mapping."""

    name: str
    on: Collection[EndKind]


def _name(option: str, value: str) -> str:
    return validate_queue_name(value, option)


def _kinds(option: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Collection):
        raise GlideMQValidationError(option, value, "must be a collection of kinds such as ('failed',)")
    given = cast("Collection[object]", value)
    kinds = {check_choice(option, kind, _KINDS) for kind in given}
    if not kinds:
        raise GlideMQValidationError(option, given, "must not be empty")
    return tuple(kind for kind in _KINDS if kind in kinds)


class DeadLetterOptions(OptionValue, prefix=_OPTION):
    """The dead letter queue of a queue.

    Args:
        name: name of the queue that gets an entry for every failed job.
        on: outcomes that create an entry: ``failed`` (the handler failed and no attempt is left), ``stalled`` (stalled
            too often), ``expired``, ``cost`` (costs more than its group's token bucket holds), ``revoked`` (cancelled),
            ``malformed`` (a record without name, data or options). Default: all but the last two.

    Raises:
        GlideMQValidationError: an option is invalid.
    """

    name: str = option(_name)
    on: Converted[tuple[str, ...], Collection[EndKind]] = option(_kinds, default=_DEFAULT)

    @property
    def kinds_text(self) -> str:
        """The outcomes in the format of the queue's `meta`."""
        return ",".join(self.on)


DeadLetterInput = str | DeadLetterOptions | DeadLetterOptionsDict | Literal[False] | None
"""A value of ``dead_letter_queue``: a name, the options, False (disable), or None (keep the current setting)."""


def parse_dead_letter_queue(value: object, *queues: str) -> DeadLetterOptions | Literal[False] | None:
    """Return the parsed option ``dead_letter_queue`` of these queues.

    Raises:
        GlideMQValidationError: the value is invalid, or names one of the queues.
    """
    if value is None or value is False:
        return value
    if isinstance(value, str):
        parsed = DeadLetterOptions(value)
    else:
        parsed = parse_nested(_OPTION, value, DeadLetterOptions, ", a queue's name")
    if parsed.name in queues:
        problem = "must not be the queue itself" if len(queues) == 1 else "must not be one of the worker's queues"
        raise GlideMQValidationError(_OPTION, parsed.name, problem)
    return parsed
