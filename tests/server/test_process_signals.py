"""SIGTERM and SIGINT belong to the process: several workers in one loop, in threads, and repeated signals."""

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import Job, Queue, graceful_shutdown
from glidemq_py._worker.shutdown import SignalFilter, on_termination
from tests.inside import shutdown
from tests.server.command import Command
from tests.server.worker_support import EventRecorder, WorkerFor, until, with_timeout

pytestmark = pytest.mark.slow

PROGRAM = """
import asyncio, logging, os, signal, sys, threading
from glidemq_py import Worker, graceful_shutdown

logging.basicConfig(level=logging.INFO, format="%(message)s")
NAMES = sys.argv[1:]
before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

def say(*words):  # in one write: `print` writes the line break on its own, and two threads would mix their lines
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

async def handle(job):
    say("began", job.id)
    while not os.path.exists("gate"):
        await asyncio.sleep(0.01)
    say("ended", job.id)

def worker(name, *connection):
    made = Worker(name, handle, *connection)
    made.on("closed", lambda: say("closed"))
    return made

async def report(made):
    while not made.is_running:
        await asyncio.sleep(0.01)
    say("ready")

async def run(*workers):
    await asyncio.gather(*(each.run() for each in workers))
"""
TWO = """
async def main():
    workers = [worker(name) for name in NAMES]
    await asyncio.gather(run(*workers), *map(report, workers))

asyncio.run(main())
now = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
print("handlers restored" if now == before else now)
"""
ONCE = "from glidemq_py._worker import shutdown\nshutdown.SAME_SIGNAL_S = 0\n"
"""Repetitions count, so the previous handlers are restored at once."""
CLEAN_UP = """
from glidemq_py._worker import shutdown
shutdown.SAME_SIGNAL_S = 60

async def main():
    workers = [worker(name) for name in NAMES]
    await asyncio.gather(run(*workers), *map(report, workers))
    say("cleaning up")
    while not os.path.exists("gate"):
        await asyncio.sleep(0.01)
    say("cleaned up")

asyncio.run(main())
"""
ONE_STARTS = """
async def main():
    ready, starting = worker(NAMES[0]), worker(NAMES[1], "valkey://127.0.0.1:1")
    await asyncio.gather(run(ready, starting), report(ready))

asyncio.run(main())
print("handlers restored")
"""
THREAD = """
def in_thread():
    async def main():
        made = worker(NAMES[0])
        await asyncio.gather(run(made), report(made))
    asyncio.run(main())

async def main():
    thread = threading.Thread(target=in_thread)
    thread.start()
    made = worker(NAMES[1])
    await asyncio.gather(run(made), report(made))
    await asyncio.to_thread(thread.join)

asyncio.run(main())
print("handlers restored")
"""

Start = Callable[..., Command]


@pytest.fixture
def repetitions_count(monkeypatch: pytest.MonkeyPatch):
    """No signal is a repetition, so the previous handlers are restored at once."""
    monkeypatch.setattr(shutdown, "SAME_SIGNAL_S", 0)


@pytest.fixture
def start(tmp_path: Path, url: str) -> Start:
    def begin(program: str, *names: str) -> Command:
        (tmp_path / "program.py").write_text(PROGRAM + program)
        return Command(tmp_path, "program", *names, env={"GLIDEMQ_URL": url})

    return begin


ALL_CLOSED = ["^closed$"] * 2


@pytest.mark.parametrize(
    ("program", "ready", "number", "printed"),
    [
        (ONCE + TWO, ["^ready$"] * 2, signal.SIGTERM, [*ALL_CLOSED, "handlers restored"]),
        (ONCE + TWO, ["^ready$"] * 2, signal.SIGINT, [*ALL_CLOSED, "handlers restored"]),
        (ONE_STARTS, ["^ready$", "retrying in"], signal.SIGTERM, ["handlers restored"]),
        (THREAD, ["^ready$"] * 2, signal.SIGTERM, ALL_CLOSED),
    ],
    ids=["two of a loop", "by SIGINT", "one that starts", "of two threads"],
)
async def test_one_signal_ends_all_workers(
    start: Start, queue_name: str, program: str, ready: list[str], number: signal.Signals, printed: list[str]
):
    with start(program, queue_name, f"{queue_name}-2") as command:
        for line, count in Counter(ready).items():
            await command.printed(line, count)
        command.signal(number)
        for line, count in Counter(printed).items():
            await command.printed(line, count)
        assert await command.ends() == 0


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
async def test_only_a_repeated_signal_does_not_interrupt_cleanup_after_run(
    start: Start, tmp_path: Path, queue_name: str, first: signal.Signals
):
    """Another one has its previous effect."""
    with start(CLEAN_UP, queue_name, f"{queue_name}-2") as command:
        await command.printed("^ready$", 2)
        command.signal(first)
        await command.printed("^cleaning up$")
        command.signal(signal.SIGTERM)
        if first == signal.SIGTERM:
            (tmp_path / "gate").touch()
            await command.printed("^cleaned up$")
        assert await command.ends() == (0 if first == signal.SIGTERM else -signal.SIGTERM)


async def test_second_signal_still_waits_for_running_jobs(start: Start, tmp_path: Path, queue: Queue, queue_name: str):
    with start(TWO, queue_name, f"{queue_name}-2") as command:
        await command.printed("^ready$", 2)
        job = await queue.add("n")
        await command.printed(f"^began {job.id}$")
        for _ in range(3):
            command.signal(signal.SIGTERM)
        await command.printed("^closed$")  # the idle worker; the busy one waits for its job
        (tmp_path / "gate").touch()
        await command.printed(f"^ended {job.id}$")
        await command.printed("^closed$", 2)
        assert await command.ends() == 0
    assert await job.get_state() == "completed"


async def test_another_signal_hurries_both(start: Start, url: str, queue_name: str):
    other = f"{queue_name}-2"
    async with Queue(queue_name, url) as first, Queue(other, url) as second:
        with start(TWO, queue_name, other) as command:
            jobs = [await first.add("n"), await second.add("n")]
            await command.printed("^ready$", 2)
            await command.printed("^began", 2)
            command.signal(signal.SIGTERM)
            await command.printed("^SIGTERM: closing .*; 1 job is running: 1 'n' \\(queue ", 2)
            command.signal(signal.SIGINT)
            await command.printed("^SIGINT: closing .* releasing 1 running job", 2)
            assert await command.ends() == 0
        assert [await job.get_state() == "waiting" for job in jobs] == [True, True]


async def test_a_worker_runs_in_a_thread_of_its_own(queue: Queue, worker_for: WorkerFor):
    done: Any = []
    before = signal.getsignal(signal.SIGTERM)

    def in_thread():
        async def handle(job: Job):
            done.append(job.id)
            closing.append(asyncio.ensure_future(worker.close()))

        closing: Any = []
        worker = worker_for(handle)
        asyncio.run(worker.run())

    thread = threading.Thread(target=in_thread)
    thread.start()
    job = await queue.add("n")
    await with_timeout(asyncio.to_thread(thread.join))
    assert done == [job.id]
    assert signal.getsignal(signal.SIGTERM) == before


async def test_run_and_graceful_shutdown_share_the_signals(
    worker_for: WorkerFor, url: str, queue_name: str, repetitions_count: None
):
    before = signal.getsignal(signal.SIGTERM)
    worker, queue = worker_for(lambda job: None), Queue(queue_name, url)
    recorded = EventRecorder(worker)
    async with graceful_shutdown(queue) as shutdown:
        running = asyncio.ensure_future(worker.run())
        await with_timeout(until(lambda: worker.is_running))
        os.kill(os.getpid(), signal.SIGTERM)
        await with_timeout(shutdown.wait())
        await with_timeout(running)
    assert recorded.count["closed"] == 1
    assert signal.getsignal(signal.SIGTERM) == before


# -- without a server -----------------------------------------------------------------------------------------


def test_the_same_signal_within_a_second_counts_once():
    now = 0.0
    seen = SignalFilter(lambda: now)
    assert [seen.accepts(signal.SIGTERM), seen.accepts(signal.SIGTERM), seen.accepts(signal.SIGINT)] == [
        True,
        False,
        True,
    ]
    now = 0.9
    assert not seen.accepts(signal.SIGTERM)
    now = 1.1
    assert seen.accepts(signal.SIGTERM)


async def test_the_previous_handler_is_restored_when_the_last_leaves(repetitions_count: None):
    received: list[str] = []
    previous = signal.signal(signal.SIGTERM, lambda *_: received.append("previous"))
    mine = signal.getsignal(signal.SIGTERM)
    recorded = asyncio.Event()

    def second(_: signal.Signals):
        received.append("second")
        recorded.set()

    try:
        with on_termination(lambda number: received.append("first")):
            with on_termination(second):
                signal.raise_signal(signal.SIGTERM)
                await with_timeout(recorded.wait())
            assert signal.getsignal(signal.SIGTERM) is not mine
        assert signal.getsignal(signal.SIGTERM) is mine
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert received == ["first", "second", "previous"]


async def test_a_handler_that_was_installed_meanwhile_stays():
    previous = signal.getsignal(signal.SIGTERM)

    def theirs(*_: object): ...

    try:
        with on_termination(lambda number: None):
            signal.signal(signal.SIGTERM, theirs)
        assert signal.getsignal(signal.SIGTERM) is theirs
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_a_loop_that_was_abandoned_does_not_keep_the_signals(repetitions_count: None):
    before = signal.getsignal(signal.SIGTERM)
    received: list[str] = []
    first = asyncio.new_event_loop()

    async def enter():
        registration = on_termination(lambda number: received.append("first"))
        registration.__enter__()
        return registration

    async def use():
        recorded = asyncio.Event()

        def second(_: signal.Signals):
            received.append("second")
            recorded.set()

        with on_termination(second):
            signal.raise_signal(signal.SIGTERM)
            await with_timeout(recorded.wait())

    kept = first.run_until_complete(enter())
    first.close()
    asyncio.run(use())
    kept.__exit__(None, None, None)
    assert received == ["second"]
    assert shutdown._process_signals._members == []
    assert signal.getsignal(signal.SIGTERM) in (before, signal.SIG_DFL)
