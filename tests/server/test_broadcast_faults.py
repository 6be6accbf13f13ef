"""Broadcasts where replies are lost, workers hang, and peers of another library share a subscription."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from glidemq_py import Broadcast, BroadcastWorker, Message, Queue, RateLimitError
from glidemq_py.testing import RespClient
from tests.contract.test_broadcast import QUICK, Seen, working
from tests.server.lossy_proxy import LossyProxy
from tests.server.worker_support import Gate, Raw, until, with_timeout
from tests.wire_library.support import WireQueue, load


@pytest.fixture
def proxy(server: Any) -> Iterator[LossyProxy]:
    with LossyProxy(server.url) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
async def clean(url: str, queue_name: str) -> AsyncIterator[None]:
    """After the fault, the queue is consistent again."""
    yield
    async with Queue(queue_name, url) as queue:
        assert (await queue.check(recheck_after=50)).findings == ()


async def test_messages_of_a_lost_reply_are_reattached_immediately(url: str, queue_name: str, proxy: LossyProxy):
    seen = Seen()
    async with Broadcast(queue_name, url) as broadcast:
        worker = BroadcastWorker(queue_name, seen, proxy.url, subscription="s", concurrency=10, subjects=["a.*"])
        async with working(worker) as log:
            await broadcast.pause()
            ids = await broadcast.publish_bulk([("a.x", n) for n in range(5)] + [("b", n) for n in range(5)])
            proxy.lose("broadcast_exchange")
            await broadcast.resume()
            assert await asyncio.to_thread(proxy.wait_lost, 1)
            await log.wait("completed", 5)
        assert Counter(seen.ids) == Counter(ids[:5])
        assert {message.stalled_count for message in seen.messages} == {0}
        (subscription,) = await broadcast.get_subscriptions()
        assert (subscription.waiting, subscription.active, subscription.released) == (0, 0, 0)


@pytest.mark.parametrize("end", ["completed", "failed", "retrying"])
async def test_an_outcome_whose_reply_was_lost_counts_once(
    url: str, resp: RespClient, queue_name: str, proxy: LossyProxy, end: str
):
    gate = Gate()

    async def handle(message: Message):
        if message.attempts_made:
            return "second"
        await gate(message)
        if end != "completed":
            raise ValueError(end)
        return "first"

    async with Broadcast(queue_name, url) as broadcast:
        worker = BroadcastWorker(queue_name, handle, proxy.url, subscription="s", concurrency=2)
        async with working(worker) as log:
            message_id = await broadcast.publish("n", attempts=2 if end == "retrying" else 1) or ""
            await gate.next()
            proxy.lose("broadcast_exchange")
            gate.open()
            assert await asyncio.to_thread(proxy.wait_lost, 1)
            await log.wait(end)
            if end == "retrying":
                await log.wait("completed")
            assert log.count[end] == 1
        raw = Raw(resp, queue_name)
        assert raw.event_names(message_id).count(end) == 1
        assert raw.metric("completed") + raw.metric("failed") == 1


@pytest.mark.slow
async def test_many_lost_replies_and_several_workers(url: str, queue_name: str, proxy: LossyProxy):
    """Every message ends exactly once per subscription, although replies are lost."""
    ends: Counter[tuple[str, str]] = Counter()

    async def handle(message: Message):
        await asyncio.sleep(0)
        if message.data % 5 == 0 and not message.attempts_made:
            raise ValueError("once")
        return message.data

    workers = [
        BroadcastWorker(queue_name, handle, proxy.url, subscription=name, concurrency=10, start_from="0-0")
        for name in ("one", "one", "two")
    ]
    for worker in workers:
        worker.on("completed", lambda message, _, of=worker.subscription: ends.update([(of, message.id)]))
    async with Broadcast(queue_name, url) as broadcast, workers[0], workers[1], workers[2]:
        ids: Any = []
        for n in range(8):
            proxy.lose("broadcast_exchange")
            ids += await broadcast.publish_bulk([("a", n * 50 + i, {"attempts": 3}) for i in range(50)])
            await asyncio.to_thread(proxy.wait_lost, n + 1)
        await with_timeout(until(lambda: len(ends) == 2 * len(ids)))
        assert ends == Counter({(name, each): 1 for name in ("one", "two") for each in ids})
        for subscription in await broadcast.get_subscriptions():
            assert (subscription.waiting, subscription.active, subscription.released) == (0, 0, 0)


@pytest.mark.slow
async def test_a_long_handler_keeps_its_message(url: str, queue_name: str):
    """Heartbeats continue while the loop is blocked, so no other worker gets the message."""
    other = Seen()

    def block(_: Message) -> str:
        time.sleep(2.5)
        return "done"

    async with Broadcast(queue_name, url) as broadcast:
        slow = BroadcastWorker(queue_name, block, url, subscription="s", **QUICK)
        async with working(slow) as log:
            await broadcast.publish("a")
            await log.wait("active")
            async with BroadcastWorker(queue_name, other, url, subscription="s", **QUICK):
                await log.wait("completed")
        assert (other.ids, log.count["stalled"]) == ([], 0)


async def test_a_rate_limit_error_costs_no_attempt(url: str, queue_name: str):
    """W21: the second one would be the end of a message with two attempts."""
    attempts: list[int] = []

    async def handle(message: Message):
        attempts.append(message.attempts_made)
        if len(attempts) < 4:
            raise RateLimitError(10)

    async with Broadcast(queue_name, url) as broadcast:
        async with working(BroadcastWorker(queue_name, handle, url, subscription="s")) as log:
            await broadcast.publish("a", attempts=2)
            await log.wait("completed")
        assert (attempts, log.count["failed"]) == ([0, 0, 0, 0], 0)


@pytest.mark.slow
async def test_workers_start_and_stop_during_delivery(url: str, queue_name: str):
    """Workers are closed by force again and again: no active message is lost or ends twice, and no outcome is reported
    after the close, which waits for a pending reply.
    """
    ends: Counter[str] = Counter()
    late: list[BaseException] = []
    chance = random.Random(5)

    async def handle(message: Message):
        await asyncio.sleep(chance.random() / 500)
        if message.data % 7 == 0 and not message.attempts_made:
            raise ValueError("once")
        if message.data % 11 == 0 and message.id not in put_off:
            put_off.add(message.id)
            message.move_to_delayed(5)

    async def begin(concurrency: int) -> BroadcastWorker:
        worker = BroadcastWorker(queue_name, handle, url, subscription="s", concurrency=concurrency, start_from="0-0")
        worker.on("completed", lambda message, _: ends.update([message.id]))
        worker.on("error", late.append)
        await worker.start()
        return worker

    put_off: set[str] = set()
    ids: Any = []
    async with Broadcast(queue_name, url) as broadcast:
        workers = [await begin(10), await begin(1)]
        for n in range(20):
            ids += await broadcast.publish_bulk([("a", i, {"attempts": 3, "backoff": 3}) for i in range(100)])
            await workers[n % 2].close(force=True)
            workers[n % 2] = await begin((10, 1)[n % 2])
        await with_timeout(until(lambda: len(ends) == len(ids)))
        for worker in workers:
            await worker.close()
        assert ends == Counter(ids)
        assert late == []


# -- beside peers ------------------------------------------------------------------------------------------------


@pytest.fixture
def peer(resp: RespClient, queue_name: str) -> WireQueue:
    """A worker of another library, at our own time."""
    load(resp)
    peer = WireQueue(resp, queue_name)
    peer.now = int(time.time() * 1000)
    return peer


async def test_message_failed_by_a_node_worker_is_retried_here(url: str, queue_name: str, peer: WireQueue):
    seen = Seen()
    message_id = peer.add(name="a.b", attempts=3)
    ((entry, fields),) = peer.read(group="s")
    assert fields["jobId"] == message_id
    assert isinstance(peer.activate(message_id, entry, group="s", broadcast=1), dict)
    assert peer.fail(message_id, entry, limit=3, broadcast=1, group="s") == "retrying"
    async with working(BroadcastWorker(queue_name, seen, url, subscription="s")) as log:
        await log.wait("completed")
    assert [(message.id, message.attempts_made) for message in seen.messages] == [(message_id, 1)]


async def test_message_failed_here_is_retried_by_a_node_worker(url: str, queue_name: str, peer: WireQueue):
    async def fail(_: Message):
        raise ValueError("ours")

    async with Broadcast(queue_name, url) as broadcast:
        await broadcast.subscribe("other")
        async with working(BroadcastWorker(queue_name, fail, url, subscription="s")) as log:
            message_id = await broadcast.publish("a", attempts=2, backoff=500) or ""
            await log.wait("retrying")
        peer.now += 60_000
        assert peer.promote() == 1
        ((entry, fields),) = peer.read(group="s")
        assert (fields["jobId"], fields["retryGroup"]) == (message_id, "s")
        assert isinstance(peer.activate(message_id, entry, group="s", broadcast=1), dict)
        assert peer.fail(message_id, entry, limit=2, broadcast=1, group="s") == "failed"
        # Another subscription of ours gets the message once, regardless of the state that a peer wrote to its record.
        seen = Seen()
        async with working(BroadcastWorker(queue_name, seen, url, subscription="other")) as log:
            await log.wait("completed")
        assert seen.ids == [message_id]


@pytest.mark.slow
async def test_live_node_worker_keeps_its_messages(url: str, resp: RespClient, queue_name: str, peer: WireQueue):
    """It does not refresh its entries. Once it is gone, they come to us."""
    seen, raw = Seen(), Raw(resp, queue_name)
    message_id = peer.add(name="a")
    consumer = "worker-1-abc"
    peer.read(group="s", consumer=consumer)
    raw.run("SET", f"w:{consumer}", "{}", "PX", 60_000)
    async with working(BroadcastWorker(queue_name, seen, url, subscription="s", **QUICK)) as log:
        before = int(resp.execute("TIME")[0])
        await with_timeout(until(lambda: int(resp.execute("TIME")[0]) > before + 3))
        assert seen.ids == []
        raw.run("DEL", f"w:{consumer}")
        await log.wait("completed")
    assert seen.ids == [message_id]
