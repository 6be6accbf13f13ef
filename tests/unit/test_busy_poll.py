"""The event loop that spins before it parks: how long, for which replies, and when it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from glidemq_py._client import replies
from glidemq_py._client.replies import LONGEST, BusyPoll


class SteppedLoop:
    """The parts of an event loop that the poll uses: the time, set by the test, and callbacks."""

    def __init__(self) -> None:
        self.now = 0.0
        self.posted: list[Callable[[], Any]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], Any]) -> None:
        self.posted.append(callback)

    def turn(self) -> bool:
        """Run the posted callbacks; return True if there were any."""
        due, self.posted = self.posted, []
        for callback in due:
            callback()
        return bool(due)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> SteppedLoop:
    stepped = SteppedLoop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: stepped)
    monkeypatch.setattr(replies, "_processors", lambda: 2)
    return stepped


def call(poll: BusyPoll, loop: SteppedLoop, takes: float) -> int:
    """Return the number of loop iterations that spun while a call waited for its reply for `seconds`."""
    poll.begin()
    turns, end = 0, loop.now + takes
    while loop.now < end and loop.turn():
        turns += 1
        loop.now += LONGEST / 10
    loop.now = max(loop.now, end)
    poll.end()
    loop.turn()
    assert not loop.posted
    return turns


def test_spins_until_the_reply_arrives(loop: SteppedLoop) -> None:
    poll = BusyPoll()
    assert [call(poll, loop, LONGEST / 2) for _ in range(3)] == [5, 5, 5]


def test_never_longer_than_the_limit(loop: SteppedLoop) -> None:
    assert call(BusyPoll(), loop, LONGEST * 100) <= 11


def test_late_replies_reduce_spinning_and_a_fast_one_restores_it(loop: SteppedLoop) -> None:
    poll = BusyPoll()
    awake = [bool(call(poll, loop, LONGEST * 3)) for _ in range(2_000)]
    tried = [number for number, was in enumerate(awake) if was]
    assert tried[:5] == [0, 2, 5, 10, 19]
    assert len(tried) <= 11
    while not call(poll, loop, LONGEST / 2):
        pass
    assert all(call(poll, loop, LONGEST / 2) for _ in range(5))


def test_no_spinning_on_one_processor(loop: SteppedLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "_processors", lambda: 1)
    assert call(BusyPoll(), loop, LONGEST / 2) == 0


async def test_other_work_of_the_loop_continues() -> None:
    poll, seen = BusyPoll(), list[int]()

    async def work() -> None:
        for number in range(100):
            seen.append(number)
            await asyncio.sleep(0)

    poll.begin()
    await work()
    poll.end()
    assert seen == list(range(100))


def test_no_spinning_if_disabled(loop: SteppedLoop) -> None:
    assert call(BusyPoll(wanted=False), loop, LONGEST / 2) == 0
