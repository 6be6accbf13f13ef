"""Closing several components together: on a signal, on request, at the end of the block, or never."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from glidemq_py import graceful_shutdown
from tests.inside import shutdown as shutdown_module


class Part:
    """Counts its closings; each raises ``error`` if it is set."""

    def __init__(self, error: Exception | None = None):
        self.closings: list[bool] = []
        self._error = error
        self.called = asyncio.Event()

    async def close(self, *, force: bool = False):
        self.closings.append(force)
        self.called.set()
        if self._error is not None:
            raise self._error


class Slow(Part):
    """Closes when it is forced to."""

    def __init__(self):
        super().__init__()
        self._forced = asyncio.Event()

    async def close(self, *, force: bool = False):
        await super().close(force=force)
        if force:
            self._forced.set()
        await self._forced.wait()


async def test_failing_close_does_not_prevent_the_others(caplog: pytest.LogCaptureFixture):
    broken, sound = Part(OSError("no")), Part()
    async with graceful_shutdown(broken, sound) as shutdown:
        await shutdown.shutdown()
        await shutdown.wait()
    assert (broken.closings, sound.closings) == ([False], [False])
    assert "no" in caplog.text


async def test_the_end_of_the_block_closes():
    part = Part()
    async with graceful_shutdown(part):
        assert part.closings == []
    assert part.closings == [False]


async def test_dispose_ends_waits_without_closing():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # an earlier test's ignores repetitions for a while
    part, before = Part(), signal.getsignal(signal.SIGTERM)
    async with graceful_shutdown(part) as shutdown, asyncio.timeout(120):
        assert signal.getsignal(signal.SIGTERM) != before
        waiting = asyncio.ensure_future(shutdown.wait())
        shutdown.dispose()
        await waiting
        assert signal.getsignal(signal.SIGTERM) == before
    assert part.closings == []


async def test_a_signal_closes_and_a_second_one_hurries():
    slow, quick = Slow(), Part()
    async with graceful_shutdown(slow, quick) as shutdown, asyncio.timeout(120):
        os.kill(os.getpid(), signal.SIGTERM)
        await quick.called.wait()
        assert slow.closings == [False]
        os.kill(os.getpid(), signal.SIGINT)
        await shutdown.wait()
    assert slow.closings == [False, True]


class Busy:
    """A worker with running jobs, in the form that the log of running jobs reads."""

    def __init__(self, *names: str):
        self._runs: Any = [
            SimpleNamespace(
                job=SimpleNamespace(id=str(number), name=name, queue_name="q"),
                attempt=SimpleNamespace(ended=name == "late"),
            )
            for number, name in enumerate(names, 1)
        ]


def running(*workers: Busy) -> shutdown_module.RunningJobsLog:
    return shutdown_module.RunningJobsLog(workers, logging.getLogger(__name__))


async def test_running_jobs_are_described():
    assert str(running(Busy())) == "no job is running"
    assert str(running(Busy("a"))) == "1 job is running: 1 'a' (queue 'q')"
    assert str(running(Busy("late"), Busy(*"abcdef"))) == (
        "7 jobs are running: 1 'late' (queue 'q', attempt ended), 1 'a' (queue 'q'), 2 'b' (queue 'q'), "
        "3 'c' (queue 'q'), 4 'd' (queue 'q'), 2 more"
    )


async def test_running_jobs_are_logged_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(shutdown_module, "REMINDER_S", 0.01)
    caplog.set_level(logging.INFO)
    busy = Busy("a")
    log = running(busy)
    log.start()
    try:
        async with asyncio.timeout(120):
            while len(caplog.messages) < 2:  # noqa: ASYNC110  there is no event for it
                await asyncio.sleep(0.01)
    finally:
        log.stop()
    assert set(caplog.messages) == {"still closing; 1 job is running: 1 'a' (queue 'q')"}


async def test_previous_handler_is_restored_when_repetitions_are_over(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutdown_module, "SAME_SIGNAL_S", 0.01)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        await ended_by_a_signal()
        await asyncio.sleep(0.02)  # the loop runs timers in order, so ours has run
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def received_by(run: Callable[[], object]) -> tuple[list[int], Any]:
    """Return the SIGTERMs that the previous handler receives during ``run``, and the handler after it."""
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        run()
        return received, signal.getsignal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


async def ended_by_a_signal():
    async with graceful_shutdown(Part()) as shutdown, asyncio.timeout(120):
        os.kill(os.getpid(), signal.SIGTERM)
        await shutdown.wait()


@pytest.mark.parametrize("runs", [1, 3])
def test_signal_after_the_loop_has_its_previous_effect(monkeypatch: pytest.MonkeyPatch, runs: int):
    def run():
        monkeypatch.setattr(shutdown_module, "SAME_SIGNAL_S", 600.0)
        for _ in range(runs):
            asyncio.run(ended_by_a_signal())
            os.kill(os.getpid(), signal.SIGTERM)  # a repetition
        monkeypatch.setattr(shutdown_module, "SAME_SIGNAL_S", 0.0)
        os.kill(os.getpid(), signal.SIGTERM)

    received, handler = received_by(run)
    assert received == [signal.SIGTERM]
    assert not isinstance(handler, shutdown_module._RepetitionsIgnored)
