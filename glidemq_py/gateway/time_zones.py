"""Names of time zones in the spelling of clients: the case of letters does not matter to bunqueue."""

from __future__ import annotations

import asyncio
import functools
import zoneinfo

from glidemq_py._features.schedulers.options import check_zone
from glidemq_py.errors import GlideMQValidationError

__all__ = ["zone_name"]


async def zone_name(given: str | None) -> str | None:
    """Return the name of a time zone as it is installed; an unknown one as it was given, and None for no name."""
    if not given:
        return None
    try:
        return check_zone("tz", given)
    except GlideMQValidationError:
        return (await asyncio.to_thread(_installed)).get(given.casefold(), given)


@functools.cache
def _installed() -> dict[str, str]:
    """Return the names of all time zones by their lower-case names; takes a tenth of a second."""
    return {name.casefold(): name for name in zoneinfo.available_timezones()}
