"""Heartbeats from a thread with connections of its own, so that a handler that blocks the event loop keeps its locks.

A heartbeat renews this worker's registration and the locks of its jobs. The reply names the jobs that the worker no
longer owns or that were revoked.

The reply also brings commands for the worker (`glidemq_py._features.remote_control`), which `CommandRunner` runs.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, cast

from glidemq_py._client.failures import repeated_level
from glidemq_py._client.runtime import wait_for_event
from glidemq_py._client.threads import LoopThread, ProcessThread, Work
from glidemq_py._client.transport import Transport
from glidemq_py._core import json_text as json
from glidemq_py._core.calls.working import AttemptStatus
from glidemq_py._core.logs import RepeatedFailure, get_logger
from glidemq_py._features.remote_control import control_reply
from glidemq_py._job.run import Run
from glidemq_py._partitions.link import QueueLink
from glidemq_py._worker.fetch_calls import QueueSource
from glidemq_py.errors import GlideMQConnectionError, GlideMQError, SerializationError, UnsupportedFeatureError

_log = get_logger(__name__)

_BEATS_A_LOCK = 3
_LONGEST_PAUSE_S = 10.0
_PAUSE_AFTER_FAILURE_S = 1.0
_JOBS_A_CALL = 200

heartbeats = ProcessThread("heartbeats", may_be_turned=False)
"""Returns the thread of this process in whose event loop all its workers beat."""


def registration(
    started_at: int, active: int, silence: int, lock_duration: int, stalled_policy: str, channel: str = "",
    about: Mapping[str, object] | None = None, interval: int = 0, stuck: int = 0,
) -> str:  # fmt: skip
    """Return the registration of a worker: the fields that Node peers write too, and those of our own.

    Args:
        started_at: Epoch ms.
        active: Number of running jobs.
        silence: `Worker.unresponsive_seconds`, in ms.
        lock_duration: How long other workers wait after the last heartbeat before they recover this worker's jobs, ms.
        stalled_policy: `WorkerOptions.stalled_policy`; "" is left out.
        channel: Channel on which the worker is called to read commands; "" = it reads them with its next heartbeat.
        about: State of the worker (`CommandRunner.about`).
        interval: Time until the next registration of a worker without heartbeats, ms; 0 = it sends heartbeats.
        stuck: Number of handlers that have not ended although their attempts have.
    """
    fields: dict[str, object] = {
        "addr": socket.gethostname(), "pid": os.getpid(), "startedAt": started_at, "activeJobs": active,
        "silence": silence, "lockDuration": lock_duration,
    }  # fmt: skip
    if stalled_policy:
        fields["stalledPolicy"] = stalled_policy
    if channel:
        fields["channel"] = channel
    if interval:
        fields["interval"] = interval
    if stuck:
        fields["stuck"] = stuck
    memory = resident_memory()
    if memory is not None:
        fields["memory"] = memory
    if about is not None:
        fields.update(about)
    return json.dumps(fields)


class Heartbeat:
    """The heartbeat of one worker.

    It runs in the event loop of `heartbeats`; the simulation of the tests runs it in its own.

    Args:
        connect: Opens a connection of the running loop.
        source: Builds the calls.
        consumer: This worker's name.
        lock_duration: Lock duration of jobs without their own, in ms.
        stalled_policy: `WorkerOptions.stalled_policy`.
        running: The running jobs; read from the other thread.
        lost: Called on the worker's loop with (run, status) for a job that this attempt no longer owns.
        unresponsive_seconds: Returns `Worker.unresponsive_seconds`; written into the registration.
        commands: Called on the loop with commands for the worker.
        about: Returns the state of the worker, for the registration.
        layout: Called on the loop with the number of the layout of the queue's partitions.
        unsupported: Called on the loop, once, if the queue uses a feature that this version does not have.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], Awaitable[Transport]],
        source: QueueSource,
        consumer: str,
        lock_duration: int,
        stalled_policy: str,
        running: AbstractSet[Run],
        lost: Callable[[Run, int], None],
        unresponsive_seconds: Callable[[], float],
        unsupported: Callable[[UnsupportedFeatureError], None],
        commands: Callable[[Sequence[str]], None] | None = None,
        about: Callable[[], Mapping[str, object]] | None = None,
        layout: Callable[[int], None] | None = None,
    ) -> None:
        self._connect = connect
        self._source = source
        self._consumer = consumer
        self._failures = RepeatedFailure(_log, f"worker {consumer}: heartbeat")
        self._lock_duration = lock_duration
        self._stalled_policy = stalled_policy
        self._running = running
        self._lost = lost
        self._unresponsive_seconds = unresponsive_seconds
        self._unsupported = unsupported
        self._commands = commands
        self._about = about
        self._layout = layout
        self._is_partitioned = False
        self._loop = asyncio.get_running_loop()
        self._started_at = int(time.time() * 1000)
        self._transport: Transport | None = None
        self._stopping = False
        self._closed = False
        self._hurry = asyncio.Event()
        self._shortest = lock_duration
        self._first_beat = asyncio.Event()
        self._over = asyncio.Event()
        self._thread: LoopThread | None = None

    async def start(self) -> None:
        """Start, and wait until the first heartbeat succeeds or fails, or until it is closed."""
        self._spawn()
        await self._first_beat.wait()

    def _spawn(self) -> None:
        self._thread = heartbeats()
        self._thread.enter(Work(self._thread, self._beat_on()))

    def expect(self, lock_duration: int) -> None:
        """Send heartbeats at once, and often enough for a fetched job with this ``lock_duration`` (ms)."""
        if lock_duration < self._shortest:
            self._shortest = lock_duration
            self._wake()

    def _wake(self) -> None:
        if self._thread is None:
            self._hurry.set()
        else:
            self._thread.call(self._hurry.set)

    async def _beat_on(self) -> None:
        while not self._stopping:
            began, pause = time.monotonic(), None
            try:
                await self._beat()
            except UnsupportedFeatureError as error:
                self._call_in_loop(self._unsupported, error)
                self._stopping = True
            except GlideMQError as error:
                self._failures.failed(error, repeated_level(self._transport, error))
                if isinstance(error, GlideMQConnectionError):
                    pause = _PAUSE_AFTER_FAILURE_S
            except Exception:
                _log.exception("worker %s: heartbeat failed", self._consumer)
            else:
                self._failures.succeeded()
            self._call_in_loop(self._first_beat.set)
            interval = min(self._shortest / _BEATS_A_LOCK / 1000, _LONGEST_PAUSE_S)
            if self._transport is not None and (pause is not None or time.monotonic() - began > interval):
                self._transport.interruptions.record()  # other workers' heartbeats may not have arrived either
            if self._stopping:
                break
            await wait_for_event(self._hurry, interval if pause is None else min(interval, pause))
            self._hurry.clear()
        self._call_in_loop(self._first_beat.set)  # also if it was closed before its first heartbeat
        if self._transport is not None:
            await self._transport.close()
        self._call_in_loop(self._over.set)

    def _snapshot(self) -> list[Run]:
        while True:
            try:
                return [run for run in self._running if not run.attempt.ended]
            except RuntimeError:
                continue  # the loop changed the set during the iteration

    async def _beat(self) -> None:
        if self._transport is None:
            self._transport = await self._connect()
        runs = self._snapshot()
        self._shortest = min((run.options.lock_duration or self._lock_duration for run in runs),
                             default=self._lock_duration)  # fmt: skip
        info = self._info(len(runs))
        ttl = max(self._lock_duration, 3 * int(_LONGEST_PAUSE_S * 1000))
        for start in range(0, max(1, len(runs)), _JOBS_A_CALL):
            part = runs[start : start + _JOBS_A_CALL]
            jobs = [(r.job._stored_id, r.attempt.entry, *r.attempt.token) for r in part]
            reply = await self._transport.call(self._source.heartbeat(info, ttl, jobs))
            info = ""
            if self._layout is not None and (reply.layout or self._is_partitioned):
                self._is_partitioned = True
                self._call_in_loop(self._layout, reply.layout)
            if reply.commands and self._commands is not None:
                self._call_in_loop(self._commands, reply.commands)
            for run, status in zip(part, reply.statuses, strict=True):
                if status != AttemptStatus.OK and run in self._running:
                    self._call_in_loop(self._lost, run, status)

    def _info(self, active: int) -> str:
        silence = int(self._unresponsive_seconds() * 1000)
        about = None if self._about is None else self._about()
        return registration(
            self._started_at, active, silence, self._lock_duration, self._stalled_policy, about=about,
            stuck=max(0, len(self._running) - active),
        )  # fmt: skip

    def _call_in_loop(self, function: Callable[..., Any], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            self._stopping = True  # the loop is closed

    async def close(self, limit: float = 5.0) -> None:
        """Stop, and wait for at most ``limit`` seconds until it has ended. Only the first call waits."""
        waited, self._closed = self._closed, True
        self._stopping = True
        self._wake()
        if not waited and self._thread is not None:
            await wait_for_event(self._over, limit)


def resident_memory() -> int | None:
    """Return this process's physical memory in bytes; on systems without /proc its peak. None if unknown."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        pass
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


MAX_JOBS = 1_000
"""Maximum number of running jobs in an answer."""


class CommandRunner:
    """Runs commands in the worker's event loop.

    Args:
        worker: The worker.
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._answers: set[asyncio.Task[None]] = set()

    def about(self) -> dict[str, object]:
        """Return the state of the worker for its registration: its slots, and whether it fetches no jobs."""
        return {"concurrency": self._worker.concurrency, "paused": int(self._worker.is_paused)}

    def run(self, link: QueueLink, texts: Iterable[str]) -> None:
        """Run commands that were sent through the queue of ``link``, and send the answers there."""
        for text in texts:
            try:
                command: Any = json.loads(text)
                request, action, argument = str(command["request"]), command["action"], command.get("argument")
            except (SerializationError, KeyError, TypeError, AttributeError):
                _log.warning("queue %s: ignored a malformed command for this worker", link.label)
                continue
            try:
                answer: dict[str, Any] = {"result": self._act(action, argument)}
            except GlideMQError as error:
                answer = {"error": str(error)}
            except (TypeError, ValueError) as error:  # an argument that another version or client has sent
                answer = {"error": f"invalid argument of command {action!r}: {error}"}
            if action != "ping" and action != "inspect":
                _log.info("queue %s: worker %s: remote command %s", link.label, self._worker.consumer, action)
            task = asyncio.create_task(self._answer(link, request, json.dumps(answer)), name="glidemq-command")
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)

    async def _answer(self, link: QueueLink, request: str, text: str) -> None:
        try:
            await link.call(control_reply, request, self._worker.consumer, text)
        except GlideMQError as error:
            _log.warning("queue %s: answering a remote command failed: %s", link.label, error)

    def _act(self, action: Any, argument: Any) -> Any:
        worker = self._worker
        if action == "quiet":
            worker.pause()
        elif action == "resume":
            worker.resume()
        elif action == "resize":
            worker.set_concurrency(argument)
        elif action == "cancel":
            job_id, queue = cast("tuple[str, str]", argument)
            return worker.cancel_job(job_id, queue)
        elif action == "inspect":
            return self._activity()
        elif action != "ping":
            raise GlideMQError(f"this version of the worker has no command {action!r}")
        return None

    def _activity(self) -> dict[str, Any]:
        every: Sequence[Run] = self._worker._runs
        runs = [run for run in every if not run.attempt.ended]
        jobs = [[run.job.queue_name, run.job.id, run.job.name, run.attempt.token[1]] for run in runs[:MAX_JOBS]]
        return {
            "paused": self._worker.is_paused, "concurrency": self._worker.concurrency, "active": len(runs),
            "stuck": len(every) - len(runs), "jobs": jobs,
        }  # fmt: skip
