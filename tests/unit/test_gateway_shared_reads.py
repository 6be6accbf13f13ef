"""Reads that concurrent callers share."""

import asyncio

import pytest

from glidemq_py.gateway.shared_reads import SharedRead


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

    monkeypatch.setattr("glidemq_py.gateway.shared_reads.time.monotonic", lambda: now[0])
    monkeypatch.setattr("glidemq_py.gateway.shared_reads.asyncio.sleep", sleeping)
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
