"""The look at all partitions before a queue counts as drained, without a server."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from glidemq_py._core.keys import QueueKeys
from glidemq_py._worker import wake_channel
from glidemq_py._worker.drain_probe import DrainProbe
from glidemq_py._worker.slot_pool import QueueOfEngines
from glidemq_py._worker.wake_channel import with_ready_jobs


class Cluster:
    """Two nodes: one has a job in a stream, the other does not reply."""

    is_cluster = True

    def __init__(self, stream: str) -> None:
        self.stream = stream

    async def command(self, *args: str) -> Any:
        if "silent" in args[-2]:
            await asyncio.Event().wait()
        return {self.stream.encode(): {}} if self.stream in args else None


def sleeper(name: str, transport: Cluster) -> Any:
    return SimpleNamespace(keys=QueueKeys("glide", name), transport=transport, position="0", found=lambda: None)


async def test_a_node_that_does_not_reply_hides_no_jobs_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake_channel, "_READY_S", 0.05)
    cluster = Cluster(QueueKeys("glide", "busy").stream)
    silent, busy, empty = (sleeper(name, cluster) for name in ("silent", "busy", "empty"))
    assert await asyncio.wait_for(with_ready_jobs([silent, busy, empty]), 10) == [busy]


async def test_a_closed_probe_does_not_hold_the_event_back() -> None:
    events: list[str] = []
    engine: Any = SimpleNamespace(is_quiet=True, drained_is_wanted=lambda: True)
    queue = QueueOfEngines([engine])
    probe = DrainProbe(queue, "q", lambda: events.append("drained"))
    probe.add(sleeper("silent", Cluster("")))
    queue.was_busy = True
    assert not queue.take_drained()
    await asyncio.sleep(0)
    await probe.close()
    assert events == ["drained"]
    queue.was_busy, queue.rounds = True, queue.rounds + 1
    assert queue.take_drained()
    assert not [task for task in asyncio.all_tasks() if "drained" in task.get_name()]
