"""Arguments and options that several commands share, and the completion of arguments in the shell.

Names of queues, workers and schedules are read from the server that the command would use. A shell waits for them, so a
server that does not answer within two seconds completes nothing, and no error is ever printed into the command line.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from glidemq_py import _operate as operate
from glidemq_py._core.logs import get_logger
from glidemq_py._core.record import JobState
from glidemq_py._features.failed_attempts import FailureReason
from glidemq_py._operate.parsing import pairs_of, time_of
from glidemq_py.cli.settings import find_settings

if TYPE_CHECKING:
    from glidemq_py._operate.filters import JobFilter
    from glidemq_py._operate.operating import Operator

__all__ = [
    "Concurrency",
    "Data",
    "FairKey",
    "Group",
    "JobId",
    "JobIds",
    "JobName",
    "Limit",
    "Newest",
    "Queue",
    "Queues",
    "Rate",
    "Reason",
    "Since",
    "State",
    "Tag",
    "Timeout",
    "Until",
    "complete_queue",
    "complete_schedule",
    "complete_worker",
    "filter_of",
    "words",
]

_ANSWER_S: Final = 2.0
_THREAD: Final = "glidemq-completion"
_NEEDED: Final = (
    "glidemq_py._client.async_client",
    "glidemq_py._client.shared_clients",
    "glidemq_py._operate.operating",
)
"""Modules that a call to the server imports, with GLIDE: a third of a second or more."""
_SHOWN: Final = 200
"""Queues of a long list that are completed; a further letter shortens it."""


def words(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a completion by fixed words."""
    listed = list(known)

    def complete(incomplete: str) -> list[str]:
        return [word for word in listed if word.startswith(incomplete)]

    return complete


def complete_queue(context: typer.Context, incomplete: str) -> list[str]:
    """Complete names of queues: of the server, or of the settings without one; [] if it cannot be asked."""
    return _ask(context, lambda operator: operator.list_queues(), incomplete)


def complete_worker(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the ids of the live workers of the queue that was named; [] if it cannot be asked."""

    async def read(operator: Operator, queue: str) -> list[str]:
        return [each.id for each in await operator.get_workers(queue)]

    return _ask_about_queue(context, read, incomplete)


def complete_schedule(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the names of the schedules of the queue that was named; [] if it cannot be asked."""

    async def read(operator: Operator, queue: str) -> list[str]:
        return [each.name for each in await operator.get_schedules(queue)]

    return _ask_about_queue(context, read, incomplete)


def _ask_about_queue(
    context: typer.Context, read: Callable[[Operator, str], Awaitable[list[str]]], incomplete: str
) -> list[str]:
    queue = context.params.get("queue")
    return _ask(context, lambda operator: read(operator, queue), incomplete) if isinstance(queue, str) else []


def _ask(context: typer.Context, read: Callable[[Operator], Awaitable[list[str]]], incomplete: str) -> list[str]:
    url, prefix = _setting(context, "url"), _setting(context, "prefix")
    for module in _NEEDED:  # their time is not the server's
        import_module(module)
    names: list[str] = []

    def ask() -> None:
        with suppress(Exception):  # a completion has nowhere to report it
            names.extend(asyncio.run(_read(url, prefix, read)))

    # GLIDE cannot be interrupted while it connects.
    asking = threading.Thread(target=ask, name=_THREAD, daemon=True)
    with _silence():
        asking.start()
        asking.join(_ANSWER_S)
    return [name for name in names if name.startswith(incomplete)][:_SHOWN]


@contextmanager
def _silence() -> Generator[None]:
    """Print nothing to stderr, where the command line is."""
    log = get_logger("glidemq_py")
    level = log.level
    log.setLevel(logging.CRITICAL)
    errors = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(errors, 2)
        os.close(errors)
        log.setLevel(level)


async def _read(url: str | None, prefix: str | None, read: Callable[[Operator], Awaitable[list[str]]]) -> list[str]:
    settings = find_settings(url, prefix)
    if settings.url is None:
        return list(settings.queues)
    async with operate.operating.Operator(settings.url, prefix=settings.prefix) as operator:
        return await read(operator)


def _setting(context: Any, name: str) -> str | None:
    """Return an option of this command or, before the noun, of the commands above it."""
    while context is not None:
        if context.params.get(name):
            return str(context.params[name])
        context = context.parent
    return None


Queue = Annotated[
    str,
    typer.Argument(metavar="QUEUE", help="Name of the queue.", show_default=False, autocompletion=complete_queue),
]
Queues = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="QUEUES", help="Names of queues; default: queues in [tool.glidemq], else all.", show_default=False,
        autocompletion=complete_queue,
    ),
]  # fmt: skip
JobId = Annotated[str, typer.Argument(metavar="ID", help="Id of the job.", show_default=False)]
JobIds = Annotated[list[str] | None, typer.Argument(metavar="IDS", help="Ids of jobs.", show_default=False)]

State = Annotated[
    str | None,
    typer.Option(
        "--state", metavar="STATE", help="State of the jobs, such as waiting, delayed or failed.",
        autocompletion=words(JobState),
    ),
]  # fmt: skip
JobName = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Complete name of the jobs.")]
Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Not before this time: 2026-11-23T06:00, or 2h (ago).")
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Not after this time.")]
Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data", metavar="KEY=VALUE", help="Key and value (JSON, or text) that the data contains; repeatable."
    ),
]
Group = Annotated[str | None, typer.Option("--group", metavar="KEY", help="Ordering key of the jobs.")]
FairKey = Annotated[str | None, typer.Option("--fair-key", metavar="KEY", help="Fair key of the jobs.")]
Tag = Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="Tag of the jobs; repeated: all of them.")]
Limit = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=100_000, help="Maximum number to list.")]
Newest = Annotated[bool, typer.Option("--newest", help="List the jobs that ended last, newest first.")]
Reason = Annotated[
    list[str] | None,
    typer.Option(
        "--reason",
        metavar="REASON",
        help="Reason of the failure: explicit_fail (error), max_attempts_exceeded (error, last attempt), "
        "cancelled, timeout, ...; repeatable.",
        autocompletion=words(FailureReason),
    ),
]


def filter_of(
    state: str | None = None, name: str | None = None, since: str | None = None, until: str | None = None,
    data: list[str] | None = None, group: str | None = None, fair_key: str | None = None,
    tags: list[str] | None = None,
) -> JobFilter:  # fmt: skip
    """Return the filter of these options. Raises GlideMQValidationError."""
    return operate.filters.JobFilter(
        state=state, name=name, since=time_of("--since", since), until=time_of("--until", until),
        data=pairs_of("--data", data) if data else None, group=group, fair_key=fair_key, tags=tuple(tags or ()),
    )  # fmt: skip


Timeout = Annotated[str | None, typer.Option("--timeout", metavar="TIME", help="Give up after this time.")]
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", metavar="N", min=0, help="Active jobs; 0 = no limit.")
]
Rate = Annotated[
    str | None, typer.Option("--rate", metavar="JOBS/TIME", help="Jobs per window, such as 100/1m; off = no limit.")
]
