"""A worker that is killed at one of its calls: ``python -m tests.server.steps_program URL QUEUE FILE CALL WHEN``.

WHEN is ``before`` (the call is not made) or ``after`` (the reply has not arrived). The handler of its job has steps of
each kind; each effect is a line of the file. CALL counts the server calls since the handler first began; 0 = the worker
is not killed. The program ends when the job has.
"""

import asyncio
import itertools
import os
import secrets
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import Job, Worker
from glidemq_py.errors import SignalTimeout
from tests.inside import AsyncTransport, around, without_direct_connections

URL, NAME, FILE, CALL, WHEN = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
worker = Worker(NAME, connection=URL, concurrency=4, lock_duration=1_000, stalled_interval=1_000)
began = asyncio.Event()
calls = itertools.count(1)


async def counted(call: Any, *args: Any) -> Any:
    at = next(calls) if began.is_set() else -1
    if at == CALL and WHEN == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    reply = await call(*args)
    if at == CALL and WHEN == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    return reply


def effect(name: str) -> str:
    """Have an effect, which its text names."""
    text = f"{name}={secrets.token_hex(4)}"
    with FILE.open("a") as file:
        file.write(f"{text}\n")
    return text


async def charge() -> str:
    return effect("charge")


def mail() -> str:
    effect("try")
    if FILE.read_text().count("try") == 1:
        raise ValueError("the first mail fails")
    return effect("mail")


@worker.task
async def render(page: int) -> str:
    return effect(f"render{page}")


@worker.task(attempts=2)
async def order(job: Job, /) -> list[str]:
    began.set()
    charged = await job.run("charge", charge)
    await job.sleep("cooling off", 20)
    approved = (await job.wait_for_signal("approval", timeout=60_000)).data
    try:
        await job.wait_for_signal("never", timeout=20)
    except SignalTimeout:
        approved += " alone"
    pages = await job.gather([render.call(page) for page in range(2)])
    mailed = await job.run("mail", mail, attempts=3, backoff=1_000)
    return [charged, approved, *pages, mailed]


async def main():
    with pytest.MonkeyPatch.context() as patch:
        without_direct_connections(patch)
        around(patch, AsyncTransport, "call", counted)
        around(patch, AsyncTransport, "command", counted)
        async with worker:
            job = await worker.queue.get_job("order")
            assert job is not None
            await job.wait_until_finished(60_000)


if __name__ == "__main__":
    asyncio.run(main())
