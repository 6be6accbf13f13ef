"""The commands of the protocol, in one file per subject; and the execution of one for a session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from glidemq_py._core.logs import get_logger
from glidemq_py.errors import GlideMQError, GlideMQValidationError, PayloadTooLargeError, show_value
from glidemq_py.gateway.commands import (
    ack,
    connection,
    cron,
    dead_letters,
    flows,
    jobs,
    limits,
    monitoring,
    pull,
    push,
    queues,
    webhooks,
)
from glidemq_py.gateway.job_objects import LIMIT
from glidemq_py.gateway.session import Command, Session, check_fields
from glidemq_py.gateway.table import Answer, CommandError
from glidemq_py.gateway.values import LargeAnswer, PortableMap

__all__ = ["COMMANDS", "NOTHING_READY", "PROTOCOL", "execute", "failure", "only_reads", "succeeded"]

_log = get_logger(__name__)

_GROUPS: Final = (
    connection, push, pull, ack, flows, jobs, queues, dead_letters, cron, limits, webhooks, monitoring,
)  # fmt: skip

COMMANDS: Final[Mapping[str, Command]] = {command.name: command for group in _GROUPS for command in group.COMMANDS}
"""The commands that a gateway executes, by name."""

PROTOCOL: Final[Mapping[str, tuple[str, ...]]] = {
    group: tuple(name for name, command in COMMANDS.items() if command.group == group)
    for group in dict.fromkeys(command.group for command in COMMANDS.values())
}
"""All commands of protocol 3 by group."""

NOTHING_READY: Final = frozenset(("PULL", "PULLB", "JobHeartbeat", "JobHeartbeatB", "Heartbeat"))
"""Frequent commands that make no job ready."""
_WITH_PREFETCHED: Final = frozenset((
    *(
        name
        for group in ("connection", "core", "cron", "workers", "webhooks", "locks", "logs", "events")
        for name in PROTOCOL[group]
    ),
    "GetResult", "GetProgress", "WaitJob", "Progress", "ListQueues", "StorageStatus",
))  # fmt: skip
"""Commands that may run while jobs are prefetched. Before others, these jobs return to their queue."""
_READING: Final = frozenset((
    *PROTOCOL["query"], *PROTOCOL["monitoring"], "Dlq", "CronGet", "CronList", "PULL", "PULLB",
))  # fmt: skip
"""Commands that only read, besides those with a verb below. Jobs that a PULL fetches nevertheless are released."""
_READING_VERBS: Final = ("Get", "Is", "List")
_NOT_DURABLE: Final = "durable: the server has no append-only file; set its option appendonly to yes"
_DATA_TOO_LARGE: Final = "Job data too large (max 10MB)"


async def execute(
    session: Session, name: str, given: Mapping[Any, Any], fields: dict[str, Any] | None = None,
    rest: Coroutine[Any, Any, Answer] | None = None, began: float | None = None,
) -> Answer:  # fmt: skip
    """Execute a command and return its answer, which has `ok`.

    Args:
        session: The session.
        name: Name of the command.
        given: The value that was sent.
        fields: The values of its fields, if they were checked.
        rest: The rest of a command that has begun without a task.
        began: When that was, by ``time.perf_counter``.
    """
    try:
        return await _execute(session, name, given, fields, rest, began)
    except PayloadTooLargeError as error:
        return failure(_too_large(error))
    except GlideMQValidationError as error:
        return failure(_NOT_DURABLE if error.option == "durable" else str(error))
    except (CommandError, GlideMQError) as error:
        return failure(str(error))
    except asyncio.CancelledError:
        late = session.state.deadlines.error_of(name, changes_nothing=only_reads(name))
        if late is None:
            raise
        return failure(str(late))
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can express and a key cannot
        return failure(f"{show_value(error.object)} must not contain a lone surrogate")
    except Exception:
        _log.exception("gateway: command %s failed", name)
        return failure("Internal error")


async def _execute(
    session: Session, name: str, given: Mapping[Any, Any], fields: dict[str, Any] | None,
    rest: Coroutine[Any, Any, Answer] | None, began: float | None,
) -> Answer:  # fmt: skip
    command = COMMANDS.get(name)
    # Tasks start in the order of their frames, so that an Auth counts for the frames right behind it.
    if not session.is_authenticated and (command is None or not command.is_public):
        raise CommandError("Not authenticated")
    if command is None:
        raise CommandError(f"Unknown command: {name}")
    if fields is None:
        fields = check_fields(command, given)
    start = time.perf_counter() if began is None else began
    running, task = session.state.deadlines.running, asyncio.current_task()
    running[task] = start, name, fields
    try:
        if rest is not None:
            answer = await rest
        elif name in _WITH_PREFETCHED:
            answer = await command.handler(session, fields)
        else:
            async with session.state.without_prefetched(fields, reads=only_reads(name)):
                answer = await command.handler(session, fields)
        return succeeded(session, name, fields, answer, start)
    finally:
        running.pop(task, None)
        if name not in NOTHING_READY:
            session.state.changed(fields)


def succeeded(session: Session, name: str, fields: Mapping[str, Any], answer: Answer, start: float) -> Answer:
    """Return the answer of a command that has succeeded, and count it."""
    session.state.figures.executed(name, fields, answer, time.perf_counter() - start)
    if answer.__class__ is PortableMap or answer.__class__ is LargeAnswer:
        return answer.__class__(ok=True, **answer)
    return {"ok": True, **answer}


def only_reads(name: str) -> bool:
    """Return whether the command of this name changes nothing."""
    return name in _READING or name.startswith(_READING_VERBS)


def _too_large(error: PayloadTooLargeError) -> str:
    """Return the text of the protocol if the data of a job are too large."""
    where, _, name = error.option.rpartition(".")
    if name != "data" or error.limit != LIMIT:
        return str(error)
    return f"{where}: {_DATA_TOO_LARGE}" if where else _DATA_TOO_LARGE


def failure(error: str) -> Answer:
    """Return the answer of a command that was rejected."""
    return {"ok": False, "error": error}
