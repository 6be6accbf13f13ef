"""The demo: every module of the Python standard library is parsed and measured, one job each.

    python examples/demo.py                    about two thousand jobs, two worker processes, a private Valkey
    python examples/demo.py --kill             the same, and one worker is killed (SIGKILL) half-way
    python examples/demo.py --source FOLDER    measure the .py files of some other folder

This process adds the jobs and draws; worker processes do the work. Some modules fail on their first attempt
(always the same ones) and are retried; files that are not valid Python fail permanently, with the reason. A
private Valkey is started; no process and no file of it remains.
"""

import argparse
import asyncio
import contextlib
import os
import platform
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from demo_parts.measure import measure_file, python_files, standard_library
from demo_parts.screen import Progress, duration, percentile, table

from glidemq_py import ConnectionOptions, Job, Queue, Worker
from glidemq_py._client.embedded import start_embedded

QUEUE = "demo-modules"
THREADS = 4  # per worker process: enough to run the next jobs while results are sent
UNLUCKY = 25  # one module in 25 fails on its first attempt
SHOWN = 5
REDRAW_S = 0.1

# -- the worker's side: what a service would hold -----------------------------------------------------------


def measure(job: Job) -> dict[str, Any]:
    """Handle a job: a plain function runs in a thread, and its return value is the job's result."""
    module = job.data["module"]
    if job.attempts_made == 0 and zlib.crc32(module.encode()) % UNLUCKY == 0:
        raise OSError(f"{module} is unlucky at its first attempt")
    return measure_file(Path(job.data["path"]), module)


async def work() -> None:
    """Run a worker of the server in GLIDEMQ_URL until the parent process closes the pipe or exits."""
    url = os.environ["GLIDEMQ_URL"]
    worker = Worker(
        QUEUE,
        measure,
        # The demo's server keeps nothing on disk.
        url if "?" in url else f"{url}?allow_no_aof=true",
        concurrency=THREADS,
        # Failures are expected here, and listed at the end. A service keeps this log.
        log_failures=False,
        # A file that is not Python is not retried.
        no_retry_on=(SyntaxError, UnicodeDecodeError, ValueError, RecursionError),
        # Jobs of a killed worker are recovered after two seconds (the default is 30).
        lock_duration=2_000,
        stalled_interval=1_000,
    )

    async def close_with_parent() -> None:
        parent = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(parent), sys.stdin)
        await parent.read()
        # If the parent was killed, its server is gone too.
        await worker.close(timeout=1_000)

    watching = asyncio.create_task(close_with_parent())
    await worker.run()
    watching.cancel()


# -- the producer's side ------------------------------------------------------------------------------------


@contextlib.contextmanager
def worker_processes(count: int, url: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start worker processes that end with the block, and with this process."""
    # Others can see a command line, but not the environment: the URL may have a password.
    command, environment = [sys.executable, __file__, "--work"], {**os.environ, "GLIDEMQ_URL": url}
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) for _ in range(count)]
    try:
        yield processes
    finally:
        for process in processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in processes:
            process.wait()


async def run(queue: Queue, folder: Path, files: list[Path], url: str, options: argparse.Namespace) -> None:
    """Add a job per file, show the progress, and report."""
    with worker_processes(options.processes, url) as processes:
        while len(await queue.get_workers()) < options.processes:  # their start is not part of the measured time
            await asyncio.sleep(0.02)
            check_alive(processes)
        started = time.monotonic()
        jobs = await queue.add_bulk(
            (
                "measure",
                {"module": str(path.relative_to(folder)), "path": str(path)},
                {"attempts": 3, "backoff": {"type": "exponential", "delay": 200, "jitter": 0.5}},
            )
            for path in files
        )
        added = time.monotonic() - started
        print(f"  {len(jobs):,} jobs added in {added * 1000:.0f} ms", flush=True)
        await watch(queue, len(jobs), processes, kill=options.kill)
        elapsed = time.monotonic() - started
    await report(queue, folder, elapsed, options)


def check_alive(processes: list[subprocess.Popen[bytes]]) -> None:
    """End the demo if no worker is left."""
    if all(process.poll() is not None for process in processes):
        sys.exit("every worker process has ended before its time")


async def watch(queue: Queue, total: int, processes: list[subprocess.Popen[bytes]], *, kill: bool) -> None:
    """Draw the progress until every job has completed or failed."""
    progress = Progress(total)
    while True:
        counts = await queue.get_job_counts()
        done = counts.completed + counts.failed
        if kill and done >= total // 2:
            kill = False
            processes[0].kill()
            print(f"\n  killed worker process {processes[0].pid}; its jobs are recovered in about two seconds")
        notes = f"waiting for a retry: {counts.delayed}  failed: {counts.failed}"
        progress.show(done, notes, last=done >= total)
        if done >= total:
            return
        check_alive(processes)
        await asyncio.sleep(REDRAW_S)


# -- the report: everything in it is read back from the queue -----------------------------------------------


async def report(queue: Queue, folder: Path, elapsed: float, options: argparse.Namespace) -> None:
    """Read every job back and print the results."""
    completed = [job async for job in queue.iter_jobs("completed")]
    failed = [job async for job in queue.iter_jobs("failed")]
    results = [(job.data["module"], job.returnvalue or {}) for job in completed]

    def top(measure: str, *columns: str) -> list[list[object]]:
        ordered = sorted(results, key=lambda row: (-row[1][measure], row[0]))[:SHOWN]
        return [[module, *(result[column] for column in columns)] for module, result in ordered]

    shown = ("lines", "functions", "classes")
    table("Largest modules", ["module", *shown], top("lines", *shown))
    table("Most complex functions", ["module", "function", "branches"], top("complexity", "most_complex", "complexity"))
    table("Slowest to measure", ["module", "CPU ms"], top("cpu_ms", "cpu_ms"))
    if failed:
        print(f"\nFailed for good: {len(failed)} files that are not Python {platform.python_version()}")
        for job in sorted(failed, key=lambda job: job.data["module"]):
            print(f"  {job.data['module']}\n    {job.failed_type}: {job.failed_reason}")

    jobs = len(completed) + len(failed)
    retried = [job for job in completed if job.attempts_made]
    recovered = sum(job.stalled_count for job in [*completed, *failed])
    in_all = [(job.finished_on or 0) - job.timestamp for job in completed]
    at_work = [(job.finished_on or 0) - (job.processed_on or 0) for job in completed]
    cpu_s = sum(result["cpu_ms"] for _, result in results) / 1000
    print(f"\n{sum(result['lines'] for _, result in results):,} lines of {folder}")
    print(f"  jobs                   {jobs:,} ({len(completed):,} completed, {len(failed):,} failed for good)")
    print(f"  retries                {sum(job.attempts_made for job in retried):,}, all successful")
    if options.kill:
        print(f"  recovered              {recovered:,} jobs of the killed worker")
    print(f"  jobs per second        {jobs / elapsed:,.0f}, in {elapsed:.1f} s")
    print(f"  add to completion      p50 {spread(in_all)}; all were added at once")
    print(f"  start to completion    p50 {spread(at_work)}")
    print(
        f"  spent on measuring     {cpu_s:.1f} CPU seconds, {cpu_s / elapsed / options.processes:.0%} of "
        f"{options.processes} processes' time"
    )


def spread(values: list[int]) -> str:
    """Return median and 99th percentile of milliseconds as text."""
    return f"{duration(percentile(values, 0.5))}, p99 {duration(percentile(values, 0.99))}"


async def main(options: argparse.Namespace) -> None:
    """Start a private Valkey (or use the given one), run the demo, and clean up."""
    folder = options.source.resolve()
    files = python_files(folder)
    if not files:
        sys.exit(f"there is no .py file in {folder}")
    with contextlib.ExitStack() as stack:
        url = options.url or stack.enter_context(start_embedded()).url
        async with Queue(QUEUE, url) as queue:
            print(f"{len(files):,} modules of {folder}")
            print(f"  {options.processes} worker processes on {ConnectionOptions.from_url(url)}", flush=True)
            await queue.obliterate(force=True)
            try:
                await run(queue, folder, files, url, options)
            finally:
                await queue.obliterate(force=True)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Parse every module of the standard library, one job each.")
    parser.add_argument("--processes", type=int, default=min(os.cpu_count() or 1, 4), help="worker processes")
    parser.add_argument("--source", type=Path, default=standard_library(), help="folder of .py files")
    parser.add_argument("--url", help="a Valkey of yours; by default a private one is started")
    parser.add_argument("--kill", action="store_true", help="kill one worker process half-way")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.processes < 1 + options.kill:
        parser.error("--processes must be at least 2 with --kill, and 1 without")
    return options


if __name__ == "__main__":
    given = arguments()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(work() if given.work else main(given))
