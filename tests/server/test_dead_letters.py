"""Dead-letter entries end to end: every final failure creates exactly one; reading, replaying and removing."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from glidemq_py import (
    GlideMQConnectionError,
    GlideMQError,
    GlideMQValidationError,
    Job,
    JobFailedError,
    Queue,
    Worker,
)
from glidemq_py.testing import RespClient
from tests.contract.test_dead_letters import dlq_of, fail, failed_job
from tests.inside import QueueLink, connected, outbox, set_link, working
from tests.server.faults_support import worker_process
from tests.server.worker_support import Gate, Raw, WorkerFor, until, with_timeout

QUICK: Any = {"lock_duration": 1_000, "stalled_interval": 1_000}


def open_queue(name: str, url: str, **options: Any) -> Queue:
    return Queue(name, url, dead_letter_queue=options.pop("dead_letter_queue", dlq_of(name)), **options)


# -- every end ---------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_stalled_job_creates_an_entry_after_max_stalled_count(
    core_url: str, core_resp: RespClient, queue_name: str
):
    gate = Gate()
    async with open_queue(queue_name, core_url) as queue:
        job = await queue.add("poison", "pill", attempts=5)
        for death in range(2):
            async with worker_process("wait", core_url, queue_name, **QUICK) as child:
                assert await child.line("began") == job.id, death
                await child.kill()
        async with Worker(queue_name, gate, core_url, **QUICK):
            with pytest.raises(JobFailedError, match="stalled"):
                await job.wait_until_finished()
            await with_timeout(until(lambda: Raw(core_resp, dlq_of(queue_name)).run("XLEN", "stream") == 1))
        (letter,) = await queue.dead_letters.get_all()
        assert (await queue.check()).findings == ()
    assert gate.begun == []
    assert letter.data["failedReason"] == "job stalled more than maxStalledCount"
    assert (letter.data["attemptsMade"], letter.data["data"]) == (0, "pill")


# -- crashes -----------------------------------------------------------------------------------------------


class Cut:
    """A transport that fails after (or before) the call of a function, as a process that dies there."""

    def __init__(self, inner: Any, function: str, *, before: bool):
        self._inner, self._function, self._before = inner, function, before
        self.times = 0

    def __getattr__(self, name: str):
        return getattr(self._inner, name)

    async def call(self, call: Any):
        if call.function != self._function:
            return await self._inner.call(call)
        self.times += 1
        if not self._before:
            await self._inner.call(call)
        raise asyncio.CancelledError


def cut(link: QueueLink, function: str, *, before: bool) -> QueueLink:
    return QueueLink(transport=Cut(link.transport, function, before=before), keys=link.keys, waiter=link.waiter)


@pytest.mark.parametrize("before", [True, False], ids=["before the add", "after the add"])
async def test_crash_during_delivery(core_url: str, core_resp: RespClient, queue_name: str, before: bool):
    raw = Raw(core_resp, queue_name)
    async with open_queue(queue_name, core_url) as queue:
        link = await connected(queue)
        job = await queue.add("mail", 1)
        # A worker that ends the job and dies before it delivers anything.
        await dead_worker_fails(link, job)
        with pytest.raises(asyncio.CancelledError):
            await outbox.Outbox(cut(link, "add", before=before)).deliver()
        assert raw.run("XLEN", "outbox") == 1
        assert await outbox.Outbox(link).deliver() == 0  # it is held until the dead one's time is over
        raw.run("DEL", "lock:outbox")
        assert await outbox.Outbox(link).deliver() == 1
        assert await outbox.Outbox(link).deliver() == 0
        (letter,) = await queue.dead_letters.get_all()
        assert letter.id == outbox.dead_letter_id(queue_name, job.id, "1")
        assert (await queue.check()).findings == ()
    async with Queue(dlq_of(queue_name), core_url) as letters:
        assert (await letters.check()).findings == ()
    assert Raw(core_resp, dlq_of(queue_name)).run("XLEN", "stream") == 1


async def dead_worker_fails(link: QueueLink, job: Job):

    meta = link.keys.meta
    reply = await link.transport.call(working.exchange(meta, "py-dead", 1, (), False, False))
    ((job_id, entry, fence, *_),) = reply.jobs
    assert job_id == job.id
    row = working.failed(job_id, entry, fence, reply.now, "no", "ValueError", "[]", 0, 0)
    await link.transport.call(working.exchange(meta, "py-dead", 0, (row,), False, False))


async def test_outbox_of_a_dead_worker_is_delivered_by_the_next(
    worker_for: WorkerFor, url: str, resp: RespClient, queue_name: str
):
    async with open_queue(queue_name, url) as queue:
        await dead_worker_fails(await connected(queue), await queue.add("mail", 1))
        async with worker_for(fail):
            await with_timeout(until(lambda: Raw(resp, dlq_of(queue_name)).run("XLEN", "stream") == 1))
    assert Raw(resp, queue_name).run("XLEN", "outbox") == 0


async def test_undeliverable_entry_stays_in_the_outbox(url: str, resp: RespClient, queue_name: str):
    raw, letters = Raw(resp, queue_name), Raw(resp, dlq_of(queue_name))
    letters.run("SET", "stream", "foreign")
    async with open_queue(queue_name, url) as queue:
        await failed_job(queue, url)
        with pytest.raises(GlideMQError):
            await outbox.Outbox(await connected(queue)).deliver()
        assert raw.run("XLEN", "outbox") == 1
        letters.run("DEL", "stream")
        assert len(await queue.dead_letters.get_all()) == 1
    assert raw.run("XLEN", "outbox") == 0


async def test_full_server_fails_jobs_and_delivers_later(private_server: Callable[..., Any], queue_name: str):
    server = private_server(maxmemory="64mb", maxmemory_policy="noeviction")
    with server.client() as resp:
        raw, letters = Raw(resp, queue_name), Raw(resp, dlq_of(queue_name))
        async with open_queue(queue_name, server.url) as queue:
            job = await queue.add("mail", 1)
            resp.execute("CONFIG", "SET", "maxmemory", "1mb")
            async with Worker(queue_name, fail, server.url):
                with pytest.raises(JobFailedError):
                    await job.wait_until_finished()
                assert raw.run("XLEN", "outbox") == 1
                resp.execute("CONFIG", "SET", "maxmemory", "64mb")
            await queue.dead_letters.get_all()
        assert (raw.run("XLEN", "outbox"), letters.run("XLEN", "stream")) == (0, 1)


# -- removing and replaying --------------------------------------------------------------------------------


async def test_interrupted_replay_adds_the_job_once(core_url: str, core_resp: RespClient, queue_name: str):
    async with open_queue(queue_name, core_url) as queue:
        await failed_job(queue, core_url)
        (letter,) = await queue.dead_letters.get_all()
        link = await connected(queue)
        for function, before in (("add", False), ("remove", True)):
            other = open_queue(queue_name, core_url)
            set_link(other, cut(link, function, before=before))
            with pytest.raises(asyncio.CancelledError):
                await other.dead_letters.replay(letter.id)
        job = await queue.dead_letters.replay(letter.id)
        assert job is not None
        assert job.outcome == "duplicate"
        assert await queue.dead_letters.replay(letter.id) is None
        assert [each.id for each in await queue.get_jobs("waiting")] == [job.id]
        assert (await queue.check()).findings == ()


async def test_replay_that_costs_too_much_keeps_the_entry(url: str, resp: RespClient, queue_name: str):
    bucket = {"key": "g", "token_bucket": {"capacity": 5, "refill_rate": 1}}
    async with open_queue(queue_name, url) as queue:
        await failed_job(queue, url, ordering=bucket, cost=3)
        Raw(resp, queue_name).run("HSET", "group:g", "tbCapacity", "1000")
        (letter,) = await queue.dead_letters.get_all()
        Raw(resp, queue_name).run("HSET", "job:1", "opts", json.dumps({"ordering": {"key": "g"}, "cost": 3}))
        with pytest.raises(GlideMQValidationError, match="'cost' = 3: exceeds"):
            await queue.dead_letters.replay(letter.id)
        assert len(await queue.dead_letters.get_all()) == 1


# -- options -----------------------------------------------------------------------------------------------


async def test_failed_declaration_is_retried(private_server: Callable[..., Any], queue_name: str):
    server = private_server()
    server.kill()
    queue = open_queue(queue_name, server.url)
    with pytest.raises(GlideMQConnectionError):
        await queue.connect()
    await queue.close()
