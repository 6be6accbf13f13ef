"""A worker in a separate process, to be killed, frozen and continued; and the program that it runs.

The child prints one line per event: `ready`, `began ID`, `cancelled ID`, `ended ID`, `stale ID`. It reads lines from
its standard input: `go` opens the gate at which its handlers wait.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class WorkerProcess:
    """The parent's handle of a child worker. Created by `worker_process`."""

    def __init__(self, process: asyncio.subprocess.Process):
        self._process, self.pid = process, process.pid
        self._seen: list[str] = []

    async def line(self, start: str) -> str:
        """Return the rest of the next line with this prefix; other lines are kept in `printed`."""
        assert self._process.stdout is not None
        async with asyncio.timeout(120):
            while True:
                raw = await self._process.stdout.readline()
                if not raw:
                    raise AssertionError(f"the child ended before it said {start!r}; it said {self._seen}")
                line = raw.decode().strip()
                self._seen.append(line)
                if line.startswith(start):
                    return line.removeprefix(start).strip()

    @property
    def printed(self) -> list[str]:
        return self._seen

    def go(self):
        """Open the gate."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")

    def send(self, number: signal.Signals):
        self._process.send_signal(number)

    async def ended(self) -> int:
        """Wait for the process to end and return its exit status."""
        return await self._process.wait()

    async def kill(self):
        self._process.kill()
        await self._process.wait()


@contextlib.asynccontextmanager
async def worker_process(mode: str, url: str, queue: str, **options: Any) -> AsyncIterator[WorkerProcess]:
    """Run a child worker. Modes: `wait` (async handlers wait at the gate), `block` (the handler blocks the event loop
    until the gate opens), `thread` (a plain handler waits until its job is cancelled)."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, mode, url, queue, json.dumps(options),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    child = WorkerProcess(process)
    try:
        await child.line("ready")
        yield child
    finally:
        if process.returncode is None:
            process.kill()  # also ends a frozen process
        await process.wait()
        close_pipes(process)


def close_pipes(process: Any):
    """Close the pipes of a child that has ended, before the loop is closed."""
    process._transport.close()


def say(*words: object):
    """Print a whole line atomically, because threads print too."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def main(mode: str, url: str, queue: str, options: Any):
    from glidemq_py import Job, Worker
    from glidemq_py.errors import StaleAttemptError

    gate = asyncio.Event()

    async def wait(job: Job) -> str:
        say("began", job.id)
        if mode == "block":
            sys.stdin.readline()
        elif mode == "wait":
            try:
                await gate.wait()
            except asyncio.CancelledError:
                say("cancelled", job.id)
                raise
        return "child"

    def wait_in_thread(job: Job) -> str:
        say("began", job.id)
        job.cancelled.wait(60)
        say("cancelled", job.id)
        return "child"

    worker = Worker(queue, wait_in_thread if mode == "thread" else wait, url, **options)
    worker.on("completed", lambda job, result: say("ended", job.id))
    worker.on("error", lambda error: say("stale", error.job_id) if isinstance(error, StaleAttemptError) else None)
    await worker.start()
    say("ready")
    if mode != "block":
        await asyncio.to_thread(sys.stdin.readline)
        gate.set()
    await worker.wait_until_closed()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])))
