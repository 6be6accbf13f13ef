"""Durable adds: an add returns only when its job survives the failures that the option names."""

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from glidemq_py import (
    BulkAddError,
    Durability,
    GlideMQConnectionError,
    GlideMQValidationError,
    Producer,
    Queue,
    QueueEvents,
    sync,
)
from glidemq_py._features import durability as confirming
from glidemq_py._features.durability import _SHORT_WAITS as SHORT_WAITS
from glidemq_py.errors import DurabilityError
from glidemq_py.testing import ClusterProcess, RespClient, ServerProcess, TestQueue, server_binary
from tests.inside import (
    AsyncTransport,
    connections_of,
    durable_adds,
    keys_of,
    read_events,
    reserved_reads,
    shared_reads,
)
from tests.server.worker_support import StartServer, until, with_timeout


async def confirmer_of(queue: Queue, durable: Durability) -> confirming.Confirmer:
    return (await queue._durable_adds(durable)).confirmer


def waits_of(resp: RespClient) -> int:
    """Return the number of WAITAOF commands of the server; one that blocked counts twice."""
    stats = resp.info("commandstats").get("cmdstat_waitaof", "calls=0")
    return int(stats.split(",")[0].removeprefix("calls="))


def mark_keys(resp: RespClient, queue: str) -> list[str]:
    return resp.keys(f"glide:{{{queue}}}:durable:*")


@pytest.fixture
def server(private_server: StartServer) -> ServerProcess:
    """Return a server with an append-only file that is synced every second."""
    return private_server(appendonly="yes", appendfsync="everysec")


def replica_of(private_server: StartServer, primary: ServerProcess) -> ServerProcess:
    return private_server(replicaof=["127.0.0.1", str(primary.port)])


async def connected_replicas(primary: ServerProcess, count: int):
    """Wait until the primary sends its changes to this many replicas."""
    with primary.client() as resp:

        def ready() -> bool:
            info = resp.info("replication")
            return sum(f"slave{i}" in info and "state=online" in info[f"slave{i}"] for i in range(count)) == count

        await with_timeout(until(ready))
        # A replica that is online may still load its data: wait until it confirms a change.
        resp.execute("SET", "probe", "1")
        resp.execute("DEL", "probe")
        assert await asyncio.to_thread(resp.execute, "WAIT", count, 0) == count


async def test_durable_add_is_on_disk_when_it_returns(server: ServerProcess, queue_name: str):
    async with Queue(queue_name, server.url) as queue:
        job = await queue.add("resize", {"n": 1}, durable=True)
        with server.client() as resp:
            assert resp.info("persistence")["aof_pending_bio_fsync"] == "0"
            assert 2 <= waits_of(resp) <= 3  # the first checked that the server has an append-only file
        server.restart(kill=True)
        assert await job.get_state() == "waiting"


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Regard every wait as short; return a function after which a separate confirmation is an error."""
    monkeypatch.setattr(confirming, "_SHORT_S", 600.0)

    async def fail(self: confirming.Confirmer, mark: confirming.Mark):
        raise AssertionError(f"{mark} was not confirmed with its add")

    return lambda: monkeypatch.setattr(confirming.Confirmer, "confirm", fail)


async def test_after_short_waits_an_add_is_confirmed_in_its_own_pipeline(
    server: ServerProcess, queue_name: str, short_waits: Callable[[], None]
):
    async with Queue(queue_name, server.url, durable=True) as queue:
        for n in range(SHORT_WAITS):
            await queue.add("resize", n)
        short_waits()
        jobs = await asyncio.gather(*(queue.add("resize", n) for n in range(50)))
        assert len({job.id for job in jobs}) == 50
        server.restart(kill=True)
        assert (await queue.get_job_counts()).waiting == 50 + SHORT_WAITS


async def test_add_that_its_own_pipeline_does_not_confirm(
    private_server: StartServer, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(confirming, "_SHORT_S", 600.0)
    primary = private_server()
    replica = replica_of(private_server, primary)
    await connected_replicas(primary, 1)
    durable = Durability(disk=False, replicas=1, timeout=60_000)
    async with Queue(queue_name, primary.url, durable=durable) as queue:
        for n in range(SHORT_WAITS):
            await queue.add("resize", n)
        confirmer = await confirmer_of(queue, durable)
        monkeypatch.setattr(confirmer, "_durability", durable.with_changes(timeout=100))
        replica.pause()
        with pytest.raises(DurabilityError, match="received by 0 of 1 replicas within 100 ms"):
            await queue.add("resize", job_id="late")
        replica.resume()
        monkeypatch.setattr(confirmer, "_durability", durable)
        assert (await with_timeout(queue.add("resize", job_id="late"))).outcome == "duplicate"


@pytest.mark.slow
async def test_server_that_dies_during_an_add_in_its_own_pipeline(
    server: ServerProcess, queue_name: str, short_waits: Callable[[], None]
):
    async with Queue(queue_name, f"{server.url}?request_timeout=500", durable=Durability(timeout=500)) as queue:
        for n in range(SHORT_WAITS):
            await queue.add("resize", n)
        server.kill()
        with pytest.raises(GlideMQConnectionError):
            await with_timeout(queue.add("resize"))


@pytest.mark.slow
async def test_marks_disappear(server: ServerProcess, queue_name: str):
    async with Queue(queue_name, server.url, durable=Durability(timeout=500)) as queue:
        await queue.add("resize")
        with server.client() as resp:
            await with_timeout(until(lambda: mark_keys(resp, queue_name) == []))


async def test_durable_false_overrides_the_queue(server: ServerProcess, queue_name: str):
    async with Queue(queue_name, server.url, durable=True) as queue:
        await queue.add("resize", durable=False)
        await queue.add_bulk([("resize", n) for n in range(3)], durable=False)
        with server.client() as resp:
            assert waits_of(resp) == 0
            assert mark_keys(resp, queue_name) == []


async def test_durable_bulk_is_confirmed_once(server: ServerProcess, queue_name: str):
    async with Queue(queue_name, server.url) as queue:
        jobs = await queue.add_bulk([("resize", n) for n in range(1_000)], durable=True)
        assert len(jobs) == 1_000
        with server.client() as resp:
            assert waits_of(resp) <= 9  # one per chunk at most, and the check at first use


async def test_all_chunks_of_a_bulk_share_one_timeout(private_server: StartServer, queue_name: str):
    server = private_server()
    async with Queue(queue_name, server.url, durable={"disk": False, "replicas": 1, "timeout": 300}) as queue:
        with pytest.raises(BulkAddError) as error:
            await queue.add_bulk([("resize", n) for n in range(3_000)])
        assert str(error.value).startswith("3,000 jobs were added but not confirmed; first error: DurabilityError: job")
        assert (error.value.failed, error.value.unconfirmed) == (3_000, 3_000)
        with server.client() as resp:
            calls = resp.info("commandstats")["cmdstat_wait"].split(",")[0].removeprefix("calls=")
        assert int(calls) <= 6  # the check at first use and one wait; each counts twice if it blocks


async def test_a_lost_chunk_of_a_bulk_is_noticed(
    server: ServerProcess, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    async with Queue(queue_name, server.url, durable=True) as queue:
        await queue.add("resize")
        confirm_all = confirming.Confirmer.confirm_all

        async def confirm_after_loss(self: confirming.Confirmer, marks: list[confirming.Mark]) -> list[str]:
            with server.client() as resp:
                resp.execute("DEL", f"glide:{{{queue_name}}}:durable:{marks[1].text}")
            return await confirm_all(self, marks)

        monkeypatch.setattr(confirming.Confirmer, "confirm_all", confirm_after_loss)
        with pytest.raises(BulkAddError) as error:
            await queue.add_bulk([("resize", n) for n in range(1_000)])
        failed = [i for i, each in enumerate(error.value.results) if isinstance(each, DurabilityError)]
        assert failed == list(range(250, 500))
        assert "the server has lost the job" in str(error.value)


async def test_marks_of_a_long_bulk_are_renewed(
    server: ServerProcess, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    """The first chunks of the bulk are nine minutes old when its fifth is added."""
    monkeypatch.setattr(durable_adds, "RENEW_S", 0.0)
    mark_next, confirm_all = durable_adds.Marks.next, confirming.Confirmer.confirm_all
    lives: list[int] = []
    with server.client() as resp:

        def add_later(self: durable_adds.Marks, piece: Any, meta: str) -> str:
            if piece[0] == 1_000:
                for key in mark_keys(resp, queue_name):
                    resp.execute("EXPIRE", key, 60)
            return mark_next(self, piece, meta)

        async def look(self: confirming.Confirmer, marks: list[confirming.Mark]) -> list[str]:
            lives.extend(resp.execute("TTL", key) for key in mark_keys(resp, queue_name))
            return await confirm_all(self, marks)

        monkeypatch.setattr(durable_adds.Marks, "next", add_later)
        monkeypatch.setattr(confirming.Confirmer, "confirm_all", look)
        async with Queue(queue_name, server.url, durable=True) as queue:
            assert len(await queue.add_bulk([("resize", n) for n in range(2_000)])) == 2_000
    assert len(lives) == 8
    assert min(lives) > 300


async def test_a_durable_bulk_is_confirmed_after_a_partition_has_refused_it(server: ServerProcess, queue_name: str):
    async with Queue(queue_name, server.url, partitions=2, durable=True) as queue:
        names = (await queue.settings.get_partitions()).names
        with server.client() as resp:
            resp.execute("DEL", f"glide:{{{names[1]}}}:meta")  # it has lost its layout, which the queue writes again
        jobs = await queue.add_bulk([("n", None, {"ordering": f"k{i}"}) for i in range(8)])
        assert {job.id.partition("||")[0] for job in jobs if "||" in job.id} == {"1"}


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], int]]:
    """Return a list that receives the waits of each pipeline: their commands, and how long they may block together."""
    sent: list[tuple[list[str], int]] = []
    call_with = AsyncTransport.call_with

    async def record(self: AsyncTransport, call: Any, waits: Any, block: int, *more: Any):
        commands = [wait for wait in waits if wait[0].startswith("WAIT")]
        if commands:
            assert sum(int(wait[-1]) for wait in commands) <= block
            sent.append(([wait[0] for wait in commands], block))
        return await call_with(self, call, waits, block, *more)

    monkeypatch.setattr(AsyncTransport, "call_with", record)
    return sent


@pytest.mark.slow
async def test_disk_and_replicas_share_one_timeout(
    server: ServerProcess, queue_name: str, blocks: list[tuple[list[str], int]]
):
    durable = Durability(replicas=1, timeout=700)
    async with Queue(queue_name, f"{server.url}?request_timeout=300", durable=durable) as queue:
        await confirmer_of(queue, durable)
        with pytest.raises(DurabilityError, match="received by 0 of 1 replicas within 700 ms"):
            await queue.add("resize")
        with server.client() as resp:
            resp.execute("CONFIG", "SET", "appendfsync", "no")
        with pytest.raises(DurabilityError, match="not written to the disk of the primary within 700 ms"):
            await queue.add("resize")
    assert {command for commands, _ in blocks for command in commands} == {"WAITAOF", "WAIT"}
    assert max(block for _, block in blocks) <= 700


@pytest.mark.slow
async def test_server_that_dies_during_the_wait_does_not_prolong_it(private_server: StartServer, queue_name: str):
    server = private_server(durable=True)
    durable = Durability(replicas=1, timeout=4_000)
    async with Queue(queue_name, server.url, durable=durable) as queue:
        adding = asyncio.create_task(queue.add("resize"))
        with server.client() as resp:
            async with asyncio.timeout(60):
                while not (await queue.get_job_counts()).waiting:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                while not re.search("flags=b .*cmd=wait ", str(resp.execute("CLIENT", "LIST"))):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        began = time.monotonic()
        server.kill()
        with pytest.raises(DurabilityError, match="within 4000 ms"):
            await adding
        assert time.monotonic() - began < 15  # the request timeout is 30 seconds


@pytest.mark.slow
async def test_an_add_in_its_own_pipeline_has_one_timeout(
    private_server: StartServer, queue_name: str, blocks: list[tuple[list[str], int]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(confirming, "_SHORT_S", 600.0)
    primary = private_server(appendonly="yes", appendfsync="always")
    replica = replica_of(private_server, primary)
    await connected_replicas(primary, 1)
    durable = Durability(replicas=1, timeout=60_000)
    async with Queue(queue_name, f"{primary.url}?request_timeout=300", durable=durable) as queue:
        for n in range(SHORT_WAITS):
            await queue.add("resize", n)
        confirmer = await confirmer_of(queue, durable)
        monkeypatch.setattr(confirmer, "_durability", durable.with_changes(timeout=1_000))
        replica.pause()
        blocks.clear()
        with pytest.raises(DurabilityError, match="received by 0 of 1 replicas within 1000 ms"):
            await queue.add("resize")
        replica.resume()
    assert blocks[0] == (["WAITAOF", "WAIT"], 1_000)
    assert max(block for _, block in blocks[1:]) <= 501  # half of the time was over


async def test_adds_of_many_tasks_share_each_wait(
    private_server: StartServer, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(confirming, "_SHORT_S", 600.0)
    server = private_server(appendonly="yes", appendfsync="always")
    sizes: list[int] = []
    add = confirming.Confirmer.call

    async def counted(self: confirming.Confirmer, call: Any):
        reply = await add(self, call)
        sizes.append(len(reply.results))
        return reply

    monkeypatch.setattr(confirming.Confirmer, "call", counted)
    async with Queue(queue_name, server.url, durable=True) as queue:
        for _ in range(SHORT_WAITS):
            await queue.add("resize")
        sizes.clear()

        async def producer():
            for n in range(5):
                await queue.add("resize", n)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(20):
                tasks.create_task(producer())
        assert sum(sizes) == 100
        # The first add leaves at once, the others of its round behind it, and from then on all 20 in one call.
        assert len(sizes) <= 7
        assert (await queue.get_job_counts()).waiting == 105


async def test_producer(server: ServerProcess, queue_name: str):
    async with Producer(queue_name, server.url, durable={"timeout": 10_000}) as producer:
        assert await producer.add("resize") == "1"
        assert await producer.add_bulk([("resize",), ("resize",)]) == ["2", "3"]
        with server.client() as resp:
            assert waits_of(resp) >= 2


def test_blocking_adds_of_many_threads(server: ServerProcess, queue_name: str):
    with sync.Queue(queue_name, server.url, durable=True) as queue:
        ids: list[str] = []
        threads = [threading.Thread(target=lambda n=n: ids.append(queue.add("resize", n).id)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(map(int, ids)) == list(range(1, 21))
        assert len(queue.add_bulk([("resize", n) for n in range(5)])) == 5
        with server.client() as resp:
            assert waits_of(resp) >= 2


async def test_without_append_only_file_nothing_is_added(private_server: StartServer, queue_name: str):
    server = private_server()
    async with Queue(queue_name, server.url) as queue:
        for add in (queue.add("resize", durable=True), queue.add_bulk([("resize",)], durable=True)):
            with pytest.raises(GlideMQValidationError, match="no append-only file: set appendonly to yes") as error:
                await add
            assert error.value.option == "durable"
        assert (await queue.get_job_counts()).waiting == 0


async def test_all_replicas_without_a_replica_is_rejected(server: ServerProcess, queue_name: str):
    async with Queue(queue_name, server.url) as queue:
        with pytest.raises(GlideMQValidationError, match="no connected replica"):
            await queue.add("resize", durable=Durability(disk=False, replicas="all"))
        assert (await queue.get_job_counts()).waiting == 0


@pytest.mark.parametrize("replicas", [1, "all"])
async def test_durable_add_is_on_the_replica_when_it_returns(
    private_server: StartServer, queue_name: str, replicas: int
):
    primary = private_server()
    replica = replica_of(private_server, primary)
    await connected_replicas(primary, 1)
    async with Queue(queue_name, primary.url) as queue:
        job = await queue.add("resize", durable={"disk": False, "replicas": replicas})
        primary.kill()
        with replica.client() as resp:
            assert resp.hash(f"glide:{{{queue_name}}}:job:{job.id}")["state"] == "waiting"


@pytest.mark.slow
async def test_too_few_replicas_is_an_error_that_names_them(private_server: StartServer, queue_name: str):
    primary = private_server()
    replica_of(private_server, primary)
    await connected_replicas(primary, 1)
    async with Queue(queue_name, primary.url, durable={"disk": False, "replicas": 2, "timeout": 1_500}) as queue:
        with pytest.raises(DurabilityError) as error:
            await queue.add("resize")
        assert str(error.value) == (
            "job '1' was added, but may be lost: received by 1 of 2 replicas within 1500 ms; adding it again is safe "
            "if its job_id is set and it is kept"
        )
        assert error.value.job_id == "1"
        with pytest.raises(BulkAddError) as bulk:
            await queue.add_bulk([("resize",), ("resize",)])
        assert [each.job_id for each in bulk.value.results if isinstance(each, DurabilityError)] == ["2", "3"]
        assert (await queue.get_job_counts()).waiting == 3


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("lost", "the server has lost the job"),
        ("dies", r"'2' was added, but may be lost: not confirmed within 500 ms \("),
    ],
)
async def test_faults_before_the_confirmation_are_noticed(
    server: ServerProcess, queue_name: str, monkeypatch: pytest.MonkeyPatch, fault: str, message: str
):
    """A server that lost its data confirms at once what it still has; the add is not part of it."""
    async with Queue(queue_name, f"{server.url}?request_timeout=300", durable=Durability(timeout=500)) as queue:
        await queue.add("resize")
        confirm = confirming.Confirmer.confirm

        async def confirm_after(self: confirming.Confirmer, mark: confirming.Mark):
            if fault == "dies":
                server.kill()
            else:
                with server.client() as resp:
                    resp.execute("FLUSHALL")
            await confirm(self, mark)

        monkeypatch.setattr(confirming.Confirmer, "confirm", confirm_after)
        with pytest.raises(DurabilityError, match=message):
            await with_timeout(queue.add("resize"))


async def test_confirmation_survives_a_lost_connection(server: ServerProcess, queue_name: str):
    async with Queue(queue_name, server.url, durable=Durability(timeout=60_000)) as queue:
        await queue.add("resize")
        with server.client() as resp:
            resp.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        job = await with_timeout(queue.add("resize", job_id="again"))
        assert job.id == "again"


async def test_cancelled_add_does_not_disturb_others(server: ServerProcess, queue_name: str):
    async with Queue(queue_name, server.url, durable=True) as queue:
        await queue.add("resize")
        adds = [asyncio.create_task(queue.add("resize", n)) for n in range(20)]
        await asyncio.sleep(0)
        for add in adds[::2]:
            add.cancel()
        done = await with_timeout(asyncio.gather(*adds, return_exceptions=True))
        assert all(not isinstance(each, BaseException) for each in done[1::2])


async def test_close_ends_pending_confirmations(private_server: StartServer, queue_name: str):
    primary = private_server()
    queue = Queue(queue_name, primary.url, durable={"disk": False, "replicas": 1, "timeout": 60_000})
    adding = asyncio.create_task(queue.add("resize"))
    with primary.client() as resp:
        await with_timeout(until(lambda: mark_keys(resp, queue_name)))
    await with_timeout(queue.close())
    with pytest.raises(DurabilityError, match="the queue was closed"):
        await with_timeout(adding)


@pytest.mark.slow
async def test_cluster(queue_name: str, aof_cluster: ClusterProcess):
    queues = [Queue(f"{queue_name}-{i}", aof_cluster.url, durable=True) for i in range(4)]
    for queue in queues:
        async with queue:
            jobs = await asyncio.gather(*(queue.add("resize", n) for n in range(20)))
            assert len({job.id for job in jobs}) == 20
            assert len(await queue.add_bulk([("resize", n) for n in range(10)])) == 10
    with sync.Queue(queue_name, aof_cluster.url, durable=True) as blocking:
        assert blocking.add("resize").id == "1"


@pytest.fixture
def aof_cluster() -> Iterator[ClusterProcess]:
    """Return a cluster whose nodes have append-only files."""
    with ClusterProcess(server_binary("valkey-9.1"), config={"appendonly": "yes"}) as cluster:
        yield cluster


async def test_in_memory_server():
    async with TestQueue("emails", durable=True) as queue:
        assert (await queue.add("send")).id == "1"
        assert len(await queue.add_bulk([("send",), ("send",)])) == 2
        with pytest.raises(GlideMQValidationError, match="no connected replica"):
            await queue.add("send", durable={"replicas": "all"})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("yes", "must be a Durability, True or False"),
        ({"disk": False}, "requires 'replicas'"),
        ({"replicas": "most"}, "must be a number of replicas or 'all'"),
        ({"replicas": -1}, "from 0 to 1,000"),
        ({"timeout": 0}, "from 1"),
        ({"fsync": True}, "unknown option"),
    ],
)
async def test_invalid_options(value: object, message: str):
    with pytest.raises(GlideMQValidationError, match=message) as error:
        Queue("emails", durable=value)  # type: ignore[arg-type]
    assert error.value.option.startswith("durable")


async def test_adds_of_many_queues_share_one_connection_and_one_wait(server: ServerProcess, queue_name: str):
    async with AsyncExitStack() as stack:
        queues = [
            await stack.enter_async_context(Queue(f"{queue_name}-{number}", server.url, durable=True))
            for number in range(20)
        ]
        for _ in range(2):
            jobs = await asyncio.gather(*(queue.add("n", number) for queue in queues for number in range(3)))
            assert [job.outcome for job in jobs] == ["added"] * 60
        with server.client() as resp:
            assert waits_of(resp) <= 10
            assert (
                len(str(resp.execute("CLIENT", "LIST")).splitlines()) <= 4
            )  # calls of GLIDE and direct ones, waits, this one
        await queues[0].close()
        await queues[1].add("n", 1)
        server.restart(kill=True)
        assert [(await queue.get_job_counts()).waiting for queue in queues[1:]] == [7] + [6] * 18
    assert not reserved_reads()


async def test_lost_add_of_one_queue_fails_alone(
    server: ServerProcess, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    async with (
        Queue(queue_name, server.url, durable=True) as lossy,
        Queue(f"{queue_name}-other", server.url, durable=True) as other,
    ):
        await asyncio.gather(lossy.add("n"), other.add("n"))
        confirm = confirming.Confirmer.confirm

        async def lose(self: confirming.Confirmer, mark: confirming.Mark):
            if self._meta == keys_of(lossy).meta:
                with server.client() as resp:
                    assert resp.execute("DEL", f"{keys_of(lossy).stem}durable:{mark.text}") == 1
            await confirm(self, mark)

        monkeypatch.setattr(confirming.Confirmer, "confirm", lose)
        outcomes: list[object] = list(await asyncio.gather(lossy.add("n"), other.add("n"), return_exceptions=True))
        assert isinstance(outcomes[0], DurabilityError)
        assert not isinstance(outcomes[1], BaseException)


async def test_durable_adds_take_the_connection_of_a_reader(server: ServerProcess, queue_name: str):
    async with AsyncExitStack() as stack:
        events = await stack.enter_async_context(QueueEvents("watched", server.url))
        reader = connections_of(events)[-1]
        assert isinstance(reader, shared_reads.SharedReader)
        await read_events(events)
        assert not reader.is_polled
        others = [shared_reads.reserve_read(reader.server) for _ in range(2)]  # as those of two workers
        queue = await stack.enter_async_context(Queue(queue_name, server.url))
        await queue.add("n", durable=True)
        async with Queue("watched", server.url) as watched:
            await watched.add("n")
            found: list[str] = []
            while not (found and reader.is_polled):
                found += [event.event for event in await read_events(events)]
            assert found == ["added"]
        with server.client() as resp:
            assert (
                len(str(resp.execute("CLIENT", "LIST")).splitlines()) <= 4
            )  # calls of GLIDE and direct ones, waits, this one
        for each in others:
            assert each is not None
            each.release()
