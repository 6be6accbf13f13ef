"""Broadcasts: each subscription gets its messages, independently of other subscriptions."""

import asyncio
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import (
    Broadcast,
    BroadcastWorker,
    Message,
)
from glidemq_py.testing import RespClient
from tests.contract.test_broadcast import QUICK, Seen, working
from tests.contract.test_broadcast_extras import fail
from tests.inside import lane_of
from tests.operating import Operator, ReplayDeadLetters, iter_dead_letters, perform
from tests.server.faults_support import close_pipes
from tests.server.worker_support import EventRecorder, Gate, Raw, until, with_timeout


@pytest.mark.slow
async def test_active_message_finishes_after_it_was_trimmed(url: str, resp: RespClient, queue_name: str):
    gate = Gate()
    async with Broadcast(queue_name, url, max_messages=2) as broadcast:
        worker = BroadcastWorker(queue_name, gate, url, subscription="s", concurrency=1, **QUICK)
        async with working(worker) as recorded:
            await broadcast.publish("a", 1)
            held = await gate.next()
            for n in range(5):
                await broadcast.publish("a", n)
            before = resp.execute("TIME")[0]
            await with_timeout(until(lambda: int(resp.execute("TIME")[0]) > int(before) + 2))  # stalled-job checks
            gate.open()
            await recorded.wait("completed", 3)
        assert recorded.job_ids("completed")[0] == held.id
        assert gate.cancelled == 0
        assert Raw(resp, queue_name).run("EXISTS", f"job:{held.id}:sub:s") == 0


@pytest.mark.slow
async def test_stalled_messages_are_redelivered_once_per_subscription(
    core_url: str, core_resp: RespClient, queue_name: str
):
    """W32: a peer's subscription never gets them, or the message fails in all subscriptions."""
    seen, other = Seen(), Seen()
    async with Broadcast(queue_name, core_url) as broadcast:
        beside = BroadcastWorker(queue_name, other, core_url, subscription="other", start_from="0-0", **QUICK)
        child = await asyncio.create_subprocess_exec(
            sys.executable, __file__, core_url, queue_name,
            stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
        assert child.stdout is not None
        assert (await with_timeout(child.stdout.readline())).strip() == b"ready"
        async with beside:
            told_beside = EventRecorder(beside)
            ids = await broadcast.publish_bulk([("a", n) for n in range(10)])
            began = [(await with_timeout(child.stdout.readline())).decode().split()[1] for _ in range(4)]
            assert began == ids[:4]
            child.send_signal(signal.SIGKILL)
            await child.wait()
            worker = BroadcastWorker(queue_name, seen, core_url, subscription="s", **QUICK)
            async with working(worker) as recorded:
                await recorded.wait("completed", 10)
                await told_beside.wait("completed", 10)
            assert Counter(seen.ids) == Counter(ids)
            assert [message.stalled_count for message in seen.messages if message.id in began] == [1] * 4
            assert (recorded.count["stalled"], other.ids) == (4, ids)
        assert core_resp.execute("XPENDING", Raw(core_resp, queue_name).key("stream"), "s")[0] == 0
        close_pipes(child)


@pytest.mark.slow
async def test_stalled_grace_is_that_of_the_worker_that_had_the_message(url: str, resp: RespClient, queue_name: str):
    raw, began = Raw(resp, queue_name), asyncio.Event()

    async def hang(_: Message):
        began.set()
        await asyncio.Event().wait()

    async with Broadcast(queue_name, url) as broadcast:
        await broadcast.subscribe("s")
        patient = BroadcastWorker(queue_name, hang, url, subscription="s", stalled_grace=3_600_000, **QUICK)
        await patient.start()
        kept = await broadcast.publish("a", 1) or ""
        await with_timeout(began.wait())
        assert resp.execute("HGET", raw.key("stalled-policies"), patient.consumer).startswith("|3600000|")
        await lane_of(patient).background.heartbeat.close()  # other workers consider it dead
        # Another message, of a worker that never registered: it is recovered although it is younger.
        lost = await broadcast.publish("a", 2) or ""
        resp.execute("XREADGROUP", "GROUP", "s", "py-dead", "COUNT", 1, "STREAMS", raw.key("stream"), ">")
        (entry, *_), *_ = resp.execute("XPENDING", raw.key("stream"), "s", "-", "+", 1, patient.consumer)
        resp.execute("XCLAIM", raw.key("stream"), "s", patient.consumer, 0, entry, "IDLE", 60_000, "JUSTID")
        seen = Seen()
        async with working(BroadcastWorker(queue_name, seen, url, subscription="s", **QUICK)) as recorded:
            await recorded.wait("completed", 1)
        assert seen.ids == [lost]
        delivery = await broadcast.get_delivery(kept, "s")
        assert delivery is not None
        assert delivery.state == "active"
        await patient.close(force=True)


async def test_broadcast_recovers_after_flushall(private_server: Any, queue_name: str):
    server = private_server()
    seen = Seen()
    async with Broadcast(queue_name, server.url) as broadcast:
        worker = BroadcastWorker(queue_name, seen, server.url, subscription="s")
        async with working(worker) as recorded:
            await broadcast.publish("x", 1)
            await recorded.wait("completed")
            with RespClient.from_url(server.url) as resp:
                resp.execute("FLUSHALL")
            await broadcast.publish("x", 2)
            await recorded.wait("completed", 2)
        assert [message.data for message in seen.messages] == [1, 2]


async def test_operator_replays_entries_only_to_their_subscription(core_url: str, queue_name: str):
    seen = Seen()
    async with Broadcast(queue_name, core_url, max_messages=1, dead_letter_queue=f"{queue_name}-dead") as broadcast:
        failing = BroadcastWorker(queue_name, fail, core_url, subscription="s")
        other = BroadcastWorker(queue_name, seen, core_url, subscription="other")
        async with working(failing) as log, working(other) as other_log, Operator(core_url) as operator:
            for number in (1, 2):
                await broadcast.publish("x", number)  # deletes the message before
                await log.wait("failed", number)
                await other_log.wait("completed", number)
            first, second = [each.id async for each in iter_dead_letters(operator, queue_name)]
            result = await perform(operator, ReplayDeadLetters(queue=queue_name))
            assert (result.ids, [each.id for each in result.problems]) == ((second,), [first])
            await log.wait("failed", 3)
            assert len(seen.ids) == 2
            assert len(await broadcast.get_dead_letter_jobs()) == 2


async def _child(url: str, name: str):
    async def handle(message: Message):
        sys.stdout.write(f"began {message.id}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()

    worker = BroadcastWorker(name, handle, url, subscription="s", concurrency=4, start_from="0-0", **QUICK)
    await worker.start()
    print("ready", flush=True)
    await worker.wait_until_closed()


if __name__ == "__main__":
    asyncio.run(_child(*sys.argv[1:3]))
