"""Commands that wait for a server that does not reply."""

import asyncio
import gc
import time
from types import SimpleNamespace
from typing import Any

import pytest

from glidemq_py._client.failures import Reachability
from glidemq_py.gateway import deadlines as module
from glidemq_py.gateway.deadlines import Deadlines
from glidemq_py.gateway.figures import SharedRead
from glidemq_py.gateway.table import CommandError

LIMIT_S = 0.05


@pytest.fixture
def server() -> Reachability:
    return Reachability("db:6379")


@pytest.fixture
async def deadlines(server: Reachability, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "_TICK_S", 0.005)
    monkeypatch.setattr("glidemq_py._client.failures._PROBLEM_AFTER_S", 0.0)
    config = SimpleNamespace(request_timeout=LIMIT_S * 1_000)
    transport: Any = SimpleNamespace(interruptions=SimpleNamespace(server=server), config=config)
    found = Deadlines()
    watching = asyncio.create_task(found.watch(transport))
    yield found
    watching.cancel()
    await asyncio.wait((watching,))


async def command(deadlines: Deadlines, ran_s: float, work: Any) -> Any:
    """Execute a command that has run for some time."""
    task = asyncio.current_task()
    deadlines.running[task] = time.perf_counter() - ran_s, "Obliterate", {}
    try:
        return await work
    except asyncio.CancelledError:
        error = deadlines.error_of("Obliterate", changes_nothing=False)
        if error is None:
            raise
        raise error from None
    finally:
        deadlines.running.pop(task, None)


async def test_long_command_survives_a_short_outage() -> None:
    deadlines, done = Deadlines(), asyncio.Event()
    running = asyncio.create_task(command(deadlines, 60.0, done.wait()))
    await asyncio.sleep(0)
    deadlines._end_overdue(30.0, 0.3)
    assert not deadlines.has_ended(running)
    done.set()
    assert await running is True


async def test_command_ends_when_the_server_was_silent_for_the_request_timeout(
    deadlines: Deadlines, server: Reachability
) -> None:
    running = asyncio.create_task(command(deadlines, 0.0, asyncio.Event().wait()))
    server.failed(0.0, LIMIT_S, lambda: None)
    async with asyncio.timeout(60):
        with pytest.raises(CommandError, match="server db:6379 does not reply; Obliterate may have been executed"):
            await running


async def test_command_that_ends_although_it_was_cancelled_is_forgotten(
    deadlines: Deadlines, server: Reachability
) -> None:
    async def ends() -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.Event().wait()

    server.failed(LIMIT_S, LIMIT_S, lambda: None)
    running = asyncio.create_task(command(deadlines, LIMIT_S, ends()))
    async with asyncio.timeout(60):
        await running
    assert deadlines.has_ended(running)
    del running
    await asyncio.sleep(0)  # the event loop still refers to it
    gc.collect()
    assert not deadlines._ended


# -- reads that concurrent callers share -----------------------------------------------------------


class Source:
    """Reads that end when the test says so."""

    def __init__(self) -> None:
        self.began = 0
        self.running = 0
        self.gates: list[asyncio.Event] = []
        self.changed = asyncio.Event()

    async def read(self) -> int:
        assert self.running == 0
        self.began += 1
        self.running += 1
        number, gate = self.began, asyncio.Event()
        self.gates.append(gate)
        self.changed.set()
        try:
            await gate.wait()
        finally:
            self.running -= 1
        return number

    async def begun(self, count: int) -> None:
        async with asyncio.timeout(10):
            while self.began < count:
                self.changed.clear()
                await self.changed.wait()


async def test_callers_share_the_read_that_begins_after_their_request() -> None:
    source = Source()
    shared = SharedRead(source.read)
    first = asyncio.create_task(shared.get())
    await source.begun(1)
    later = [asyncio.create_task(shared.get()) for _ in range(5)]
    await asyncio.sleep(0)
    source.gates[0].set()
    assert await first == 1
    await source.begun(2)
    source.gates[1].set()
    assert await asyncio.gather(*later) == [2] * 5
    assert source.began == 2
    await shared.close()


async def test_error_reaches_all_callers_and_the_next_read_begins_anew() -> None:
    failing = [ValueError("no")]

    async def read() -> int:
        if failing:
            raise failing.pop()
        return 7

    shared = SharedRead(read)
    results = await asyncio.gather(shared.get(), shared.get(), return_exceptions=True)
    assert [type(each) for each in results] == [ValueError] * 2
    assert await shared.get() == 7
    await shared.close()


async def test_caller_that_leaves_does_not_end_the_read() -> None:
    source = Source()
    shared = SharedRead(source.read)
    leaving, staying = (asyncio.create_task(shared.get()) for _ in range(2))
    await source.begun(1)
    leaving.cancel()
    source.gates[0].set()
    assert await staying == 1
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await shared.close()


async def test_long_reads_leave_time_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def sleeping(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds
        await sleep(0)

    async def read() -> None:
        now[0] += 0.1

    monkeypatch.setattr("glidemq_py.gateway.figures.time.monotonic", lambda: now[0])
    monkeypatch.setattr("glidemq_py.gateway.figures.asyncio.sleep", sleeping)
    shared = SharedRead(read)
    for _ in range(3):
        await shared.get()
    assert pauses == pytest.approx([0.0, 0.4, 0.4])
    await shared.close()


async def test_close_ends_the_read() -> None:
    source = Source()
    shared = SharedRead(source.read)
    caller = asyncio.create_task(shared.get())
    await source.begun(1)
    await shared.close()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert source.running == 0
