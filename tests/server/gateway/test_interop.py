"""Clients of the gateway, Python programs and a Node peer add, run and fail one another's jobs, flows, groups and
schedules. The peer calls the documented functions, as glide-mq does.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from glidemq_py import FlowJob, FlowProducer, Job, Queue, Worker
from glidemq_py.testing import RespClient
from tests.inside import connection_of
from tests.server.gateway.wire import Wire, good
from tests.wire_library.support import WireQueue, load


def twice(data: Any) -> Any:
    return (data["n"] if isinstance(data, dict) else data) * 2


class Party:
    """Adds jobs, and runs one at a time."""

    async def add(self, data: Any) -> str:
        """Add a job with one attempt; return its id in the queue."""
        raise NotImplementedError

    async def run(self, *, error: str | None = None) -> Any:
        """Run the next job: fail it, or complete it with twice its data; return its data."""
        raise NotImplementedError

    async def outcome(self, job_id: str) -> tuple[str, Any, str | None]:
        """Return the state, the result and the error of a job."""
        raise NotImplementedError


class ClientParty(Party):
    def __init__(self, first: Wire, second: Wire, queue: str):
        self.first, self.second, self.queue = first, second, queue

    def on_wire(self, job_id: str) -> str:
        return f"{self.queue}:{job_id}" if job_id.isdecimal() else job_id

    async def add(self, data: Any) -> str:
        made: str = (await good(self.first, "PUSH", queue=self.queue, name="n", data=data, maxAttempts=1))["id"]
        return made

    async def run(self, *, error: str | None = None) -> Any:
        pulled = await good(self.first, "PULL", queue=self.queue, owner="client", timeout=30_000)
        job, token = pulled["job"], pulled["token"]
        if error is None:
            await good(self.second, "ACK", id=job["id"], token=token, result=twice(job["data"]))
        else:
            await good(self.second, "FAIL", id=job["id"], token=token, error=error)
        return job["data"]

    async def outcome(self, job_id: str) -> tuple[str, Any, str | None]:
        job = (await good(self.second, "GetJob", id=self.on_wire(job_id)))["job"]
        result, reason = job["returnvalue"], job["failedReason"]
        return (
            job["state"],
            result if job["state"] == "completed" else None,
            reason if isinstance(reason, str) else None,
        )


class PythonParty(Party):
    def __init__(self, queue: Queue):
        self.queue = queue

    async def add(self, data: Any) -> str:
        return (await self.queue.add("n", data)).id

    async def run(self, *, error: str | None = None) -> Any:
        seen: list[Any] = []
        ended = asyncio.Event()

        async def handler(job: Job) -> Any:
            seen.append(job.data)
            if error is not None:
                raise RuntimeError(error)
            return twice(job.data)

        async with Worker(self.queue.name, handler, connection_of(self.queue), concurrency=1) as worker:
            worker.on("completed", lambda *_: ended.set())
            worker.on("failed", lambda *_: ended.set())
            async with asyncio.timeout(30):
                await ended.wait()
        return seen[0]

    async def outcome(self, job_id: str) -> tuple[str, Any, str | None]:
        job = await self.queue.get_job(job_id)
        assert job is not None
        return str(job.state), job.returnvalue, job.failed_reason


class PeerParty(Party):
    def __init__(self, peer: WireQueue):
        self.peer = peer

    async def add(self, data: Any) -> str:
        self._catch_up()
        return self.peer.add(data=json.dumps(data))

    async def run(self, *, error: str | None = None) -> Any:
        self._catch_up()
        self.peer.promote()
        job_id, entry = self.peer.take_id()
        data = json.loads(self.peer.job(job_id)["data"])
        if error is None:
            self.peer.complete(job_id, entry, json.dumps(twice(data)))
        else:
            self.peer.fail(job_id, entry, error)
        return data

    async def outcome(self, job_id: str) -> tuple[str, Any, str | None]:
        found = self.peer.job(job_id)
        result = json.loads(found["returnvalue"]) if found.get("returnvalue") else None
        return found["state"], result, found.get("failedReason")

    def _catch_up(self):
        seconds, micros = self.peer.resp.execute("TIME")
        self.peer.now = int(seconds) * 1_000 + int(micros) // 1_000


@pytest.fixture
async def parties(
    wire: Wire, other: Wire, url: str, queue_name: str, resp: RespClient
) -> AsyncIterator[dict[str, Party]]:
    load(resp)
    async with Queue(queue_name, url) as queue:
        yield {
            "client": ClientParty(wire, other, queue_name),
            "python": PythonParty(queue),
            "peer": PeerParty(WireQueue(resp, queue_name)),
        }


async def test_jobs(parties: dict[str, Party]):
    """Each party runs and fails the jobs of each, and all see the outcome."""
    number = 0
    for producer, consumer in itertools.product(parties, repeat=2):
        for error in (None, "on purpose"):
            number += 1
            job_id = await parties[producer].add(number)
            assert await parties[consumer].run(error=error) == number, (producer, consumer)
            for name, each in parties.items():
                state, result, reason = await each.outcome(job_id)
                if error is None:
                    assert (state, result) == ("completed", number * 2), (producer, consumer, name)
                else:
                    assert state == "failed", (producer, consumer, name)
                    assert error in (reason or ""), (producer, consumer, name)


async def test_flow_of_a_client(parties: dict[str, Party], wire: Wire, queue_name: str):
    """A peer runs the parent after its children."""
    ids = [f"{queue_name}-{name}" for name in ("p", "a", "b")]
    parent = {"data": {"n": 10}, "childrenIds": ids[1:], "dependsOn": ids[1:]}
    inputs = [parent, *({"data": {"n": n}, "parentId": ids[0]} for n in (1, 2))]
    jobs = [{"id": each, "queue": queue_name, "input": given} for each, given in zip(ids, inputs, strict=True)]
    await good(wire, "PUSHF", jobs=jobs)
    assert {twice(await parties["client"].run()) for _ in range(2)} == {2, 4}
    assert (await good(wire, "GetState", id=ids[0]))["state"] == "waiting"
    values = (await good(wire, "GetChildrenValues", id=ids[0]))["data"]["values"]
    assert sorted(values.values()) == [2, 4]
    assert twice(await parties["peer"].run()) == 20
    assert await parties["python"].outcome(ids[0]) == ("completed", 20, None)


async def test_flow_of_python(parties: dict[str, Party], url: str, queue_name: str):
    async with FlowProducer(url) as flows:
        children = [FlowJob("n", queue_name, 1), FlowJob("n", queue_name, 2)]
        tree = await flows.add(FlowJob("n", queue_name, 10, children=children))
    assert {await parties["client"].run(), await parties["client"].run()} == {1, 2}
    assert await parties["client"].run() == 10
    assert await parties["python"].outcome(tree.job.id) == ("completed", 20, None)


async def test_groups(parties: dict[str, Party], wire: Wire, other: Wire, queue_name: str, url: str):
    """Limits that a client sets hold for Python's jobs of the group, and the other way round."""
    async with Queue(queue_name, url) as queue:
        await good(wire, "SetGroupConcurrency", queue=queue_name, groupId="a", concurrency=1)
        await queue.fair_keys.set_limits("b", concurrency=1)
        for group in ("a", "b"):
            await good(wire, "PUSH", queue=queue_name, data=1, groupId=group)
            await queue.add("n", 2, fair_key=group)
        pulled = await good(other, "PULLB", queue=queue_name, owner="w", count=10)
        assert sorted(job["groupId"] for job in pulled["jobs"]) == ["a", "b"]
        assert await queue.fetch(10) == []
        for job, token in zip(pulled["jobs"], pulled["tokens"], strict=True):
            await good(wire, "ACK", id=job["id"], token=token)
        leases = await queue.fetch(10)
        assert sorted(lease.job.opts["fairKey"] for lease in leases) == ["a", "b"]
        assert (await good(wire, "GetGroupActiveCount", queue=queue_name, groupId="a"))["data"]["count"] == 1
        await queue.leases.complete([(lease, None) for lease in leases])
        await queue.fair_keys.pause("a")
        assert (await good(wire, "IsGroupPaused", queue=queue_name, groupId="a"))["data"]["paused"] is True


@pytest.mark.slow
@pytest.mark.parametrize("consumer", ["client", "python", "peer"])
async def test_schedules(parties: dict[str, Party], wire: Wire, queue_name: str, url: str, consumer: str):
    """A gateway fires the cron jobs of clients and of Python for whoever runs them."""
    await good(wire, "Cron", name=f"{queue_name}-1", queue=queue_name, data=5, repeatEvery=3_600_000, immediately=True)
    async with asyncio.timeout(30):
        while (await good(wire, "Count", queue=queue_name))["count"] < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert await parties[consumer].run() == 5
    async with Queue(queue_name, url) as queue:
        scheduler = await queue.schedulers.upsert("own", every=3_600_000, immediately=True, template=("n", 7))
        names = {cron["name"] for cron in (await good(wire, "CronList"))["crons"] if cron["queue"] == queue_name}
        assert len(names) == 2
        async with asyncio.timeout(90):
            while (await good(wire, "Count", queue=queue_name))["count"] < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert scheduler.name == "own"
        assert await parties[consumer].run() == 7
