"""Where a queue's dead letters go, and which ends make one: the option's forms. Nothing is delivered here."""

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
    """A dead letter queue.

    Args:
        name: of the queue that gets a job for every job that has failed for good.
        on: kinds of ends that count: ``failed`` (by its handler, with no attempt left), ``stalled`` (it lost its
            worker too often), ``expired``, ``cost`` (more than its group's token bucket holds), ``revoked``,
            ``malformed`` (a record without name, data or options). All but the last two unless given.

    Raises:
        GlideMQValidationError: names the option and the value.
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
            raise GlideMQValidationError(f"{_OPTION}.on", on, "names no kind of end: there would be no dead letters")
        keep(self, "on", tuple(kind for kind in _KINDS if kind in kinds))

    @property
    def kinds_text(self) -> str:
        """The kinds as the queue's `meta` holds them."""
        return ",".join(self.on)


DeadLetterInput = str | DeadLetterOptions | DeadLetterOptionsDict | Literal[False] | None
"""What may be given: a name, the options, False (the queue shall have none any more), None (leave it as it is)."""


def parse_dead_letter_queue(value: object, queue: str | None = None) -> DeadLetterOptions | Literal[False] | None:
    """Check the option; ``queue`` is the queue whose dead letters they are. Raises GlideMQValidationError."""
    if value is None or value is False:
        return value
    if isinstance(value, str):
        value = DeadLetterOptions(value)
    elif not isinstance(value, DeadLetterOptions):
        if not isinstance(value, Mapping):
            raise GlideMQValidationError(_OPTION, value, "must be a queue's name, or {'name': ..., 'on': (...)}")
        given: dict[str, Any] = dict(check_mapping(_OPTION, cast("object", value), ("name", "on")))
        if "name" not in given:
            raise GlideMQValidationError(_OPTION, given, "needs the 'name' of a queue")
        value = DeadLetterOptions(**given)
    if value.name == queue:
        raise GlideMQValidationError(_OPTION, value.name, "is the queue itself")
    return value
