"""The event loop that spins before it parks: how long, for which replies, and when it stops."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.inside import busy_poll


class SteppedLoop:
    """The parts of an event loop that the poll uses: the time, set by the test, and callbacks."""

    def __init__(self):
        self.now = 0.0
        self.posted: list[Callable[[], Any]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], Any]):
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
    monkeypatch.setattr(busy_poll, "_processors", lambda: 2)
    return stepped


def call(poll: busy_poll.BusyPoll, loop: SteppedLoop, takes: float, asleep: float | None = None) -> int:
    """Make a call; return the number of loop iterations that spun while it waited for its reply.

    Args:
        poll: the poll.
        loop: its event loop.
        takes: time of the call, seconds.
        asleep: time of the call without spinning; None: the same.
    """
    poll.begin()
    if asleep is not None and not loop.posted:
        takes = asleep
    turns, end = 0, loop.now + takes
    while loop.now < end and loop.turn():
        turns += 1
        loop.now += busy_poll.LONGEST / 10
    loop.now = max(loop.now, end)
    poll.end()
    loop.turn()
    assert not loop.posted
    return turns


def test_spins_until_the_reply_arrives(loop: SteppedLoop):
    poll = busy_poll.BusyPoll()
    assert [call(poll, loop, busy_poll.LONGEST / 2) for _ in range(3)] == [5, 5, 5]


def test_never_longer_than_the_limit(loop: SteppedLoop):
    assert call(busy_poll.BusyPoll(), loop, busy_poll.LONGEST * 100) <= 11


def test_spins_while_that_makes_calls_faster(loop: SteppedLoop):
    poll = busy_poll.BusyPoll()
    assert sum(bool(call(poll, loop, busy_poll.LONGEST / 4, busy_poll.LONGEST / 2)) for _ in range(1_000)) >= 970


def test_stops_spinning_where_it_gains_nothing(loop: SteppedLoop):
    poll = busy_poll.BusyPoll()
    assert sum(bool(call(poll, loop, busy_poll.LONGEST / 4, busy_poll.LONGEST / 4)) for _ in range(3_000)) <= 100


def test_hardly_ever_spins_for_a_remote_server(loop: SteppedLoop):
    poll = busy_poll.BusyPoll()
    assert sum(bool(call(poll, loop, busy_poll.LONGEST * 3)) for _ in range(3_000)) <= 100


def test_follows_a_machine_that_changes(loop: SteppedLoop):
    poll = busy_poll.BusyPoll()
    for slow, share in ((busy_poll.LONGEST / 4, 0.0), (busy_poll.LONGEST, 1.0), (busy_poll.LONGEST / 4, 0.0)):
        for _ in range(10_000):
            call(poll, loop, busy_poll.LONGEST / 4, slow)
        spun = sum(bool(call(poll, loop, busy_poll.LONGEST / 4, slow)) for _ in range(1_000)) / 1_000
        assert abs(spun - share) < 0.02, slow


def test_another_call_does_not_count_as_a_reply(loop: SteppedLoop):
    poll = busy_poll.BusyPoll()
    for _ in range(100):
        poll.begin()
        loop.now += busy_poll.LONGEST
        poll.end(replied=False)
        loop.turn()
        loop.turn()
    choice: Any = poll._choice
    assert choice._polled == choice._asleep == 0.0


@pytest.mark.parametrize("processors", [1, 1.9])
def test_no_spinning_with_less_than_two_processors(
    loop: SteppedLoop, monkeypatch: pytest.MonkeyPatch, processors: float
):
    monkeypatch.setattr(busy_poll, "_processors", lambda: processors)
    assert call(busy_poll.BusyPoll(), loop, busy_poll.LONGEST / 2) == 0


def test_this_process_may_use_a_processor():
    assert 0 < busy_poll._processors() <= (os.cpu_count() or 1)


async def test_other_work_of_the_loop_continues():
    poll, seen = busy_poll.BusyPoll(), list[int]()

    async def work():
        for number in range(100):
            seen.append(number)
            await asyncio.sleep(0)

    poll.begin()
    await work()
    poll.end()
    assert seen == list(range(100))


def test_no_spinning_if_disabled(loop: SteppedLoop):
    assert call(busy_poll.BusyPoll(wanted=False), loop, busy_poll.LONGEST / 2) == 0
