"""Setting and reading the stalled-job policy of a queue (lua/features/stalled_jobs/policy.lua)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

from glidemq_py._core.calls.administration import set_settings
from glidemq_py._core.checks import check_int
from glidemq_py._core.misuse import known_methods
from glidemq_py._core.times import DAY_MS, SECOND_MS, Milliseconds, to_ms
from glidemq_py._partitions.parts import Area
from glidemq_py.errors import GlideMQValidationError

MAX_STALLED_COUNT: Final = 1_000_000
_FIELDS: Final = ("stalledInterval", "maxStalledCount", "stalledGrace")
_RANGES: Final = ((SECOND_MS, DAY_MS), (0, MAX_STALLED_COUNT), (0, DAY_MS))


class StalledPolicy(NamedTuple):
    """Stalled-job policy of a queue; None = not set.

    Attributes:
        stalled_interval: Time between checks for stalled jobs, ms.
        max_stalled_count: Number of times a job may stall before it fails.
        stalled_grace: Time after the end of a job's lock until the job counts as stalled, ms.
    """

    stalled_interval: int | None = None
    max_stalled_count: int | None = None
    stalled_grace: int | None = None


def _setting(given: Any, check: Callable[[Any], int]) -> str | None:
    """Return the text of a setting; '' = unchanged, None = remove it."""
    if given is None:
        return ""
    return None if given is False else str(check(given))


def _number(value: Any, least: int, most: int) -> int | None:
    """Parse a number of the queue's meta hash; None if it is malformed."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        return None
    return number if least <= number <= most else None


@known_methods
class StalledPolicies(Area):
    """When jobs count as stalled."""

    __slots__ = ()

    async def set_stalled_policy(
        self,
        *,
        stalled_interval: Milliseconds | Literal[False] | None = None,
        max_stalled_count: int | Literal[False] | None = None,
        stalled_grace: Milliseconds | Literal[False] | None = None,
    ) -> None:
        """Set what applies to stalled jobs of the queue, unless the worker that fetched the job sets its own option.

        Args:
            stalled_interval: time between checks for stalled jobs, 1_000..86_400_000 ms or timedelta; None = unchanged,
                False = remove. Running workers use it from their next check on.
            max_stalled_count: number of times a job may stall before it fails, 0..1_000_000; None = unchanged, False =
                remove. It applies to expired leases too.
            stalled_grace: time after the end of a job's lock until the job counts as stalled, 0..86_400_000 ms or
                timedelta; None = unchanged, False = remove.

        Raises:
            GlideMQValidationError: an argument is invalid, or none was given.
        """
        if stalled_interval is None and max_stalled_count is None and stalled_grace is None:
            problem = "give at least one of 'stalled_interval', 'max_stalled_count' and 'stalled_grace'"
            raise GlideMQValidationError("stalled_interval", None, problem)
        interval = _setting(
            stalled_interval, lambda given: to_ms("stalled_interval", given, minimum=SECOND_MS, maximum=DAY_MS)
        )
        most = _setting(max_stalled_count, lambda given: check_int("max_stalled_count", given, 0, MAX_STALLED_COUNT))
        grace = _setting(stalled_grace, lambda given: to_ms("stalled_grace", given, maximum=DAY_MS))
        given = {name: value for name, value in zip(_FIELDS, (interval, most, grace), strict=True) if value != ""}
        await self._queue._change(lambda link: link.call(set_settings, **given))

    async def get_stalled_policy(self) -> StalledPolicy:
        """Return the stalled-job policy of the queue; its members are None if they are not set."""
        link = await self._queue._first()
        found = await link.command("HMGET", link.keys.meta, *_FIELDS)
        return StalledPolicy(*(_number(value, *limits) for value, limits in zip(found, _RANGES, strict=True)))

    async def remove_stalled_policy(self) -> None:
        """Remove the stalled-job policy of the queue."""
        await self._queue._change(lambda link: link.call(set_settings, **dict.fromkeys(_FIELDS)))
