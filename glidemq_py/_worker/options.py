"""Options of a worker. Nothing here runs anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from glidemq_py._core.callables import check_callable
from glidemq_py._core.checks import check_bool, check_int, parse_nested
from glidemq_py._core.times import DAY_MS, SECOND_MS, Milliseconds, to_ms
from glidemq_py._features.limits.options import RateLimit, RateLimitDict, TokenLimiter, TokenLimiterDict, parse_limit
from glidemq_py._worker.batch_options import BatchDict, BatchOptions
from glidemq_py._worker.failure_log_options import FailureLogDict, FailureLogOptions, parse_failure_log
from glidemq_py.errors import GlideMQValidationError

__all__ = ["BackoffStrategy", "ExceptionTypes", "WorkerOptions"]

MAX_CONCURRENCY: Final = 10_000

BackoffStrategy = Callable[[int, BaseException], int | timedelta]
"""(failures so far, counted from 1; the exception) -> wait before the next attempt."""
ExceptionTypes = type[BaseException] | tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class WorkerOptions:
    """Options of a `Worker`. Durations are kept in milliseconds.

    Args:
        concurrency: jobs in hand at the same time, 1..10_000.
        lock_duration: a job whose worker has been silent for this long is given to another, 1_000..86_400_000;
            a job's own ``lock_duration`` has precedence. Heartbeats come three times as often.
        stalled_interval: how often to look for such jobs, 1_000..86_400_000.
        max_stalled_count: how often a job may lose its worker, alone in its process, before it fails for good, >= 0.
        retry_on: only these exception types are retried; None = all.
        no_retry_on: these are not.
        backoff_strategies: functions for ``backoff={"type": name}``.
        limiter: at most so many jobs are taken in a window, by all workers of the queue that have a limiter: a
            `RateLimit` or ``{"max": jobs, "duration": ms}``. A rate limit of the queue itself has precedence.
        token_limiter: take no job while those of the present window have reported so many tokens: a `TokenLimiter`
            or ``{"max_tokens": number, "duration": ms, "scope": "queue" | "worker" | "both"}``.
        batch: the handler takes lists of jobs: a `BatchOptions` or ``{"size": jobs, "timeout": ms}``; at most
            ``concurrency`` batches run at the same time.
        events: False leaves out the queue's events of this worker's jobs.
        metrics: False leaves this worker's jobs out of the queue's metrics.
        log_failures: log jobs that fail, stall or expire (logger ``glidemq_py.failures``): True, False, a
            `FailureLogOptions` or ``{"per_minute": number, "retries": bool, "tracebacks": bool}``.

    Raises:
        GlideMQValidationError: names the option and the value.
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
        """Most jobs in this worker's hands."""
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
