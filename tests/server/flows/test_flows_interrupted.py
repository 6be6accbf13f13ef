"""Interrupted adds of flows: producers that die between two calls, lost replies, concurrent adds of the same flow,
children that end before the rest of their flow is added. An accepted flow runs completely and once, a rejected one not
at all, and no parent runs before its children.
"""

import asyncio
import itertools
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from glidemq_py import (
    AmbiguousResultError,
    DuplicateJobError,
    FlowJob,
    FlowProducer,
    GlideMQError,
    Job,
    JobFailedError,
    JobState,
    Queue,
    Worker,
)
from glidemq_py.errors import ServerOutOfMemoryError
from glidemq_py.testing import RespClient
from tests.inside import Call, calls, connected, finish_flows, set_transport
from tests.server.lossy_proxy import LossyProxy
from tests.server.worker_support import WorkerFor, with_timeout

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clean_check")]

MARK_AFTERWARDS_MS = 600_000


class Killed(BaseException):
    """The producer has stopped: none of its code runs."""


class Deadly:
    """A transport that kills its user before or after its n-th call, or waits before it."""

    def __init__(self, transport: Any, number: int, *, after: bool = False, gate: asyncio.Event | None = None):
        self._transport, self._number, self._after, self._gate = transport, number, after, gate
        self.calls: list[str] = []
        self.reached = asyncio.Event()

    async def call(self, call: Call[Any]):
        self.calls.append(call.function)
        here = len(self.calls) == self._number
        if here and self._gate is not None:
            self.reached.set()
            await self._gate.wait()
        elif here and not self._after:
            raise Killed
        reply = await self._transport.call(call)
        if here and self._gate is None:
            raise Killed
        return reply

    def __getattr__(self, name: str):
        return getattr(self._transport, name)


class Counting:
    """Counts how often each job ran, and who ran before all of its children had."""

    def __init__(self):
        self.ran: Counter[tuple[str, str]] = Counter()
        self.early: list[str] = []

    async def __call__(self, job: Job) -> int:
        values = await job.get_children_values()
        if len(values) != job.data:
            self.early.append(f"{job.name} {job.id}: {len(values)} of {job.data}")
        self.ran[job.queue_name, job.id] += 1
        return 1 + sum(values.values())


def job(queue: str, children: Any = (), **options: Any) -> FlowJob:
    """The job's data is the expected number of children."""
    return FlowJob("job", queue, len(children), options, children)


def shapes(a: str, b: str) -> dict[str, tuple[FlowJob, int]]:
    """Flows of several steps, and of how many jobs they are."""
    both = itertools.cycle((a, b))
    return {
        "small": (job(a, [job(b, [job(a)]), job(a)]), 4),
        "wide": (job(a, [job(next(both)) for _ in range(205)]), 206),
        "nested": (job(a, [job(next(both), [job(next(both)) for _ in range(15)]) for _ in range(12)]), 193),
    }


async def all_done(*queues: Queue):
    """Wait until no flow is unfinished and every outbox is empty."""
    while True:
        counts = [await queue.get_job_counts() for queue in queues]
        links = [await connected(queue) for queue in queues]
        pending = [await link.transport.command("XLEN", f"{link.keys.stem}outbox") for link in links]
        if not any(each.unfinished for each in counts) and not any(pending):
            return
        await asyncio.sleep(0.01)


async def finish(queue: Queue) -> int:
    """Run the maintenance task for unfinished flows once."""
    return await finish_flows(queue)


@pytest.mark.parametrize(
    ("shape", "at_work", "after"),
    [
        *(("small", at_work, after) for at_work in (False, True) for after in (False, True)),
        *(("wide", False, True), ("wide", True, False), ("nested", False, False), ("nested", True, True)),
    ],
)
async def test_producer_dies_between_two_calls(url: str, queue_name: str, shape: str, at_work: bool, after: bool):
    """Before the commit nothing has happened; afterwards all of it happens, each job once, parents last."""
    for number in itertools.count(1):
        a, b = f"{queue_name}-{number}", f"{queue_name}-{number}-b"
        flow, size = shapes(a, b)[shape]
        handler = Counting()
        workers = [Worker(name, handler, url, concurrency=20) for name in (a, b)]
        async with FlowProducer(url) as flows, Queue(a, url) as first, Queue(b, url) as second:
            transport = set_transport(flows, Deadly(await connected(flows), number, after=after))
            if at_work:
                await asyncio.gather(*(worker.start() for worker in workers))
            try:
                await flows.add(flow)
                killed = False
            except Killed:
                killed = True
            if not at_work:
                await asyncio.gather(*(worker.start() for worker in workers))
            await finish(first)
            await with_timeout(all_done(first, second))
            await asyncio.gather(*(worker.close() for worker in workers))
            committed = "flow_stage" in (transport.calls if after or not killed else transport.calls[:-1])
            counts = [await each.get_job_counts() for each in (first, second)]
            assert sum(each.completed for each in counts) == (size if committed else 0), transport.calls
            assert sum(each.failed for each in counts) == 0
            assert handler.early == []
            assert set(handler.ran.values()) <= {1}
            for each in (first, second):
                assert (await each.check()).findings == ()
                await each.obliterate()
        if not killed:
            assert number > 5
            break


PRODUCER = """
import asyncio, os, signal, sys
from glidemq_py import FlowJob, FlowProducer
from tests.inside import connected, set_transport

async def main(url, queue, number):
    leaves = [FlowJob("job", f"{queue}{'-b' if i % 2 else ''}", 0) for i in range(250)]
    async with FlowProducer(url) as flows:
        transport = await connected(flows)
        call, calls = transport.call, 0
        class Deadly:
            async def call(self, one):
                nonlocal calls
                calls += 1
                if calls == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return await call(one)
            def __getattr__(self, name):
                return getattr(transport, name)
        set_transport(flows, Deadly())
        await flows.add(FlowJob("job", queue, 250, {"job_id": "root"}, leaves))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@pytest.mark.parametrize("number", [3, 4, 6, 8])
async def test_killed_producer_leaves_all_or_nothing(worker_for: WorkerFor, url: str, queue_name: str, number: int):
    """SIGKILL, in earnest: before the flow is written down, before its first step, in the middle, before the last."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PRODUCER, url, queue_name, str(number), cwd=Path(__file__).parents[3]
    )
    assert await process.wait() == -signal.SIGKILL
    handler, other = Counting(), f"{queue_name}-b"
    async with Queue(queue_name, url) as first, Queue(other, url) as second:
        assert await finish(first) == (0 if number == 3 else 1)
        async with worker_for(handler, concurrency=20), Worker(other, handler, url, concurrency=20):
            await with_timeout(all_done(first, second))
        assert handler.early == []
        assert len(handler.ran) == (0 if number == 3 else 251)
        await second.obliterate()


@pytest.mark.parametrize("function", ["flow_reserve", "flow_stage", "flow_add", "flow_done"])
@pytest.mark.parametrize("at_work", [False, True], ids=["workers later", "workers at once"])
async def test_lost_replies_are_retried(url: str, queue_name: str, server: Any, function: str, at_work: bool):
    """The connection ends after the call and before its reply: an idempotent call is repeated, others raise
    AmbiguousResultError.
    """
    a, b = queue_name, f"{queue_name}-b"
    flow, size = shapes(a, b)["nested"]
    handler = Counting()
    workers = [Worker(name, handler, url, concurrency=20) for name in (a, b)]
    with LossyProxy(server.url) as proxy:
        async with FlowProducer(proxy.url) as flows, Queue(a, url) as first, Queue(b, url) as second:
            if at_work:
                await asyncio.gather(*(worker.start() for worker in workers))
            proxy.lose(f"_{function}")
            known = True
            try:
                await flows.add(flow)
            except GlideMQError as error:
                assert isinstance(error, AmbiguousResultError)  # noqa: PT017  which of the two it is depends on the call
                known = False
            assert proxy.lost == 1
            finished = await finish(first)
            if not at_work:
                await asyncio.gather(*(worker.start() for worker in workers))
            await with_timeout(all_done(first, second))
            await asyncio.gather(*(worker.close() for worker in workers))
            happened = function != "flow_reserve" or known
            assert len(handler.ran) == (size if happened else 0)
            assert (handler.early, set(handler.ran.values()) <= {1}) == ([], True)
            assert known or finished == (function == "flow_stage")
            await second.obliterate()


# -- ids -----------------------------------------------------------------------------------------------------------


def with_ids(a: str, b: str, root: str | None = "root") -> FlowJob:
    middle = [job(a, [job(b, job_id=f"leaf-{i}-{j}") for j in range(30)], job_id=f"middle-{i}") for i in range(5)]
    return job(a, middle, **({} if root is None else {"job_id": root}))


@pytest.mark.parametrize("other", ["", "-b"], ids=["one queue", "two queues"])
async def test_concurrent_adds_of_the_same_flow(
    worker_for: WorkerFor, url: str, queue_name: str, queue: Queue, other: str
):
    """One of them adds the whole flow; the other one is rejected and adds nothing."""
    handler, second = Counting(), f"{queue_name}{other}"
    async with (
        FlowProducer(url) as one, FlowProducer(url) as two, Queue(second, url) as leaves,
        worker_for(handler, concurrency=20), Worker(second, handler, url, concurrency=20),
    ):  # fmt: skip
        both = [producer.add(with_ids(queue_name, second)) for producer in (one, two)]
        results = await asyncio.gather(*both, return_exceptions=True)
        refused = [each for each in results if isinstance(each, BaseException)]
        assert [type(each) for each in refused] == [DuplicateJobError]
        await with_timeout(all_done(queue, leaves))
        assert await finish(queue) == 0
    assert (len(handler.ran), handler.early) == (156, [])
    async with Queue(second, url) as leaves:
        await leaves.obliterate()


@pytest.mark.parametrize("number", [3, 4])
async def test_flow_is_added_again_after_producer_died(
    worker_for: WorkerFor, url: str, queue_name: str, queue: Queue, number: int
):
    """The first complete flow wins; the other one is rejected, or removed by the maintenance task."""
    handler = Counting()
    async with FlowProducer(url) as flows:
        transport = await connected(flows)
        set_transport(flows, Deadly(transport, number))
        with pytest.raises(Killed):
            await flows.add(with_ids(queue_name, queue_name))
        set_transport(flows, transport)
        if number == 3:  # before its first step
            await flows.add(with_ids(queue_name, queue_name))
        else:
            with pytest.raises(DuplicateJobError):
                await flows.add(with_ids(queue_name, queue_name))
        assert await finish(queue) == 1
    async with worker_for(handler, concurrency=20):
        await with_timeout(all_done(queue))
    assert (len(handler.ran), handler.early) == (156, [])


@pytest.mark.parametrize("is_child", [False, True])
async def test_job_id_used_while_the_flow_is_added(url: str, queue_name: str, queue: Queue, is_child: bool):
    """A job of a graph that cannot be added fails all jobs that depend on it, and no other.

    The job that has the id may be a child of an earlier job with the id of its parent.
    """
    gate = asyncio.Event()
    async with FlowProducer(url) as flows:
        transport = set_transport(flows, Deadly(await connected(flows), 3, gate=gate))
        nodes: list[dict[str, Any]] = [
            {"name": "taken", "queue": queue_name, "options": {"job_id": "taken"}},
            *({"name": f"filler {i}", "queue": queue_name} for i in range(150)),
            *(
                {"name": f"waits {i}", "queue": queue_name, "deps": ["taken"], "options": {"job_id": f"w{i}"}}
                for i in range(2)
            ),
        ]
        adding = asyncio.create_task(flows.add_dag(nodes))
        await with_timeout(transport.reached.wait())
        earlier = await queue.add("earlier", job_id="w0")
        options: Any = {"parent": earlier} if is_child else {}
        stranger = await queue.add("stranger", job_id="taken", **options)
        await earlier.remove()
        gate.set()
        jobs = await adding
        for name in ("waits 0", "waits 1"):
            with pytest.raises(JobFailedError, match="there is a job of this id already"):
                await jobs[name].wait_until_finished()
    assert await stranger.get_state() is JobState.WAITING
    await queue.drain()


# -- what happens meanwhile ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "end"), [("ignore", 2), ("remove", 2), ("fail_parent", None)])
@pytest.mark.parametrize("how", ["remove", "revoke"])
@pytest.mark.parametrize("number", [4, 5, 6])
async def test_children_finish_before_the_flow_is_complete(
    worker_for: WorkerFor, url: str, queue_name: str, queue: Queue, number: int, how: str, policy: Any, end: int | None
):
    """The parent is notified and does not continue before its other children exist."""
    middle = [job(queue_name, [job(queue_name)], job_id=f"m{i}", on_failure=policy) for i in range(60)]
    flow = FlowJob("root", queue_name, 1, {"job_id": "r"}, [*middle, job(queue_name, [job(queue_name)] * 50)])
    gate, seen = asyncio.Event(), list[int]()

    async def handle(job: Job) -> int:
        if job.name == "root":
            seen.append(len(await job.get_children_values()))
            return 1 + seen[0]
        return 1

    async with FlowProducer(url) as flows, worker_for(handle, concurrency=10):
        transport = set_transport(flows, Deadly(await connected(flows), number, gate=gate))
        adding = asyncio.create_task(flows.add(flow))
        await with_timeout(transport.reached.wait())
        for i in range(60):
            await (queue.remove(f"m{i}") if how == "remove" else queue.revoke(f"m{i}"))
        root = await queue.get_job("r")
        assert root is not None
        assert root.state is (JobState.WAITING_CHILDREN if end else JobState.FAILED)
        gate.set()
        node = await adding
        if end is None:
            with pytest.raises(JobFailedError, match="child"):
                await node.job.wait_until_finished()
        else:
            assert await node.job.wait_until_finished() == end
        await with_timeout(all_done(queue))
    assert seen == ([] if end is None else [1])


@pytest.mark.parametrize("number", [4, 5, 6])
@pytest.mark.parametrize("what", ["remove the root", "obliterate"])
async def test_jobs_removed_during_add_leave_no_keys(url: str, queue_name: str, queue: Queue, number: int, what: str):
    """No key of a parent that is gone comes back (`clean_check` looks)."""
    gate = asyncio.Event()
    middle = [job(queue_name, [job(queue_name)] * 3) for _ in range(120)]
    async with FlowProducer(url) as flows:
        transport = set_transport(flows, Deadly(await connected(flows), number, gate=gate))
        adding = asyncio.create_task(flows.add(FlowJob("root", queue_name, 1, {"job_id": "r"}, middle)))
        await with_timeout(transport.reached.wait())
        await (queue.remove("r") if what == "remove the root" else queue.obliterate())
        gate.set()
        await adding
    assert await queue.get_job("r") is None
    assert (await queue.check()).findings == ()


async def test_step_markers_expire_within_minutes(url: str, queue_name: str, resp: RespClient):
    """Every flow of several queues leaves one in each: for minutes, not for a week."""
    other = f"{queue_name}-b"
    async with FlowProducer(url) as flows:
        await flows.add(job(queue_name, [job(other)]))
    for name in (queue_name, other):
        (mark,) = resp.keys(f"glide:{{{name}}}:flow-mark:*")
        assert 0 < resp.execute("PTTL", mark) <= MARK_AFTERWARDS_MS
        async with Queue(name, url) as queue:
            await queue.obliterate()
        assert resp.keys(f"glide:{{{name}}}:flow*") == []


async def test_server_out_of_memory_during_add(worker_for: WorkerFor, url: str, queue_name: str, queue: Queue):
    """It is not "nothing was added": the flow is written down, and done when there is room again."""
    handler = Counting()
    async with FlowProducer(url) as flows:
        transport = await connected(flows)

        class Full:
            steps = 0

            async def call(self, call: Call[Any]):
                self.steps += call.function == "flow_add"
                if self.steps == 2:
                    raise ServerOutOfMemoryError
                return await transport.call(call)

            def __getattr__(self, name: str):
                return getattr(transport, name)

        set_transport(flows, Full())
        with pytest.raises(AmbiguousResultError, match="accepted"):
            await flows.add(with_ids(queue_name, queue_name))
        set_transport(flows, transport)
    assert await finish(queue) == 1
    async with worker_for(handler, concurrency=20):
        await with_timeout(all_done(queue))
    assert (len(handler.ran), handler.early) == (156, [])


async def test_unfinishable_flow_does_not_block_others(url: str, queue_name: str, queue: Queue):
    link = await connected(queue)
    async with FlowProducer(url) as flows:
        transport = await connected(flows)
        for i in range(6):
            set_transport(flows, Deadly(transport, 3))
            with pytest.raises(Killed):
                await flows.add(with_ids(queue_name, queue_name, f"root-{i}" if i else None))
        set_transport(flows, transport)
    tokens = [field.decode() for field in await link.transport.command("HKEYS", f"{link.keys.stem}flows")]
    await link.transport.command("LSET", f"{link.keys.stem}flow:{tokens[0]}", "1", "junk")
    with pytest.raises(GlideMQError):
        await finish(queue)
    assert await link.transport.command("HKEYS", f"{link.keys.stem}flows") == [tokens[0].encode()]
    await queue.obliterate(force=True)


class FullAt:
    """A transport to a server that is full at the n-th call of a function."""

    def __init__(self, transport: Any, function: str, number: int):
        self._transport, self._function, self._left = transport, function, number

    async def call(self, call: Call[Any]):
        if call.function == self._function:
            self._left -= 1
            if not self._left:
                raise ServerOutOfMemoryError
        return await self._transport.call(call)

    def __getattr__(self, name: str):
        return getattr(self._transport, name)


@pytest.mark.parametrize(("function", "number"), [("flow_stage", 1), ("flow_stage", 2), ("flow_add", 1)])
async def test_flow_rejected_by_a_full_server_leaves_nothing(
    url: str, queue_name: str, queue: Queue, resp: RespClient, function: str, number: int
):
    """Until its first step is executed, a flow that was committed can be withdrawn."""
    leaves = [FlowJob("leaf", f"{queue_name}-b", "x" * 2_000, {"job_id": f"leaf-{i}"}) for i in range(700)]
    flow = FlowJob("root", queue_name, None, {"job_id": "root"}, leaves)
    async with FlowProducer(url) as flows, Queue(f"{queue_name}-b", url) as other:
        transport = await connected(flows)
        set_transport(flows, FullAt(transport, function, number))
        with pytest.raises(ServerOutOfMemoryError):
            await flows.add(flow)
        assert resp.keys(f"glide:{{{queue_name}}}:flow:*") == resp.keys(f"glide:{{{queue_name}}}:flows") == []
        assert await finish(queue) == 0
        assert (await queue.get_job_counts()).total == (await other.get_job_counts()).total == 0
        set_transport(flows, transport)
        await flows.add(flow)
        assert (await queue.get_job_counts()).total + (await other.get_job_counts()).total == 701
        await other.obliterate()


@pytest.mark.parametrize("function", ["flow_stage", "flow_add"])
async def test_call_of_a_withdrawn_flow_that_arrives_late(url: str, queue_name: str, queue: Queue, function: str):
    """The server may read a call after its producer has given up, from a connection that is lost."""
    late: list[Call[Any]] = []
    async with FlowProducer(url) as flows:
        transport = await connected(flows)

        class Late(FullAt):
            async def call(self, call: Call[Any]):
                if call.function == function:
                    late.append(call)
                return await super().call(call)

        set_transport(flows, Late(transport, function, 1))
        with pytest.raises(ServerOutOfMemoryError):
            await flows.add(with_ids(queue_name, queue_name))
        (call,) = late
        reply = await transport.call(call)
        assert reply is False if function == "flow_stage" else tuple(cast("Any", reply.refused)) == (1, "withdrawn")
        assert await finish(queue) == 0
        assert (await queue.get_job_counts()).total == 0
        set_transport(flows, transport)
        await flows.add(with_ids(queue_name, queue_name))


async def test_worker_that_has_read_a_withdrawn_flow_adds_nothing(url: str, queue_name: str, queue: Queue):
    async with FlowProducer(url) as flows:
        transport = await connected(flows)
        set_transport(flows, Deadly(transport, 3))
        with pytest.raises(Killed):
            await flows.add(with_ids(queue_name, queue_name))
        link = await connected(queue)
        (token,) = await link.transport.command("HKEYS", f"{link.keys.stem}flows")
        step = await link.transport.command("LRANGE", f"{link.keys.stem}flow:{token.decode()}", "0", "1")
        assert await transport.call(calls.flow_withdraw(link.keys.meta, token.decode())) is True
        reply = await transport.call(calls.flow_step(step[0].decode(), step[1]))
        assert tuple(cast("Any", reply.refused)) == (1, "withdrawn")
        assert await transport.call(calls.flow_withdraw(link.keys.meta, token.decode())) is True
        await flows.add(with_ids(queue_name, queue_name))
        assert await transport.call(calls.flow_withdraw(link.keys.meta, token.decode())) is True
    assert (await queue.get_job_counts()).total == 156


async def test_begun_flow_cannot_be_withdrawn(url: str, queue_name: str, queue: Queue):
    async with FlowProducer(url) as flows:
        transport = await connected(flows)
        set_transport(flows, Deadly(transport, 4))
        with pytest.raises(Killed):
            await flows.add(with_ids(queue_name, queue_name))
        link = await connected(queue)
        (token,) = await link.transport.command("HKEYS", f"{link.keys.stem}flows")
        assert await transport.call(calls.flow_withdraw(link.keys.meta, token.decode())) is False
    assert await finish(queue) == 1
    assert (await queue.get_job_counts()).total == 156
