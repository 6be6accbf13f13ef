"""Not adding the same thing twice: the option `deduplication`. Comparing with what stands is the server's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict, cast

from glidemq_py._core.checks import check_choice, check_mapping, check_text
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py.errors import GlideMQValidationError

_ID_LENGTH: Final = 256
_FIELDS: Final = ("id", "ttl", "mode")
DeduplicationMode = Literal["simple", "throttle", "debounce"]
_MODES: Final = ("simple", "throttle", "debounce")


class _DeduplicationId(TypedDict):
    id: str


class DeduplicationDict(_DeduplicationId, total=False):
    """`Deduplication` written as a mapping."""

    ttl: Milliseconds
    mode: DeduplicationMode


@dataclass(frozen=True, slots=True, init=False)
class Deduplication:
    """Jobs of one ``id`` are the same thing.

    Args:
        id: 1..256 characters; what makes two jobs the same is for the producer to say.
        ttl: milliseconds or a timedelta: how long after the last one that was added another one is the same thing.
            "throttle" needs it; "debounce" without it goes by the job that stands alone; "simple" always does.
        mode: "simple" skips an add while the job that stands has not ended; "throttle" skips it for ``ttl`` after the
            last one that was added; "debounce" puts it in the place of one that still waits for its due time or, with
            a priority, for its turn, and skips it while one is ready or running.

    Raises:
        GlideMQValidationError: names the option and the value.
    """

    id: str
    ttl: int | None
    mode: DeduplicationMode

    def __init__(self, id: str, ttl: Milliseconds | None = None, mode: DeduplicationMode = "simple") -> None:
        keep = object.__setattr__
        keep(self, "id", check_text("deduplication.id", id, maximum=_ID_LENGTH))
        keep(self, "ttl", None if ttl is None else to_ms("deduplication.ttl", ttl, minimum=1))
        keep(self, "mode", check_choice("deduplication.mode", mode, _MODES))
        if self.mode == "throttle" and self.ttl is None:
            raise GlideMQValidationError("deduplication.ttl", None, "is needed by the mode 'throttle'")
        if self.mode == "simple" and self.ttl is not None:
            problem = "is not for the mode 'simple', which goes by the end of the job; for a time there is 'throttle'"
            raise GlideMQValidationError("deduplication.ttl", ttl, problem)

    @classmethod
    def parse(cls, option: str, value: object) -> Deduplication:
        """A `Deduplication` from one, or from a mapping of its fields."""
        if isinstance(value, Deduplication):
            return value
        if not isinstance(value, Mapping):
            raise GlideMQValidationError(option, value, "must be a Deduplication or a mapping such as {'id': ...}")
        given = check_mapping(option, cast("object", value), _FIELDS)
        if given.get("id") is None:
            raise GlideMQValidationError(option, given, "needs an 'id'")
        return cls(**{name: each for name, each in given.items() if each is not None})

    def to_wire(self) -> dict[str, Any]:
        """The `deduplication` of the opts JSON (spec/data-model section 4.1)."""
        wire: dict[str, Any] = {"id": self.id, "mode": self.mode}
        if self.ttl is not None:
            wire["ttl"] = self.ttl
        return wire

    def to_row(self) -> list[object]:
        """Field 12 of an `add` row (``lua/core/functions/add.lua``)."""
        return [self.id, self.ttl or 0, self.mode]


DeduplicationInput = Deduplication | DeduplicationDict
"""What may be given as `deduplication`."""
