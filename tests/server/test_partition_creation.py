"""Creation of partitioned queues, and adds of clients that know another layout than the queue has."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from glidemq_py import FlowJob, FlowProducer, Job, Queue, QueueEvents, Worker, sync
from glidemq_py.errors import GlideMQError, LayoutChangedError, QueuePartitionsError
from glidemq_py.testing import RespClient
from tests.inside import (
    Call,
    Layout,
    call,
    keys_of,
    lane,
    layout_of,
    loop_transport,
    partition_names,
    partition_of_key,
    parts,
    parts_of,
    queue_events,
    split_partition_id,
    stored,
    wake_channel,
)
from tests.inside import stored as stored_layouts
from tests.server.worker_support import WorkerFor, until, with_timeout

PARTITIONS = 3
LOCK_MS = 1_000
"""Lock duration of the workers: they send three heartbeats in this time, which report the layout."""


@pytest.fixture
def partitions() -> int:
    return PARTITIONS


def key_of(partition: int, count: int = PARTITIONS) -> str:
    """Return a key whose jobs are in this partition."""
    return next(key for n in range(1_000) if partition_of_key(key := f"k{n}", count) == partition)


def meta(name: str) -> str:
    return f"glide:{{{name}}}:meta"


@asynccontextmanager
async def created_meanwhile(url: str, name: str, count: int = PARTITIONS) -> AsyncGenerator[tuple[Queue, Queue]]:
    """Yield a client that knows of no partitions, and one that has just created them."""
    async with Queue(name, url) as queue:
        assert await queue.count() == 0
        async with Queue(name, url, partitions=count) as creator:
            yield queue, creator


@pytest.fixture
def after_call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs something before or after the n-th call of a function, of whichever client, when it creates partitions."""
    create = stored.create_layout

    def begin(function: str, then: Callable[[], Awaitable[Any]], *, number: int = 1, before: bool = False):
        left = number

        class Hooked:
            def __init__(self, transport: Any):
                self._transport = transport

            def __getattr__(self, name: str):
                return getattr(self._transport, name)

            async def call(self, call: Call[Any]):
                nonlocal left
                left -= call.function == function
                is_due = call.function == function and left == 0
                if is_due and before:
                    await then()
                reply = await self._transport.call(call)
                if is_due and not before:
                    await then()
                return reply

        async def creating_it(transport: Any, *args: Any) -> Layout | None:
            return await create(Hooked(transport), *args)

        monkeypatch.setattr(stored, "create_layout", creating_it)

    return begin


AfterCall = Callable[..., None]


async def die():
    raise ConnectionError


# -- creation ---------------------------------------------------------------------------------------------------


async def test_the_error_names_both_numbers_and_the_ways_to_move(url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=3):
        pass
    with pytest.raises(
        QueuePartitionsError, match=r"= 4: queue .* keeps its 3 partitions .*workers serve both"
    ) as raised:
        await Queue(queue_name, url, partitions=4).connect()
    assert (raised.value.queue, raised.value.stored, raised.value.wanted) == (queue_name, 3, 4)
    assert "stop adding and restore a backup" in str(raised.value)


@pytest.mark.parametrize("give", ["url", "cluster_url"])
async def test_many_clients_create_it_with_different_numbers(
    give: str, request: pytest.FixtureRequest, queue_name: str
):
    url: str = request.getfixturevalue(give)
    counts = [2, 3, 5, 8, 13] * 20
    queues = [Queue(queue_name, url, partitions=count) for count in counts]
    found = await with_timeout(asyncio.gather(*(queue.connect() for queue in queues), return_exceptions=True), 60)
    async with Queue(queue_name, url) as other:
        state = await other.settings.get_partitions()
        assert state.count in counts
        for count, each in zip(counts, found, strict=True):
            assert (each is None) == (count == state.count), (count, each)
            assert each is None or isinstance(each, QueuePartitionsError)
        opened = [queue for queue, count in zip(queues, counts, strict=True) if count == state.count]
        await asyncio.gather(*(queue.add("n", ordering={"key": f"k{n}"}) for n, queue in enumerate(opened)))
        assert await other.count() == len(opened)
    await asyncio.gather(*(queue.close() for queue in queues))


@pytest.mark.parametrize("seed", range(5))
async def test_clients_create_it_while_others_add_plain_jobs(url: str, queue_name: str, seed: int):
    dice = random.Random(seed)
    creators = [Queue(queue_name, url, partitions=dice.choice([2, 3, 5])) for _ in range(50)]
    producers = [Queue(queue_name, url) for _ in range(10)]
    await asyncio.gather(*(queue.connect() for queue in producers))

    async def create(queue: Queue):
        await asyncio.sleep(dice.random() / 100)
        await queue.connect()

    async def produce(queue: Queue) -> list[Job]:
        await asyncio.sleep(dice.random() / 50)
        return [await queue.add("n", ordering={"key": f"k{n}"}) for n in range(20)]

    created, jobs = await with_timeout(
        asyncio.gather(
            asyncio.gather(*map(create, creators), return_exceptions=True), asyncio.gather(*map(produce, producers))
        ),
        60,
    )
    async with Queue(queue_name, url) as other:
        count = (await other.settings.get_partitions()).count
        assert await other.count() == sum(map(len, jobs)) == 200
        for job in (job for some in jobs for job in some):
            assert await other.get_job(job.id) is not None
        if count > 1:
            of_key = [job for some in jobs for n, job in enumerate(some) if n == 7]
            assert {split_partition_id(job.id)[0] for job in of_key} == {partition_of_key("k7", count)}
    assert all(each is None or isinstance(each, QueuePartitionsError) for each in created)
    assert any(each is None for each in created) == (count > 1)
    await asyncio.gather(*(queue.close() for queue in [*creators, *producers]))


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(
    ("function", "number"),
    [("begin_partitions", 1), *(("store_layout", n) for n in range(1, PARTITIONS)), ("create_partitions", 1)],
)
async def test_a_creator_that_dies_leaves_nothing_that_counts(
    url: str, queue_name: str, after_call: AfterCall, monkeypatch: pytest.MonkeyPatch,
    function: str, number: int, before: bool,
):  # fmt: skip
    after_call(function, die, number=number, before=before)
    with pytest.raises(ConnectionError):
        await Queue(queue_name, url, partitions=PARTITIONS).connect()
    monkeypatch.undo()
    is_created = function == "create_partitions" and not before
    async with Queue(queue_name, url) as plain:
        assert (await plain.settings.get_partitions()).count == (PARTITIONS if is_created else 1)
    wanted = PARTITIONS if is_created else 4
    async with Queue(queue_name, url, partitions=wanted) as queue:
        jobs = [await queue.add("n", ordering={"key": key_of(at, wanted)}) for at in range(wanted)]
        assert [split_partition_id(job.id)[0] for job in jobs] == list(range(wanted))


async def test_a_plain_queue_can_be_used_after_a_creator_has_died(
    worker_for: WorkerFor, url: str, queue_name: str, after_call: AfterCall
):
    after_call("create_partitions", die, before=True)
    with pytest.raises(ConnectionError):
        await Queue(queue_name, url, partitions=PARTITIONS).connect()
    async with Queue(queue_name, url) as queue:
        jobs = await queue.add_bulk([("n", at) for at in range(5)])
        async with worker_for(lambda job: job.data):
            assert [await job.wait_until_finished() for job in jobs] == list(range(5))


async def test_a_job_that_is_added_before_the_last_call_prevents_the_creation(
    url: str, queue_name: str, after_call: AfterCall
):
    async with Queue(queue_name, url) as queue:
        after_call("create_partitions", lambda: queue.add("n"), before=True)
        with pytest.raises(QueuePartitionsError, match="cannot get partitions after its first job"):
            await Queue(queue_name, url, partitions=PARTITIONS).connect()
        assert (await queue.settings.get_partitions()).count == 1
        assert await queue.count() == 1


async def test_a_setting_that_changes_meanwhile_reaches_all_partitions(
    url: str, queue_name: str, after_call: AfterCall, monkeypatch: pytest.MonkeyPatch
):
    async with Queue(queue_name, url) as queue:
        await queue.connect()

        async def pause():
            monkeypatch.undo()
            await queue.pause()

        after_call("store_layout", pause)
        async with Queue(queue_name, url, partitions=PARTITIONS) as opened:
            await opened.connect()
            assert [await part.is_paused() for part in parts_of(opened)] == [True] * PARTITIONS


async def test_the_last_of_two_creators_wins(url: str, queue_name: str, after_call: AfterCall):
    """The first one has prepared its partitions when the second one begins."""

    async def create():
        async with Queue(queue_name, url, partitions=5) as other:
            await other.add("n", ordering={"key": key_of(4, 5)})

    after_call("create_partitions", create, before=True)
    with pytest.raises(QueuePartitionsError):
        await Queue(queue_name, url, partitions=PARTITIONS).connect()
    async with Queue(queue_name, url) as queue:
        assert (await queue.settings.get_partitions()).count == 5
        assert split_partition_id((await queue.add("n", ordering={"key": key_of(4, 5)})).id)[0] == 4
        assert await queue.count() == 2


@pytest.mark.parametrize("remove", [True, False])
async def test_a_queue_that_has_had_a_job_gets_no_partitions(url: str, queue_name: str, remove: bool):
    async with Queue(queue_name, url) as queue:
        job = await queue.add("n")
        if remove:
            await job.remove()
        with pytest.raises(QueuePartitionsError) as raised:
            await Queue(queue_name, url, partitions=PARTITIONS).connect()
        assert (raised.value.stored, raised.value.wanted) == (1, PARTITIONS)
        await queue.obliterate()
    async with Queue(queue_name, url, partitions=PARTITIONS) as queue:
        assert (await queue.settings.get_partitions()).count == PARTITIONS


@pytest.mark.parametrize("counts", [[3], [1, 3], [3, 2, 3]])
async def test_layouts_of_versions_that_could_change_the_number(
    url: str, resp: RespClient, queue_name: str, counts: list[int]
):
    """A change that is complete has left names beyond the number."""
    names = partition_names(queue_name, 4)
    stored: Any = {"version": 2, "number": 1_795_240_398_325, "counts": counts, "names": list(names)}
    for name in names:
        resp.execute("HSET", meta(name), "layoutNumber", stored["number"], "features", "partitions:0.2.0")
    resp.execute("HSET", meta(queue_name), "partitions", json.dumps(stored))
    if len(counts) > 1:
        with pytest.raises(GlideMQError, match=r"number of partitions to 3, .*; complete the change with that version"):
            await Queue(queue_name, url).connect()
        return
    async with Queue(queue_name, url) as queue:
        assert (await queue.settings.get_partitions()).names == names[:3]
        for at in range(3):
            assert split_partition_id((await queue.add("n", ordering={"key": key_of(at)})).id)[0] == at
        assert await queue.count() == 3


# -- adding -----------------------------------------------------------------------------------------------------


async def _add(queue: Queue, url: str, key: str) -> str:
    return (await queue.add("n", ordering={"key": key})).id


async def _add_bulk(queue: Queue, url: str, key: str) -> str:
    return (await queue.add_bulk([("n", None, {"ordering": {"key": key}})]))[0].id


async def _add_without_order(queue: Queue, url: str, key: str) -> str:
    return (await queue.add("n", fair_key=key)).id


async def _add_to_batch(queue: Queue, url: str, key: str) -> str:
    async with await queue.job_batches.create() as batch:
        (job,) = await batch.add_bulk([("n", None, {"fair_key": key})])
    return job.id


ADDS = [_add, _add_bulk, _add_without_order, _add_to_batch]


@pytest.mark.parametrize("add", ADDS)
@pytest.mark.parametrize("part", range(PARTITIONS))
async def test_a_layout_that_a_failover_has_lost_is_written_again(
    queue: Queue, url: str, resp: RespClient, queue_name: str, add: Any, part: int, caplog: pytest.LogCaptureFixture
):
    await queue.connect()
    name = parts_of(queue)[part].name
    resp.execute("DEL", meta(name))
    keys = [key_of(at) for at in range(PARTITIONS)]
    ids = [await add(queue, url, key) for key in keys]
    assert [split_partition_id(job_id)[0] for job_id in ids] == list(range(PARTITIONS))
    assert "had lost" in caplog.text
    async with Queue(queue_name, url) as other:
        assert await other.count() == PARTITIONS
        assert (await other.settings.get_partitions()).count == PARTITIONS


async def test_a_client_that_opens_it_with_its_number_loses_no_job(
    worker_for: WorkerFor, url: str, resp: RespClient, queue_name: str
):
    """The primary of partition 0 started empty, and no client that knew the layout is left."""
    async with Queue(queue_name, url, partitions=PARTITIONS) as queue:
        for at in range(PARTITIONS):
            await queue.add("n", ordering={"key": key_of(at)})
    resp.execute("DEL", *resp.keys(f"glide:{{{queue_name}}}:*"))
    async with Queue(queue_name, url, partitions=PARTITIONS) as again:
        assert await again.count() == PARTITIONS - 1
        async with worker_for(lambda _: None) as worker:
            await worker.drain()
        assert (await again.get_job_counts()).completed == PARTITIONS - 1


async def test_a_layout_comes_back_while_another_client_creates_it_again(
    queue: Queue, url: str, resp: RespClient, queue_name: str
):
    """A partition has the number of the creation, which did not end, and the others that of the layout."""
    await queue.connect()
    resp.execute("HINCRBY", meta(parts_of(queue)[1].name), "layoutNumber", 7)
    for _ in range(2):
        ids = [await _add(queue, url, key_of(at)) for at in range(PARTITIONS)]
        assert [split_partition_id(job_id)[0] for job_id in ids] == list(range(PARTITIONS))
    async with Queue(queue_name, url) as other:
        assert await other.count() == 2 * PARTITIONS


@pytest.mark.parametrize("part", range(PARTITIONS))
async def test_a_flow_writes_a_lost_layout_again(queue: Queue, url: str, resp: RespClient, queue_name: str, part: int):
    async with FlowProducer(url) as producer:
        children = [FlowJob("n", queue_name, options={"ordering": {"key": key_of(at)}}) for at in range(PARTITIONS)]
        await producer.add(FlowJob("parent", queue_name, children=children))
        resp.execute("DEL", meta(parts_of(queue)[part].name))
        node = await producer.add(FlowJob("parent", queue_name, children=children))
        assert node.children is not None
        assert [split_partition_id(each.job.id)[0] for each in node.children] == list(range(PARTITIONS))
        assert await queue.count() == 2 * PARTITIONS


def test_a_blocking_client_writes_a_lost_layout_again(url: str, resp: RespClient, queue_name: str):
    with sync.Queue(queue_name, url, partitions=PARTITIONS) as queue:
        names = queue.settings.get_partitions().names
        for name in (names[1], names[0]):
            resp.execute("DEL", meta(name))
            for at in range(PARTITIONS):
                assert split_partition_id(queue.add("n", ordering={"key": key_of(at)}).id)[0] == at
        assert queue.count() == 2 * PARTITIONS


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("again", [None, PARTITIONS, 5])
async def test_a_producer_that_slept_through_an_obliterate_and_a_creation(
    url: str, resp: RespClient, queue_name: str, bulk: bool, again: int | None
):
    """Its job is where the others look: in the queue that has the name now."""
    async with Queue(queue_name, url, partitions=PARTITIONS) as sleeper:
        for at in range(PARTITIONS):
            await sleeper.add("n", ordering={"key": key_of(at)})
        async with Queue(queue_name, url) as operator:
            await operator.obliterate()
        async with Queue(queue_name, url, partitions=again) as present:
            await present.connect()
            for at in range(PARTITIONS):
                options: Any = {"ordering": {"key": key_of(at)}}
                await (sleeper.add_bulk([("n", at, options)]) if bulk else sleeper.add("n", at, **options))
            assert await present.count() == PARTITIONS
            assert (await sleeper.settings.get_partitions()).count == (again or 1)
            assert {lease.job.data for lease in await present.fetch(10)} == set(range(PARTITIONS))
            await present.obliterate(force=True)
    assert [key for key in resp.keys(f"glide:{{{queue_name}*") if not key.endswith(":deleted-layout")] == []


async def test_late_calls_with_a_deleted_layout(queue: Queue, url: str, queue_name: str, resp: RespClient):
    async with Queue(queue_name, url) as other:
        assert await other.count() == 0
        known, layout = parts_of(other), layout_of(other)
        await queue.obliterate()
        left = resp.keys(f"glide:{{{queue_name}*")
        for part in known:
            with pytest.raises(LayoutChangedError, match="created or obliterated"):
                await part.add("n")
        for part in known[1:]:
            given: list[list[str] | None] = [None, []]
            for settings in given:
                with pytest.raises(LayoutChangedError):
                    await call(
                        part, stored_layouts.store_layout(keys_of(part).meta, *stored_layouts.stored(layout), settings)
                    )
        assert (
            await call(
                known[0], stored_layouts.create_partitions(keys_of(other).meta, *stored_layouts.stored(layout), [])
            )
            == b"again"
        )
        assert (
            await call(known[0], stored_layouts.restore_layout(keys_of(other).meta, *stored_layouts.stored(layout)))
            == 0
        )
        assert resp.keys(f"glide:{{{queue_name}*") == left
        assert {key.rpartition(":")[2] for key in left} == {"deleted-layout"}
        assert len(left) == PARTITIONS
        assert all(0 < int(resp.execute("PTTL", key)) <= 86_400_000 for key in left)


async def test_late_calls_of_a_creation_do_not_replace_a_later_one(queue: Queue, queue_name: str):
    await queue.connect()
    before, first = Layout(1, partition_names(queue_name, 4)), parts_of(queue)[0]
    assert (
        await call(first, stored_layouts.create_partitions(keys_of(queue).meta, *stored_layouts.stored(before), []))
    ).startswith(b"{")
    assert await call(first, stored_layouts.restore_layout(keys_of(queue).meta, *stored_layouts.stored(before))) == 0
    for part in parts_of(queue)[1:]:
        with pytest.raises(LayoutChangedError):
            await call(part, stored_layouts.store_layout(keys_of(part).meta, *stored_layouts.stored(before), []))
    for at in range(PARTITIONS):
        await queue.add("n", ordering={"key": key_of(at)})


async def test_an_obliterate_that_was_interrupted(
    queue: Queue, url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch, resp: RespClient
):
    """Partitions that are deleted take no jobs until it is called again; the others do."""
    async with Queue(queue_name, url) as other:
        for at in range(PARTITIONS):
            await other.add("n", ordering={"key": key_of(at)})
        await queue.connect()
        last = parts_of(queue)[2].name
        send, following = loop_transport.LoopTransport.call, meta(parts_of(queue)[1].name)

        async def calling(self: loop_transport.LoopTransport, call: Call[Any], *args: Any, **options: Any):
            if (call.function, call.key) == ("obliterate", following):
                await die()
            return await send(self, call, *args, **options)

        monkeypatch.setattr(loop_transport.LoopTransport, "call", calling)
        with pytest.raises(ConnectionError):
            await queue.obliterate()
        monkeypatch.undo()
        monkeypatch.setattr(parts, "_PAUSES_S", (0.01, 0.0))  # 20 times
        assert not resp.keys(f"glide:{{{last}}}:stream")
        with pytest.raises(GlideMQError, match=r"nothing was added: .*If an obliterate was interrupted"):
            await other.add("n", ordering={"key": key_of(2)})
        await other.add("n", ordering={"key": key_of(0)})
        await other.obliterate()
        assert [key for key in resp.keys(f"glide:{{{queue_name}*") if not key.endswith(":deleted-layout")] == []
        await other.add("n", ordering={"key": key_of(2)})
        assert await queue.count() == 1


async def test_producers_continue_while_a_queue_is_obliterated(
    queue: Queue, url: str, queue_name: str, resp: RespClient
):
    """Whatever they add afterwards is in a queue without partitions."""
    async with Queue(queue_name, url) as producer:
        await queue.add_bulk([("n", at) for at in range(2_000)])
        ended = asyncio.Event()

        async def produce():
            at = 0
            while not ended.is_set():
                await producer.add("n", ordering={"key": key_of(at := (at + 1) % PARTITIONS)})

        producing = asyncio.create_task(produce())
        await producer.connect()
        names = (await producer.settings.get_partitions()).names
        async with Queue(queue_name, url) as operator:
            await with_timeout(operator.obliterate())
        await producer.add("last")
        ended.set()
        await with_timeout(producing)
        assert (await producer.settings.get_partitions()).count == 1
        async with Queue(queue_name, url) as other:
            assert await producer.get_job_counts() == await other.get_job_counts()
        for name in names[1:]:
            assert {key.rpartition(":")[2] for key in resp.keys(f"glide:{{{name}}}:*")} == {"deleted-layout"}


async def test_remains_of_a_deleted_queue_are_not_in_the_next_one(url: str, queue_name: str, resp: RespClient):
    """A failover of a partition has lost its deletion."""
    async with Queue(queue_name, url, partitions=PARTITIONS) as queue:
        for at in range(PARTITIONS):
            await queue.add("n", ordering={"key": key_of(at)})
        name = parts_of(queue)[1].name
        saved = {key: resp.execute("DUMP", key) for key in resp.keys(f"glide:{{{name}}}:*")}
        await queue.obliterate()
    for key, content in saved.items():
        resp.execute("RESTORE", key, 0, content)
    resp.execute("DEL", f"glide:{{{name}}}:deleted-layout")
    async with Queue(queue_name, url, partitions=PARTITIONS) as again:
        assert await again.count() == 0
        assert split_partition_id((await again.add("n", ordering={"key": key_of(1)})).id)[0] == 1


# -- settings of clients that know of no partitions ------------------------------------------------------------------


async def test_settings_reach_all_partitions(url: str, queue_name: str):
    async with created_meanwhile(url, queue_name) as (queue, creator):
        await queue.pause()
        await queue.failures.set_policy(max_age=60_000)
        await queue.settings.set_result_retention(7)
        for part in parts_of(creator):
            assert await part.is_paused()
            assert await part.failures.get_policy() == await creator.failures.get_policy()
            assert await part.settings.get_result_retention() == 7


async def test_limits_are_divided_among_all_partitions(url: str, queue_name: str):
    async with created_meanwhile(url, queue_name) as (queue, creator):
        await queue.limits.set_concurrency(8)
        await queue.limits.set_rate_limit(30, 1_000)
        await queue.limits.set_for_name("slow", concurrency=6)
        assert [(await part.limits.get()).concurrency for part in parts_of(creator)] == [3, 3, 2]
        rates = [(await part.limits.get()).rate_limit for part in parts_of(creator)]
        assert [rate and rate.max for rate in rates] == [10] * PARTITIONS
        assert [(await part.limits.get_for_name("slow")).concurrency for part in parts_of(creator)] == [2] * PARTITIONS
        assert (await creator.limits.get()).concurrency == 8


async def test_limits_of_keys_and_schedulers_are_where_their_jobs_are(url: str, queue_name: str):
    key = key_of(2)
    async with created_meanwhile(url, queue_name) as (queue, creator):
        await queue.fair_keys.set_limits(key, concurrency=5)
        assert (await parts_of(creator)[2].fair_keys.get(key)).concurrency == 5
        await creator.schedulers.upsert(key, every=60_000, template={"name": "old"})
        await queue.schedulers.upsert(key, every=60_000, template={"name": "new"})
        found = [await part.schedulers.get(key) for part in parts_of(creator)]
        assert [each and each.job_name for each in found] == [None, None, "new"]


async def test_calls_for_the_jobs_of_all_partitions(url: str, queue_name: str):
    async with created_meanwhile(url, queue_name) as (queue, creator):
        await creator.add_bulk([("n", at, {"delay": 60_000}) for at in range(1_000)])
        assert await queue.jobs.promote_delayed() == 1_000
        assert await queue.drain() == 1_000


def test_a_blocking_client(url: str, queue_name: str):
    with sync.Queue(queue_name, url) as queue:
        assert queue.count() == 0
        with sync.Queue(queue_name, url, partitions=PARTITIONS) as creator:
            names = creator.settings.get_partitions().names
            queue.limits.set_concurrency(6)
            assert {split_partition_id(queue.add("n", ordering={"key": key_of(at)}).id)[0] for at in range(3)} == {
                0,
                1,
                2,
            }
        for name in names[1:]:  # partition 0 has the name of the queue
            with sync.Queue(name, url) as part:
                assert part.limits.get().concurrency == 2


async def test_a_limit_below_the_number_of_partitions_is_rejected(queue: Queue):
    with pytest.raises(GlideMQError, match=r"concurrency.* = 2: must be at least the number of partitions, 3"):
        await queue.limits.set_concurrency(2)
    await queue.limits.set_concurrency(3, ttl=60_000)
    assert (await queue.limits.get()).concurrency == 3
    await queue.limits.set_concurrency(0)
    assert (await queue.limits.get()).concurrency is None


# -- workers and readers that started before ---------------------------------------------------------------------------


async def test_a_worker_that_started_before_serves_the_partitions(worker_for: WorkerFor, url: str, queue_name: str):
    seen: Any = []
    async with (
        Queue(queue_name, url) as queue,
        worker_for(lambda job: seen.append(job.data), lock_duration=LOCK_MS),
        Queue(queue_name, url, partitions=PARTITIONS) as creator,
    ):
        await creator.add_bulk([("n", at) for at in range(750)])
        await queue.add_bulk([("n", at) for at in range(750, 1_500)])
        await with_timeout(until(lambda: len(seen) == 1_500), 60)
    assert sorted(seen) == list(range(1_500))


async def test_a_worker_finds_the_partitions_of_a_quiet_queue(
    url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    """A quiet queue has no heartbeats, which report the layout, as registrations do."""

    async def register(_: lane.Lane, interval_s: float | None = None):
        """Do nothing: it is done at the start and every minute."""

    monkeypatch.setattr(lane.Lane, "register", register)
    monkeypatch.setattr(wake_channel, "EXAMINED_S", 0.02)
    quiet = f"{queue_name}-quiet"
    async with (
        Worker({queue_name: 1, quiet: 2}, lambda job: job.data, url),
        Queue(quiet, url, partitions=PARTITIONS) as queue,
    ):
        job = await queue.add("n", "ended", ordering={"key": key_of(2)})
        assert await job.wait_until_finished(timeout=10_000) == "ended"


@pytest.mark.parametrize("strict", [False, True], ids=["limiter", "strict-order"])
async def test_a_worker_that_cannot_serve_partitions_closes(url: str, queue_name: str, strict: bool):
    names: Any = [queue_name, f"{queue_name}-other"] if strict else queue_name
    options: Any = {} if strict else {"limiter": {"max": 1, "duration": 1_000}}
    worker = Worker(names, lambda _: None, url, lock_duration=LOCK_MS, **options)
    await worker.start()
    async with Queue(queue_name, url, partitions=2):
        pass
    with pytest.raises(GlideMQError, match="strict order" if strict else "at least 2"):
        await with_timeout(worker.wait_until_closed())


@pytest.mark.parametrize("blocking", [False, True])
async def test_readers_of_events_that_started_before_read_the_partitions(
    url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch, blocking: bool
):
    monkeypatch.setattr(queue_events, "_LAYOUT_S", 0.1)
    seen: list[str] = []
    events: Any = (sync.QueueEvents if blocking else QueueEvents)(queue_name, url)
    events.on("added", lambda event: seen.append(event.job_id))
    if blocking:
        await asyncio.to_thread(events.__enter__)
    else:
        await events.__aenter__()
    async with Queue(queue_name, url, partitions=PARTITIONS) as queue:
        jobs = [await queue.add("n", ordering={"key": key_of(at)}) for at in range(PARTITIONS)]
        await with_timeout(until(lambda: len(seen) == PARTITIONS))
        jobs += [await queue.add("n", ordering={"key": key_of(at)}) for at in range(PARTITIONS)]
        await with_timeout(until(lambda: len(seen) == 2 * PARTITIONS))
        assert sorted(seen) == sorted(job.id for job in jobs)
    await (asyncio.to_thread(events.close) if blocking else events.close())
