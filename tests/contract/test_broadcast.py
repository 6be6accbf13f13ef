"""Broadcasts: each subscription gets its messages, independently of other subscriptions."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from glidemq_py import BroadcastWorker, ContextHeaders, GlideMQValidationError, JobStateError, Message, Middleware, sync
from glidemq_py.testing import RespClient
from tests.contract.api import Broadcast, Queue
from tests.contract.observe import Raw
from tests.key_leaks import KeyLeaks
from tests.server.worker_support import EventRecorder, Gate, until, with_timeout

pytestmark = pytest.mark.exclude("partitioned", reason="a broadcast has no partitions")

QUICK: Any = {"lock_duration": 1_000, "stalled_interval": 1_000}


class Seen:
    """A handler that records its messages; data of {"fail": n} fails n times."""

    def __init__(self):
        self.messages: list[Message] = []

    async def __call__(self, message: Message):
        self.messages.append(message)
        data = message.data
        if isinstance(data, dict) and message.attempts_made < data.get("fail", 0):
            raise ValueError("on purpose")
        return data

    @property
    def ids(self) -> list[str]:
        return [message.id for message in self.messages]


@contextlib.asynccontextmanager
async def working(worker: BroadcastWorker) -> AsyncIterator[EventRecorder]:
    """Run the worker and record its events from the start: waiting messages may complete immediately."""
    recorded = EventRecorder(worker)
    async with worker:
        yield recorded


async def test_every_subscription_gets_every_message_in_order(url: Any, queue_name: str):
    seen = [Seen(), Seen(), Seen()]
    async with Broadcast(queue_name, url) as broadcast:
        workers = [
            BroadcastWorker(queue_name, handler, url, subscription=f"s{n}", concurrency=(1, 1, 20)[n])
            for n, handler in enumerate(seen)
        ]
        async with workers[0], workers[1], workers[2]:
            recorded = [EventRecorder(worker) for worker in workers]
            ids = await broadcast.publish_bulk([(f"a.{n % 3}", n) for n in range(300)])
            ids += [await broadcast.publish("b", "last")]
            for each in recorded:
                await each.wait("completed", 301)
            assert seen[0].ids == seen[1].ids == ids
            assert Counter(seen[2].ids) == Counter(ids)
            assert [message.subject for message in seen[0].messages[:3]] == ["a.0", "a.1", "a.2"]
            for subscription in await broadcast.get_subscriptions():
                assert (subscription.waiting, subscription.active, subscription.released) == (0, 0, 0)
        assert {each.name for each in await broadcast.get_subscriptions()} == {"s0", "s1", "s2"}


async def test_unmatched_subjects_are_skipped(url: Any, queue_name: str):
    seen = Seen()
    async with Broadcast(queue_name, url) as broadcast:
        worker = BroadcastWorker(queue_name, seen, url, subscription="s", subjects=["orders.*.new", "x.>"])
        async with working(worker) as recorded:
            for subject in ("orders.eu.new", "orders.eu", "x", "other", "x.1.2", "orders.a.b.new"):
                await broadcast.publish(subject)
            await broadcast.publish_bulk([("noise", n) for n in range(2_500)])
            await broadcast.publish("x.end")
            await recorded.wait("completed", 3)
            assert [message.subject for message in seen.messages] == ["orders.eu.new", "x.1.2", "x.end"]
            (subscription,) = await broadcast.get_subscriptions()
            assert (subscription.waiting, subscription.active) == (0, 0)


async def test_start_from_of_a_late_subscription(url: Any, queue_name: str):
    old, new, after = Seen(), Seen(), Seen()
    async with Broadcast(queue_name, url) as broadcast:
        ids = [await broadcast.publish("a", n) for n in range(3)]
        first = BroadcastWorker(queue_name, old, url, subscription="old", start_from="0-0")
        second = BroadcastWorker(queue_name, new, url, subscription="new")
        async with working(first) as recorded, working(second) as recorded_new:
            await recorded.wait("completed", 3)
            ids.append(await broadcast.publish("a", 3))
            await recorded.wait("completed", 4)
            await recorded_new.wait("completed", 1)
        assert (old.ids, new.ids) == (ids, ids[3:])
        position = (await broadcast.get_subscriptions())[0].last_delivered
        ids.append(await broadcast.publish("a", 4))
        third = BroadcastWorker(queue_name, after, url, subscription="after", start_from=position)
        async with working(third) as recorded:
            await recorded.wait("completed", 1)
        assert after.ids == ids[4:]
        # It is durable: a worker of the same subscription continues there and ignores its own start position.
        again = BroadcastWorker(queue_name, old, url, subscription="old", start_from="0-0")
        async with working(again) as recorded:
            await recorded.wait("completed", 1)
        assert old.ids == ids


async def test_delayed_and_postponed_messages(url: Any, queue_name: str):
    seen: list[tuple[str, str]] = []

    async def put_off(message: Message):
        seen.append(("one", message.subject))
        if seen.count(("one", message.subject)) == 1:
            message.move_to_delayed(30)

    async def other(message: Message):
        seen.append(("two", message.subject))

    async with Broadcast(queue_name, url) as broadcast:
        one = BroadcastWorker(queue_name, put_off, url, subscription="one")
        two = BroadcastWorker(queue_name, other, url, subscription="two")
        async with one, two:
            recorded, told_two = EventRecorder(one), EventRecorder(two)
            await broadcast.publish("late", delay=150)
            await broadcast.publish("soon")
            await recorded.wait("completed", 2)
            await told_two.wait("completed", 2)
            assert recorded.count["delayed"] == 2
        assert [subject for name, subject in seen if name == "two"] == ["soon", "late"]
        assert Counter(seen)["one", "late"] == 2


async def test_middleware_is_around_the_run_of_a_message(url: Any, queue_name: str):
    tenant: ContextVar[str | None] = ContextVar("tenant", default="outside")
    ran: list[tuple[str, str | None, dict[str, str]]] = []

    class Noting(Middleware):
        @contextlib.contextmanager
        def run(self, job: Any) -> Iterator[None]:
            ran.append((f"before {job.subject}", tenant.get(), dict(job.headers)))
            yield
            ran.append((f"after {job.subject}", tenant.get(), {}))

    async def handle(message: Message):
        ran.append(("handler", tenant.get(), {}))

    async with Broadcast(queue_name, url) as broadcast:
        await broadcast.subscribe("s")
        await broadcast.publish("orders.created", 1)
        carried = ContextHeaders({"tenant": tenant})
        worker = BroadcastWorker(queue_name, handle, url, subscription="s", middleware=[carried, Noting()])
        async with working(worker) as recorded:
            await recorded.wait("completed", 1)
    assert ran == [
        ("before orders.created", None, {}), ("handler", None, {}), ("after orders.created", None, {}),
    ]  # fmt: skip
    with pytest.raises(GlideMQValidationError, match="'middleware'"):
        BroadcastWorker(queue_name, handle, url, subscription="s", middleware=carried)  # type: ignore[arg-type]


async def test_context_goes_from_publish_to_all_subscriptions(url: Any, queue_name: str):
    tenant: ContextVar[str | None] = ContextVar("tenant", default=None)
    carried = [ContextHeaders({"tenant": tenant})]
    seen: list[tuple[str, str | None, dict[str, str]]] = []

    async def handle(message: Message):
        seen.append((message.subject, tenant.get(), dict(message.headers)))

    async with Broadcast(queue_name, url, middleware=carried) as broadcast:
        for name in ("mailer", "audit"):
            await broadcast.subscribe(name)
        tenant.set("acme")
        await broadcast.publish("a", headers={"request": "7"})
        await broadcast.publish_bulk([("b",), ("c", 1, {"headers": {"tenant": "other"}})])
        with sync.Broadcast(queue_name, url, middleware=carried) as blocking:
            blocking.publish("d")
        tenant.set(None)
        expected = [
            ("a", "acme", {"request": "7", "tenant": "acme"}), ("b", "acme", {"tenant": "acme"}),
            ("c", "other", {"tenant": "other"}), ("d", "acme", {"tenant": "acme"}),
        ]  # fmt: skip
        for name in ("mailer", "audit"):
            worker = BroadcastWorker(queue_name, handle, url, subscription=name, middleware=carried)
            async with working(worker) as recorded:
                await recorded.wait("completed", 4)
            assert seen == expected
            seen.clear()
        with pytest.raises(GlideMQValidationError, match=r"option 'headers.a' = 1: must be a string, not int"):
            await broadcast.publish("a", headers={"a": 1})  # type: ignore[dict-item]


async def test_closing_worker_releases_messages_in_order(url: Any, queue_name: str):
    gate, seen = Gate(), Seen()
    async with Broadcast(queue_name, url) as broadcast:
        worker = BroadcastWorker(queue_name, gate, url, subscription="s", concurrency=3)
        await worker.start()
        ids = await broadcast.publish_bulk([("a", n) for n in range(6)])
        for _ in range(3):
            await gate.next()
        await worker.close(force=True)
        (subscription,) = await broadcast.get_subscriptions()
        assert (subscription.waiting, subscription.active, subscription.released) == (3, 0, 3)
        async with working(BroadcastWorker(queue_name, seen, url, subscription="s")) as recorded:
            await recorded.wait("completed", 6)
        assert seen.ids == ids
        assert {message.attempts_made for message in seen.messages} == {0}


async def test_subscriptions_are_listed_and_removed(url: Any, queue_name: str):
    async with Broadcast(queue_name, url) as broadcast:
        assert await broadcast.get_subscriptions() == []
        await broadcast.subscribe("a", "0-0")
        await broadcast.subscribe("b")
        await broadcast.publish_bulk([("x", n) for n in range(3)])
        assert {each.name: each.waiting for each in await broadcast.get_subscriptions()} == {"a": 3, "b": 3}
        async with working(BroadcastWorker(queue_name, Seen(), url, subscription="a")) as recorded:
            await recorded.wait("completed", 3)
            with pytest.raises(JobStateError):
                await broadcast.remove_subscription("a")
        assert await broadcast.remove_subscription("a")
        assert not await broadcast.remove_subscription("a")
        assert await broadcast.get_subscription("a") is None
        assert [each.waiting for each in await broadcast.get_subscriptions()] == [3]


async def test_pause_global_limits_and_drain(url: Any, queue_name: str):
    running = most = 0

    async def handle(_: Message):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    async with Broadcast(queue_name, url) as broadcast, Queue(queue_name, url) as queue:
        await queue.limits.set_concurrency(2)
        await broadcast.pause()
        worker = BroadcastWorker(queue_name, handle, url, subscription="s", concurrency=20)
        async with working(worker) as recorded:
            await broadcast.publish_bulk([("x", n) for n in range(40)])
            assert await broadcast.is_paused()
            assert (await broadcast.get_subscriptions())[0].waiting == 40
            await broadcast.resume()
            await with_timeout(worker.drain())
            assert (recorded.count["completed"], most) == (40, 2)


async def test_progress_and_log_of_a_message_are_stored(url: Any, queue_name: str):
    async def handle(message: Message):
        await message.update_progress(50)
        await message.log("line")
        message.move_to_failed("done")

    async with Broadcast(queue_name, url) as broadcast, Queue(queue_name, url) as queue:
        worker = BroadcastWorker(queue_name, handle, url, subscription="s")
        async with working(worker) as recorded:
            message_id = await broadcast.publish("x") or ""
            await recorded.wait("failed")
        job = await queue.get_job(message_id)
        assert job is not None
        assert (job.progress, await job.logs()) == (50, ["line"])
        assert str(recorded.of("failed")[0][1]) == "done"
        assert not hasattr(worker, "task")


async def test_ids_and_throttling(url: Any, queue_name: str):
    async with Broadcast(queue_name, url) as broadcast:
        assert await broadcast.publish("x", job_id="mine") == "mine"
        assert await broadcast.publish("x", job_id="mine") is None
        throttled: Any = {"deduplication": {"id": "t", "mode": "throttle", "ttl": 60_000}}
        assert await broadcast.publish("x", **throttled) is not None
        assert await broadcast.publish("x", **throttled) is None


async def test_failures_are_separate_per_subscription(url: Any, raw: Raw, queue_name: str):
    retrying, failing = Seen(), Seen()

    async def fail(message: Message):
        await failing(message)
        raise RuntimeError("never")

    async with Broadcast(queue_name, url) as broadcast:
        workers = {
            "good": BroadcastWorker(queue_name, lambda message: message.data, url, subscription="good"),
            "retrying": BroadcastWorker(queue_name, retrying, url, subscription="retrying"),
            "failing": BroadcastWorker(queue_name, fail, url, subscription="failing"),
        }
        async with workers["good"], workers["retrying"], workers["failing"]:
            recorded = {name: EventRecorder(worker) for name, worker in workers.items()}
            message_id = await broadcast.publish("a", {"fail": 2}, attempts=3, backoff=20)
            assert message_id is not None
            await recorded["good"].wait("completed")
            await recorded["retrying"].wait("completed")
            await recorded["failing"].wait("failed")
            assert recorded["good"].count["retrying"] == 0
            assert (recorded["retrying"].count["retrying"], recorded["failing"].count["retrying"]) == (2, 2)
            assert [message.attempts_made for message in retrying.messages] == [0, 1, 2]
            found = [await broadcast.get_delivery(message_id, name) for name in workers]
            assert [each.state for each in found if each] == ["completed", "completed", "failed"]
            assert [each.attempts_made for each in found if each] == [0, 2, 3]
            assert found[2] is not None
            assert (found[2].failed_reason, found[2].failed_type) == ("never", "RuntimeError")
            assert found[1] is not None
            assert found[1].returnvalue == {"fail": 2}
            assert found[2].returnvalue is None
        # Nothing of it in the record or the indexes that all of them share, and no entry of a retry is left (W34).
        assert (raw.job(message_id)["state"], raw.job(message_id)["attemptsMade"]) == ("waiting", "0")
        assert [raw.run("ZCARD", key) for key in ("scheduled", "completed", "failed")] == [0, 0, 0]
        assert raw.run("XLEN", "stream") == 1
        assert 0 < raw.run("PTTL", f"job:{message_id}:sub:failing") <= 86_400_000
        assert {event["subscription"] for event in raw.events(message_id) if event["event"] == "failed"} == {"failing"}
        async with Queue(queue_name, url) as queue:
            assert (await queue.check()).ok


async def test_max_messages_deletes_all_data_of_old_messages(
    url: Any, resp: RespClient, raw: Raw, queue_name: str, key_leaks: KeyLeaks
):
    """W95: including hashes and records of subscriptions."""
    seen = Seen()
    async with Broadcast(queue_name, url, max_messages=10) as broadcast:
        worker = BroadcastWorker(queue_name, seen, url, subscription="s", concurrency=50)
        async with working(worker) as recorded:
            for n in range(30):
                await broadcast.publish_bulk([("a", {"n": n}, {"attempts": 2})] * 10)
                await recorded.wait("completed", 10 * (n + 1))
        assert raw.run("XLEN", "stream") == 10
        hashes = resp.keys(f"{raw.base}:job:*")
        assert len([key for key in hashes if ":sub:" not in key]) == 10
        assert len([key for key in hashes if ":sub:" in key]) <= 10
        assert len(seen.ids) == len(set(seen.ids)) == 300
        async with Queue(queue_name, url) as queue:
            await queue.obliterate()
        assert resp.keys(f"{raw.base}:*") == []


async def test_max_age(url: Any, resp: RespClient, raw: Raw, queue_name: str):
    async with Broadcast(queue_name, url, max_age=200) as broadcast:
        old = await broadcast.publish("a")
        before = int(raw.job(old or "")["timestamp"])

        def is_past() -> bool:
            seconds, micros = resp.execute("TIME")
            return int(seconds) * 1000 + int(micros) // 1000 > before + 250

        await with_timeout(until(is_past))
        new = await broadcast.publish("a")
        assert [raw.state(each or "") for each in (old, new)] == [None, "waiting"]
        assert raw.run("XLEN", "stream") == 1


async def test_trimmed_pending_message_publishes_an_event(url: Any, resp: RespClient, raw: Raw, queue_name: str):
    """W97: a pending message of a dead worker was trimmed."""
    async with Broadcast(queue_name, url, max_messages=1) as broadcast:
        await broadcast.subscribe("s", "0-0")
        await broadcast.publish("a", 1)
        raw.resp.execute("XREADGROUP", "GROUP", "s", "py-dead", "COUNT", 1, "STREAMS", raw.key("stream"), ">")
        await broadcast.publish("a", 2)
        seen = Seen()
        worker = BroadcastWorker(queue_name, seen, url, subscription="s", **QUICK)
        async with working(worker) as recorded:
            await recorded.wait("completed")
            await with_timeout(until(lambda: "trimmed" in [event["event"] for event in raw.events()]))
        assert [message.data for message in seen.messages] == [2]


async def test_message_that_stalls_too_often_fails_in_its_subscription(
    url: Any, resp: RespClient, raw: Raw, queue_name: str
):
    async with Broadcast(queue_name, url) as broadcast:
        await broadcast.subscribe("s")
        message_id = await broadcast.publish("a", 1) or ""
        raw.resp.execute("XREADGROUP", "GROUP", "s", "py-dead", "COUNT", 1, "STREAMS", raw.key("stream"), ">")
        worker = BroadcastWorker(queue_name, Seen(), url, subscription="s", max_stalled_count=0, **QUICK)
        async with worker:
            await with_timeout(until(lambda: "failed" in raw.event_names(message_id)))
        found = await broadcast.get_delivery(message_id, "s")
        assert found is not None
        assert (found.state, found.failed_reason) == ("failed", "job stalled more than maxStalledCount")
        assert raw.state(message_id) == "waiting"


async def test_stale_result_is_discarded(url: Any, resp: RespClient, raw: Raw, queue_name: str):
    """Fencing: another worker has the message."""
    gate, seen = Gate(), Seen()
    async with Broadcast(queue_name, url) as broadcast:
        worker = BroadcastWorker(queue_name, gate, url, subscription="s")
        async with working(worker) as recorded:
            message_id = await broadcast.publish("a", 1) or ""
            await gate.next()
            (entry,) = raw.run("XRANGE", "stream", "-", "+")
            raw.resp.execute("XCLAIM", raw.key("stream"), "s", "py-other", 0, entry[0])
            gate.open()
            await recorded.wait("error")
        assert raw.event_names(message_id) == ["added"]
        assert raw.resp.execute("XPENDING", raw.key("stream"), "s")[0] == 1
        raw.resp.execute("XCLAIM", raw.key("stream"), "s", "released", 0, entry[0])
        async with working(BroadcastWorker(queue_name, seen, url, subscription="s")) as recorded:
            await recorded.wait("completed")
        assert seen.ids == [message_id]


async def test_a_peers_entries_and_a_peers_worker_of_the_same_subscription(
    url: Any, resp: RespClient, raw: Raw, queue_name: str
):
    """Entries as a Node publisher writes them, and an entry that another consumer of the group has read."""
    seen = Seen()
    raw.put_job("1", name="orders.new", data='{"n":1}')
    raw.run("DEL", "stream")
    raw.push(jobId="1", name="orders.new")
    raw.push(jobId="1", name="orders.new", retryGroup="elsewhere")
    raw.push(jobId="1", name="orders.new", retryGroup="s")
    raw.run("ZADD", "scheduled", 1, "1||s")
    worker = BroadcastWorker(queue_name, seen, url, subscription="s", start_from="0-0", subjects=["orders.*"])
    async with working(worker) as recorded:
        await recorded.wait("completed", 3)
    assert seen.ids == ["1", "1", "1"]
    assert raw.resp.execute("XPENDING", raw.key("stream"), "s")[0] == 0


async def test_an_idle_worker_is_woken(url: Any, queue_name: str, without_polling: None):
    async with Broadcast(queue_name, url) as broadcast:
        worker = BroadcastWorker(queue_name, lambda message: None, url, subscription="s")
        async with worker:
            recorded = EventRecorder(worker)
            for n in range(20):
                await broadcast.publish("x", n)
                await recorded.wait("completed", n + 1)
