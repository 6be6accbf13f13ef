"""Deliveries of the outbox are bounded in calls and time."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.inside import Call, link_over
from tests.inside import outbox as features_outbox


class FakeTransport:
    """Replies to `outbox` with prepared replies, of which the last is repeated, and to other functions with True."""

    def __init__(self, *replies: features_outbox.OutboxReply):
        self.replies = list(replies)
        self.calls: list[str] = []

    async def call(self, call: Call[Any]):
        self.calls.append(call.function)
        if call.function != "outbox":
            return True
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


def outbox_of(transport: FakeTransport) -> features_outbox.Outbox:
    return features_outbox.Outbox(link_over(transport))


async def test_a_round_notifies_a_bounded_number_of_parents(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(features_outbox, "_NOTIFY_CALLS", 3)
    entry = features_outbox.OutboxEntry("1-1", "parents", {"to": "glide:{q}:"})
    transport = FakeTransport(features_outbox.OutboxReply(True, [entry]), features_outbox.OutboxReply(True, []))
    outbox = outbox_of(transport)
    assert await outbox.deliver() == 0
    assert transport.calls == ["outbox", *["notify_parents"] * 3, "outbox"]
    assert outbox.left


async def test_waiting_for_another_client_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch):
    times = iter(range(0, 1_000, 10))
    monkeypatch.setattr(features_outbox, "time", SimpleNamespace(monotonic=lambda: next(times)))
    monkeypatch.setattr(features_outbox, "_POLL_S", 0.0)
    transport = FakeTransport(features_outbox.OutboxReply(False, []))
    assert await outbox_of(transport).deliver(25.0) == 0
    assert transport.calls == ["outbox"] * 3


async def test_a_dead_letter_queue_is_listed_once():
    fields = {"to": "dead", "id": "1", "name": "a", "data": "1", "reason": "", "attempts": "1", "activation": "1"}
    entry = features_outbox.OutboxEntry("1-1", "dead", fields)
    reply, end = features_outbox.OutboxReply(True, [entry]), features_outbox.OutboxReply(True, [])
    transport: Any = FakeTransport(reply, end, reply, end)
    transport.glide = SimpleNamespace(server=object())
    outbox = outbox_of(transport)
    for _ in range(2):
        assert await outbox.deliver() == 1
    assert transport.calls == ["outbox", "add", "outbox", "register_queue", "outbox", "add", "outbox"]
