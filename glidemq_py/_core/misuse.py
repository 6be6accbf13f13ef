"""Misuse of the API, explained: unknown names, options in the wrong place, the wrong kind of ``with`` block.

The hints for names of other job queues follow the migration pages (docs/migrate/); tests/unit/test_misuse.py compares
the two. Names are looked up in snake_case without leading underscores: ``_defer_by`` of arq is ``defer_by``,
``keepLogs`` of BullMQ is ``keep_logs``.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import CoroutineType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, ParamSpec, TypeVar, cast

from glidemq_py._core.checks import check_mapping, nearest_option, reject_unknown, snake_case
from glidemq_py._core.logs import get_logger
from glidemq_py._core.option_dicts_twin import JobOptionsDict
from glidemq_py.errors import EventLoopError, GlideMQError, GlideMQValidationError

P = ParamSpec("P")
ClassT = TypeVar("ClassT", bound="type[Any]")
Place = Literal["job", "queue", "worker"]
OPTION_NAMES: Final = tuple(JobOptionsDict.__annotations__)
"""Names of the options of a job."""

_TRIES: Final = "use 'attempts' (the number of tries in all"
_SERVERS: Final = {
    "use 'connection': a URL such as 'valkey://host:6379', ConnectionOptions, or a GLIDE client": (
        "broker broker_url backend url redis redis_url redis_settings redis_pool host port"
    )
}
_RETENTION: Final = "(True, or {'age': seconds, 'count': number})"
_NOT_NEEDED: Final = "not needed"


def _by_name(names: Mapping[str, str]) -> dict[str, str]:
    """Return what to use instead of each name, given the names, separated by spaces, by what to use."""
    return {name: hint for hint, listed in names.items() for name in listed.split()}


FOREIGN_NAMES: Final[Mapping[Place, Mapping[str, str]]] = {
    "job": _by_name(
        {
            "use 'delay' (milliseconds or a timedelta)": "countdown defer_by",
            "use 'run_at' (a datetime)": "eta defer_until",
            "use 'ttl' (milliseconds or a timedelta)": "expires expiration max_age",
            f"{_TRIES}: max_retries + 1)": "max_retries retries",
            f"{_TRIES})": "max_tries tries max_attempts",
            f"{_TRIES}) and 'backoff'": "retry",
            "use 'backoff', such as {'type': 'exponential', 'delay': 1_000, 'max_delay': 60_000}": (
                "retry_policy retry_backoff retry_delay default_retry_delay min_backoff max_backoff"
            ),
            "use 'retry_on' or 'no_retry_on' of the Worker": "autoretry_for dont_autoretry_for throws retry_when",
            "use 'timeout' (milliseconds or a timedelta)": "time_limit soft_time_limit job_timeout",
            "a Queue has one name: add the job to another Queue": "queue queue_name routing_key exchange",
            "use 'job_id'": "task_id id",
            f"use 'remove_on_complete' {_RETENTION}": (
                "ignore_result store_results keep_result result_ttl result_expires"
            ),
            f"use 'remove_on_fail' {_RETENTION}": "failure_ttl",
            "use 'lifo'": "at_front",
            "use a flow (FlowProducer, or 'parent'): the waiting job is the parent": (
                "link link_error chord pipe_target"
            ),
            "use Worker.on('completed', ...) or QueueEvents.on('completed', ...)": "on_success",
            "pass the data as the second argument: add(name, data)": "args kwargs",
            "use 'headers', or make it part of the data": "meta description metadata",
            "it is an option of Queue": "serializer compression connection",
            "use on_failure='fail_parent'": "fail_parent_on_failure",
            "use on_failure='ignore'": "ignore_dependency_on_failure continue_parent_on_failure",
            "use on_failure='remove'": "remove_dependency_on_failure",
            "use 'deduplication' with the mode 'debounce'": "debounce",
            "use 'deduplication' or 'job_id'": "unique unique_for",
            "use Job.log(line, keep=number)": "keep_logs",
            "use Queue.limits.set_rate_limit, or the option 'limiter' of Worker": "rate_limit limiter",
            "use Queue.schedulers.upsert": "cron every pattern interval",
        }
    ),
    "queue": _by_name(
        {
            **_SERVERS,
            "use default_job_options={'timeout': milliseconds}": "default_timeout",
            "for tests, use glidemq_py.testing": "is_async task_always_eager",
            f"{_NOT_NEEDED}: a job is a name and data, not a pickled call": "queue_class job_class",
            "it is an option of Worker": (
                "concurrency prefetch handler processor batch lifespan token_limiter sandbox retry_on no_retry_on "
                "fair_key_preference"
            ),
            "use Queue.settings.set_stalled_policy, or the option of Worker": (
                "stalled_interval max_stalled_count stalled_grace"
            ),
            "use Queue.limits.set_rate_limit, or the option 'limiter' of Worker": "limiter",
            "use Queue.settings.set_event_retention": "streams",
        }
    ),
    "worker": _by_name(
        {
            **_SERVERS,
            f"{_NOT_NEEDED}: a worker fetches up to 'concurrency' jobs": (
                "prefetch prefetch_count prefetch_multiplier worker_prefetch_multiplier"
            ),
            "use 'concurrency'": "max_jobs threads worker_threads pool_size worker_concurrency max_workers",
            "use python -m glidemq_py.worker module:worker --processes <number>": "processes num_workers",
            "use 'handler'": "processor function",
            "register functions with @worker.task, or use one 'handler' for all names": "functions",
            "use 'lifespan', which also provides job.context": "on_startup on_shutdown ctx",
            f"{_NOT_NEEDED}: idle workers are woken up": (
                "block_timeout promotion_interval drain_delay poll_delay worker_timeout"
            ),
            f"{_NOT_NEEDED}: the lock is renewed three times per 'lock_duration'": "lock_renew_time skip_lock_renewal",
            f"{_NOT_NEEDED}: a job of a dead worker runs again after 'lock_duration'": (
                "acks_late visibility_timeout task_acks_late"
            ),
            "use Queue.limits.set_concurrency": "global_concurrency",
            "use 'limiter'": "rate_limit",
            "use await worker.drain()": "burst",
            "use await worker.run() or async with": "autorun",
            "use python -m glidemq_py.worker --check": "health_check_interval",
            'the first argument is one queue or several: Worker(["high", "low"], handler)': "queues",
            f"{_NOT_NEEDED}: a job is a name and data, not a pickled call": "queue_class job_class connection_class",
            "use worker.on('failed', ...)": "exception_handlers",
            "use 'sandbox'": "use_worker_threads",
            "use 'backoff_strategies': a function per name": "backoff_strategy",
            "it is an option of Queue": "default_job_options",
        }
    ),
}
"""What to use instead of names of Celery, RQ, arq, BullMQ, Dramatiq and glide-mq for Node, in snake_case."""

CONNECTION_OPTIONS: Final = frozenset((
    "addresses", "allow_eviction", "allow_no_aof", "busy_poll", "client_az", "client_name", "cluster",
    "connection_timeout", "database_id", "direct", "iam", "inflight_requests_limit", "password", "read_from",
    "request_timeout", "share_clients", "tls", "tls_ca", "tls_cert", "tls_insecure", "tls_key", "username",
))  # fmt: skip
"""Parameters of `ConnectionOptions`."""

_FOREIGN_ARGUMENTS: Final = _by_name(
    {
        "pattern": "cron crontab cron_expression cron_pattern",
        "every": "interval",
        "tz": "timezone time_zone",
        "template": "data opts options job job_name",
        "limit": "max count size",
    }
)
"""Names of other libraries for arguments of methods, and ours; they count for methods that have ours."""
_SHOWN: Final = 3
_DEFAULTS: Final = "'default_job_options' of the Queue"
_OF_JOBS: Final = f"Queue.add or {_DEFAULTS}"
_QUOTED: Final = re.compile(r"'(\w+)'|\b(\w+)=")


def reject_option(name: str, value: object, known: Collection[str]) -> NoReturn:
    """Raise `UnknownOptionError` for a job option: with the hint for a foreign name, else with the nearest option."""
    _reject_foreign("job", name, value, known, "")
    reject_unknown(name, value, known)


def _reject_foreign(place: Place, name: str, value: object, known: Collection[str], where: str) -> None:
    plain = snake_case(name).strip("_")
    hint = None if plain in known else FOREIGN_NAMES[place].get(plain)
    if hint is None:
        return
    named = [found.group(1) or found.group(2) for found in _QUOTED.finditer(hint)]
    suggestion = next((each for each in named if each in known), None)
    reject_unknown(name, value, known, f"unknown option; {hint}{where}", suggestion)


def known_arguments(place: Place) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Return a decorator for a constructor: unknown arguments raise `UnknownOptionError` instead of TypeError.

    The signature stays as it is, for editors and type checkers.

    Args:
        place: Whose foreign names to explain.
    """

    def decorate(function: Callable[P, None]) -> Callable[P, None]:
        parameters = inspect.signature(function).parameters.values()
        names = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD][1:]
        positional = sum(each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters)

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> None:
            if len(args) > positional:
                _reject_positional(args[positional], names[positional - 1 :])
            for name in kwargs:
                if name not in names:
                    _reject_argument(place, name, kwargs[name], names)
            function(*args, **kwargs)

        return checked

    return decorate


def keywords_of(method: Callable[..., Any]) -> frozenset[str] | None:
    """Return the names by which arguments can be passed to a method; None if it takes any."""
    code = getattr(inspect.unwrap(method), "__code__", None)  # much faster than a signature
    if code is None or code.co_flags & inspect.CO_VARKEYWORDS:
        return None
    names = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    return frozenset(names) - {"self"}


def check_keywords(given: Mapping[str, object], known: frozenset[str] | None) -> None:
    """Raise `UnknownOptionError` if arguments of a method have names that are not in ``known``; None: any."""
    if known is None or given.keys() <= known:
        return
    name = next(each for each in given if each not in known)
    value, plain = given[name], snake_case(name).strip("_")
    own = None if plain in known else _FOREIGN_ARGUMENTS.get(plain)
    if own in known:
        reject_unknown(name, value, known, f"unknown option; use {own!r}", own)
    if "template" in known and nearest_option(name, known) is None and plain in OPTION_NAMES:
        problem = f"unknown option; {plain!r} is an option of jobs: use template=(name, data, {{{plain!r}: ...}})"
        reject_unknown(name, value, known, problem, "template")
    reject_unknown(name, value, sorted(known))


def known_methods(cls: ClassT) -> ClassT:
    """Let unknown keyword arguments of the public methods of a class raise `UnknownOptionError`, not TypeError.

    The signatures stay as they are, for editors and type checkers.
    """
    for name, method in list(vars(cls).items()):
        if not name.startswith("_") and inspect.isfunction(method) and keywords_of(method) is not None:
            checked = _with_known_keywords(method)
            checked.__module__, checked.__qualname__ = cls.__module__, f"{cls.__qualname__}.{name}"
            setattr(cls, name, checked)
    return cls


def _with_known_keywords(method: Callable[..., Any]) -> Callable[..., Any]:
    known = keywords_of(method)

    @functools.wraps(method)
    async def awaited(*args: Any, **given: Any) -> Any:
        if given:
            check_keywords(given, known)
        return await method(*args, **given)

    @functools.wraps(method)
    def checked(*args: Any, **given: Any) -> Any:
        if given:
            check_keywords(given, known)
        return method(*args, **given)

    return awaited if inspect.iscoroutinefunction(method) else checked


def reject_field_of_job(name: str, value: object, known: Collection[str], where: str = "") -> None:
    """Raise `UnknownOptionError` for a job option beside the fields of a job, such as ``FlowJob(..., attempts=5)``.

    Does nothing if the name resembles a field, or no job option.

    Args:
        name: The unknown name.
        value: Its value.
        known: The fields, of which ``options`` is one.
        where: Place of the job, such as "jobs[3]", for the error; "" if there is none.
    """
    option = snake_case(name)
    if option not in OPTION_NAMES:
        near = None if nearest_option(name, known) else nearest_option(name, OPTION_NAMES)
        if near is None:
            return
        option = near
    prefix = f"{where}." if where else ""
    problem = f"unknown option; {option!r} is an option of the job: use options={{{option!r}: ...}}"
    reject_unknown(prefix + name, value, known, problem, f"{prefix}options")


def check_job_mapping(
    option: str, value: object, known: Collection[str], without: Collection[str] = ()
) -> Mapping[str, Any]:
    """Return a mapping of the fields of a job, whose keys are all in ``known``; as `check_mapping`.

    ``without``: job options that such a job may not have.
    """
    job = value
    if isinstance(job, Mapping):
        for name, given in cast("Mapping[object, object]", job).items():
            if isinstance(name, str) and name not in known and name not in without:
                reject_field_of_job(name, given, known, option)
    return check_mapping(option, value, known)


def reject_positional_options(given: tuple[object, ...]) -> NoReturn:
    """Raise the error for options that are given as a dict after the data: ``add(name, data, {"attempts": 3})``."""
    value: object = given[0]
    example = "attempts=3"
    if isinstance(value, Mapping) and value:
        names = [snake_case(str(name)) for name in cast("Mapping[object, object]", value)]
        example = ", ".join(f"{name}=..." for name in names[:_SHOWN])
    raise GlideMQValidationError("options", given[0], f"must be keyword arguments, such as add(name, data, {example})")


def _reject_positional(value: object, names: list[str]) -> NoReturn:
    example = f", such as {names[0]}=..." if names else ""
    raise GlideMQValidationError("options", value, f"too many positional arguments; options are keywords{example}")


def _reject_argument(place: Place, name: str, value: object, names: Collection[str]) -> NoReturn:
    """Raise `UnknownOptionError` for an argument of a constructor."""
    _reject_foreign(place, name, value, names, "")
    plain = snake_case(name)
    if plain in names:
        reject_unknown(name, value, names)
    if plain in OPTION_NAMES:
        _reject_job_option(name, value, names, plain)
    if plain in CONNECTION_OPTIONS:
        _reject_connection_option(name, value, names, plain)
    _reject_foreign("job", name, value, OPTION_NAMES, f"; it belongs to the job: {_OF_JOBS}")
    option = None if nearest_option(name, names) else nearest_option(name, OPTION_NAMES)
    if option is not None:
        _reject_job_option(name, value, names, option)
    reject_unknown(name, value, names)


def _reject_job_option(name: str, value: object, names: Collection[str], option: str) -> NoReturn:
    problem = f"unknown option; {option!r} is an option of jobs: use Queue.add(..., {option}=...) or {_DEFAULTS}"
    reject_unknown(name, value, names, problem, option)


def _reject_connection_option(name: str, value: object, names: Collection[str], option: str) -> NoReturn:
    problem = (
        f"unknown option; {option!r} is an option of the connection: use connection=ConnectionOptions(..., "
        f"{option}=...), or specify it in the URL"
    )
    reject_unknown(name, value, names, problem, "connection")


MOVED: Final = {
    "set_global_concurrency": "limits.set_concurrency",
    "set_global_rate_limit": "limits.set_rate_limit",
    "remove_global_rate_limit": "limits.remove_rate_limit",
    "get_global_limits": "limits.get",
    "set_name_limits": "limits.set_for_name",
    "get_name_limits": "limits.get_for_name",
    "set_group_limits": "groups.set_limits",
    "rate_limit_group": "groups.rate_limit",
    "get_group": "groups.get",
    "set_fair_key_limits": "fair_keys.set_limits",
    "set_fair_key_defaults": "fair_keys.set_defaults",
    "get_fair_key_defaults": "fair_keys.get_defaults",
    "pause_fair_key": "fair_keys.pause",
    "resume_fair_key": "fair_keys.resume",
    "get_fair_key": "fair_keys.get",
    "iter_fair_keys": "fair_keys.iter",
    "upsert_job_scheduler": "schedulers.upsert",
    "remove_job_scheduler": "schedulers.remove",
    "pause_job_scheduler": "schedulers.pause",
    "resume_job_scheduler": "schedulers.resume",
    "get_job_scheduler": "schedulers.get",
    "get_job_schedulers": "schedulers.get_all",
    "get_job_attempts": "failures.get_attempts",
    "iter_failures": "failures.iter",
    "get_failures": "failures.get_all",
    "get_failure_stats": "failures.get_stats",
    "reset_failure_stats": "failures.reset_stats",
    "purge_failures": "failures.purge",
    "retry_failures": "failures.retry",
    "set_failure_policy": "failures.set_policy",
    "get_failure_policy": "failures.get_policy",
    "remove_failure_policy": "failures.remove_policy",
    "set_attempt_history": "failures.set_attempt_history",
    "get_attempt_history": "failures.get_attempt_history",
    "iter_dead_letter_jobs": "dead_letters.iter",
    "get_dead_letter_jobs": "dead_letters.get_all",
    "get_dead_letter_job": "dead_letters.get",
    "remove_dead_letter_job": "dead_letters.remove",
    "replay_dead_letter_job": "dead_letters.replay",
    "complete_leases": "leases.complete",
    "fail_leases": "leases.fail",
    "extend_leases": "leases.extend",
    "release_leases": "leases.release",
    "release_owner": "leases.release_owner",
    "ping_workers": "workers.ping",
    "inspect_workers": "workers.inspect",
    "quiet_workers": "workers.quiet",
    "resume_workers": "workers.resume",
    "resize_workers": "workers.resize",
    "cancel_on_worker": "workers.cancel",
    "create_batch": "job_batches.create",
    "get_batch": "job_batches.get",
    "iter_batches": "job_batches.iter",
    "backup": "backups.create",
    "get_backups": "backups.get_all",
    "verify_backup": "backups.verify",
    "restore": "backups.restore",
    "get_flow_usage": "usage.get_flow",
    "get_flow_budget": "usage.get_budget",
    "get_usage_summary": "usage.get_summary",
    "create_job_index": "vectors.create_index",
    "drop_job_index": "vectors.drop_index",
    "vector_search": "vectors.search",
    "set_timeline": "timelines.set",
    "get_timeline_setting": "timelines.get_setting",
    "get_job_timeline": "timelines.get",
    "set_event_retention": "settings.set_event_retention",
    "get_event_retention": "settings.get_event_retention",
    "set_result_retention": "settings.set_result_retention",
    "get_result_retention": "settings.get_result_retention",
    "get_features": "settings.get_features",
    "set_stalled_policy": "settings.set_stalled_policy",
    "get_stalled_policy": "settings.get_stalled_policy",
    "remove_stalled_policy": "settings.remove_stalled_policy",
    "get_partitions": "settings.get_partitions",
    "discard": "jobs.discard",
    "change_priority": "jobs.change_priority",
    "change_rank": "jobs.change_priority",
    "change_delay": "jobs.change_delay",
    "get_rank_counts": "jobs.get_rank_counts",
    "promote_jobs": "jobs.promote_delayed",
    "requeue_completed": "jobs.requeue_completed",
    "iter_search_jobs": "jobs.iter_search",
    "stream": "jobs.iter_stream",
    "get_suspend_info": "jobs.get_suspend_info",
    "get_deduplication_job": "jobs.get_deduplicated",
    "remove_deduplication": "jobs.remove_deduplication",
    "set_metrics_by_name": "metrics_by_name.set",
    "get_metrics_by_name_setting": "metrics_by_name.get_setting",
    "get_metrics_by_name": "metrics_by_name.get",
    "get_suspended_jobs": "get_jobs('suspended')",
    "get_job_count_by_types": "get_job_counts",
    "get_repeatable_jobs": "schedulers.get_all",
    "get_global_concurrency": "limits.get",
    "get_global_rate_limit": "limits.get",
}
"""Names of 0.1.0, in snake_case also those of Node, with their places in a queue."""
REPLACED_OF_JOBS: Final = {
    **dict.fromkeys(("is_active", "is_completed", "is_delayed", "is_failed", "is_waiting"), "await job.get_state()"),
    **dict.fromkeys(("parent_id", "parent_ids", "parent_queue", "parent_queues"), "await job.get_parents()"),
    "budget_key": "queue.usage.get_budget",
    "change_rank": "job.change_priority(rank=...)",
    "cost": "job.opts['cost']",
    "expire_at": "job.opts['ttl'], counted from job.timestamp",
    "fallbacks": "job.opts['fallbacks']",
    "get_failed_attempts": "queue.failures.get_attempts",
    "get_timeline": "queue.timelines.get",
    "scheduler_name": "queue.schedulers.get_all",
    "stream_chunk": "job.stream({'type': ..., 'content': ...})",
    "tpm_tokens": "job.report_usage and job.usage",
}
"""Names of 0.1.0, in snake_case also those of Node, with what replaces them."""


def former_names(cls: ClassT) -> ClassT:
    """Let former names of a queue, a job or a task raise AttributeError with the new ones."""
    new_place = _of_task if hasattr(cls, "call") else _new_place if hasattr(cls, "add") else _of_job

    def missing(self: object, name: str) -> Any:
        if hasattr(type(self), name):  # a property has raised an AttributeError
            return object.__getattribute__(self, name)
        place = None if name.startswith("_") else new_place(cls, name)
        hint = f"; use {place}" if place else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)

    cls.__getattr__ = missing
    return cls


def _of_job(cls: type[Any], name: str) -> str | None:
    plain = snake_case(name)
    return REPLACED_OF_JOBS.get(plain, f"job.{plain}" if plain != name and hasattr(cls, plain) else None)


def _of_task(_: type[Any], name: str) -> str | None:
    return "task.call" if name == "spec" else None


def _new_place(cls: type[Any], name: str) -> str | None:
    plain = snake_case(name)
    place = MOVED.get(plain, plain if plain != name and hasattr(cls, plain) else None)
    return place and f"queue.{place}"


class Connected:
    """Base of classes that use a connection: copying and pickling them raise an error."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Reject copies."""
        raise GlideMQError(
            f"{self!r} cannot be copied or pickled, because it uses a connection of this process; "
            "pass the name of the queue and the id of the job, and open the queue there"
        )


class AsyncOnly(Connected):
    """Base of classes with ``async with`` blocks: a ``with`` block raises `EventLoopError`."""

    if not TYPE_CHECKING:  # type checkers report the wrong block themselves

        def __enter__(self) -> NoReturn:
            raise EventLoopError(repr(self), "use 'async with' instead of 'with'", "blocking code uses glidemq_py.sync")

        __exit__ = __enter__  # which is only called if both exist


class BlockingOnly(Connected):
    """Base of classes with ``with`` blocks: an ``async with`` block raises `EventLoopError`."""

    if not TYPE_CHECKING:

        async def __aenter__(self) -> NoReturn:
            raise EventLoopError(repr(self), "use 'with' instead of 'async with'", "an event loop uses glidemq_py")

        __aexit__ = __aenter__  # which is only called if both exist


_PACKAGE: Final = str(Path(__file__).parent.parent)
_python_warns: Final[Any] = vars(warnings).get("_warn_unawaited_coroutine")


def _warn(message: str, category: type[Warning], stacklevel: int, source: object) -> None:
    """Warn at the place at which Python would without `_report_unawaited`, two frames above."""
    warnings.warn(message, category, stacklevel + 2, source=source)


def _report_unawaited(coroutine: CoroutineType[Any, Any, Any]) -> None:
    """Log an ERROR for a coroutine of this package that is deleted without ``await``; then warn, as Python does.

    Python calls this function of `warnings`, so that awaited coroutines cost nothing.
    """
    with contextlib.suppress(Exception):
        if coroutine.cr_code.co_filename.startswith(_PACKAGE):
            _log_unawaited(coroutine, sys._getframe(1))
    _warn_unawaited(coroutine)  # pyright: ignore[reportPossiblyUnbound]


def _log_unawaited(coroutine: CoroutineType[Any, Any, Any], frame: FrameType) -> None:
    given: Mapping[str, Any] = cast("Any", coroutine.cr_frame).f_locals
    owner = given["args"][0] if "args" in given and "self" not in given else given.get("self")
    if getattr(owner, "_attempt", None) is not None:
        return  # the job of the handler fails
    path, line, _ = (coroutine.cr_origin or ((frame.f_code.co_filename, frame.f_lineno, ""),))[0]
    call = coroutine.__name__ if owner is None else f"{owner!r}.{coroutine.__name__}"
    cure = f".blocking.{coroutine.__name__}()" if hasattr(owner, "blocking") else "a class of glidemq_py.sync"
    message = "%s:%d: %s() was called without await, so it had no effect: use await, or in blocking code %s"
    get_logger("glidemq_py").error(message, path, line, call, cure)


if isinstance(_python_warns, FunctionType):
    _warn_unawaited: Final = FunctionType(_python_warns.__code__, {**_python_warns.__globals__, "warn": _warn})
    setattr(warnings, "_warn_unawaited_coroutine", _report_unawaited)  # noqa: B010
