"""Closing several components together: on a signal, on request, at the end of the block, or never."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from glidemq_py import graceful_shutdown
from glidemq_py._worker import shutdown as shutdown_module


class Part:
    """Counts its closings; each raises ``error`` if it is set."""

    def __init__(self, error: Exception | None = None) -> None:
        self.closings: list[bool] = []
        self._error = error
        self.called = asyncio.Event()

    async def close(self, *, force: bool = False) -> None:
        self.closings.append(force)
        self.called.set()
        if self._error is not None:
            raise self._error


class Slow(Part):
    """Closes when it is forced to."""

    def __init__(self) -> None:
        super().__init__()
        self._forced = asyncio.Event()

    async def close(self, *, force: bool = False) -> None:
        await super().close(force=force)
        if force:
            self._forced.set()
        await self._forced.wait()


async def test_failing_close_does_not_prevent_the_others(caplog: pytest.LogCaptureFixture) -> None:
    broken, sound = Part(OSError("no")), Part()
    async with graceful_shutdown(broken, sound) as shutdown:
        await shutdown.shutdown()
        await shutdown.wait()
    assert (broken.closings, sound.closings) == ([False], [False])
    assert "no" in caplog.text


async def test_the_end_of_the_block_closes() -> None:
    part = Part()
    async with graceful_shutdown(part):
        assert part.closings == []
    assert part.closings == [False]


async def test_dispose_ends_waits_without_closing() -> None:
    part, before = Part(), signal.getsignal(signal.SIGTERM)
    async with graceful_shutdown(part) as shutdown, asyncio.timeout(120):
        assert signal.getsignal(signal.SIGTERM) != before
        waiting = asyncio.ensure_future(shutdown.wait())
        shutdown.dispose()
        await waiting
        assert signal.getsignal(signal.SIGTERM) == before
    assert part.closings == []


async def test_a_signal_closes_and_a_second_one_hurries() -> None:
    slow, quick = Slow(), Part()
    async with graceful_shutdown(slow, quick) as shutdown, asyncio.timeout(120):
        os.kill(os.getpid(), signal.SIGTERM)
        await quick.called.wait()
        assert slow.closings == [False]
        os.kill(os.getpid(), signal.SIGINT)
        await shutdown.wait()
    assert slow.closings == [False, True]


async def test_previous_handler_is_restored_when_repetitions_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def ended_by_a_signal() -> None:
    async with graceful_shutdown(Part()) as shutdown, asyncio.timeout(120):
        os.kill(os.getpid(), signal.SIGTERM)
        await shutdown.wait()


@pytest.mark.parametrize("runs", [1, 3])
def test_signal_after_the_loop_has_its_previous_effect(monkeypatch: pytest.MonkeyPatch, runs: int) -> None:
    def run() -> None:
        monkeypatch.setattr(shutdown_module, "SAME_SIGNAL_S", 600.0)
        for _ in range(runs):
            asyncio.run(ended_by_a_signal())
            os.kill(os.getpid(), signal.SIGTERM)  # a repetition
        monkeypatch.setattr(shutdown_module, "SAME_SIGNAL_S", 0.0)
        os.kill(os.getpid(), signal.SIGTERM)

    received, handler = received_by(run)
    assert received == [signal.SIGTERM]
    assert not isinstance(handler, shutdown_module._RepetitionsIgnored)
