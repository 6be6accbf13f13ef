"""The job option `deduplication`: validation and wire format. The server enforces it."""

from __future__ import annotations

from functools import partial
from typing import Final, Literal, TypedDict

from glidemq_py._core.checked_options import Converted, OptionValue, option, parse_nested
from glidemq_py._core.checks import check_bool, check_choice, check_text
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py.errors import GlideMQValidationError

ID_LENGTH: Final = 256
DeduplicationMode = Literal["simple", "throttle", "debounce"]
_MODES: Final = ("simple", "throttle", "debounce")
DeduplicationEnd = Literal["started", "ended"]
_ENDS: Final = ("started", "ended")


class _RequiredKeys(TypedDict):
    id: str


class DeduplicationDict(_RequiredKeys, total=False):
    """`Deduplication` as a mapping."""

    ttl: Milliseconds
    mode: DeduplicationMode
    until: DeduplicationEnd
    extend: bool
    replace: bool


class Deduplication(OptionValue, prefix="deduplication"):
    """Deduplicate jobs by ``id``: an add is skipped, or replaces a job that was added before with the same id.

    The options of the new job decide, not those of the existing one.

    Args:
        id: deduplication id, 1..256 characters.
        ttl: ms or timedelta, how long an added job counts as a duplicate. Required by "throttle" and ``extend``,
            optional for "simple" and "debounce".
        mode: "simple" skips an add while the previous job has not ended and, with a ``ttl``, was added less than
            ``ttl`` ago. "throttle" skips adds for ``ttl`` after the
            last job added. "debounce" replaces the previous job if it is delayed or, with a priority, still waiting;
            it skips the add if that job is ready or active. Without a ``ttl``, "debounce" depends on the state of the
            previous job only.
        until: "ended": the previous job counts until it has completed or failed; "started": until a worker has
            started it. Not with "throttle".
        extend: True: a skipped add starts the ``ttl`` again.
        replace: True, with "simple": the new job replaces the previous one if that has not started. If it is active,
            the new job waits until it has ended (outcome ``staged``); of several such jobs the last one is kept.

    Raises:
        GlideMQValidationError: an option is invalid; the error names it and its value.
    """

    id: str = option(partial(check_text, maximum=ID_LENGTH))
    ttl: Converted[int | None, Milliseconds | None] = option(partial(to_ms, minimum=1), default=None)
    mode: DeduplicationMode = option(partial(check_choice, choices=_MODES), default="simple")
    until: DeduplicationEnd = option(
        partial(check_choice, choices=_ENDS), default="ended", omit_default=True, kw_only=True
    )
    extend: bool = option(check_bool, default=False, omit_default=True, kw_only=True)
    replace: bool = option(check_bool, default=False, omit_default=True, kw_only=True)

    def _check_given(self) -> None:
        if self.mode == "throttle" and self.ttl is None:
            raise GlideMQValidationError("deduplication.ttl", None, "is required for mode 'throttle'")
        if self.extend and self.ttl is None:
            raise GlideMQValidationError("deduplication.extend", True, "requires 'ttl'")
        if self.replace and self.mode != "simple":
            raise GlideMQValidationError("deduplication.replace", True, "requires the mode 'simple'")
        if self.until == "started" and self.mode == "throttle":
            raise GlideMQValidationError("deduplication.until", self.until, "cannot be used with mode 'throttle'")

    @classmethod
    def parse(cls, option: str, value: object) -> Deduplication:
        """Return a `Deduplication` from one or from a mapping of its fields."""
        return parse_nested(option, value, cls)

    def to_row(self) -> list[object]:
        """Return field 12 of an `add` row (``lua/core/functions/add.lua``)."""
        row: list[object] = [self.id, self.ttl or 0, self.mode]
        more = [self.until == "started", self.extend, self.replace]
        return row + more if any(more) else row


DeduplicationInput = Deduplication | DeduplicationDict
"""Accepted values of the option `deduplication`."""
