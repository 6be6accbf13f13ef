"""Options of a worker and of its batches, failure log and sandbox: values that validate themselves."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, Literal, TypedDict, cast

from glidemq_py._core.checks import (
    CheckedOptions,
    Converted,
    OptionValue,
    check_bool,
    check_callable,
    check_choice,
    check_int,
    option,
    parse_nested,
)
from glidemq_py._core.limits import RateLimit, TokenLimiter
from glidemq_py._core.option_values import BackoffStrategy
from glidemq_py._core.times import DAY_MS, SECOND_MS, Milliseconds, to_ms
from glidemq_py._features.fair_keys import MAX_PREFERENCE
from glidemq_py._features.stalled_jobs import MAX_STALLED_COUNT
from glidemq_py.errors import GlideMQValidationError

MAX_SIZE: Final = 1_000
MAX_WAIT_MS: Final = 3_600_000


class _Needed(TypedDict):
    size: int


class BatchDict(_Needed, total=False):
    """`BatchOptions` as a mapping; ``timeout`` is optional."""

    timeout: Milliseconds


class BatchOptions(OptionValue):
    """Options of a worker whose handler takes a list of jobs.

    Args:
        size: Maximum number of jobs per batch, 1..1_000.
        timeout: Maximum time that the first job of a batch waits for more, milliseconds or a timedelta, up to one
            hour. 0 (the default) starts a batch with the jobs that are ready.

    Raises:
        GlideMQValidationError: If an option is invalid. The error names the option and its value.
    """

    size: int = option(partial(check_int, minimum=1, maximum=MAX_SIZE))
    timeout: Converted[int, Milliseconds] = option(partial(to_ms, maximum=MAX_WAIT_MS), default=0)


MAX_PER_MINUTE: Final = 1_000_000


class FailureLogDict(TypedDict, total=False):
    """`FailureLogOptions` as a mapping."""

    per_minute: int
    retries: bool
    tracebacks: bool


class FailureLogOptions(OptionValue, kw_only=True):
    """Options of the failure log (logger ``glidemq_py.failures``).

    Args:
        per_minute: Number of failures logged one by one per minute, outcome, job name and error type, 0..1_000_000. A
            summary line counts the others at the end of the minute and when the worker closes.
        retries: Also log failed attempts that are retried, not only failed jobs.
        tracebacks: Log failed jobs with their traceback (``exc_info``).

    Raises:
        GlideMQValidationError: If a field is invalid. The error names the field and its value.
    """

    per_minute: int = option(partial(check_int, minimum=0, maximum=MAX_PER_MINUTE), default=5)
    retries: bool = option(check_bool, default=True)
    tracebacks: bool = option(check_bool, default=True)


def parse_failure_log(option: str, value: Any) -> FailureLogOptions | None:
    """Return the options for True, a mapping or a `FailureLogOptions`, and None for False.

    Raises:
        GlideMQValidationError: If the value is invalid. The error names ``option`` and the value.
    """
    if isinstance(value, bool):
        return FailureLogOptions() if value else None
    if not isinstance(value, (FailureLogOptions, Mapping)):
        raise GlideMQValidationError(
            option, value, "must be True, False, a FailureLogOptions or a mapping of its fields"
        )
    return parse_nested(option, cast("object", value), FailureLogOptions)


StartMethod = Literal["spawn", "forkserver"]

_METHODS: Final = ("spawn", "forkserver")
_MAX_WORKERS: Final = 1_000
_LEAST_MEMORY: Final = 64 * 1024**2
_MOST_MEMORY: Final = 2**62
_MAX_JOBS: Final = 10**9
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
_LEAST_START_MS: Final = 100


class SandboxDict(TypedDict, total=False):
    """`SandboxOptions` as a mapping."""

    max_workers: int | None
    memory_limit: int | None
    start_method: StartMethod
    recycle_after: int | None
    kill_after: Milliseconds
    start_timeout: Milliseconds


class SandboxOptions(OptionValue, kw_only=True):
    """Options of a handler that runs in child processes. A process runs one job at a time and is reused.

    Args:
        max_workers: Maximum number of processes, 1..1_000; None: the worker's ``concurrency``.
        memory_limit: Bytes that a process may allocate, at least 64 MiB; a job that needs more fails with MemoryError.
            None: no limit.
        start_method: "spawn" starts a new interpreter per process. "forkserver" forks an interpreter that has imported
            the handler, which takes milliseconds; for modules that start no threads when imported.
        recycle_after: Replace a process after so many jobs, 1..1_000_000_000; None: never.
        kill_after: Grace period of a handler that must stop (timeout, cancellation, close) before its process is
            killed, milliseconds or a timedelta, up to one minute; 0 kills at once.
        start_timeout: Maximum time for importing the handler, milliseconds or a timedelta, 100 ms to one hour; then the
            process is killed, and its job or the start of the worker fails with HandlerError.

    Raises:
        GlideMQValidationError: If an option is invalid. The error names the option and its value.
        GlideMQValidationError: On Windows.
    """

    max_workers: int | None = option(partial(check_int, minimum=1, maximum=_MAX_WORKERS), default=None)
    memory_limit: int | None = option(partial(check_int, minimum=_LEAST_MEMORY, maximum=_MOST_MEMORY), default=None)
    start_method: StartMethod = option(partial(check_choice, choices=_METHODS), default="spawn")
    recycle_after: int | None = option(partial(check_int, minimum=1, maximum=_MAX_JOBS), default=None)
    kill_after: Converted[int, Milliseconds] = option(partial(to_ms, maximum=_MINUTE_MS), default=1_000)
    start_timeout: Converted[int, Milliseconds] = option(
        partial(to_ms, minimum=_LEAST_START_MS, maximum=_HOUR_MS), default=_MINUTE_MS
    )

    def _check_given(self) -> None:
        if sys.platform == "win32":
            raise GlideMQValidationError("sandbox", "win32", "sandboxes need a POSIX system")


MAX_CONCURRENCY: Final = 10_000

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
        stalled_interval: Time between checks for stalled jobs, 1_000..86_400_000 ms. The default is the policy of the
            queue, else 30 seconds.
        max_stalled_count: Number of times a job may stall while it is the only job of its process, 0..1_000_000; the
            next stall fails it. The default is the policy of the queue, else 1.
        stalled_grace: Time after the end of a job's lock until the job counts as stalled, 0..86_400_000 ms. The
            default is the policy of the queue, else 0.
        retry_on: Exception types that are retried; None retries all.
        no_retry_on: Exception types that are not retried.
        backoff_strategies: Functions for ``backoff={"type": name}``.
        limiter: Maximum number of jobs fetched per window by all workers of the queue that have a limiter: a
            `RateLimit` or ``{"max": jobs, "duration": ms}``. A rate limit of the queue has precedence.
        token_limiter: Fetch no jobs once the jobs of the current window have reported so many tokens: a
            `TokenLimiter` or ``{"max_tokens": number, "duration": ms, "scope": "queue" | "worker" | "both"}``.
        fair_key_preference: Prefer jobs with the fair keys of this worker's last jobs, at most so many turns of a key
            early, 0..100. 0 (the default): no preference.
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
    stalled_interval: int = option(partial(to_ms, minimum=SECOND_MS, maximum=DAY_MS), 30_000, optional=True)
    max_stalled_count: int = option(partial(check_int, minimum=0, maximum=MAX_STALLED_COUNT), 1, optional=True)
    stalled_grace: int = option(partial(to_ms, maximum=DAY_MS), 0, optional=True)
    retry_on: tuple[type[BaseException], ...] | None = option(_types)
    no_retry_on: tuple[type[BaseException], ...] = option(_types, (), optional=True)
    backoff_strategies: Mapping[str, BackoffStrategy] | None = option(_strategies)
    limiter: RateLimit | None = option(partial(parse_nested, kind=RateLimit))
    token_limiter: TokenLimiter | None = option(partial(parse_nested, kind=TokenLimiter))
    fair_key_preference: int = option(partial(check_int, minimum=0, maximum=MAX_PREFERENCE), 0)
    batch: BatchOptions | None = option(partial(parse_nested, kind=BatchOptions))
    events: bool = option(check_bool, True)
    metrics: bool = option(check_bool, True)
    log_failures: FailureLogOptions | None = option(parse_failure_log, FailureLogOptions(), optional=False)

    @cached_property
    def unknown_backoffs(self) -> set[str]:
        """The types of backoff that the worker has logged as unknown; one set for all partitions of its queue."""
        return set()

    @property
    def has_stalled_interval(self) -> bool:
        """True if ``stalled_interval`` was given."""
        return "stalled_interval" in self.__dict__

    @property
    def stalled_policy(self) -> str:
        """The given ``max_stalled_count`` and ``stalled_grace``, as in a registration; "" if none."""
        given = self.__dict__
        if "max_stalled_count" not in given and "stalled_grace" not in given:
            return ""
        return f"{given.get('max_stalled_count', '')}|{given.get('stalled_grace', '')}"

    @property
    def slots(self) -> int:
        """Maximum number of running jobs."""
        return self.concurrency if self.batch is None else self.concurrency * self.batch.size
