"""Broadcasts with other worker features: dead letters, batches, sandboxes, token limits."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import (
    BroadcastWorker,
    GlideMQValidationError,
    JobNotFoundError,
    JobStateError,
    Message,
    RateLimitError,
    sync,
)
from glidemq_py.errors import BatchError, SuspendError
from tests.contract.api import Broadcast, Queue
from tests.contract.observe import Raw
from tests.contract.test_broadcast import QUICK, Seen, working
from tests.inside import fetching_of
from tests.server.worker_support import PATIENCE, with_timeout

pytestmark = pytest.mark.exclude("partitioned", reason="a broadcast has no partitions")

HERE = Path(__file__).parent
TARGET = f"{HERE.parent / 'server' / 'sandboxed_handlers.py'}"


async def fail(message: Message):
    raise ValueError(f"no {message.subject}")


async def letters_of(broadcast: Broadcast, subscription: str | None = None) -> list[Any]:
    return [letter.data for letter in await broadcast.get_dead_letter_jobs(subscription)]


async def test_dead_letter_entries_are_separate_per_subscription(url: Any, queue_name: str):
    dead, other = f"{queue_name}-dead", f"{queue_name}-other"
    async with Broadcast(queue_name, url, dead_letter_queue=other) as broadcast:
        mailer = BroadcastWorker(queue_name, fail, url, subscription="mailer", dead_letter_queue=dead)
        audit = BroadcastWorker(queue_name, fail, url, subscription="audit")
        fine = BroadcastWorker(queue_name, Seen(), url, subscription="fine", dead_letter_queue=dead)
        async with working(mailer) as log, working(audit) as also, working(fine) as fine_log:
            message = await broadcast.publish("orders.new", {"n": 1}, attempts=2)
            await log.wait("failed")
            await also.wait("failed")
            await fine_log.wait("completed")
            envelope = {
                "originalQueue": queue_name, "originalJobId": message, "data": {"n": 1},
                "failedReason": "no orders.new", "attemptsMade": 1,
            }  # fmt: skip
            assert await letters_of(broadcast, "mailer") == [envelope | {"subscription": "mailer"}]
            assert await letters_of(broadcast, "audit") == [envelope | {"subscription": "audit"}]
            assert await letters_of(broadcast) == [envelope | {"subscription": "audit"}]
            assert await letters_of(broadcast, "fine") == []
        async with Queue(dead, url) as queue:
            (letter,) = await queue.get_jobs("waiting")
            assert letter.name == "orders.new"


async def test_replay_goes_only_to_its_subscription(url: Any, queue_name: str):
    dead = f"{queue_name}-dead"
    seen, elsewhere, broken = Seen(), Seen(), [True]

    async def handle(message: Message):
        if broken[0]:
            raise ValueError("not yet")
        assert message.attempts_made == 0
        return await seen(message)

    async with Broadcast(queue_name, url) as broadcast:
        worker = BroadcastWorker(queue_name, handle, url, subscription="s", dead_letter_queue=dead)
        other = BroadcastWorker(queue_name, elsewhere, url, subscription="other")
        async with working(worker) as log, working(other) as other_log:
            message = await broadcast.publish("x", 1) or ""
            await log.wait("failed")
            await other_log.wait("completed")
            (letter,) = await broadcast.get_dead_letter_jobs("s")
            async with Queue(queue_name, url) as queue:
                assert await queue.dead_letters.get_all() == []  # the subscription's, not the queue's
            assert not await broadcast.replay_dead_letter_job("nobody", "s")
            broken[0] = False
            assert await broadcast.replay_dead_letter_job(letter.id, "s")
            await log.wait("completed")
            assert await letters_of(broadcast, "s") == []
            delivery = await broadcast.get_delivery(message, "s")
            assert delivery is not None
            assert (delivery.state, delivery.attempts_made) == ("completed", 0)
        assert (seen.ids, elsewhere.ids) == ([message], [message])
        async with Queue(queue_name, url) as queue:
            assert not (await queue.check(recheck_after=50)).findings


async def test_dead_letter_entry_of_a_deleted_message_stays(url: Any, queue_name: str):
    dead = f"{queue_name}-dead"
    async with Broadcast(queue_name, url, max_messages=1, dead_letter_queue=dead) as broadcast:
        async with working(BroadcastWorker(queue_name, fail, url, subscription="s")) as log:
            await broadcast.publish("x", 1)
            await log.wait("failed")
            await broadcast.publish("x", 2)
            await log.wait("failed", 2)
        first, second = await broadcast.get_dead_letter_jobs()
        with pytest.raises(JobNotFoundError):
            await broadcast.replay_dead_letter_job(first.id)
        with pytest.raises(GlideMQValidationError, match="replay_dead_letter_job"):
            async with Queue(queue_name, url, dead_letter_queue=dead) as queue:
                await queue.dead_letters.replay(second.id)
        assert await broadcast.remove_dead_letter_job(first.id)
        assert [letter.id for letter in await broadcast.get_dead_letter_jobs()] == [second.id]
        assert await broadcast.get_dead_letter_jobs(start=1) == []


@pytest.mark.slow
@pytest.mark.exclude("memory", reason="needs a process")
async def test_expired_and_stalled_messages_create_dead_letter_entries(url: Any, queue_name: str):
    dead = f"{queue_name}-dead"
    async with Broadcast(queue_name, url) as broadcast:
        await broadcast.subscribe("s", "0-0")
        await broadcast.publish("gone", 1, ttl=1)
        await broadcast.publish("deadly", 2)
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(Path(__file__)), url, queue_name, stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(HERE.parent.parent)},
        )  # fmt: skip
        assert process.stdout is not None
        await with_timeout(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        await process.wait()
        worker = BroadcastWorker(
            queue_name, fail, url, subscription="s", max_stalled_count=0, dead_letter_queue=dead, **QUICK
        )
        async with worker:
            async with asyncio.timeout(PATIENCE):
                while len(await broadcast.get_dead_letter_jobs("s")) < 2:  # noqa: ASYNC110  there is no event for it
                    await asyncio.sleep(0.05)
        found = {letter["data"]: letter["failedReason"] for letter in await letters_of(broadcast, "s")}
        assert found == {1: "expired", 2: "job stalled more than maxStalledCount"}


async def test_redelivery(url: Any, queue_name: str):
    seen = Seen()
    async with Broadcast(queue_name, url) as broadcast:
        await broadcast.subscribe("s")
        message = await broadcast.publish("x", {"fail": 1}) or ""
        with pytest.raises(JobStateError, match="waiting"):
            await broadcast.redeliver(message, "s")
        with pytest.raises(JobNotFoundError):
            await broadcast.redeliver("nobody", "s")
        for name in ("nobody", "workers "):
            with pytest.raises(GlideMQValidationError, match="does not exist"):
                await broadcast.redeliver(message, name)
        async with working(BroadcastWorker(queue_name, seen, url, subscription="s")) as log:
            await log.wait("failed")
            await broadcast.redeliver(message, "s")
            await log.wait("failed", 2)
            assert [each.attempts_made for each in seen.messages] == [0, 0]

        def again():
            with sync.Broadcast(queue_name, url) as twin:
                twin.redeliver(message, "s")

        await asyncio.to_thread(again)
        with pytest.raises(JobStateError, match="delayed"):
            await broadcast.redeliver(message, "s")


async def test_batches(url: Any, queue_name: str):
    sizes: list[int] = []

    async def handle(messages: list[Message]) -> list[Any]:
        sizes.append(len(messages))
        assert all(isinstance(message, Message) for message in messages)
        raise BatchError(
            [
                ValueError("odd") if message.data % 2 and not message.attempts_made else message.data
                for message in messages
            ]
        )

    async with Broadcast(queue_name, url) as broadcast:
        await broadcast.subscribe("s")
        await broadcast.subscribe("one")
        ids = await broadcast.publish_bulk([("x", n, {"attempts": 2}) for n in range(25)])
        seen = Seen()
        worker = BroadcastWorker(queue_name, handle, url, subscription="s", batch={"size": 10, "timeout": 20})
        one = BroadcastWorker(queue_name, seen, url, subscription="one", concurrency=10)
        async with working(worker) as log, working(one) as one_log:
            await log.wait("completed", 25)
            await one_log.wait("completed", 25)
        assert (log.count["retrying"], log.count["failed"], one_log.count["completed"]) == (12, 0, 25)
        assert sizes[:2] == [10, 10]
        assert sorted(log.job_ids("completed")) == sorted(each or "" for each in ids)
        (subscription,) = [each for each in await broadcast.get_subscriptions() if each.name == "s"]
        assert (subscription.waiting, subscription.active) == (0, 0)


async def test_a_signal_in_a_batch_is_its_messages_alone(url: Any, queue_name: str):
    async def handle(messages: list[Message]) -> list[Any]:
        return await asyncio.gather(*map(one, messages), return_exceptions=True)

    async def one(message: Message):
        if message.data == 1 and not seen:
            seen.append(message.id)
            raise RateLimitError(10)
        if message.data == 2:
            raise SuspendError
        return message.data

    seen: list[str] = []
    async with Broadcast(queue_name, url) as broadcast:
        await broadcast.subscribe("s")
        await broadcast.publish_bulk([("x", n) for n in range(3)])
        worker = BroadcastWorker(queue_name, handle, url, subscription="s", batch={"size": 3})
        async with working(worker) as log:
            await log.wait("completed", 2)
            await log.wait("failed")
    assert [message.data for message, _ in log.of("failed")] == [2]
    assert [message.data for message, _ in log.of("delayed")] == [1]


@pytest.mark.parametrize("handler", ["message", "async_message"])
@pytest.mark.slow
async def test_a_sandboxed_handler_gets_messages(url: Any, queue_name: str, handler: str):
    async with Broadcast(queue_name, url) as broadcast:
        worker = BroadcastWorker(queue_name, f"{TARGET}:{handler}", url, subscription="s", start_from="0-0")
        message = await broadcast.publish("orders.new", 4) or ""
        async with working(worker) as log:
            await log.wait("completed")
        assert log.of("completed")[0][1] == ["Message", "orders.new", 4]
        async with Queue(queue_name, url) as queue:
            job = await queue.get_job(message)
        assert job is not None
        assert job.progress == 50


@pytest.mark.slow
async def test_a_crash_of_a_sandbox_is_one_messages(url: Any, queue_name: str):
    async with Broadcast(queue_name, url) as broadcast:
        worker = BroadcastWorker(
            queue_name, f"{TARGET}:crash", url, subscription="s", start_from="0-0", sandbox={"max_workers": 1},
            dead_letter_queue=f"{queue_name}-dead",
        )  # fmt: skip
        await broadcast.publish_bulk([("exit", 3), ("fine",)])
        async with working(worker) as log:
            await log.wait("failed")
            await log.wait("completed")
        (letter,) = await letters_of(broadcast, "s")
        assert "exit code 3" in letter["failedReason"]


async def _child(url: Any, name: str):
    async def handle(message: Message):
        sys.stdout.write("began\n")
        sys.stdout.flush()
        await asyncio.Event().wait()

    await BroadcastWorker(name, handle, url, subscription="s", dead_letter_queue=f"{name}-dead", **QUICK).run()


if __name__ == "__main__":
    asyncio.run(_child(*sys.argv[1:]))


async def test_dead_letter_entries_are_removed_with_their_subscription(url: Any, raw: Raw, queue_name: str):
    async with Broadcast(queue_name, url, dead_letter_queue=f"{queue_name}-dead") as broadcast:
        worker = BroadcastWorker(queue_name, fail, url, subscription="s", dead_letter_queue=False)
        async with working(worker) as log:
            await broadcast.publish("x", 1)
            await log.wait("failed")
        assert raw.run("XLEN", "outbox") == 0
        assert await letters_of(broadcast) == []
        assert await broadcast.get_dead_letter_jobs("s") == []
        assert raw.run("HEXISTS", "meta", "deadLetterQueueName:s") == 1
        assert await broadcast.remove_subscription("s")
        assert raw.run("HEXISTS", "meta", "deadLetterQueueName:s") == 0


async def test_tokens_are_limited(url: Any, queue_name: str):
    async def handle(message: Message):
        await message.report_tokens(100)

    async with Broadcast(queue_name, url) as broadcast:
        worker = BroadcastWorker(
            queue_name, handle, url, subscription="s", start_from="0-0",
            token_limiter={"max_tokens": 100, "duration": 60_000, "scope": "queue"},
        )  # fmt: skip
        await broadcast.publish_bulk([("x", n) for n in range(3)])
        async with working(worker) as log:
            await log.wait("completed")
            fetching = fetching_of(worker)
            await with_timeout(fetching.until(lambda: fetching.engine.is_drained))
        assert log.count["completed"] == 1
