"""Test the registration of wake-up channels: by exchange, and removed by pushes of both libraries."""

import pytest

from glidemq_py.testing import RespClient
from tests.inside import WakeChannel, working
from tests.lua.own_support import OwnQueue
from tests.wire_library.support import WireQueue


@pytest.fixture(name="own")
def own_fixture(core_resp: RespClient, wire: WireQueue) -> OwnQueue:
    """Our variant on the queue of `wire`."""
    return OwnQueue(core_resp, wire.name)


def wait(q: OwnQueue, name: str = "glidemq_py:wake:test:1", want: int = 1) -> working.ExchangeReply:
    # In a cluster the server does not know the subscribers of other nodes: no channel is skipped.
    channel = WakeChannel(name, True)
    reply: working.ExchangeReply = q.run(working.exchange(q.meta, "py-1", want, (), False, False, channel=channel))
    return reply


def channels(q: OwnQueue) -> list[str]:
    return list(q.redis("ZRANGE", "wake-channels", 0, -1))


def test_pushes_of_the_wire_library_wake_too(wire: WireQueue, own: OwnQueue):
    wait(own)
    wire.add()
    assert channels(own) == []
