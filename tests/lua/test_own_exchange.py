"""Test the fetch half of exchange: order, rejections, promotion, pause, and wake-ups of idle workers."""

from tests.inside import row
from tests.lua.own_support import OwnQueue


def test_rejections_are_bounded_per_call(q: OwnQueue):
    q.add(*[row("a", "", "{}") for _ in range(250)], quiet=True)
    for i in range(1, 250):
        q.redis("DEL", f"job:{i}")
    reply = q.exchange(1)
    assert reply.jobs == []
    assert not reply.flags  # more may be ready: come again
    dropped = len(reply.dropped)
    assert 100 <= dropped <= 110
    while not reply.jobs:
        reply = q.exchange(1)
        dropped += len(reply.dropped)
    assert (reply.jobs[0][0], dropped) == ("250", 249)
