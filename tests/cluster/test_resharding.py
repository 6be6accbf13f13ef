"""A queue's slot moves to another node under load: every acknowledged job is completed exactly once."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from glidemq_py import FlowJob, FlowProducer, GlideMQError, Queue, Worker
from glidemq_py.errors import ServerNotReadyError
from glidemq_py.sync import Queue as BlockingQueue
from glidemq_py.testing import ClusterProcess, RespError, server_binary
from tests.cluster.resharding import SlotMover
from tests.server.test_faults_server import Producers, assert_each_ended_once, work
from tests.server.worker_support import EventRecorder, Gate, Raw, with_timeout

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[ClusterProcess]:
    """Yield three primaries for this file only, because slots move."""
    with ClusterProcess(server_binary("valkey-9.1")) as cluster:
        yield cluster


@pytest.fixture
def mover(own_cluster: ClusterProcess, queue_name: str) -> Iterator[SlotMover]:
    mover = SlotMover(own_cluster, queue_name)
    yield mover
    mover.close()


@asynccontextmanager
async def under_load(cluster: ClusterProcess, mover: SlotMover, name: str) -> AsyncGenerator[Producers]:
    """Run producers and two workers within this context; check the results at its end."""
    async with Queue(name, cluster.url) as queue:
        both = [Worker(name, work, cluster.url, concurrency=10) for _ in range(2)]
        recorded = EventRecorder(*both)
        await asyncio.gather(*(worker.start() for worker in both))
        async with Producers(queue) as producers:
            await producers.more(40)
            yield producers
            await producers.more(40)
        await recorded.wait("completed", len(producers.acknowledged))
        await with_timeout(asyncio.gather(*(worker.close() for worker in both)), 60)
        with cluster.client() as client:
            assert_each_ended_once(Raw(client, name), recorded, producers.acknowledged)
        assert (await queue.check(recheck_after=50)).findings == ()
        assert mover.leftovers() == {}
        assert recorded.count["stalled"] == 0
        assert producers.refused == 0


async def test_slot_moves_key_by_key_under_load(own_cluster: ClusterProcess, mover: SlotMover, queue_name: str):
    async with under_load(own_cluster, mover, queue_name) as producers:
        for _ in range(6):
            await mover.run(mover.begin)
            await mover.run(mover.move_keys)
            await mover.run(mover.end)
            await producers.more(40)
    assert mover.moved_keys > 300


async def test_slot_moves_atomically_under_load(own_cluster: ClusterProcess, mover: SlotMover, queue_name: str):
    async with under_load(own_cluster, mover, queue_name) as producers:
        for _ in range(4):
            await mover.run(mover.move_atomically)
            await producers.more(40)


async def test_interrupted_move_is_finished_later(own_cluster: ClusterProcess, mover: SlotMover, queue_name: str):
    """The move takes longer than a lock: healthy jobs are not recovered, and failed calls were not executed."""
    gate = Gate()
    options: dict[str, Any] = {"concurrency": 5, "lock_duration": 1_000, "stalled_interval": 1_000}
    async with Queue(queue_name, own_cluster.url) as queue:
        async with Worker(queue_name, gate, own_cluster.url, **options) as one:
            await queue.add_bulk([("n", i) for i in range(20)])
            held = [await gate.next() for _ in range(5)]
            async with Worker(queue_name, gate, own_cluster.url, **options) as two:
                held += [await gate.next() for _ in range(5)]
                recorded = EventRecorder(one, two)
                await mover.run(mover.begin)
                await mover.run(lambda: mover.move_keys(10))
                async with Queue(queue_name, own_cluster.url + "?request_timeout=1500") as impatient:
                    for _ in range(2):
                        with pytest.raises(ServerNotReadyError, match="was not executed"):
                            await impatient.add("never", 0)
                added = asyncio.create_task(queue.add("n", 20))  # waits until the move is complete
                await mover.run(mover.move_keys)
                await mover.run(mover.end)
                gate.open()
                await with_timeout(added)
                await recorded.wait("completed", 21)
                counts = await queue.get_job_counts()
                assert (counts.completed, counts.unfinished) == (21, 0)
                assert recorded.count["stalled"] == 0
                assert len(set(recorded.job_ids("completed"))) == 21
                assert len({job.id for job in held}) == 10
        assert mover.leftovers() == {}
        assert (await queue.check(recheck_after=50)).findings == ()


async def test_move_that_stops_at_a_busy_key(own_cluster: ClusterProcess, mover: SlotMover, queue_name: str):
    """A foreign client writes one key at the target while the source still has it: MIGRATE without REPLACE fails."""
    async with under_load(own_cluster, mover, queue_name) as producers:
        # Pending adds wait for the move, which takes longer than the impatient client below waits.
        await mover.run(mover.begin)
        events = f"glide:{{{queue_name}}}:events"
        await mover.run(lambda: mover.write_at_target("XADD", events, "*", "event", "foreign"))
        with pytest.raises(RespError, match="BUSYKEY"):
            await mover.run(mover.move_keys)
        async with Queue(queue_name, own_cluster.url + "?request_timeout=500") as impatient:
            with pytest.raises(ServerNotReadyError, match="was not executed"):
                await impatient.add("never", 0)
        assert events in mover.keys_at_source()
        assert events in mover.keys_at_target()
        # The remedy of the operations page: the source's keys replace those of the target.
        await mover.run(lambda: mover.move_keys(replace=True))
        await mover.run(mover.end)
        await producers.more(40)


async def test_no_call_creates_a_key_at_the_target(own_cluster: ClusterProcess, mover: SlotMover, queue_name: str):
    """With no key moved yet, the source rejects every kind of call, and the target stays empty."""
    url = own_cluster.url + "?request_timeout=3000"
    async with (
        Queue(queue_name, own_cluster.url) as queue,
        Queue(queue_name, url) as impatient,
        FlowProducer(url) as flows,
    ):
        job = await queue.add("n", 1)
        await queue.add_bulk([("n", i) for i in range(1, 6)])
        mine = await impatient.get_job(job.id)
        assert mine is not None
        before = mover.keys_at_source()
        await mover.run(mover.begin)
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: impatient.add("n", 1),
            lambda: impatient.add("n", 1, delay=1_000, priority=3),
            lambda: impatient.add("n", 1, lifo=True, job_id="own"),
            lambda: impatient.add_bulk([("n", 1)] * 3),
            lambda: flows.add(FlowJob("p", queue_name, children=[FlowJob("c", queue_name)])),
            lambda: impatient.schedulers.upsert("s", every=60_000, template={"name": "n"}),
            lambda: impatient.pause(),
            lambda: impatient.get_job_counts(),
            lambda: impatient.schedulers.remove("s"),
            lambda: impatient.drain(),
            lambda: mine.update_data(5),
            lambda: mine.update_progress(5),
            lambda: mine.log("x"),
            lambda: mine.remove(),
        ]
        # All at once: each is repeated until its timeout, which a slow machine needs for a single reply.
        for raised in await with_timeout(asyncio.gather(*(call() for call in calls), return_exceptions=True)):
            assert isinstance(raised, GlideMQError), raised
            errors = [raised, *getattr(raised, "results", ())]
            assert any(isinstance(error, ServerNotReadyError) for error in errors), raised
        worker = Worker(queue_name, work, own_cluster.url + "?request_timeout=500")
        recorded = EventRecorder(worker)
        starting = asyncio.create_task(worker.start())
        await recorded.wait("error", 2)  # its start also meets the moving slot
        assert mover.keys_at_target() == []
        assert mover.keys_at_source() == before
        await mover.run(mover.move_keys)
        await mover.run(mover.end)
        await with_timeout(starting)
        await recorded.wait("completed", 6)
        await worker.close()


async def test_flows_schedulers_and_blocking_calls_survive_moves(
    own_cluster: ClusterProcess, mover: SlotMover, queue_name: str
):
    other = queue_name + "-other"
    both = [Worker(name, work, own_cluster.url, concurrency=5) for name in (queue_name, other)]
    recorded = EventRecorder(*both)
    stop = False

    def produce() -> int:
        count = 0
        with BlockingQueue(queue_name, own_cluster.url) as queue:
            while not stop:
                queue.add("blocking", 1, attempts=2)
                count += 1
        return count

    async def add_flows(flows: FlowProducer) -> int:
        count = 0
        while not stop:
            children = [FlowJob("c", queue_name if n % 2 else other, 1) for n in range(4)]
            tree = await flows.add(FlowJob("p", queue_name, 1, children=children))
            assert tree.job.id
            count += 5
        return count

    async with (
        Queue(queue_name, own_cluster.url) as queue,
        Queue(other, own_cluster.url) as second,
        FlowProducer(own_cluster.url) as flows,
    ):
        await queue.schedulers.upsert("tick", every=50, template={"name": "tick", "data": 1})
        await asyncio.gather(*(worker.start() for worker in both))
        blocking = asyncio.create_task(asyncio.to_thread(produce))
        adding = asyncio.create_task(add_flows(flows))
        for _ in range(4):
            before = recorded.count["completed"]
            await mover.run(mover.begin)
            await mover.run(mover.move_keys)
            await mover.run(mover.end)
            await recorded.wait("completed", before + 20)
        stop = True
        await queue.schedulers.remove("tick")
        expected = await with_timeout(blocking) + await with_timeout(adding)
        await recorded.until(
            lambda recorded: sum(job.name != "tick" for job, _ in recorded.of("completed")) >= expected
        )
        assert sum(job.name != "tick" for job, _ in recorded.of("completed")) == expected
        assert any(job.name == "tick" for job, _ in recorded.of("completed"))
        await with_timeout(asyncio.gather(*(worker.drain() for worker in both)), 60)
        assert (await queue.check(recheck_after=50)).findings == ()
        assert (await second.check(recheck_after=50)).findings == ()
        assert recorded.count["stalled"] == 0
        assert mover.leftovers() == {}
