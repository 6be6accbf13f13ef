"""The option ``dead_letter_queue``: the target queue, and which outcomes create an entry."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict, cast

from glidemq_py._core.checks import check_choice, check_mapping
from glidemq_py._core.names import validate_queue_name
from glidemq_py.errors import GlideMQValidationError

__all__ = ["DeadLetterInput", "DeadLetterOptions", "DeadLetterOptionsDict", "EndKind", "parse_dead_letter_queue"]

EndKind = Literal["failed", "stalled", "expired", "cost", "revoked", "malformed"]
_KINDS: Final = ("failed", "stalled", "expired", "cost", "revoked", "malformed")
_DEFAULT: Final = ("failed", "stalled", "expired", "cost")
_OPTION: Final = "dead_letter_queue"


class DeadLetterOptionsDict(TypedDict, total=False):
    """`DeadLetterOptions` written as a mapping."""

    name: str
    on: Collection[EndKind]


@dataclass(frozen=True, slots=True, init=False)
class DeadLetterOptions:
    """The dead letter queue of a queue.

    Args:
        name: name of the queue that gets an entry for every failed job.
        on: outcomes that create an entry: ``failed`` (the handler failed and no attempt is left), ``stalled`` (stalled
            too often), ``expired``, ``cost`` (costs more than its group's token bucket holds), ``revoked`` (cancelled),
            ``malformed`` (a record without name, data or options). Default: all but the last two.

    Raises:
        GlideMQValidationError: an option is invalid.
    """

    name: str
    on: tuple[str, ...]

    def __init__(self, name: str, on: Collection[EndKind] = _DEFAULT) -> None:
        keep = object.__setattr__
        keep(self, "name", validate_queue_name(name, f"{_OPTION}.name"))
        if isinstance(on, str) or not isinstance(on, Collection):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GlideMQValidationError(f"{_OPTION}.on", on, "must be a collection of kinds such as ('failed',)")
        kinds = {check_choice(f"{_OPTION}.on", kind, _KINDS) for kind in on}
        if not kinds:
            raise GlideMQValidationError(f"{_OPTION}.on", on, "must not be empty")
        keep(self, "on", tuple(kind for kind in _KINDS if kind in kinds))

    @property
    def kinds_text(self) -> str:
        """The outcomes in the format of the queue's `meta`."""
        return ",".join(self.on)


DeadLetterInput = str | DeadLetterOptions | DeadLetterOptionsDict | Literal[False] | None
"""A value of ``dead_letter_queue``: a name, the options, False (disable), or None (keep the current setting)."""


def parse_dead_letter_queue(value: object, queue: str | None = None) -> DeadLetterOptions | Literal[False] | None:
    """Return the parsed option ``dead_letter_queue`` of ``queue``.

    Raises:
        GlideMQValidationError: the value is invalid, or names the queue itself.
    """
    if value is None or value is False:
        return value
    if isinstance(value, str):
        value = DeadLetterOptions(value)
    elif not isinstance(value, DeadLetterOptions):
        if not isinstance(value, Mapping):
            raise GlideMQValidationError(_OPTION, value, "must be a queue's name, or {'name': ..., 'on': (...)}")
        given: dict[str, Any] = dict(check_mapping(_OPTION, cast("object", value), ("name", "on")))
        if "name" not in given:
            raise GlideMQValidationError(_OPTION, given, "requires 'name', the name of a queue")
        value = DeadLetterOptions(**given)
    if value.name == queue:
        raise GlideMQValidationError(_OPTION, value.name, "must not be the queue itself")
    return value
