"""The worker of a chaos run: `python -m glidemq_py.worker tests.chaos.worker_target:worker`.

Its handler records that a job started and ended, and the worker's events record the server's acknowledgments.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator
from typing import Any

from glidemq_py import Job, Worker
from glidemq_py._features.schedulers.firing import SchedulerTask
from glidemq_py.errors import GlideMQError, StaleAttemptError
from tests.chaos.ledger import Scribe
from tests.chaos.settings import PartySettings

SETTINGS = PartySettings.read()
SCRIBE = Scribe(SETTINGS.pipe, SETTINGS.party)
RANDOM = random.Random(f"{SETTINGS.seed} {SETTINGS.party}")


LEAKED_BYTES = 30_000_000
LEAK: list[bytes] = []
"""What `leaking` jobs never release."""


class ExpectedError(Exception):
    """Raised by jobs that must fail."""


def id_of(job: Job) -> str:
    """Return the id in the ledger: that which the producer gave, without its partition."""
    return job.id.rpartition("||")[2]


async def handle(job: Job) -> str:
    job_id = id_of(job)
    if job.name == "generated":  # its producer does not know its id if the answer was lost
        SCRIBE.write("attempted", job_id, job.name)
    SCRIBE.write("started", job_id, job.attempts_made)
    try:
        if job.name == "leaking":
            LEAK.append(b"x" * LEAKED_BYTES)
        if job.name == "poison":
            os.kill(os.getpid(), signal.SIGKILL)
        if job.name == "endless":
            await asyncio.Event().wait()
        await asyncio.sleep(RANDOM.random() * SETTINGS.work_ms / 1000)
        if job.name == "failing" or (job.name == "retried" and job.attempts_made == 0):
            raise ExpectedError(job.name)
        if job.name == "stepped" and job.step is None:
            job.move_to_delayed(20, next_step="second")
        if job.name == "steps":
            await run_steps(job)
        if job.name == "logged":
            with contextlib.suppress(GlideMQError):  # the server may be unreachable
                await job.log(f"ran {job.id}")
                await job.update_progress(50)
    finally:
        SCRIBE.write("ended", job_id)
    return job.id


async def run_steps(job: Job):
    """Note each effect of a step, and each result that a run gets."""
    job_id, life = id_of(job), job.timestamp

    async def effect(step: str) -> str:
        token = f"{RANDOM.getrandbits(64):x}"
        SCRIBE.write("effect", job_id, f"{step}@{life} {token}")
        await asyncio.sleep(RANDOM.random() * SETTINGS.work_ms / 1000)
        return token

    for step in ("first", "second", "third"):
        SCRIBE.write("result", job_id, f"{step}@{life} {await job.run(step, effect, step)}")
        await job.sleep(f"after {step}", 20)


def _name_holders():
    """Put the name of this process into the holder of the schedulers' lock, so that a row can kill the leader."""
    create = SchedulerTask.__init__

    def named(self: SchedulerTask, **options: Any):
        create(self, **options)
        self._holder = f"{SETTINGS.party}-{self._holder}"

    SchedulerTask.__init__ = named  # type: ignore[method-assign]


_name_holders()


@contextlib.asynccontextmanager
async def lifespan(_: Worker) -> AsyncIterator[None]:
    SCRIBE.write("ready")
    yield


def on_error(error: Exception):
    if isinstance(error, StaleAttemptError):
        SCRIBE.write("stale", (error.job_id or "").rpartition("||")[2])
    else:
        SCRIBE.write("error", detail=type(error).__name__)


OPTIONS: dict[str, Any] = {
    "concurrency": 10, "lock_duration": 2_000, "stalled_interval": 1_000, "max_stalled_count": 1_000,
    "log_failures": False, **SETTINGS.options,
}  # fmt: skip
"""None: not given."""

worker = Worker(
    list(SETTINGS.queues) or SETTINGS.queue, handle, SETTINGS.connection(), lifespan=lifespan,
    **{name: value for name, value in OPTIONS.items() if value is not None},
)  # fmt: skip
worker.on("completed", lambda job, _: SCRIBE.write("completed", id_of(job)))
worker.on("failed", lambda job, error: SCRIBE.write("failed", id_of(job), repr(error)))
worker.on("error", on_error)
