"""Stalled jobs are not recovered for one lock duration after an interruption."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from glidemq_py import Job
from glidemq_py._features.failure_policy import FailurePolicyTask
from glidemq_py._worker.handlers import Continuations
from glidemq_py._worker.maintenance.stalled_jobs import StalledJobsTask
from glidemq_py.errors import SuspendError
from tests.inside import QueueKeys, Throttle, failures, queue_lanes, wake_channel, working
from tests.inside import heartbeat as worker_heartbeat
from tests.inside import options as worker_options


class FakeTransport:
    """Counts calls; none finds anything."""

    def __init__(self):
        self.interruptions = failures.Interruptions()
        self.calls = 0

    async def call(self, _: object) -> working.RecoverStalledReply:
        self.calls += 1
        return working.RecoverStalledReply([], [], "", 1)


def recovery(transport: FakeTransport) -> StalledJobsTask:
    link = type("Link", (), {"transport": transport, "keys": QueueKeys("glide", "q"), "label": "'q'"})()
    source = type("Source", (), {"recover_stalled": lambda self, cursor: cursor})()
    options = worker_options.WorkerOptions(lock_duration=60_000, stalled_interval=30_000)
    fake = cast("Any", None)
    return StalledJobsTask(
        link=link, source=source, options=options, listeners=fake, failure_log=fake, policy=FailurePolicyTask(link)
    )


async def test_recovery_runs_without_an_interruption():
    transport = FakeTransport()
    await recovery(transport).run_once()
    assert transport.calls == 1


async def test_recovery_waits_one_lock_duration_after_an_interruption(monkeypatch: pytest.MonkeyPatch):
    transport = FakeTransport()
    one = recovery(transport)
    transport.interruptions.record()
    await one.run_once()
    assert transport.calls == 0
    later = time.monotonic() + 61
    monkeypatch.setattr(failures, "time", SimpleNamespace(monotonic=lambda: later))
    await one.run_once()
    assert transport.calls == 1


async def test_interruption_of_another_queue_in_a_cluster_does_not_delay_recovery():
    transport = FakeTransport()
    one = recovery(transport)
    transport.interruptions.record("other")
    await one.run_once()
    assert transport.calls == 1
    transport.interruptions.record("q")
    await one.run_once()
    assert transport.calls == 1


def test_interruptions_of_very_many_queues_count_for_all():
    interruptions = failures.Interruptions()
    for number in range(1_000):
        interruptions.record(str(number))
    assert interruptions.age_s("other") == float("inf")
    interruptions.record("one more")
    assert interruptions.age_s("other") < float("inf")


# -- heartbeats without a server -------------------------------------------------------------------


async def test_start_ends_if_the_heartbeats_are_closed_first():
    unused: Any = None
    heartbeat = worker_heartbeat.Heartbeat(
        connect=unused, source=unused, consumer="c", lock_duration=30_000, stalled_policy="", running=set(),
        lost=unused, unresponsive_seconds=unused, unsupported=unused,
    )  # fmt: skip
    await heartbeat.close()
    await asyncio.wait_for(heartbeat.start(), 10)


# -- the shared calls for idle queues of `glidemq_py._worker.wake_channel` --------------------------


class FakeQueue:
    """Count the registrations of a queue."""

    queue_name = "emails"

    def __init__(self, error: Exception | None = None):
        self.error = error
        self.registered = asyncio.Event()

    async def register(self, interval_s: float):
        self.registered.set()
        if self.error is not None:
            raise self.error

    async def examine(self):
        """Nothing to find."""


async def test_queues_of_a_worker_that_closed_at_once_do_not_delay_the_next():
    idle = wake_channel.IdleQueues()
    closed = [FakeQueue() for _ in range(1_000)]
    idle.add(closed)
    await idle.remove(closed)
    later = FakeQueue()
    idle.add([later])
    async with asyncio.timeout(5):  # a thousand turns take twenty seconds
        await later.registered.wait()
    await idle.remove([later])


async def test_an_error_of_one_queue_does_not_end_the_calls_for_others():
    idle = wake_channel.IdleQueues()
    queues = [FakeQueue(RuntimeError("planted")), FakeQueue()]
    idle.add(queues)
    async with asyncio.timeout(5):
        for queue in queues:
            await queue.registered.wait()
    await idle.remove(queues)


# -- the continuations of suspended jobs that a worker keeps ---------------------------------------


class _Run:
    def __init__(self, job_id: str):
        link: Any = SimpleNamespace(partition=None)
        self.job: Job = Job(link, job_id, "n")
        self.job._signals_text = '[{"name":"go","data":"","receivedAt":1}]'
        self.attempt = type("A", (), {"fence": 1})()


def test_continuations_are_bounded():
    """W26: the original's map grows with every job that resumes elsewhere."""
    kept = Continuations()
    run: Any = _Run
    for number in range(5_000):
        kept.keep(run(str(number)), SuspendError(None, None, print))
    assert len(kept.kept) == 1_000
    assert kept.route(run("4999")) is None  # the fencing token is that of the suspended attempt itself
    assert len(kept.kept) == 999
    kept.keep(_Run("n"), SuspendError())  # type: ignore[arg-type]
    assert len(kept.kept) == 999


# -- the look at all partitions before a queue counts as drained, without a server -----------------


class Cluster:
    """Two nodes: one has a job in a stream, the other does not reply."""

    is_cluster = True

    def __init__(self, stream: str):
        self.stream = stream

    async def command(self, *args: str):
        if "silent" in args[-2]:
            await asyncio.Event().wait()
        return {self.stream.encode(): {}} if self.stream in args else None


def sleeper(name: str, transport: Cluster):
    return SimpleNamespace(keys=QueueKeys("glide", name), transport=transport, position="0", found=lambda: None)


async def test_a_node_that_does_not_reply_hides_no_jobs_of_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wake_channel, "_READY_S", 0.05)
    cluster = Cluster(QueueKeys("glide", "busy").stream)
    silent, busy, empty = (sleeper(name, cluster) for name in ("silent", "busy", "empty"))
    assert await asyncio.wait_for(wake_channel.with_ready_jobs([silent, busy, empty]), 10) == [busy]


async def test_a_closed_look_does_not_hold_the_event_back():
    events: list[str] = []
    listeners: Any = SimpleNamespace(wanted=lambda _: True, emit=lambda event, queue: events.append(event))
    queue = queue_lanes.QueueLanes("q", listeners, Throttle())
    queue.engines.append(SimpleNamespace(is_quiet=True))
    queue.wakes += [sleeper("silent", Cluster("")), sleeper("silent", Cluster(""))]
    queue.check_drained(is_lane_drained=True)
    assert not events
    await asyncio.sleep(0)
    await queue.close()
    assert events == ["drained"]
    queue.rounds += 1
    queue.check_drained(is_lane_drained=True)
    assert events == ["drained", "drained"]
    assert not [task for task in asyncio.all_tasks() if "drained" in task.get_name()]


# -- the status of a suspension whose reply was lost, derived from the reply to the second ---------
