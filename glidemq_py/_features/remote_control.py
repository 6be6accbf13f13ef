"""Remote control: commands to running workers, which read them with their heartbeats."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, cast

from glidemq_py._client.runtime import Runtime
from glidemq_py._client.transport import Transport
from glidemq_py._core import json_text as json
from glidemq_py._core.calls import administration, call
from glidemq_py._core.checks import check_int, check_text
from glidemq_py._core.keys import QueueKeys, parse_job_id
from glidemq_py._core.misuse import known_methods
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._partitions.link import QueueLink, scan_fields
from glidemq_py._partitions.parts import Area, ConnectedQueue
from glidemq_py.errors import (
    SerializationError,
    WorkerCommandError,
    WorkerNotFoundError,
    WorkerTimeoutError,
)


class Sent(NamedTuple):
    """Where a command was sent."""

    sent: list[str]
    """Workers that get it with their next heartbeat."""
    unknown: list[str]
    """Workers that are not registered."""


@call("control_workers", repeatable=True)
def control_workers(command: str, workers: Sequence[str]) -> Sent:
    """Send a command to workers; to all if ``workers`` is empty."""
    ...


@call("control_reply", repeatable=True)
def control_reply(request: str, worker: str, text: str) -> int:
    """Store the answer of a worker for a minute."""
    ...


def _texts(reply: list[bytes | None]) -> list[str | None]:
    return [None if each is None else each.decode("utf-8", "replace") for each in reply]


@call("control_replies", read=_texts, raw=True, repeatable=True)
def control_replies(request: str, workers: Sequence[str]) -> list[str | None]:
    """Return the answers of workers; None = none yet."""
    ...


_TIMEOUT_MS: Final = 15_000
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.02, 0.25
_MAX_CONCURRENCY: Final = 10_000
_NAME_LENGTH: Final = 512
Action = Literal["ping", "inspect", "quiet", "resume", "resize", "cancel"]


class RunningJob(NamedTuple):
    """A job that a worker runs.

    Attributes:
        queue: name of its queue.
        id: its id.
        name: its name.
        started_at: when this attempt began, in epoch ms by the server's clock.
    """

    queue: str
    id: str
    name: str
    started_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerActivity:
    """State of a worker.

    Attributes:
        id: consumer name of the worker, as in `WorkerInfo`.
        is_paused: True if it fetches no jobs: it was paused, or is quiet.
        concurrency: maximum number of jobs that it runs at the same time.
        active: number of running jobs.
        stuck: number of slots occupied by handlers that have not ended although their attempts have: after a timeout, a
            cancellation or a lost lock.
        jobs: the running jobs, at most 1,000.
    """

    id: str
    is_paused: bool
    concurrency: int
    active: int
    jobs: tuple[RunningJob, ...]
    stuck: int = 0


async def _command(
    queue: ConnectedQueue, worker: str | None, timeout: Milliseconds, action: Action, argument: Any = None
) -> dict[str, Any]:
    """Send a command and return the answers, by worker."""
    wait_ms = to_ms("timeout", timeout, minimum=1)
    if worker is not None:
        check_text("worker", worker, maximum=_NAME_LENGTH)
    link = await queue._first()
    return await send_command(link.transport, link.keys, link.runtime, worker, wait_ms, action, argument)


async def send_command(
    transport: Transport, keys: QueueKeys, runtime: Runtime, worker: str | None, wait_ms: int, action: Action,
    argument: Any = None,
) -> dict[str, Any]:  # fmt: skip
    """Send a command to one worker of a queue, or to all, and return the answers, by worker.

    Raises:
        WorkerNotFoundError: If there is no such worker.
        WorkerTimeoutError: If a worker does not answer in time.
        WorkerCommandError: If a worker answers with an error.
    """
    deadline = time.monotonic() + wait_ms / 1000
    request = secrets.token_hex(12)
    text = json.dumps({"request": request, "action": action, "argument": argument})
    call = control_workers(keys.meta, text, [] if worker is None else [worker])
    reply = await transport.call(call.once() if action == "cancel" else call)  # a second cancel answers False
    if worker is not None and not reply.sent:
        raise WorkerNotFoundError(worker)
    answers: dict[str, Any] = {}
    pause = _FIRST_PAUSE_S
    while True:
        missing = [name for name in reply.sent if name not in answers]
        if missing:
            found = await transport.call(control_replies(keys.meta, request, missing))
            answers |= {name: each for name, each in zip(missing, found, strict=True) if each is not None}
        missing = sorted(set(reply.sent) - answers.keys())
        left = deadline - time.monotonic()
        if not missing or left <= 0:
            break
        await runtime.there(asyncio.sleep(min(pause, left)))
        pause = min(2 * pause, _LAST_PAUSE_S)
    results = {name: _result(name, each) for name, each in answers.items()}
    if missing:
        raise WorkerTimeoutError(missing, sorted(results))
    return results


def _result(worker: str, text: str) -> Any:
    try:
        answer: Any = json.loads(text)
        if "error" in answer:
            raise WorkerCommandError(worker, str(answer["error"]))
        return answer["result"]
    except (SerializationError, KeyError, TypeError):
        raise WorkerCommandError(worker, "malformed answer") from None


def _activity(worker: str, answer: Any) -> WorkerActivity:
    try:
        jobs = tuple(
            RunningJob(str(queue), str(job), str(name), int(at)) for queue, job, name, at in answer["jobs"]
        )  # fmt: skip
        return WorkerActivity(
            id=worker, is_paused=bool(answer["paused"]), concurrency=int(answer["concurrency"]),
            active=int(answer["active"]), jobs=jobs, stuck=int(answer.get("stuck") or 0),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError):
        raise WorkerCommandError(worker, "malformed answer") from None


@known_methods
class Workers(Area):
    """``queue.workers``: commands to the running workers. `Queue.get_workers` lists them."""

    __slots__ = ()

    async def ping(self, worker: str | None = None, *, timeout: Milliseconds = _TIMEOUT_MS) -> list[str]:
        """Return the ids of the workers that answer.

        A worker with running jobs, and one that waits in a blocking read, reads commands with its heartbeat: every ten
        seconds, or three times per lock duration if that is shorter. Others are called, and read them at once.

        Args:
            worker: Id of one worker (`WorkerInfo.id`); None means all workers of the queue.
            timeout: How long to wait for answers, in ms or as a timedelta.

        Raises:
            WorkerNotFoundError: If there is no such worker.
            WorkerTimeoutError: If ``worker`` is given and does not answer in time.
            GlideMQValidationError: If an argument is invalid.
        """
        try:
            return sorted(await _command(self._queue, worker, timeout, "ping"))
        except WorkerTimeoutError as error:
            if worker is not None:
                raise
            return sorted(error.answered)

    async def inspect(self, worker: str | None = None, *, timeout: Milliseconds = _TIMEOUT_MS) -> list[WorkerActivity]:
        """Return what workers run: the jobs with their names and start times, and whether the worker fetches.

        Args:
            worker: Id of one worker; None means all workers of the queue.
            timeout: See `workers.ping`.

        Raises:
            WorkerNotFoundError: If there is no such worker.
            WorkerTimeoutError: If a worker does not answer in time. Its ``answered`` names those that did.
            GlideMQValidationError: If an argument is invalid.
        """
        answers = await _command(self._queue, worker, timeout, "inspect")
        return [_activity(name, answers[name]) for name in sorted(answers)]

    async def quiet(self, worker: str | None = None, *, timeout: Milliseconds = _TIMEOUT_MS) -> list[str]:
        """Let workers fetch no further jobs, for example before a deploy. Their running jobs continue.

        The workers stay quiet until `workers.resume`, or until they end. `Queue.pause` also affects new workers.

        Args:
            worker: Id of one worker; None means all workers of the queue.
            timeout: See `workers.ping`.

        Returns:
            The ids of the workers.

        Raises:
            WorkerNotFoundError: If there is no such worker.
            WorkerTimeoutError: If a worker does not answer in time. It may still obey.
            GlideMQValidationError: If an argument is invalid.
        """
        return sorted(await _command(self._queue, worker, timeout, "quiet"))

    async def resume(self, worker: str | None = None, *, timeout: Milliseconds = _TIMEOUT_MS) -> list[str]:
        """Let quiet or paused workers fetch jobs again.

        Args:
            worker: Id of one worker; None means all workers of the queue.
            timeout: See `workers.ping`.

        Returns:
            The ids of the workers.

        Raises:
            WorkerNotFoundError: If there is no such worker.
            WorkerTimeoutError: If a worker does not answer in time. It may still obey.
            GlideMQValidationError: If an argument is invalid.
        """
        return sorted(await _command(self._queue, worker, timeout, "resume"))

    async def resize(
        self, concurrency: int, worker: str | None = None, *, timeout: Milliseconds = _TIMEOUT_MS
    ) -> list[str]:
        """Change how many jobs workers run at the same time, until they end. Running jobs continue.

        Args:
            concurrency: Maximum number of jobs per worker, 1..10_000.
            worker: Id of one worker; None means all workers of the queue.
            timeout: See `workers.ping`.

        Returns:
            The ids of the workers.

        Raises:
            WorkerNotFoundError: If there is no such worker.
            WorkerTimeoutError: If a worker does not answer in time. It may still obey.
            WorkerCommandError: If a worker cannot change its concurrency: it has a batch handler or a sandbox.
            GlideMQValidationError: If an argument is invalid.
        """
        check_int("concurrency", concurrency, 1, _MAX_CONCURRENCY)
        return sorted(await _command(self._queue, worker, timeout, "resize", concurrency))

    async def cancel(self, job_id: str, worker: str, *, timeout: Milliseconds = _TIMEOUT_MS) -> bool:
        """Cancel a job of this queue that a worker runs, and wait for the worker's answer.

        `Queue.revoke` cancels a job wherever it is, without waiting. See `Worker.cancel_job` for its effect.

        Args:
            job_id: Id of the job.
            worker: Id of the worker.
            timeout: See `workers.ping`.

        Returns:
            False if the worker does not run the job.

        Raises:
            WorkerNotFoundError: If there is no such worker.
            WorkerTimeoutError: If the worker does not answer in time. It may still obey.
            GlideMQValidationError: If an argument is invalid.
        """
        parse_job_id(job_id)
        check_text("worker", worker, maximum=_NAME_LENGTH)
        link, own = await self._queue._locate(job_id)
        argument = [link.shown_id(own), self._queue.name]
        (answer,) = (await _command(self._queue, worker, timeout, "cancel", argument)).values()
        return answer is True


# -- whether a queue has a worker of any client -------------------------------------------------------------

STALE_MS: Final = 30_000
"""Time without a sign of life after which a worker of a client is stale."""

_NUMBERS: Final = (
    "concurrency", "pid", "registeredAt", "lastSeen", "activeJobs", "processedJobs", "failedJobs",
)  # fmt: skip


def client_workers_key(prefix: str) -> str:
    """Return the key of the hash."""
    return f"{prefix}:gateway:workers"


def read_client_worker(text: bytes | None) -> dict[str, Any] | None:
    """Return a stored worker; None if it is absent or malformed."""
    try:
        found: Any = json.loads(text or b"null")
    except (SerializationError, UnicodeDecodeError):
        return None
    if not isinstance(found, dict):
        return None
    worker = cast("dict[str, Any]", found)
    numbers = [worker.get(name) for name in _NUMBERS]
    if not isinstance(worker.get("id"), str) or not all(isinstance(number, int) for number in numbers):
        return None
    return worker


async def has_worker(link: QueueLink) -> bool:
    """Return whether a worker of the queue is registered and alive.

    Raises:
        GlideMQError: If a call failed.
    """
    if await link.call(administration.workers):
        return True
    return await _has_client_worker(link.transport, link.keys.prefix, link.keys.name)


async def _has_client_worker(transport: Transport, prefix: str, queue: str) -> bool:
    since = time.time_ns() // 1_000_000 - STALE_MS
    async for _, text in scan_fields(transport, client_workers_key(prefix)):
        worker = read_client_worker(text)
        served = None if worker is None or worker["lastSeen"] < since else worker.get("served")
        if isinstance(served, list) and queue in served:
            return True
    return False
