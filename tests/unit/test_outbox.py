"""Deliveries of the outbox are bounded in calls and time."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from glidemq_py._core.calls import Call
from glidemq_py._core.keys import QueueKeys
from glidemq_py._features import outbox as module
from glidemq_py._features.outbox import Outbox, OutboxEntry, OutboxReply
from glidemq_py._job.link import QueueLink


class FakeTransport:
    """Replies to `outbox` with prepared replies, of which the last is repeated, and to other functions with True."""

    def __init__(self, *replies: OutboxReply) -> None:
        self.replies = list(replies)
        self.calls: list[str] = []

    async def call(self, call: Call[Any]) -> Any:
        self.calls.append(call.function)
        if call.function != "outbox":
            return True
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


def outbox_of(transport: FakeTransport) -> Outbox:
    return Outbox(QueueLink(transport=cast("Any", transport), keys=QueueKeys("glide", "q"), waiter=cast("Any", None)))


async def test_a_round_notifies_a_bounded_number_of_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NOTIFY_CALLS", 3)
    entry = OutboxEntry("1-1", "parents", {"to": "glide:{q}:"})
    transport = FakeTransport(OutboxReply(True, [entry]), OutboxReply(True, []))
    outbox = outbox_of(transport)
    assert await outbox.deliver() == 0
    assert transport.calls == ["outbox", *["notify_parents"] * 3, "outbox"]
    assert outbox.left


async def test_waiting_for_another_client_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(0, 1_000, 10))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(times)))
    monkeypatch.setattr(module, "_POLL_S", 0.0)
    transport = FakeTransport(OutboxReply(False, []))
    assert await outbox_of(transport).deliver(25.0) == 0
    assert transport.calls == ["outbox"] * 3


async def test_a_dead_letter_queue_is_listed_once() -> None:
    fields = {"to": "dead", "id": "1", "name": "a", "data": "1", "reason": "", "attempts": "1", "activation": "1"}
    entry = OutboxEntry("1-1", "dead", fields)
    reply, end = OutboxReply(True, [entry]), OutboxReply(True, [])
    transport: Any = FakeTransport(reply, end, reply, end)
    transport.server = object()
    outbox = outbox_of(transport)
    for _ in range(2):
        assert await outbox.deliver() == 1
    assert transport.calls == ["outbox", "add", "outbox", "register_queue", "outbox", "add", "outbox"]
