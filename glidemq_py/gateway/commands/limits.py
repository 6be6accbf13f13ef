"""Commands that set the limits of a queue."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from glidemq_py._core.limits import MAX_COUNT
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.gateway.session import Command, Session
from glidemq_py.gateway.table import DONE, QUEUE, Answer, CommandError, Field, Given, Kind

__all__ = ["COMMANDS"]

_MAX_MS: Final = 31_536_000_000
_LIMIT: Final = Field("limit", Kind.INTEGER, required=True, minimum=1, maximum=MAX_COUNT)
_DURATION: Final = Field("duration", Kind.INTEGER, minimum=1, maximum=_MAX_MS, default=1_000)
_TTL: Final = Field("ttl", Kind.INTEGER, minimum=1, maximum=_MAX_MS)


@contextmanager
def _field_named() -> Generator[None]:
    """Name the field of the command in errors of its limit: each partition needs a part of it."""
    try:
        yield
    except GlideMQValidationError as error:
        raise CommandError(f"limit {error.problem}") from None


async def _rate_limit(session: Session, given: Given) -> Answer:
    queue = await session.queue(given)
    with _field_named():
        await queue.limits.set_rate_limit(given["limit"], given["duration"], ttl=given["ttl"])
    return DONE


async def _clear_rate_limit(session: Session, given: Given) -> Answer:
    await (await session.queue(given)).limits.remove_rate_limit()
    return DONE


async def _concurrency(session: Session, given: Given) -> Answer:
    queue = await session.queue(given)
    with _field_named():
        await queue.limits.set_concurrency(given["limit"])
    return DONE


async def _clear_concurrency(session: Session, given: Given) -> Answer:
    await (await session.queue(given)).limits.set_concurrency(0)
    return DONE


async def _limits(session: Session, given: Given) -> Answer:
    queue = await session.queue(given)
    found = await queue.limits.get()
    rate, most = found.rate_limit, found.concurrency
    is_maxed = most is not None and (await queue.get_job_counts()).active >= most
    return {
        "data": {
            "limits": {
                "rateLimit": None if rate is None else {"max": rate.max, "duration": rate.duration},
                "rateLimitTtl": -2 if rate is None else found.rate_limit_ttl or 0,
                "concurrencyLimit": most, "maxed": is_maxed,
            }
        }
    }  # fmt: skip


COMMANDS: Final = (
    Command(
        "RateLimit", "limits", _rate_limit, "Limit how many jobs all workers start per `duration` ms.",
        (QUEUE, _LIMIT, _DURATION, _TTL),
    ),
    Command("RateLimitClear", "limits", _clear_rate_limit, "Remove the rate limit.", (QUEUE,)),
    Command("SetConcurrency", "limits", _concurrency, "Limit the active jobs of all workers.", (QUEUE, _LIMIT)),
    Command(
        "GetQueueLimits", "limits", _limits,
        "Return the limits; `rateLimitTtl` is the rest of a `ttl` in ms, 0 without one, -2 without a limit.",
        (QUEUE, Field("maxJobs", Kind.ANY)),
    ),
    Command("ClearConcurrency", "limits", _clear_concurrency, "Remove the limit of active jobs.", (QUEUE,)),
)  # fmt: skip
