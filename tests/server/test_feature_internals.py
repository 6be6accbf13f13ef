"""Features seen from inside: keys that only one server has, processes that die, and calls below the public ones."""

from collections import Counter
from typing import Any

import pytest
from cryptography.fernet import Fernet

from glidemq_py import (
    JSON_SERIALIZER,
    Broadcast,
    BroadcastWorker,
    DagNode,
    FlowJob,
    FlowProducer,
    GlideMQValidationError,
    Job,
    JobFailedError,
    JobSpec,
    Message,
    Producer,
    Queue,
    UnrecoverableError,
    Worker,
)
from glidemq_py.testing import RespClient
from tests.inside import connected, fair_keys, fetching_of, keys_of, link_of, wake_channel, worker_results, working
from tests.operating import Operator
from tests.server.dashboard.support import browsing
from tests.server.worker_support import Gate, Raw, WorkerFor, until, with_timeout

pytestmark = pytest.mark.usefixtures("clean_check")


async def test_a_hold_of_a_key_ends_with_limits_of_each_key(queue: Queue, raw: Raw):
    await queue.fair_keys.set_defaults(concurrency=5)
    link = await connected(queue)
    await link.transport.call(fair_keys.set_fair_limits(link.keys.meta, "x", hold=1))
    await queue.add("a", "x", fair_key="x")
    assert [lease.job.data for lease in await queue.fetch(1, wait=10_000)] == ["x"]
    assert raw.run("HGETALL", "fair-limits") == ["\0every", "1|5|0|0|0|0"]


async def work(_: Job): ...


async def test_idle_worker_sends(queue: Queue, worker_for: WorkerFor, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker_results, "INTERVAL_S", 0.05)
    await queue.metrics_by_name.set()
    async with worker_for(work) as worker:
        for _ in range(2):
            await (await queue.add("fast")).wait_until_finished()
        fetching = fetching_of(worker)
        assert fetching is not None
        await with_timeout(until(lambda: not fetching.unreported and fetching.by_name.is_empty))
        assert sum(each.completed for each in await queue.metrics_by_name.get()) == 2


async def test_operators_see_sums_over_partitions(worker_for: WorkerFor, url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=3) as queue:
        await queue.metrics_by_name.set(120)
        jobs = [await queue.add("fast") for _ in range(6)]
        async with worker_for(work):
            for job in jobs:
                await job.wait_until_finished()
        assert len({job.id.rpartition("||")[0] for job in jobs}) == 3, "all partitions have jobs"
        async with Operator(url) as operator:
            (summed,), setting = await operator.get_metrics_by_name(queue_name, 3_600_000)
            assert (summed.completed, setting.minutes) == (6, 120)
        async with browsing(url) as client:
            for page in ("queue", "metrics"):
                shown = (await client.get(f"/{page}?q={queue_name}")).text
                assert 'name%3Afast">fast</a></td><td class="num">6</td>' in shown


async def test_skipped_positions_are_not_read(queue: Queue):
    await queue.add_bulk([("n",)] * 2_500)
    await queue.add_bulk([("n", None, {"delay": 60_000})] * 2_500)
    link = await connected(queue)
    requested_slots: Any = []
    call = link.transport.call

    async def counted(what: Any):
        reply = await call(what)
        requested_slots.extend([row for row in reply.rows if row != 1])
        return reply

    link.transport.call = counted  # type: ignore[method-assign,assignment]
    for state in ("waiting", "delayed"):
        requested_slots.clear()
        assert len(await queue.get_jobs(state, 2_490, 2_492)) == 3
        assert len(requested_slots) == 3


async def test_iteration_over_active_jobs_during_heartbeats(queue: Queue, worker_for: WorkerFor, raw: Raw):
    """A heartbeat moves jobs from lists in their set; they come once all the same."""
    gate = Gate()
    async with (
        worker_for(gate, concurrency=40, lock_duration=60_000) as worker,
    ):
        await queue.add_bulk([("n", None, {"lifo": i % 2 == 0}) for i in range(40)])
        for _ in range(40):
            await gate.next()
        met: Counter[str] = Counter()
        entries = {pairs[1]: entry for entry, pairs in raw.run("XRANGE", "stream", "-", "+")}
        async for job in queue.iter_jobs("active", page=3):
            met[job.id] += 1
            record = raw.job(job.id)
            entry = "" if "lifo" in record else entries[job.id]
            token = (job.id, entry, int(record["fence"]), int(record["processedOn"]))
            await link_of(queue).transport.call(
                working.heartbeat(keys_of(queue).meta, worker.consumer, "", 60_000, [token])
            )
        assert met == Counter([str(i) for i in range(1, 41)])
        gate.open()


@pytest.mark.parametrize("job_id", ["007", "99999999999999999999", "a||b", "é*?["])
async def test_job_of_a_peer_with_any_id_can_be_read_and_removed(raw: Raw, queue: Queue, job_id: str):
    """Ids that `add` refuses may have been given by a peer that does not."""
    raw.put_job(job_id)
    job = await queue.get_job(job_id)
    assert job is not None
    assert (job.id, job.name) == (job_id, "task")
    assert await queue.remove(job_id)
    assert await queue.get_job(job_id) is None
    with pytest.raises(GlideMQValidationError, match="must not contain any of"):
        await queue.get_job("a:b")


OWN = (70_000, -70_000)
NEVER_S = 3_600.0


async def fetched(queue: Queue) -> list[Any]:
    """Fetch and complete all ready jobs; return their data in the order of the fetch."""
    leases = await queue.fetch(500)
    if leases:
        await queue.leases.complete([(lease, None) for lease in leases])
    return [lease.job.data for lease in leases]


async def test_ranked_add_wakes_a_worker_of_many_queues(
    url: str, resp: RespClient, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(wake_channel, "POLL_S", NEVER_S)
    ran: Any = []

    async def handle(job: Job):
        ran.append(job.rank)

    other = f"{queue.name}-other"
    async with Worker([queue.name, other], handle, url):
        channels = f"glide:{{{queue.name}}}:wake-channels"
        for rank in OWN:
            await with_timeout(until(lambda: resp.execute("ZCARD", channels) == 1))
            job = await queue.add("n", rank=rank)
            await job.wait_until_finished(timeout=20_000)
        late = await queue.add("n", rank=OWN[1], delay=50)
        await late.wait_until_finished(timeout=20_000)
    assert ran == [*OWN, OWN[1]]


async def handle(job: Job):
    await job.log("a line")
    if job.name == "failed":
        raise ValueError("no")
    return job.id


# -- serializers ------------------------------------------------------------------------------------------------


class Encrypted:
    """As in examples/encryption.py."""

    def __init__(self):
        self._fernet = Fernet(Fernet.generate_key())

    def serialize(self, value: Any) -> str:
        return self._fernet.encrypt(JSON_SERIALIZER.serialize(value).encode()).decode()

    def deserialize(self, text: str):
        return JSON_SERIALIZER.deserialize(self._fernet.decrypt(text).decode())


SECRET = "4111-1111"
DATA = {"card": SECRET}


async def charge(job: Job):
    assert job.data == DATA
    if job.name == "step" and job.attempts_made == 0:
        await job.update_data(DATA)
        raise ValueError("once more")
    if job.name == "broken":
        raise UnrecoverableError("no funds")
    return DATA


async def receive(message: Message):
    assert message.data == DATA
    return DATA


def everything_on(resp: RespClient, queue_name: str) -> str:
    """Return the contents of all keys of the queue and of its dead letter queue."""
    read = {
        "hash": ("HGETALL",), "stream": ("XRANGE", "-", "+"), "zset": ("ZRANGE", "0", "-1"), "set": ("SMEMBERS",),
        "list": ("LRANGE", "0", "-1"), "string": ("GET",),
    }  # fmt: skip
    found: Any = []
    for key in resp.execute("KEYS", f"*{queue_name}*"):
        name, *more = read[str(resp.execute("TYPE", key))]
        found.append(resp.execute(name, key, *more))
    return repr(found)


async def test_no_writer_stores_what_a_serializer_encrypts(
    worker_for: WorkerFor, url: str, resp: RespClient, queue_name: str
):
    with_key: Any = {"serializer": Encrypted()}
    letters = f"{queue_name}-dead"
    async with (
        Queue(queue_name, url, dead_letter_queue=letters, **with_key) as queue,
        Producer(queue_name, url, **with_key) as producer,
        FlowProducer(url, **with_key) as flows,
        worker_for(charge, concurrency=5, log_failures=False, **with_key) as worker,
    ):
        await queue.add("add", DATA, headers={"tenant": "acme"})
        await queue.add_bulk([("bulk", DATA, {"fair_key": "a"}), ("later", DATA, {"delay": 50})])
        await queue.add("step", DATA, attempts=2)
        await queue.add("unique", DATA, deduplication={"id": "u", "replace": True})
        await producer.add("producer", DATA)
        await producer.add_bulk([("producer", DATA)])
        await flows.add(FlowJob("parent", queue_name, DATA, children=[FlowJob("child", queue_name, DATA)]))
        await flows.add_dag([DagNode("a", queue_name, DATA), DagNode("b", queue_name, DATA, deps=["a"])])
        await queue.schedulers.upsert("s", every=3_600_000, template=JobSpec("tick", DATA), immediately=True)
        async with await queue.job_batches.create(on_complete=("callback", DATA)) as batch:
            await batch.add("member", DATA)
        assert await queue.add_and_wait("waited", DATA) == DATA
        broken = await queue.add("broken", DATA)
        with pytest.raises(JobFailedError):
            await broken.wait_until_finished()
        await worker.drain()
        await queue.add("leased", DATA)
        await worker.drain()
        (letter,) = await queue.dead_letters.get_all()
        assert letter.data["data"] == DATA
        await queue.dead_letters.replay(letter.id)
        assert (await queue.get_job_counts()).completed > 10
    async with (
        Broadcast(f"{queue_name}-news", url, **with_key) as broadcast,
        BroadcastWorker(f"{queue_name}-news", receive, url, subscription="s", **with_key) as subscriber,
    ):
        await broadcast.publish("one", DATA)
        message, _ = await broadcast.publish_bulk([("more", DATA), ("later", DATA, {"delay": 20})])
        await subscriber.drain()
        delivery = await broadcast.get_delivery(str(message), "s")
        assert delivery is not None
        assert delivery.returnvalue == DATA
    stored = everything_on(resp, queue_name)
    assert "gAAAA" in stored
    assert SECRET not in stored
