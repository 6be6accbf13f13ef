"""Test the registration of wake-up channels: by exchange, and removed by pushes of both libraries."""

import pytest

from glidemq_py.testing import RespClient
from tests.inside import FindingKind, WakeChannel, working
from tests.lua.check_support import assert_repairs
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


def test_idle_exchange_registers_its_channel(own: OwnQueue):
    assert wait(own).jobs == []
    assert channels(own) == ["glidemq_py:wake:test:1"]
    assert own.redis("HGET", "meta", "wakeChannels") == "2"


def test_channel_of_a_killed_worker_expires(own: OwnQueue):
    """No push removes it from a queue that gets no more jobs."""
    wait(own)
    own.redis("PERSIST", "wake-channels")
    wait(own)
    assert 364 * 86_400 < own.redis("TTL", "wake-channels") <= 366 * 86_400, "longer than a clock is ahead"


def test_each_push_removes_the_channel_that_was_registered_last(own: OwnQueue):
    for number in (1, 2, 3):
        wait(own, f"glidemq_py:wake:test:{number}")
        own.advance(1)
    own.add_job()
    assert channels(own) == ["glidemq_py:wake:test:1", "glidemq_py:wake:test:2"]
    own.add_job(priority=3)
    assert channels(own) == ["glidemq_py:wake:test:1"]
    own.add_job(lifo=True)
    assert channels(own) == []


def test_push_to_an_empty_set_deletes_the_field(own: OwnQueue):
    wait(own)
    own.add_job()
    assert own.redis("HGET", "meta", "wakeChannels") == "2"
    own.add_job()
    assert own.redis("HGET", "meta", "wakeChannels") is None


def test_worker_that_cannot_fetch_passes_the_wake_up_on(own: OwnQueue):
    wait(own)
    assert own.fcall("pass_wake_up", own.meta) == 1
    assert channels(own) == []


def test_pushes_of_the_wire_library_wake_too(wire: WireQueue, own: OwnQueue):
    wait(own)
    wire.add()
    assert channels(own) == []


def test_channels_of_dead_processes_are_skipped_on_one_server(own: OwnQueue):
    for number in range(12):
        channel = WakeChannel(f"glidemq_py:wake:dead:{number}", False)
        own.run(working.exchange(own.meta, "py-1", 1, (), False, False, channel=channel))
    own.add_job()
    assert len(channels(own)) == 4


def test_at_most_a_thousand_channels_are_kept(own: OwnQueue):
    for number in range(1_005):
        own.redis("ZADD", "wake-channels", number, f"dead{number}")
    wait(own)
    assert own.redis("ZCARD", "wake-channels") == 1_005
    assert "dead0" not in channels(own)


def test_key_of_a_foreign_type_does_not_stop_an_add(own: OwnQueue):
    wait(own)
    own.redis("DEL", "wake-channels")
    own.redis("SET", "wake-channels", "foreign")
    assert own.state(own.add_job()) == "waiting"
    assert wait(own, want=5).jobs != []
    own.redis("DEL", "wake-channels")


def test_check_finds_channels_that_no_push_looks_for(own: OwnQueue):
    wait(own)
    assert_repairs(own)
    own.redis("HDEL", "meta", "wakeChannels")
    assert_repairs(own, (FindingKind.COUNTER, "wake-channels"))
    own.add_job()
    assert channels(own) == []


def test_check_ignores_a_key_of_channels_of_a_foreign_type(own: OwnQueue):
    own.redis("SET", "wake-channels", "foreign")
    assert_repairs(own)
    own.redis("DEL", "wake-channels")


def test_only_a_worker_without_a_channel_waits_in_the_streams(own: OwnQueue):
    wait(own)
    assert own.redis("EXISTS", "wake") == 0
    own.exchange(1)
    assert [group[1] for group in own.redis_groups("wake")] == ["wakers"]
