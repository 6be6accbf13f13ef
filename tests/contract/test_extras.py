"""Serializers, and waits while the time is frozen."""

import asyncio
import time

import pytest

from tests.contract.api import Queue


@pytest.mark.exclude("blocking", reason="it has no event loop, whose clock stays")
async def test_waits_end_while_the_time_is_frozen(queue: Queue, monkeypatch: pytest.MonkeyPatch):
    """As by freezegun with ``real_asyncio=True``, which leaves the clock of the event loop alone."""
    monkeypatch.setattr(asyncio.get_running_loop(), "time", time.monotonic)
    monkeypatch.setattr(time, "monotonic", lambda: 1.0)
    async with asyncio.timeout(60):
        assert await queue.fetch(wait=100) == []
        job = await queue.add("n", 5, delay=100)
        (lease,) = await queue.fetch(wait=10_000)
        await lease.complete(6)
        assert await job.wait_until_finished() == 6
