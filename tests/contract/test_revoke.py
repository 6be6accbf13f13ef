"""A revocation reaches the worker within one heartbeat, for each kind of handler, and the job fails as revoked."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import GlideMQError, Job, JobFailedError
from tests.contract.api import Queue
from tests.inside import around
from tests.inside import heartbeat as worker_heartbeat
from tests.server.worker_support import WorkerFor, until, with_timeout

LOCK_MS = 4_500
SANDBOXED = "tests.server.sandboxed_handlers"


class Begun:
    """Said by handlers of any kind, from any thread."""

    def __init__(self):
        self.event = threading.Event()
        self.over = threading.Event()

    async def on_loop(self, job: Job):
        self.event.set()
        await asyncio.sleep(3_600)

    def in_thread(self, job: Job):
        self.event.set()
        while not (job.cancelled.wait(0.05) or self.over.is_set()):
            pass

    async def batch_on_loop(self, jobs: list[Job]):
        await self.on_loop(jobs[0])

    def batch_in_thread(self, jobs: list[Job]):
        self.in_thread(jobs[0])

    async def streaming(self, job: Job):
        while True:
            await job.stream({"token": "x"})
            self.event.set()
            await asyncio.sleep(0.05)

    def waiting_in_thread(self, job: Job):
        """Block on a call."""
        self.event.set()
        job.cancelled.wait(60)
        job.blocking.log("told")

    async def after_a_signal(self, job: Job):
        await job.wait_for_signal("go")
        await self.on_loop(job)

    async def second_step(self, job: Job):
        if job.data != "second":
            job.move_to_delayed(1, data="second")
        await self.on_loop(job)

    async def with_children(self, job: Job):
        self.event.set()
        await asyncio.gather(*(asyncio.sleep(3_600) for _ in range(5)))


class Beats:
    """Heartbeats that began and got a reply, and whether one of them brought the news of a job that was taken away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.begun: list[str] = []

        async def noted_beat(beat: Any, heartbeat: Any):
            self.begun.append("beat")
            try:
                await beat(heartbeat)
            except GlideMQError:
                self.begun.remove("beat")  # its reply, and the news in it, did not arrive in time
                raise

        def recording_call(tell: Any, heartbeat: Any, function: Callable[..., Any], *args: Any):
            if function == heartbeat._lost:
                self.begun.append("lost")
            tell(heartbeat, function, *args)

        around(monkeypatch, worker_heartbeat.Heartbeat, "_beat", noted_beat)
        around(monkeypatch, worker_heartbeat.Heartbeat, "_call_in_loop", recording_call)

    async def revoked_in_time(self, job: Job):
        """Revoke the job; the first heartbeat that begins afterwards must bring the news, if nothing else did."""
        assert await job.revoke() == "flagged"
        self.begun.clear()
        with pytest.raises(JobFailedError) as failure:
            await with_timeout(job.wait_until_finished())
        assert failure.value.failed_type == "JobRevokedError"
        if "lost" in self.begun:
            assert self.begun.index("lost") <= 1, self.begun


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> Beats:
    return Beats(monkeypatch)


KINDS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("on_loop", {}, {}),
    ("in_thread", {}, {}),
    ("on_loop", {"concurrency": 50}, {"ordering": "k"}),
    ("batch_on_loop", {"batch": {"size": 1}}, {}),
    ("batch_in_thread", {"batch": {"size": 1}}, {"priority": 3}),
    ("streaming", {}, {}),
    ("waiting_in_thread", {}, {"lifo": True}),
    ("after_a_signal", {}, {}),
    ("second_step", {}, {"ordering": "k"}),
    ("with_children", {}, {"timeout": 600_000}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "worker", "options"), KINDS, ids=[f"{kind[0]}-{i}" for i, kind in enumerate(KINDS)])
async def test_within_a_heartbeat(
    queue: Queue,
    worker_for: WorkerFor,
    kind: str,
    worker: Any,
    options: Any,
    clean_check: None,
    beats: Beats,
):
    begun = Begun()
    handler: Callable[[Any], Awaitable[None] | None] = getattr(begun, kind)
    async with worker_for(handler, lock_duration=LOCK_MS, **worker):
        job = await queue.add("n", attempts=3, **options)
        await queue.signal(job.id, "go")
        assert await asyncio.to_thread(begun.event.wait, 20)
        await beats.revoked_in_time(job)
        begun.over.set()
    assert (await queue.get_job_counts()).active == 0


@pytest.mark.parametrize(("name", "handler"), [("hang", "plain"), ("sleep", "on_loop")])
@pytest.mark.slow
async def test_in_a_sandbox(queue: Queue, worker_for: WorkerFor, tmp_path: Path, name: str, handler: str, beats: Beats):
    async with (
        worker_for(f"{SANDBOXED}:{handler}", lock_duration=LOCK_MS, sandbox={"kill_after": 0}) as worker,
    ):
        job = await queue.add(name, str(tmp_path / "file"))
        await with_timeout(until(lambda: worker.active_count == 1))
        await beats.revoked_in_time(job)


async def test_a_suspended_job_ends_at_once(queue: Queue, worker_for: WorkerFor):
    async def wait(job: Job):
        await job.wait_for_signal("never")

    async with worker_for(wait, lock_duration=LOCK_MS):
        job = await queue.add("n")
        while await job.get_state() != "suspended":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await job.revoke() == "revoked"
        with pytest.raises(JobFailedError, match="revoked"):
            await with_timeout(job.wait_until_finished())


@pytest.mark.slow
async def test_a_reader_of_its_stream_comes_to_the_end(queue: Queue, worker_for: WorkerFor, beats: Beats):
    begun = Begun()
    async with worker_for(begun.streaming, lock_duration=LOCK_MS):
        job = await queue.add("n")
        chunks = 0

        async def read():
            nonlocal chunks
            async for _ in queue.jobs.iter_stream(job.id):
                chunks += 1
                if chunks == 1:
                    await beats.revoked_in_time(job)

        await with_timeout(read())
        assert chunks >= 1
