"""Profile our own code: ``python -m tests.bench.profiling drain|add|together|bulk|idle``.

Runs our driver in this process, on a private server, and prints jobs per second; CPU per job of the
server, of the main thread, and of every other thread (heartbeats, GLIDE's own); the server's costliest
commands; and a profile of the main thread: samples of its stack (default; adds next to no time) or cProfile
(``--how cprofile``; exact counts, but Python calls look dearer than they are). Standard library only.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import importlib
import os
import pstats
import signal
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.bench.peers import protocol
from tests.bench.server import BenchServer, running_server

INTERVAL_SECONDS = 0.001
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Sampler:
    """Samples the main thread's stack by a signal, once per tick of the process's CPU time.

    (A sampling thread would need the GIL and so would see the main thread almost only when that releases it.)
    Time in C is counted at the Python line that called it; CPU of other threads shows as `select`.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.own: Counter[str] = Counter()
        self.within: Counter[str] = Counter()
        self.lines: Counter[str] = Counter()

    def start(self) -> None:
        signal.signal(signal.SIGPROF, self._on_tick)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_SECONDS, INTERVAL_SECONDS)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _on_tick(self, number: int, frame: FrameType | None) -> None:
        if frame is not None:
            self._count(frame)

    def _count(self, innermost: FrameType) -> None:
        self.samples += 1
        self.own[_place(innermost.f_code)] += 1
        self.lines[f"{_place(innermost.f_code)} line {innermost.f_lineno}"] += 1
        seen: set[str] = set()
        frame: FrameType | None = innermost
        while frame is not None:
            seen.add(_place(frame.f_code))
            frame = frame.f_back
        self.within.update(seen)

    def report(self, rows: int) -> str:
        """Return three tables: a function's own time, its time with callees, and the time of single lines."""
        parts: list[str] = []
        tables = (("own", self.own), ("with callees", self.within), ("lines", self.lines))
        for title, table in tables:
            parts.append(f"\n{title} ({self.samples} samples)")
            for place, count in table.most_common(rows):
                parts.append(f"  {100 * count / max(1, self.samples):5.1f} %  {place}")
        return "\n".join(parts)


def _place(code: CodeType) -> str:
    path = Path(code.co_filename)
    return f"{'/'.join(path.parts[-3:])}:{code.co_firstlineno} {code.co_qualname}"


@contextmanager
def _profiled(how: str, rows: int) -> Generator[None]:
    if how == "none":
        yield
        return
    if how == "cprofile":
        profile = cProfile.Profile()
        profile.enable()
        try:
            yield
        finally:
            profile.disable()
            pstats.Stats(profile).strip_dirs().sort_stats("tottime").print_stats(rows)
        return
    sampler = Sampler()
    sampler.start()
    try:
        yield
    finally:
        sampler.stop()
        print(sampler.report(rows))


def _thread_cpu() -> dict[str, float]:
    """CPU seconds by thread name (Linux; empty elsewhere), in steps of the kernel's clock tick."""
    found: dict[str, float] = {}
    for task in Path("/proc/self/task").glob("*"):
        try:
            text = (task / "stat").read_text()
        except OSError:
            continue
        name = text[text.index("(") + 1 : text.rindex(")")]
        fields = text[text.rindex(")") + 2 :].split()
        main = task.name == str(os.getpid())
        key = "main" if main else name
        ticks = int(fields[11]) + int(fields[12])
        found[key] = found.get(key, 0.0) + ticks / TICKS_PER_SECOND
    return found


def _command_costs(server: BenchServer, jobs: int) -> Iterator[str]:
    """The server's commands by time: calls and microseconds per job (FCALL includes nested commands)."""
    costs: list[tuple[float, str]] = []
    for name, text in server.info("commandstats").items():
        facts = dict(pair.split("=") for pair in text.split(","))
        micros = float(facts["usec"]) / jobs
        costs.append((micros, f"  {micros:8.2f} µs/job {int(facts['calls']) / jobs:8.3f} calls/job  {name[8:]}"))
    for _, line in sorted(costs, reverse=True)[:14]:
        yield line


async def _work(what: str, url: str, options: argparse.Namespace) -> int:
    driver_of: Any = importlib.import_module("tests.bench.peers.glidemq").GlideMQ
    driver: Any = driver_of(url)
    try:
        if what == "drain":
            params = {"jobs": options.jobs, "concurrency": options.concurrency, "threads": options.threads}
            result = await protocol.drain(driver, params)
        elif what == "idle":
            listening = asyncio.create_task(protocol.listen(driver, {"jobs": 400, "concurrency": 10}))
            producer: Any = driver_of(url)
            await protocol.runtime(producer, {"jobs": 400, "gap": 8})
            result = {**await listening, "jobs": 400}
            await producer.close()
        else:
            how = {"add": "single", "together": "together", "bulk": "bulk"}[what]
            result = await protocol.add(driver, {"how": how, "seconds": options.seconds})
    finally:
        await driver.close()
    print(result if what == "idle" else f"{result['jobs'] / result['seconds']:,.0f} jobs/s")
    return int(result["jobs"])


async def _fill(url: str, jobs: int) -> None:
    driver: Any = importlib.import_module("tests.bench.peers.glidemq").GlideMQ(url)
    await protocol.fill(driver, {"jobs": jobs})
    await driver.close()


def main() -> None:
    """Run the profile given by the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.profiling", description=__doc__)
    parser.add_argument("what", choices=["drain", "add", "together", "bulk", "idle"])
    parser.add_argument("--how", choices=["sample", "cprofile", "none"], default="sample")
    parser.add_argument("--jobs", type=int, default=60_000, help="of drain (default 60000)")
    parser.add_argument("--concurrency", type=int, default=100, help="of drain (default 100)")
    parser.add_argument("--threads", action="store_true", help="drain with a plain def handler")
    parser.add_argument("--seconds", type=float, default=2.0, help="of the adds (default 2)")
    parser.add_argument("--uvloop", action="store_true")
    parser.add_argument("--rows", type=int, default=25)
    options = parser.parse_args()
    new_loop = importlib.import_module("uvloop").new_event_loop if options.uvloop else None
    with running_server() as server:
        if options.what == "drain":
            asyncio.run(_fill(server.url, options.jobs))
        server.call("CONFIG", "RESETSTAT")
        server_before, threads_before, wall_before = server.cpu_seconds(), _thread_cpu(), time.perf_counter()
        with asyncio.Runner(loop_factory=new_loop) as runner, _profiled(options.how, options.rows):
            jobs = runner.run(_work(options.what, server.url, options))
        wall, threads = time.perf_counter() - wall_before, _thread_cpu()
        print(f"\nCPU per job (warm-up and closing included, {wall:.2f} s in all)")
        print(f"  {(server.cpu_seconds() - server_before) / jobs * 1e6:8.2f} µs  server")
        for name, seconds in sorted(threads.items(), key=lambda item: -item[1]):
            used = seconds - threads_before.get(name, 0.0)
            if used > 0:
                print(f"  {used / jobs * 1e6:8.2f} µs  thread {name}")
        print("\nserver commands")
        print("\n".join(_command_costs(server, jobs)))


if __name__ == "__main__":
    main()
