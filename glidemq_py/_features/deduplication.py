"""The job option `deduplication`: validation and wire format. The server enforces it."""

from __future__ import annotations

from functools import partial
from typing import Final, Literal, TypedDict

from glidemq_py._core.checked_options import Converted, OptionValue, option, parse_nested
from glidemq_py._core.checks import check_choice, check_text
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py.errors import GlideMQValidationError

_ID_LENGTH: Final = 256
DeduplicationMode = Literal["simple", "throttle", "debounce"]
_MODES: Final = ("simple", "throttle", "debounce")


class _RequiredKeys(TypedDict):
    id: str


class DeduplicationDict(_RequiredKeys, total=False):
    """`Deduplication` as a mapping."""

    ttl: Milliseconds
    mode: DeduplicationMode


class Deduplication(OptionValue, prefix="deduplication"):
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

    id: str = option(partial(check_text, maximum=_ID_LENGTH), wire="id")
    ttl: Converted[int | None, Milliseconds | None] = option(partial(to_ms, minimum=1), default=None, wire="ttl")
    mode: DeduplicationMode = option(partial(check_choice, choices=_MODES), default="simple", wire="mode")

    def _check_given(self) -> None:
        if self.mode == "throttle" and self.ttl is None:
            raise GlideMQValidationError("deduplication.ttl", None, "is required for mode 'throttle'")

    @classmethod
    def parse(cls, option: str, value: object) -> Deduplication:
        """Return a `Deduplication` from one or from a mapping of its fields."""
        return parse_nested(option, value, cls)

    def to_row(self) -> list[object]:
        """Return field 12 of an `add` row (``lua/core/functions/add.lua``)."""
        return [self.id, self.ttl or 0, self.mode]


DeduplicationInput = Deduplication | DeduplicationDict
"""Accepted values of the option `deduplication`."""
