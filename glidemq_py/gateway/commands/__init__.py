"""The commands of the protocol, in one file per subject; and the execution of one for a session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from glidemq_py._core.logs import get_logger
from glidemq_py.errors import GlideMQError, GlideMQValidationError, PayloadTooLargeError, show_value
from glidemq_py.gateway.commands import (
    attempts,
    connection,
    cron,
    dead_letters,
    flows,
    jobs,
    limits,
    monitoring,
    push,
    queues,
    webhooks,
)
from glidemq_py.gateway.job_objects import LIMIT
from glidemq_py.gateway.session import Command, Session, check_fields
from glidemq_py.gateway.table import DONE, Answer, CommandError
from glidemq_py.gateway.values import LargeAnswer, PortableMap

_log = get_logger(__name__)

_GROUPS: Final = (
    connection, push, attempts, flows, jobs, queues, dead_letters, cron, limits, webhooks, monitoring,
)  # fmt: skip

COMMANDS: Final[Mapping[str, Command]] = {
    name: command for group in _GROUPS for name, command in group.COMMANDS.items()
}
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


async def execute(session: Session, name: str, given: Mapping[Any, Any]) -> Answer:
    """Execute a command and return its answer, which has `ok`.

    Args:
        session: The session.
        name: Name of the command.
        given: The value that was sent.
    """
    command, state, task = COMMANDS.get(name), session.state, asyncio.current_task()
    fields: Mapping[str, Any] = {}
    try:
        # Tasks start in the order of their frames, so that an Auth counts for the frames right behind it.
        if not session.is_authenticated and (command is None or not command.is_public):
            raise CommandError("Not authenticated")
        if command is None:
            raise CommandError(f"Unknown command: {name}")
        fields, start = check_fields(command, given), time.perf_counter()
        state.deadlines.running[task] = start, name, fields
        if name in _WITH_PREFETCHED:
            answer = await command.handler(session, fields) or DONE
        else:
            async with state.without_prefetched(fields, reads=only_reads(name)):
                answer = await command.handler(session, fields) or DONE
        state.figures.executed(name, fields, answer, time.perf_counter() - start)
        if answer.__class__ is PortableMap or answer.__class__ is LargeAnswer:
            return answer.__class__(ok=True, **answer)
        return {"ok": True, **answer}
    except PayloadTooLargeError as error:
        return failure(_too_large(error))
    except GlideMQValidationError as error:
        return failure(_NOT_DURABLE if error.option == "durable" else str(error))
    except (CommandError, GlideMQError) as error:
        return failure(str(error))
    except asyncio.CancelledError:
        late = state.deadlines.error_of(name, changes_nothing=only_reads(name))
        if late is None:
            raise
        return failure(str(late))
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can express and a key cannot
        return failure(f"{show_value(error.object)} must not contain a lone surrogate")
    except Exception:
        _log.exception("gateway: command %s failed", name)
        return failure("Internal error")
    finally:
        if state.deadlines.running.pop(task, None) is not None and name not in NOTHING_READY:
            state.changed(fields)


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
