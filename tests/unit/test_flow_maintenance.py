"""Maintenance of flows over several queues: a queue that fails does not delay the others."""

import asyncio
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from glidemq_py import GlideMQConnectionError
from tests.inside import Call, QueueKeys, link_over, maintenance_outbox, opening, runtime


class FakeTransport:
    """Replies with prepared values by function name and key; an exception is raised."""

    def __init__(self, **replies: Any):
        self.replies = replies
        self.calls: list[tuple[str, str]] = []

    async def call(self, call: Call[Any]):
        self.calls.append((call.function, call.key))
        reply = self.replies[call.function]
        if callable(reply):
            reply = reply(call.key)
        if isinstance(reply, Exception):
            raise reply
        return reply


class FailingTask(runtime.PeriodicTask):
    """Fails at every run."""

    async def run_once(self) -> object:
        self._pause = 0.01
        raise GlideMQConnectionError("no reply")


async def test_failed_run_is_logged_with_the_time_until_the_next(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    pauses: list[float] = []

    async def sleep(seconds: float):
        pauses.append(seconds)
        if len(pauses) == 2:
            raise asyncio.CancelledError

    monkeypatch.setattr(runtime, "asyncio", SimpleNamespace(sleep=sleep))
    task = FailingTask("x", queue="q", what="repair ordering groups", every=30.0)
    with pytest.raises(asyncio.CancelledError):
        await task._repeat()
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"queue 'q': could not repair ordering groups: no reply; retried in {p:.1f} s" for p in pauses]


async def test_logged_pause_before_the_next_connection_is_the_actual_one(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    pauses: list[float] = []

    async def sleep(seconds: float):
        pauses.append(seconds)
        if len(pauses) == 8:
            raise asyncio.CancelledError

    async def fail(_connection: object, **_: object):
        raise GlideMQConnectionError("refused")

    monkeypatch.setattr(opening, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(opening, "open_transport", fail)
    arguments: Any = (None, QueueKeys("glide", "q"), AsyncExitStack(), SimpleNamespace(emit=lambda *_: None), None)
    with pytest.raises(asyncio.CancelledError):
        await opening.connect_patiently(*arguments)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"queue 'q': worker cannot start yet: refused; retrying in {p:.1f} s" for p in pauses]


async def test_invalid_prefix_in_the_index_of_remote_children_is_removed():
    transport = FakeTransport(
        remote_children=["no queue at all:", "glide:{a{b}:", "glide:{other}:"],
        notify_remote_parents=SimpleNamespace(notified=0, cursor="", left=1),
    )
    task = maintenance_outbox.RemoteFlows(link=link_over(transport, serializer=None), outbox_pending=lambda: None)
    await task.run_once()
    assert [key for _, key in transport.calls] == ["glide:{q}:meta", "glide:{q}:meta", "glide:{other}:meta"]
    assert task._empty == ["no queue at all:", "glide:{a{b}:"]


async def test_children_in_a_queue_that_fails_do_not_delay_those_of_other_queues():
    def outcomes(key: str):
        if key == "glide:{down}:meta":
            return GlideMQConnectionError("the shard is down")
        return SimpleNamespace(outbox_pending=False, rows=[("completed", "1", "")])

    watched = SimpleNamespace(rows=[("7", ["glide:{down}:1", "glide:{up}:2"])], more=0, peers=0, batches=0)
    transport = FakeTransport(
        sweep_parents=False, watch_children=watched, child_outcomes=outcomes,
        children_ended=0,
    )  # fmt: skip
    await maintenance_outbox.WaitingParentsTask(
        link=link_over(transport, serializer=None), outbox_pending=lambda: None
    ).run_once()
    assert transport.calls[-1][0] == "children_ended"
