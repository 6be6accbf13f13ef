"""Options of a worker: a value that validates itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from glidemq_py._core.checks import check_bool, check_callable, check_int, parse_nested
from glidemq_py._core.times import DAY_MS, SECOND_MS, Milliseconds, to_ms
from glidemq_py._features.limits.options import RateLimit, RateLimitDict, TokenLimiter, TokenLimiterDict, parse_limit
from glidemq_py._worker.batch_options import BatchDict, BatchOptions
from glidemq_py._worker.failure_log_options import FailureLogDict, FailureLogOptions, parse_failure_log
from glidemq_py.errors import GlideMQValidationError

__all__ = ["BackoffStrategy", "ExceptionTypes", "WorkerOptions"]

MAX_CONCURRENCY: Final = 10_000

BackoffStrategy = Callable[[int, BaseException], int | timedelta]
"""(number of failures, from 1; the exception) -> delay before the next attempt, in ms or as a timedelta."""
ExceptionTypes = type[BaseException] | tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class WorkerOptions:
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

    concurrency: int
    lock_duration: int
    stalled_interval: int
    max_stalled_count: int
    retry_on: tuple[type[BaseException], ...] | None
    no_retry_on: tuple[type[BaseException], ...]
    backoff_strategies: Mapping[str, BackoffStrategy]
    limiter: RateLimit | None
    token_limiter: TokenLimiter | None
    batch: BatchOptions | None
    events: bool
    metrics: bool
    log_failures: FailureLogOptions | None

    def __init__(
        self,
        *,
        concurrency: int = 1,
        lock_duration: Milliseconds = 30_000,
        stalled_interval: Milliseconds = 30_000,
        max_stalled_count: int = 1,
        retry_on: ExceptionTypes | None = None,
        no_retry_on: ExceptionTypes | None = None,
        backoff_strategies: Mapping[str, BackoffStrategy] | None = None,
        limiter: RateLimit | RateLimitDict | None = None,
        token_limiter: TokenLimiter | TokenLimiterDict | None = None,
        batch: BatchOptions | BatchDict | None = None,
        events: bool = True,
        metrics: bool = True,
        log_failures: bool | FailureLogOptions | FailureLogDict = True,
    ) -> None:
        keep = object.__setattr__
        keep(self, "concurrency", check_int("concurrency", concurrency, 1, MAX_CONCURRENCY))
        keep(self, "lock_duration", _lock_time("lock_duration", lock_duration))
        keep(self, "stalled_interval", _lock_time("stalled_interval", stalled_interval))
        keep(self, "max_stalled_count", check_int("max_stalled_count", max_stalled_count, 0, 1_000_000))
        keep(self, "retry_on", None if retry_on is None else _types("retry_on", retry_on))
        keep(self, "no_retry_on", () if no_retry_on is None else _types("no_retry_on", no_retry_on))
        keep(self, "backoff_strategies", _strategies(backoff_strategies))
        keep(self, "limiter", None if limiter is None else parse_limit("limiter", limiter, RateLimit))
        tokens = None if token_limiter is None else parse_limit("token_limiter", token_limiter, TokenLimiter)
        keep(self, "token_limiter", tokens)
        keep(self, "batch", None if batch is None else parse_nested("batch", batch, BatchOptions, needed=1))
        keep(self, "events", check_bool("events", events))
        keep(self, "metrics", check_bool("metrics", metrics))
        keep(self, "log_failures", parse_failure_log("log_failures", log_failures))

    @property
    def slots(self) -> int:
        """Maximum number of running jobs."""
        return self.concurrency if self.batch is None else self.concurrency * self.batch.size


def _lock_time(option: str, value: Milliseconds) -> int:
    return to_ms(option, value, minimum=SECOND_MS, maximum=DAY_MS)


def _types(option: str, value: Any) -> tuple[type[BaseException], ...]:
    kinds: Any = value if isinstance(value, tuple) else (value,)  # pyright: ignore[reportUnknownVariableType]
    if not all(map(_is_exception_type, kinds)):
        raise GlideMQValidationError(option, value, "must be an exception type or a tuple of them")  # pyright: ignore[reportUnknownArgumentType]
    return tuple(kinds)


def _is_exception_type(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _strategies(value: Any) -> Mapping[str, BackoffStrategy]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise GlideMQValidationError("backoff_strategies", value, "must be a mapping of names to functions")
    given: dict[Any, Any] = dict(value)  # pyright: ignore[reportUnknownArgumentType]
    for name, function in given.items():
        if not isinstance(name, str) or not name:
            raise GlideMQValidationError("backoff_strategies", name, "names must be non-empty strings")
        check_callable(f"backoff_strategies.{name}", function, "attempts_made", "error")
    return given
