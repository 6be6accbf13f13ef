"""No key of a removed job is left, whether a peer wrote it or not, and whether or not peers are known."""

from typing import Any

import pytest

from glidemq_py import GlideMQConnectionError, Job, Queue, Worker
from glidemq_py.testing import ServerProcess
from tests.inside import Variant, assemble, libraries, link_of
from tests.server.worker_support import EventRecorder, WorkerFor


@pytest.fixture
def detections(monkeypatch: pytest.MonkeyPatch) -> list[libraries.PeerDetection]:
    """Return the detections of the test's workers, which run only when the test calls them."""
    made: list[libraries.PeerDetection] = []

    def start(self: libraries.PeerDetection):
        made.append(self)

    monkeypatch.setattr(libraries.PeerDetection, "start", start)
    return made


async def handle(job: Job):
    if job.name == "log":
        await job.log("a line")
    elif job.name == "chunk":
        await job.stream({"a": "b"})
    elif job.name == "fail":
        raise ValueError("no")
    return 1


REMOVED: Any = {"remove_on_complete": True, "remove_on_fail": True}


@pytest.mark.parametrize("alone", [False, True])
async def test_removed_jobs_leave_no_key(private_server: Any, detections: list[libraries.PeerDetection], alone: bool):
    server: ServerProcess = private_server()
    async with Queue("q", server.url) as queue, Worker("q", handle, server.url, concurrency=3) as worker:
        recorded = EventRecorder(worker)
        if alone:
            await detections[0].run_once()
        assert detections[0].alone is alone
        for name in ("plain", "fail", "log", "chunk", "plain", "fail"):
            await queue.add(name, **REMOVED)
        parent = await queue.add("plain", delay=60_000, **REMOVED)
        await queue.add("plain", parent={"queue": "q", "id": parent.id}, **REMOVED)
        await recorded.until(lambda recorded: recorded.count["completed"] + recorded.count["failed"] == 7)
        await parent.promote()
        await recorded.until(lambda recorded: recorded.count["completed"] + recorded.count["failed"] == 8)
        with server.client() as client:
            left = [key.partition("}:")[2].partition(":")[0] for key in client.keys("glide:{q}:*")]
            assert not set(left) & {"job", "log", "deps", "depvals", "parents", "jstream", "signals"}
    with server.client() as client:
        assert client.execute("HGET", "glide:{q}:meta", "sideKeys") == "1"


async def test_plain_queue_deletes_records_only(private_server: Any, detections: list[libraries.PeerDetection]):
    server: ServerProcess = private_server()
    async with Queue("q", server.url) as queue, Worker("q", handle, server.url) as worker:
        recorded = EventRecorder(worker)
        await detections[0].run_once()
        job = await queue.add("plain", **REMOVED)
        await recorded.wait("completed")
        assert await queue.get_job(job.id) is None
        with server.client() as client:
            # A peer that writes this now has a library, which the next look finds.
            client.execute("RPUSH", f"glide:{{q}}:log:{job.id}", "of a peer")
            client.execute("FUNCTION", "LOAD", assemble(Variant.WIRE).code)
            await detections[0].run_once()
            assert not detections[0].alone
            assert client.keys("glide:{q}:log:*") == []
            # From now on the fixed list is used.
            client.execute("RPUSH", "glide:{q}:log:next", "of a peer")
            await queue.add("plain", job_id="next", **REMOVED)
            await recorded.wait("completed", 2)
            assert client.keys("glide:{q}:log:*") == []


async def test_peers_are_assumed_until_libraries_were_listed(
    worker_for: WorkerFor, queue: Queue, queue_name: str, resp: Any, detections: list[libraries.PeerDetection]
):
    async with worker_for(handle) as worker:
        recorded = EventRecorder(worker)
        resp.execute("RPUSH", f"glide:{{{queue_name}}}:log:x", "of a peer")
        await queue.add("plain", job_id="x", **REMOVED)
        await recorded.wait("completed")
        assert not detections[0].alone
        assert resp.keys(f"glide:{{{queue_name}}}:log:*") == []
        await queue.obliterate(force=True)


class LostCalls:
    """A transport on which the next calls of `delete_side_keys` fail."""

    def __init__(self, detection: libraries.PeerDetection):
        self.left = 1
        self._transport = link_of(detection).transport
        self._call = self._transport.call

    async def call(self, call: Any, *args: Any, **options: Any):
        if call.function == "delete_side_keys" and self.left:
            self.left -= 1
            raise GlideMQConnectionError("lost")
        return await self._call(call, *args, **options)


async def test_ids_are_kept_until_their_keys_are_deleted(
    private_server: Any, detections: list[libraries.PeerDetection], monkeypatch: pytest.MonkeyPatch
):
    server: ServerProcess = private_server()
    async with Queue("q", server.url) as queue, Worker("q", handle, server.url) as worker:
        recorded = EventRecorder(worker)
        await detections[0].run_once()
        job = await queue.add("plain", **REMOVED)
        await recorded.wait("completed")
        with server.client() as client:
            client.execute("RPUSH", f"glide:{{q}}:log:{job.id}", "of a peer")
            client.execute("FUNCTION", "LOAD", assemble(Variant.WIRE).code)
            lost = LostCalls(detections[0])
            monkeypatch.setattr(link_of(detections[0]).transport, "call", lost.call)
            with pytest.raises(GlideMQConnectionError):
                await detections[0].run_once()
            assert len(client.keys("glide:{q}:log:*")) == 1
            client.execute("FUNCTION", "DELETE", "glidemq")  # the peer left meanwhile
            await detections[0].run_once()
            assert lost.left == 0
            assert client.keys("glide:{q}:log:*") == []


async def test_job_whose_removal_is_under_way_is_cleaned_up_later(
    private_server: Any, detections: list[libraries.PeerDetection]
):
    server: ServerProcess = private_server()
    async with Queue("q", server.url) as queue, Worker("q", handle, server.url):
        detection = detections[0]
        await detection.run_once()
        job = await queue.add("plain", delay=60_000)
        assert detection.removal(job.id) == 2
        with server.client() as client:
            client.execute("RPUSH", f"glide:{{q}}:log:{job.id}", "of a peer")
            client.execute("FUNCTION", "LOAD", assemble(Variant.WIRE).code)
            await detection.run_once()
            assert len(client.keys("glide:{q}:log:*")) == 1  # the job exists
            client.execute("DEL", f"glide:{{q}}:job:{job.id}")
            await detection.run_once()
            assert client.keys("glide:{q}:log:*") == []
            client.execute("ZREM", "glide:{q}:scheduled", job.id)
