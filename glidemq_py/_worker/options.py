"""Options of a worker: a value that validates itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

from glidemq_py._core.checked_options import CheckedOptions, option
from glidemq_py._core.checks import check_bool, check_callable, check_int, parse_nested
from glidemq_py._core.times import DAY_MS, SECOND_MS, to_ms
from glidemq_py._features.limits.options import RateLimit, TokenLimiter, parse_limit
from glidemq_py._worker.batch_options import BatchOptions
from glidemq_py._worker.failure_log_options import FailureLogOptions, parse_failure_log
from glidemq_py.errors import GlideMQValidationError

__all__ = ["BackoffStrategy", "ExceptionTypes", "WorkerOptions"]

MAX_CONCURRENCY: Final = 10_000

BackoffStrategy = Callable[[int, BaseException], int | timedelta]
"""(number of failures, from 1; the exception) -> delay before the next attempt, in ms or as a timedelta."""
ExceptionTypes = type[BaseException] | tuple[type[BaseException], ...]


def _types(option: str, value: Any) -> tuple[type[BaseException], ...]:
    kinds: Any = value if isinstance(value, tuple) else (value,)  # pyright: ignore[reportUnknownVariableType]
    if not all(map(_is_exception_type, kinds)):
        raise GlideMQValidationError(option, value, "must be an exception type or a tuple of them")  # pyright: ignore[reportUnknownArgumentType]
    return tuple(kinds)


def _is_exception_type(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _strategies(option: str, value: Any) -> Mapping[str, BackoffStrategy]:
    if not isinstance(value, Mapping):
        raise GlideMQValidationError(option, value, "must be a mapping of names to functions")
    given: dict[Any, Any] = dict(value)  # pyright: ignore[reportUnknownArgumentType]
    for name, function in given.items():
        if not isinstance(name, str) or not name:
            raise GlideMQValidationError(option, name, "names must be non-empty strings")
        check_callable(f"{option}.{name}", function, "attempts_made", "error")
    return given


@dataclass(frozen=True, init=False)
class WorkerOptions(CheckedOptions):
    """Options of a `Worker`. Durations are stored in milliseconds.

    Args:
        concurrency: Maximum number of jobs at the same time, 1..10_000.
        lock_duration: Time after the last heartbeat until a job counts as stalled and is given to another worker,
            1_000..86_400_000 ms. A job's own ``lock_duration`` has precedence. Heartbeats are sent three times per
            lock duration.
        stalled_interval: Time between checks for stalled jobs, 1_000..86_400_000 ms.
        max_stalled_count: Number of times a job may stall while it is the only job of its process, 0..1_000_000; the
            next stall fails it.
        retry_on: Exception types that are retried; None retries all.
        no_retry_on: Exception types that are not retried.
        backoff_strategies: Functions for ``backoff={"type": name}``.
        limiter: Maximum number of jobs fetched per window by all workers of the queue that have a limiter: a
            `RateLimit` or ``{"max": jobs, "duration": ms}``. A rate limit of the queue has precedence.
        token_limiter: Fetch no jobs once the jobs of the current window have reported so many tokens: a
            `TokenLimiter` or ``{"max_tokens": number, "duration": ms, "scope": "queue" | "worker" | "both"}``.
        batch: Call the handler with lists of jobs: a `BatchOptions` or ``{"size": jobs, "timeout": ms}``. At most
            ``concurrency`` batches run at the same time.
        events: False disables the queue events of this worker's jobs.
        metrics: False excludes this worker's jobs from the queue's metrics.
        log_failures: Log jobs that fail, stall or expire (logger ``glidemq_py.failures``): True, False, a
            `FailureLogOptions` or ``{"per_minute": number, "retries": bool, "tracebacks": bool}``.

    Raises:
        GlideMQValidationError: If an option is invalid. The error names the option and its value.
    """

    concurrency: int = option(partial(check_int, minimum=1, maximum=MAX_CONCURRENCY), 1)
    lock_duration: int = option(partial(to_ms, minimum=SECOND_MS, maximum=DAY_MS), 30_000)
    stalled_interval: int = option(partial(to_ms, minimum=SECOND_MS, maximum=DAY_MS), 30_000)
    max_stalled_count: int = option(partial(check_int, minimum=0, maximum=1_000_000), 1)
    retry_on: tuple[type[BaseException], ...] | None = option(_types)
    no_retry_on: tuple[type[BaseException], ...] = option(_types, (), optional=True)
    backoff_strategies: Mapping[str, BackoffStrategy] | None = option(_strategies)
    limiter: RateLimit | None = option(partial(parse_limit, kind=RateLimit))
    token_limiter: TokenLimiter | None = option(partial(parse_limit, kind=TokenLimiter))
    batch: BatchOptions | None = option(partial(parse_nested, kind=BatchOptions, needed=1))
    events: bool = option(check_bool, True)
    metrics: bool = option(check_bool, True)
    log_failures: FailureLogOptions | None = option(parse_failure_log, FailureLogOptions(), optional=False)

    @property
    def slots(self) -> int:
        """Maximum number of running jobs."""
        return self.concurrency if self.batch is None else self.concurrency * self.batch.size
