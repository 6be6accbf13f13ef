"""`TestBroadcast` and `TestBroadcastWorker`: in-memory subscriptions, step by step."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import BroadcastWorker, Message, Worker
from glidemq_py.testing import (
    MemoryServer,
    TestBroadcast,
    TestBroadcastWorker,
    TestQueue,
    TestWorker,
    run_until_empty,
)

HANDLERS = Path(__file__).parent.parent / "server" / "sandboxed_handlers.py"


async def shout(message: Message) -> Any:
    if message.attempts_made == 0 and message.data == "weak":
        raise ValueError("again")
    return f"{message.subject}!"


def outcomes(runs: Any) -> list[tuple[str, str]]:
    return [(run.job.subject, run.outcome) for run in runs]


async def test_subscriptions_step_independently():
    async with (
        TestBroadcast() as broadcast,
        broadcast.worker(shout, subscription="all") as everything,
        broadcast.worker(lambda message: None, subscription="orders", subjects=["orders.*"]) as orders,
    ):
        await broadcast.publish("orders.new", "weak", attempts=2, backoff=60_000)
        await broadcast.publish("users.new", "strong")
        assert (everything.runs, orders.runs) == ([], [])
        run = await everything.run_one()
        assert run is not None
        assert repr(run.job) == "<Message '1' 'orders.new' of broadcast 'test'>"
        assert run.outcome == "retrying"
        assert outcomes(await everything.run_until_idle()) == [("users.new", "completed")]
        assert outcomes(await orders.run_until_idle()) == [("orders.new", "completed")]
        broadcast.clock.advance(timedelta(minutes=1))
        assert outcomes(await orders.run_until_idle()) == []  # the retry belongs to the other subscription
        (last,) = await everything.run_until_idle()
        assert (last.result, last.job.attempts_made) == ("orders.new!", 1)
        await broadcast.assert_published("orders.new", "weak", count=1)
        await broadcast.assert_not_published("users.gone")
        assert not (await broadcast.queue.check(recheck_after=50)).findings


async def test_run_until_empty_advances_to_retries_and_dead_letters():
    async def fail(message: Message):
        raise ValueError("never")

    async with TestBroadcast(dead_letter_queue="dead") as broadcast, broadcast.worker(fail) as worker:
        await broadcast.publish("late", 1, delay=timedelta(days=1), attempts=3, backoff=1_000)
        runs = await run_until_empty(worker)
        assert [run.outcome for run in runs] == ["retrying", "retrying", "failed"]
        (letter,) = await broadcast.get_dead_letter_jobs()
        assert (letter.data["subscription"], letter.data["attemptsMade"]) == ("test", 2)
        assert await broadcast.replay_dead_letter_job(letter.id)
        assert [run.outcome for run in await worker.run_until_empty()] == ["retrying", "retrying", "failed"]


async def test_batches_and_token_limits_work():
    async def handle(messages: list[Message]) -> list[Any]:
        return [message.data for message in messages]

    async with TestBroadcast() as broadcast, broadcast.worker(handle, batch={"size": 2}) as worker:
        await broadcast.publish_bulk([("x", n) for n in range(3)])
        assert [run.result for run in await worker.run_until_idle()] == [0, 1, 2]


async def test_stalled_message_is_recovered():
    server = MemoryServer()
    async with TestBroadcast("b", server) as broadcast:
        await broadcast.subscribe("s")
        await broadcast.publish("x", 1)
        server.execute("XREADGROUP", "GROUP", "s", "dead", "STREAMS", "glide:{b}:stream", ">")
        async with broadcast.worker(shout, subscription="s") as worker:
            assert await worker.run_until_idle() == []
            broadcast.clock.advance(31_000)
            assert await worker.recover_stalled() == ["1"]
            assert outcomes(await worker.run_until_idle()) == [("x", "completed")]


async def test_service_worker_runs_in_test():
    service = BroadcastWorker("test", shout, subscription="s", subjects=["a.>"], start_from="0-0", concurrency=3)
    async with TestBroadcast() as broadcast:
        await broadcast.publish_bulk([("a.b", 1), ("c", 2)])
        async with TestBroadcastWorker.of(service, broadcast) as worker:
            assert outcomes(await worker.run_until_idle()) == [("a.b", "completed")]
            assert worker.options.concurrency == 3
            assert not worker.runs[0].job.cancelled.is_set()


@pytest.mark.slow
async def test_sandboxed_service_worker_runs_in_its_sandbox():
    service = Worker("test", f"{HANDLERS}:echo")
    async with TestQueue() as queue, TestWorker.of(service, queue) as worker:
        await queue.add("n", 4)
        (run,) = await worker.run_until_idle()
        assert run.outcome == "completed", run.error
