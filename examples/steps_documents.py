"""Durable steps: a document is split once and its parts are counted, although the worker is killed meanwhile."""

import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path

from glidemq_py import Job, Queue, Worker
from glidemq_py.testing import ServerProcess, server_binary

TEXT = "To be, or not to be, that is the question. " * 100
PARTS = 4


def worker_of(name: str, url: str, notes: Path) -> Worker:
    """Return a worker; that with the name "one" is killed after it has split the document."""
    worker = Worker("documents", connection=url, concurrency=10, lock_duration=1_000, stalled_interval=1_000)

    def split(path: str) -> list[str]:
        print(f"worker {name}: split {Path(path).name}", flush=True)
        with notes.open("a") as file:
            file.write("split\n")
        words = Path(path).read_text().split()
        size = -(-len(words) // PARTS)
        return [" ".join(words[at : at + size]) for at in range(0, len(words), size)]

    @worker.task
    async def count(part: str) -> int:
        return len(part.split())

    @worker.task
    async def index(job: Job, /, path: str) -> str:
        parts = await job.run("split", split, path)
        if name == "one":
            print("worker one is killed", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        counts = await job.gather([count.call(part) for part in parts])
        return f"{sum(counts)} words in {len(parts)} parts"

    return worker


async def serve(name: str, url: str, notes: Path) -> None:
    async with worker_of(name, url, notes):
        await asyncio.Event().wait()


async def main(url: str, document: Path, notes: Path) -> None:
    async with Queue("documents", url) as queue:
        job = await queue.add("index", {"path": str(document)})
        process = await asyncio.create_subprocess_exec(sys.executable, __file__, "one", url, str(notes))
        await process.wait()
        async with worker_of("two", url, notes):
            print(await job.wait_until_finished())


def start() -> None:
    with tempfile.TemporaryDirectory() as folder, ServerProcess(server_binary("valkey-9.1")) as server:
        document, notes = Path(folder, "report.txt"), Path(folder, "notes.txt")
        document.write_text(TEXT)
        asyncio.run(main(f"{server.url}?allow_no_aof=true", document, notes))
        print("split ran once" if notes.read_text() == "split\n" else "split ran again")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(serve(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
    else:
        start()
