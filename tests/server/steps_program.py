"""A worker that is killed at one of its calls: `start` is the whole life of its process.

The handler of its job has steps of each kind; each effect is a line of a file.
"""

import asyncio
import itertools
import os
import secrets
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import Job, Task, Worker
from glidemq_py.errors import SignalTimeout
from tests.inside import AsyncTransport, around, without_direct_connections

began = asyncio.Event()
file: Path
render: Task[Any, Any]


def start(url: str, name: str, effects: Path, call: int, when: str, task: Callable[..., Any]):
    """Run a worker until the job whose id is the name of the task has ended.

    Args:
        url: The server.
        name: The queue.
        effects: The file of the effects.
        call: Number of the server call at which the process is killed, since the handler first began; 0 = never.
        when: ``before`` (the call is not made) or ``after`` (the reply has not arrived).
        task: The handler of the job.
    """
    global file
    file = effects
    asyncio.run(_main(Worker(name, connection=url, concurrency=4, lock_duration=1_000, stalled_interval=1_000),
                      call, when, task))  # fmt: skip


async def _main(worker: Worker, killed: int, when: str, task: Callable[..., Any]):
    global render
    render = worker.task(render_page)
    worker.task(attempts=2)(task)
    calls = itertools.count(1)

    async def counted(call: Any, *args: Any) -> Any:
        at = next(calls) if began.is_set() else -1
        if at == killed and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        reply = await call(*args)
        if at == killed and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return reply

    with pytest.MonkeyPatch.context() as patch:
        without_direct_connections(patch)
        around(patch, AsyncTransport, "call", counted)
        around(patch, AsyncTransport, "command", counted)
        async with worker:
            job = await worker.queue.get_job(task.__name__)
            assert job is not None
            await job.wait_until_finished(60_000)


def effect(name: str) -> str:
    """Have an effect, which its text names."""
    text = f"{name}={secrets.token_hex(4)}"
    with file.open("a") as opened:
        opened.write(f"{text}\n")
    return text


async def charge() -> str:
    return effect("charge")


def mail() -> str:
    effect("try")
    if file.read_text().count("try") == 1:
        raise ValueError("the first mail fails")
    return effect("mail")


async def render_page(page: int) -> str:
    return effect(f"render{page}")


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
