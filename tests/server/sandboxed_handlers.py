"""Handlers that run in sandboxes: imported by child processes, never by the tests."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from os import _exit
from typing import Any

from glidemq_py import DelayedError, Job, Message, RateLimitError, UnrecoverableError, current_job
from glidemq_py.errors import SuspendError


class OwnError(ValueError):
    """Known nowhere else."""


class OwnFinalError(UnrecoverableError):
    """A kind of one of the package's."""


class OwnDelay(DelayedError):  # noqa: N818
    """A kind of signal."""


def plain(job: Job):
    assert threading.current_thread() is threading.main_thread()
    return DEEDS[job.name](job)


async def on_loop(job: Job):
    if job.name == "advance":
        await job.update_progress(1)
        return None
    if job.name == "log":
        await job.log("from the loop")
        await asyncio.gather(*(job.log(f"line {n}") for n in range(3)))
        await job.update_progress({"done": 1})
        await job.update_data({"new": True})
        await job.report_tokens(7)
        return [job.data, await job.get_state()]
    if job.name == "sleep":
        try:
            await asyncio.sleep(3600)
        finally:
            write(job.data, "cleaned up\n")
    if job.name == "durable":
        number = await job.run("step", write_line, job.data)
        await job.sleep("pause", 20)
        if not job.attempts_made:
            raise ValueError("again")
        return number
    if job.name == "signal":
        return (await job.wait_for_signal("go")).data
    return DEEDS[job.name](job)


def write_line(path: str) -> int:
    """Append a line to a file; return the number of its lines."""
    with open(path, "a+") as file:
        file.write("line\n")
        file.seek(0)
        return len(file.readlines())


async def of_queue(job: Job) -> list[Any]:
    await job.log("ran")
    return [job.queue_name, os.getpid(), await job.get_state()]


def message(given: Message):
    given.blocking.update_progress(50)
    return [type(given).__name__, given.subject, given.data]


async def async_message(given: Message):
    await given.update_progress(50)
    return [type(given).__name__, given.subject, given.data]


def abort(job: Job):
    os.abort()


def reloaded(job: Job):
    job.blocking.reload()
    return [job.delay, job.scheduled_for is None]


def suspends(job: Job):
    job.suspend(on_resume=lambda _: None)


def raises_suspend(job: Job):
    raise SuspendError(on_resume=lambda _: None)


def crash(given: Message):
    if given.subject == "exit":
        _exit(given.data)


def write(path: str, text: str):
    with open(path, "a") as file:
        file.write(text)


def echo(job: Job):
    return {"data": job.data, "pid": os.getpid(), "id": job.id, "attempts": job.attempts_made, "opts": dict(job.opts)}


def log(job: Job):
    job.blocking.log("one")
    job.blocking.update_progress(30)
    job.blocking.update_data({"new": True})
    job.blocking.report_tokens(5)
    current = current_job()
    print("said by a handler", file=sys.stderr)
    return [job.data, job.blocking.get_state(), current is job, job.context]


def parent(job: Job):
    if job.data is None:
        while not job.blocking.get_open_children():
            time.sleep(0.01)
        job.blocking.move_to_waiting_children(data={"step": "sum"})
    return [job.data, list(job.blocking.get_children_values().values())]


def use(job: Job):
    assert job.blocking.report_usage(model="m", tokens={"in": 3, "out": 4}).total_tokens == 7
    job.blocking.stream({"token": "a"})
    return "used"


def die(job: Job):
    if job.data == "exit":
        _exit(7)
    if job.data == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    ctypes.string_at(0)
    return


def die_behind_a_daemon(job: Job):
    daemon = os.fork()
    if daemon == 0:
        os.setsid()
        time.sleep(600)
        _exit(0)
    with open(job.data, "a") as file:
        file.write(f"{daemon}\n")
    _exit(9)


def hang(job: Job):
    with open(job.data, "a") as file:
        file.write(f"{os.getpid()}\n")
    while True:
        time.sleep(0.01)


def hang_with_child(job: Job):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        with open(job.data, "a") as file:
            file.write(f"{process.pid}\n")
        process.wait()


def look(job: Job) -> str:
    with open(job.data, "a") as file:
        file.write(f"{os.getpid()}\n")
    return "cancelled" if job.cancelled.wait(60) else "never"


def fail(job: Job):
    kind = job.data
    if kind == "own":
        raise OwnError("my own")
    if kind == "final":
        raise OwnFinalError("no more")
    if kind == "unrecoverable":
        raise UnrecoverableError("plainly no more")
    if kind == "path":
        raise FileNotFoundError(f"no file {os.path.join(os.getcwd(), 'x.csv')}")
    if kind == "exit":
        sys.exit(3)
    if kind == "keys":
        return dict[str, str]()["absent"]
    if kind == "result":
        return object()
    if kind == "awaitable":
        return asyncio.sleep(0)
    raise ExceptionGroup("several", [ValueError("a"), TypeError("b")])


def steps(job: Job):
    if job.data is None:
        job.move_to_delayed(5, data={"step": "second", "at": [1, 2]})
    return job.data


def next_steps(job: Job):
    if job.step is None:
        job.move_to_delayed(5, next_step="second")
    return [job.step, job.blocking.step, job.data]


def own_delay(job: Job):
    if job.data is None:
        raise OwnDelay(5, data="moved", replace=True)
    return job.data


def limited(job: Job):
    if job.progress == 0:
        job.blocking.update_progress(1)
        raise RateLimitError(5)
    return job.attempts_made


def discard(job: Job):
    job.discard()
    raise OSError("and never again")


def eat(job: Job):
    return len(bytearray(job.data))


DEEDS = {
    deed.__name__: deed
    for deed in (
        echo, log, parent, use, die, die_behind_a_daemon, hang, hang_with_child, look, fail, steps, next_steps,
        own_delay, limited, discard, eat,
    )
}  # fmt: skip

not_a_function = 5


def log_without_await(job: Job) -> str:
    _ = job.log("lost")
    return "done"
