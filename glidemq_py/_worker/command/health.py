"""`--check`: report whether a worker of the queue on this host is alive and connected to the server.

The check reads the server, not the process: a worker that runs but has lost its connection is not healthy. It uses
the worker's registration (_worker/heartbeat.py) and the server time of its last renewal. A worker that renews it
seldom, because its queue is idle, is pinged.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from glidemq_py._client.runtime import ASYNC_RUNTIME
from glidemq_py._client.transport import Connection, Transport, known_url, open_transport
from glidemq_py._core import json_text as json
from glidemq_py._core.calls import administration
from glidemq_py._core.keys import DEFAULT_PREFIX, QueueKeys
from glidemq_py._core.logs import escape_control
from glidemq_py._features.many_queues import parse_queues
from glidemq_py._features.remote_control import send_command
from glidemq_py._partitions.link import server_time
from glidemq_py._worker.command.arguments import WorkerArguments
from glidemq_py._worker.command.target import load_workers
from glidemq_py.errors import (
    GlideMQError,
    PermissionDeniedError,
    SerializationError,
    WorkerNotFoundError,
    WorkerTimeoutError,
)

_LONGEST_SILENCE_MS = 30_000
_PATIENCE_S = 10.0
_PING_MS = 3_000
_LATE = 1.5
"""Intervals after which the registration of a worker without heartbeats is missing; for users who may not ping."""


@dataclass(frozen=True, slots=True)
class _Report:
    """One worker's registration."""

    pid: int
    beat_ms: int
    """Time since its last heartbeat."""
    silence_ms: int
    """Time without a reply from the server, at that heartbeat."""
    consumer: str
    answers_calls: bool
    """True if it sends no heartbeats now, but is called for commands."""
    interval_ms: int
    """Time between two registrations of a worker without heartbeats."""

    @property
    def total_ms(self) -> int:
        return self.beat_ms + self.silence_ms


def check_health(arguments: WorkerArguments) -> int:
    """Print one line and return the exit code: 0 = healthy, 1 = not healthy.

    If TARGET has several workers, every queue must have a healthy one. Raises the errors of `load_workers`.
    """
    verdicts = [asyncio.run(_verdict(*place)) for place in _places(arguments)]
    healthy = all(verdict for verdict, _ in verdicts)
    reason = "; ".join(dict.fromkeys(text for verdict, text in verdicts if verdict is healthy))
    # GLIDE's messages have several lines; tools that show the output of a probe show one.
    sys.stdout.write(f"{'healthy' if healthy else 'not healthy'}: {escape_control(' '.join(reason.split()))}\n")
    return 0 if healthy else 1


def _places(arguments: WorkerArguments) -> list[tuple[Connection, QueueKeys]]:
    if arguments.queue is not None:
        first = parse_queues(arguments.queue).names[0]
        return [(arguments.url, QueueKeys(arguments.prefix or DEFAULT_PREFIX, first))]
    return [(worker._connection, worker._keys) for worker in load_workers(arguments)]


async def _verdict(connection: Connection, keys: QueueKeys) -> tuple[bool, str]:
    if connection is None and known_url() is None:
        return (
            False,
            "no server given: use --url, GLIDEMQ_URL, or glidemq dev (a private server cannot be checked)",
        )
    try:
        async with asyncio.timeout(_PATIENCE_S):
            transport = await open_transport(connection, check=False)
            try:
                return await _request(transport, keys)
            finally:
                await transport.close()
    except TimeoutError:
        return False, f"the server did not answer within {_PATIENCE_S:.0f} s"
    except GlideMQError as error:
        return False, str(error)


async def _request(transport: Transport, keys: QueueKeys) -> tuple[bool, str]:
    host, elsewhere = socket.gethostname(), set[str]()
    now = await server_time(transport)
    reports: list[_Report] = []
    for consumer, text in await transport.call(administration.workers(keys.meta)):
        info = _info(text)
        if info.get("addr") != host or "silence" not in info:
            elsewhere.add(str(info.get("addr", "?")))
            continue
        beaten = await transport.command("ZSCORE", keys.stem + "workers", consumer)
        if beaten is not None:
            age = max(0, now - int(float(beaten)))
            reports.append(_Report(int(info["pid"]), age, int(info["silence"]), consumer, bool(info.get("channel")),
                                   int(info.get("interval", 0))))  # fmt: skip
    if not reports:
        others = f" (workers on other hosts: {', '.join(sorted(elsewhere))})" if elsewhere else ""
        return False, f"queue {keys.name!r} has no worker on {host}{others}"
    reports.sort(key=attrgetter("total_ms"))
    best = reports[0]
    for report in reports if best.total_ms > _LONGEST_SILENCE_MS else ():
        if not report.answers_calls:
            continue
        try:
            if await _answers(transport, keys, report.consumer):
                return True, f"{_who(keys.name, report)} is connected (answered a ping)"
        except PermissionDeniedError:
            if report.total_ms <= _LATE * report.interval_ms:
                seconds = report.beat_ms / 1000
                return True, f"{_who(keys.name, report)} is connected (idle; registered {seconds:.0f} s ago)"
    return _judged(keys.name, best)


async def _answers(transport: Transport, keys: QueueKeys, consumer: str) -> bool:
    try:
        return bool(await send_command(transport, keys, ASYNC_RUNTIME, consumer, _PING_MS, "ping"))
    except (WorkerTimeoutError, WorkerNotFoundError):
        return False


def _who(queue: str, report: _Report) -> str:
    return f"the worker of queue {queue!r} with pid {report.pid}"


def _judged(queue: str, best: _Report) -> tuple[bool, str]:
    who = _who(queue, best)
    if best.total_ms <= _LONGEST_SILENCE_MS:
        return True, f"{who} is connected (last heartbeat {best.beat_ms / 1000:.1f} s ago)"
    if best.beat_ms > _LONGEST_SILENCE_MS:
        unanswered = " and does not answer a ping" if best.answers_calls else ""
        return False, f"{who} has sent no heartbeat for {best.beat_ms / 1000:.0f} s{unanswered}"
    return False, f"{who} is alive but has had no reply from the server for {best.total_ms / 1000:.0f} s"


def _info(text: str) -> dict[str, Any]:
    try:
        found: Any = json.loads(text)
    except SerializationError:
        return {}
    return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType]
