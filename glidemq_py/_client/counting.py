"""Job counts of queues that one server call cannot count: many groups with parked jobs, or many priorities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import administration

FIGURES: Final = (
    "waiting",
    "active",
    "delayed",
    "prioritized",
    "completed",
    "failed",
    "paused",
    "suspended",
    "waiting-children",
    "group-waiting",
)
"""The meaning of the first numbers of a `counts` reply, in order."""
_DELAYED, _PRIORITIZED, _PARKED, _BAND = 2, 3, 9, 10
BELOW_NORMAL: Final = 11
"""Position of the number of prioritized jobs with a rank below 0."""


async def complete_counts(transport: Transport, meta: str, numbers: Sequence[int]) -> list[int]:
    """Return the `FIGURES` for the reply of `counts` (or `gauges`), with further calls if that reply was partial.

    One call counts a queue of up to 500 groups and 256 priorities. Larger queues take one more call per 500 groups or
    256 priorities; jobs that move meanwhile may be counted twice or not at all.
    """
    found = list(numbers)
    while found[_BAND]:
        late, found[_BAND] = await transport.call(administration.count_delayed(meta, found[_BAND]))
        found[_DELAYED] += late
        found[_PRIORITIZED] -= late
    if found[_PARKED] < 0:
        found[_PARKED] = await _parked(transport, meta)
    return found[: len(FIGURES)]


async def _parked(transport: Transport, meta: str) -> int:
    groups: dict[str, int] = {}  # by name: a server cursor may return an element twice
    cursor = ""
    while True:
        page = await transport.call(administration.count_parked(meta, cursor))
        groups.update(page.groups)
        cursor = page.cursor
        if not cursor:
            return sum(groups.values())
