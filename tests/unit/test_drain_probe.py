"""The look at all partitions before a queue counts as drained, without a server."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from glidemq_py._worker.drain_probe import DrainProbe
from tests.inside import QueueKeys, QueueOfEngines, wake_channel


class Cluster:
    """Two nodes: one has a job in a stream, the other does not reply."""

    is_cluster = True

    def __init__(self, stream: str):
        self.stream = stream

    async def command(self, *args: str):
        if "silent" in args[-2]:
            await asyncio.Event().wait()
        return {self.stream.encode(): {}} if self.stream in args else None


def sleeper(name: str, transport: Cluster):
    return SimpleNamespace(keys=QueueKeys("glide", name), transport=transport, position="0", found=lambda: None)


async def test_a_node_that_does_not_reply_hides_no_jobs_of_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wake_channel, "_READY_S", 0.05)
    cluster = Cluster(QueueKeys("glide", "busy").stream)
    silent, busy, empty = (sleeper(name, cluster) for name in ("silent", "busy", "empty"))
    assert await asyncio.wait_for(wake_channel.with_ready_jobs([silent, busy, empty]), 10) == [busy]


async def test_a_closed_probe_does_not_hold_the_event_back():
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
