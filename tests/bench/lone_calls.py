"""Adds one by one, with and without spinning for replies: ``python -m tests.bench.lone_calls [--write PAGE]``.

A lone call mostly waits for sleeping processes to wake up, so its time depends on where the kernel places them and on
what else the machine does. Each line is such a situation; in each, the ways to call take turns. A busy poll that does
not pay must switch itself off: adds are never slower than with ``busy_poll=False``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import os
import platform
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from glidemq_py import ConnectionOptions, Queue, sync
from glidemq_py.testing import ServerProcess, server_binary

DATA: Final = {"payload": "x" * 180}
POLLS: Final = "busy poll"
SLEEPS: Final = "no busy poll"
WAYS: Final = {POLLS: "", SLEEPS: "busy_poll=false", "GLIDE": "direct=false", "blocking": ""}
"""Options of the connection, by the way to call."""
LEAST: Final = 0.95
"""Least ratio of the rates with and without busy polling: pairs of equal runs differ by so much."""
QUOTA: Final = 0.4
"""Of a core, for the server and for the client, on the slowed machine."""
_CGROUPS: Final = Path("/sys/fs/cgroup/cpu")
HEADING: Final = "## Lone calls"


@dataclass(frozen=True, slots=True)
class Situation:
    """Where the processes run.

    Attributes:
        label: Its description.
        enter: Context manager around a run, which gets the ids of the processes of server and client.
    """

    label: str
    enter: Callable[[int, int], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def free(_: int, __: int) -> Generator[None]:
    """Let the kernel place the processes."""
    yield


def pinned(*cpus: int) -> Callable[[int, int], contextlib.AbstractContextManager[None]]:
    """Pin server and client to these processors."""

    @contextlib.contextmanager
    def enter(server: int, client: int) -> Generator[None]:
        for process, cpu in zip((server, client), cpus, strict=True):
            _pin(process, {cpu})
        try:
            yield
        finally:
            _pin(server, set(range(os.cpu_count() or 1)))

    return enter


def _pin(process: int, cpus: set[int]) -> None:
    for task in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            os.sched_setaffinity(int(task.name), cpus)


@contextlib.contextmanager
def crowded(_: int, __: int) -> Generator[None]:
    """Run a busy process per processor beside them."""
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for each in spinners:
            each.kill()
            each.wait()


@contextlib.contextmanager
def slowed(server: int, client: int) -> Generator[None]:
    """Give each of them a share of a core. Raises OSError where control groups (version 1) cannot be made."""
    made: list[Path] = []
    try:
        for process in (server, client):
            folder = _CGROUPS / f"bench-{secrets.token_hex(4)}"
            folder.mkdir()
            made.append(folder)
            (folder / "cpu.cfs_period_us").write_text("5000")
            (folder / "cpu.cfs_quota_us").write_text(str(int(5_000 * QUOTA)))
            (folder / "cgroup.procs").write_text(str(process))
        yield
    finally:
        (_CGROUPS / "cgroup.procs").write_text(str(server))
        for folder in made:
            for _ in range(100):
                with contextlib.suppress(OSError):  # until its process has ended
                    folder.rmdir()
                    break
                time.sleep(0.01)


SITUATIONS: Final = (
    Situation("placed freely", free),
    Situation("server and client on one processor", pinned(0, 0)),
    Situation("on a processor each", pinned(0, 1)),
    Situation("beside a busy process per processor", crowded),
    Situation(f"slowed: {QUOTA:.0%} of a core each (control group)", slowed),
)


# -- the client ----------------------------------------------------------------------------------------------


async def adds(url: str, seconds: float) -> float:
    """Return the adds per second."""
    async with Queue("bench", ConnectionOptions.from_url(url)) as queue:
        for _ in range(200):
            await queue.add("bench", DATA)
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(20):
                await queue.add("bench", DATA)
            count += 20
        return count / (time.perf_counter() - began)


def blocking_adds(url: str, seconds: float) -> float:
    """Return the adds per second of the blocking API."""
    with sync.Queue("bench", ConnectionOptions.from_url(url)) as queue:
        for _ in range(200):
            queue.add("bench", DATA)
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(20):
                queue.add("bench", DATA)
            count += 20
        return count / (time.perf_counter() - began)


def client(way: str, url: str, seconds: float) -> None:
    """Wait for a line of input, and print the adds per second."""
    sys.stdin.readline()
    url = f"{url}?allow_no_aof=true&{WAYS[way]}".rstrip("&")
    rate = blocking_adds(url, seconds) if way.startswith("blocking") else asyncio.run(adds(url, seconds))
    sys.stdout.write(f"{rate}\n")


# -- the comparison ------------------------------------------------------------------------------------------


def run(server: ServerProcess, situation: Situation, way: str, seconds: float) -> float:
    """Return the adds per second of a way to call."""
    with server.client() as resp:
        resp.execute("FLUSHALL")
    words = [sys.executable, "-m", "tests.bench.lone_calls", "--client", way, "--url", server.url]
    words += ["--seconds", str(seconds)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process, situation.enter(server.child.pid, process.pid):
        out, _ = process.communicate("go\n", timeout=60)
    return float(out)


def compare(seconds: float, rounds: int) -> tuple[str, list[str]]:
    """Return the table, and the situations in which a busy poll makes adds slower."""
    lines = [
        "| situation | " + " | ".join(f"{way}, us" for way in WAYS) + " | rate with busy poll, of without |",
        "| --- |" + " ---: |" * (len(WAYS) + 1),
    ]
    slower: list[str] = []
    with ServerProcess(server_binary("valkey-9.1")) as server:
        for situation in SITUATIONS:
            try:
                found = [{way: run(server, situation, way, seconds) for way in WAYS} for _ in range(rounds)]
            except OSError as error:
                lines.append(f"| {situation.label} | not measured here: {error.strerror} |" + " |" * len(WAYS))
                continue
            times = [f"{1e6 / statistics.median(each[way] for each in found):,.0f}" for way in WAYS]
            ratio = statistics.median(each[POLLS] / each[SLEEPS] for each in found)
            slower += [f"{situation.label}: {ratio:.2f}"] if ratio < LEAST else []
            lines.append(f"| {situation.label} | {' | '.join(times)} | {ratio:.2f} x |")
            print(lines[-1], flush=True)
    return "\n".join(lines), slower


def section(table: str, rounds: int) -> str:
    """Return the section of the page."""
    date, cpus, python = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}", os.cpu_count(), platform.python_version()
    return f"""{HEADING}

`python -m tests.bench.lone_calls` on {date}; {cpus} CPUs, Python {python}. Microseconds of one `add`,
awaited before the next: medians of {rounds} runs, in turns. *Busy poll* is the default: the event loop spins for the
reply of a lone call while that makes calls faster, and never in a process that may use less than two processors. The
last column is the median of pairs; pairs of equal runs differ by about {1 - LEAST:.0%}.

{table}
"""


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("--client", choices=list(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace the section of this page")
    given = parser.parse_args()
    if given.client:
        client(given.client, given.url, given.seconds)
        return 0
    table, slower = compare(given.seconds, given.rounds)
    text = section(table, given.rounds)
    print(text)
    if given.write is not None:
        page = given.write.read_text(encoding="utf-8")
        before, _, after = page.partition(f"{HEADING}\n")
        _, heading, rest = after.partition("\n## ")
        given.write.write_text(f"{before.rstrip()}\n\n{text}{heading}{rest}", encoding="utf-8")
    for each in slower:
        print(f"slower with busy polling: {each}", file=sys.stderr)
    return bool(slower)


if __name__ == "__main__":
    sys.exit(main())
