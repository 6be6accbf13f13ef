"""Durable flows: an add returns only when all jobs of the flow survive the failures that the option names."""

import asyncio
from typing import Any

import pytest

from glidemq_py import BulkAddError, DuplicateJobError, FlowJob, FlowProducer, GlideMQValidationError, Queue, sync
from glidemq_py.errors import DurabilityError
from glidemq_py.records import JobNode
from glidemq_py.testing import ServerProcess
from tests.inside import around, durable_adds
from tests.server.worker_support import StartServer


@pytest.fixture
def server(private_server: StartServer) -> ServerProcess:
    return private_server(appendonly="yes", appendfsync="everysec")


def tree(*queues: str, children: int = 3) -> FlowJob:
    """Return a root in the first queue with children in all of them."""
    below = [FlowJob("child", queue, number) for queue in queues for number in range(children)]
    return FlowJob("root", queues[0], None, None, below)


async def waits_of(server: ServerProcess) -> int:
    with server.client() as resp:
        stats = resp.info("commandstats").get("cmdstat_waitaof", "calls=0")
        return int(stats.split(",")[0].removeprefix("calls="))


@pytest.mark.parametrize("queues", [["a"], ["a", "b"]], ids=["one call", "steps"])
async def test_durable_flow_survives_a_killed_server(server: ServerProcess, queues: list[str]):
    async with FlowProducer(server.url, durable=True) as producer, Queue("a", server.url) as queue:
        node = await producer.add(tree(*queues))
        assert await waits_of(server) >= 2 * len(queues)
        server.restart(kill=True)
        assert await node.job.get_state() == "waiting-children"
        assert (await queue.get_job_counts()).waiting == 3
        before = await waits_of(server)
        await producer.add(tree(*queues), durable=False)
        assert await waits_of(server) == before


async def test_durable_dag_and_large_flow(server: ServerProcess):
    async with FlowProducer(server.url) as producer, Queue("a", server.url) as queue:
        nodes: list[dict[str, Any]] = [
            {"name": "first", "queue": "a"},
            {"name": "second", "queue": "a", "deps": ["first"]},
        ]
        assert set(await producer.add_dag(nodes, durable=True)) == {"first", "second"}
        await producer.add(tree("a", children=600), durable=True)
        server.restart(kill=True)
        assert (await queue.get_job_counts()).waiting == 601


@pytest.mark.parametrize("queues", [["a"], ["a", "b"]], ids=["one call", "steps"])
async def test_lost_call_of_a_flow_is_reported(
    server: ServerProcess, queues: list[str], monkeypatch: pytest.MonkeyPatch
):
    confirm = durable_adds.Marks.confirm

    async def lose(*given: Any) -> list[tuple[Any, str]]:
        with server.client() as resp:
            keys = resp.keys(f"glide:{{{queues[-1]}}}:durable:*")
            assert keys
            resp.execute("DEL", *keys)
        return await confirm(*given)

    async with FlowProducer(server.url, durable=True) as producer:
        await producer.add(tree(*queues))
        monkeypatch.setattr(durable_adds.Marks, "confirm", lose)
        with pytest.raises(DurabilityError, match="lost") as failed:
            await producer.add(tree(*queues))
        assert failed.value.job_id is not None
        with pytest.raises(BulkAddError) as several:
            await producer.add_bulk([tree(*queues), tree(*queues)])
        assert [type(each) for each in several.value.results] == [DurabilityError] * 2
        assert several.value.unconfirmed == 2


async def test_one_wait_per_queue_confirms_a_bulk_of_flows(server: ServerProcess):
    async with FlowProducer(server.url, durable=True) as producer:
        assert len(await producer.add_bulk(tree("a") for _ in range(40))) == 40
        assert await waits_of(server) <= 4


async def test_durable_flow_without_append_only_file_is_rejected(private_server: StartServer):
    server = private_server()
    async with FlowProducer(server.url, durable=True) as producer, Queue("a", server.url) as queue:
        with pytest.raises(GlideMQValidationError, match="durable"):
            await producer.add(tree("a"))
        assert await queue.count() == 0


async def test_durable_flow_of_blocking_code(server: ServerProcess):
    def add() -> str:
        with sync.FlowProducer(server.url, durable=True) as producer:
            return producer.add(tree("a", "b")).job.id

    assert await asyncio.to_thread(add)
    assert await waits_of(server) >= 3  # of the first use, and of each queue


@pytest.mark.slow
async def test_blocking_code_has_one_connection_for_the_waits_of_all_queues(server: ServerProcess):
    def add() -> int:
        queues = [f"q{number}" for number in range(10)]
        with (
            sync.FlowProducer(server.url, durable=True) as producer,
            sync.FlowProducer(server.url, durable=True) as other,
            sync.Queue("single", server.url, durable=True) as queue,
        ):
            producer.add(tree(*queues))
            queue.add("n")
            other.add(tree(*queues))
            with server.client() as resp:
                return len(str(resp.execute("CLIENT", "LIST")).splitlines())

    # Of three objects, two connections each for calls (through GLIDE and direct); waits; this one.
    assert await asyncio.to_thread(add) <= 8
    assert await asyncio.to_thread(add) <= 8  # after the connection was closed


async def test_marks_of_a_long_bulk_of_flows_are_renewed(server: ServerProcess, monkeypatch: pytest.MonkeyPatch):
    """The first trees are nine minutes old when the last one is added."""
    monkeypatch.setattr(durable_adds, "RENEW_S", 0.0)
    lives, trees = list[int](), 0
    with server.client() as resp:

        async def send_later(send: Any, flows: FlowProducer, *arguments: Any) -> int:
            nonlocal trees
            trees += 1
            if trees == 3:
                for key in resp.keys("glide:{*}:durable:*"):
                    resp.execute("EXPIRE", key, 60)
            return int(await send(flows, *arguments))

        async def look(confirm: Any, *given: Any) -> list[tuple[Any, str]]:
            lives.extend(resp.execute("TTL", key) for key in resp.keys("glide:{*}:durable:*"))
            return await confirm(*given)

        around(monkeypatch, FlowProducer, "_add", send_later)
        around(monkeypatch, durable_adds.Marks, "confirm", look)
        async with FlowProducer(server.url, durable=True) as producer:
            assert len(await producer.add_bulk(tree("a") for _ in range(4))) == 4
    assert len(lives) == 4
    assert min(lives) > 300


async def test_a_rejected_tree_does_not_make_the_others_lost(server: ServerProcess):
    async with FlowProducer(server.url, durable=True) as producer, Queue("a", server.url) as queue:
        await queue.add("taken", job_id="taken")
        trees = [FlowJob("root", "a", None, {"job_id": name}) for name in ("first", "taken", "third")]
        with pytest.raises(BulkAddError) as caught:
            await producer.add_bulk(trees)
        first, rejected, third = caught.value.results
        assert isinstance(first, JobNode)
        assert isinstance(third, JobNode)
        assert [first.job.id, third.job.id] == ["first", "third"]
        assert isinstance(rejected, DuplicateJobError)


async def test_a_durable_flow_is_routed_again(server: ServerProcess):
    """The producer finds out by its refused call that the queue has partitions, and waits for those."""
    async with (
        FlowProducer(server.url, durable=True) as producer,
        Queue("a", server.url, partitions=3) as queue,
    ):
        await producer.connect()
        children = [FlowJob("child", "a", number, {"job_id": f"child-{number}"}) for number in range(12)]
        before = await waits_of(server)
        node = await producer.add(FlowJob("root", "a", None, None, children))
        names = {each.job.id.rpartition("||")[0] for each in node.walk()}
        assert len(names) == 3
        assert await waits_of(server) > before
        server.restart(kill=True)
        assert await node.job.get_state() == "waiting-children"
        assert (await queue.get_job_counts()).waiting == 12
