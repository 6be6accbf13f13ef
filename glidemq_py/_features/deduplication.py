"""The job option `deduplication`: validation and wire format. The server enforces it."""

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


class _RequiredKeys(TypedDict):
    id: str


class DeduplicationDict(_RequiredKeys, total=False):
    """`Deduplication` as a mapping."""

    ttl: Milliseconds
    mode: DeduplicationMode


@dataclass(frozen=True, slots=True, init=False)
class Deduplication:
    """Deduplicate jobs by ``id``: an add is skipped, or replaces a job that was added before with the same id.

    Args:
        id: deduplication id, 1..256 characters.
        ttl: ms or timedelta, how long an added job counts as a duplicate. Required by "throttle", optional for
            "simple" and "debounce".
        mode: "simple" skips an add while the previous job has not ended and, with a ``ttl``, was added less than
            ``ttl`` ago. "throttle" skips adds for ``ttl`` after the
            last job added. "debounce" replaces the previous job if it is delayed or, with a priority, still waiting;
            it skips the add if that job is ready or active. Without a ``ttl``, "debounce" depends on the state of the
            previous job only.

    Raises:
        GlideMQValidationError: an option is invalid; the error names it and its value.
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
            raise GlideMQValidationError("deduplication.ttl", None, "is required for mode 'throttle'")

    @classmethod
    def parse(cls, option: str, value: object) -> Deduplication:
        """Return a `Deduplication` from one or from a mapping of its fields."""
        if isinstance(value, Deduplication):
            return value
        if not isinstance(value, Mapping):
            raise GlideMQValidationError(option, value, "must be a Deduplication or a mapping such as {'id': ...}")
        given = check_mapping(option, cast("object", value), _FIELDS)
        if given.get("id") is None:
            raise GlideMQValidationError(option, given, "requires an 'id'")
        return cls(**{name: each for name, each in given.items() if each is not None})

    def to_wire(self) -> dict[str, Any]:
        """Return the `deduplication` of the opts JSON."""
        wire: dict[str, Any] = {"id": self.id, "mode": self.mode}
        if self.ttl is not None:
            wire["ttl"] = self.ttl
        return wire

    def to_row(self) -> list[object]:
        """Return field 12 of an `add` row (``lua/core/functions/add.lua``)."""
        return [self.id, self.ttl or 0, self.mode]


DeduplicationInput = Deduplication | DeduplicationDict
"""Accepted values of the option `deduplication`."""
