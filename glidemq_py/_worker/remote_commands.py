"""Runs the commands of `glidemq_py._features.remote_control` in the worker that they are for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, cast

from glidemq_py._core import json_text as json
from glidemq_py._core.logs import get_logger
from glidemq_py._features.remote_control import control_reply
from glidemq_py._job.run import Run
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import GlideMQError, SerializationError

_log = get_logger(__name__)

MAX_JOBS = 1_000
"""Maximum number of running jobs in an answer."""


class ControlledWorker(Protocol):
    """A `Worker`, as commands use it."""

    consumer: str

    @property
    def is_paused(self) -> bool: ...

    @property
    def concurrency(self) -> int: ...

    @property
    def _runs(self) -> Sequence[Run]: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def set_concurrency(self, concurrency: int) -> None: ...

    def cancel_job(self, job_id: str, queue: str | None = None) -> bool: ...


class CommandRunner:
    """Runs commands in the worker's event loop.

    Args:
        worker: The worker.
    """

    def __init__(self, worker: ControlledWorker) -> None:
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
        every = self._worker._runs
        runs = [run for run in every if not run.attempt.ended]
        jobs = [[run.job.queue_name, run.job.id, run.job.name, run.attempt.token[1]] for run in runs[:MAX_JOBS]]
        return {
            "paused": self._worker.is_paused, "concurrency": self._worker.concurrency, "active": len(runs),
            "stuck": len(every) - len(runs), "jobs": jobs,
        }  # fmt: skip
