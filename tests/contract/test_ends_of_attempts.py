"""The ways in which an attempt ends: each gives the same with every kind of worker, and with a lease.

All jobs are added at once. A job has two attempts, and an hour until the second one, unless its row says otherwise.
"""

from contextlib import suppress
from typing import Any, NamedTuple

import pytest

from glidemq_py import BroadcastWorker, Job, Worker
from tests.contract.api import Broadcast, Queue
from tests.contract.deeds import HOUR_MS, end, end_all, end_in_thread, ending, named
from tests.server.worker_support import EventRecorder, until, with_timeout


class End(NamedTuple):
    """What an attempt leaves behind."""

    state: str
    attempts: int
    event: str
    reason: str | None = None
    kind: str | None = None


def retried(kind: str, reason: str = "no") -> End:
    return End("delayed", 1, "retrying", reason, kind)


def failed(kind: str, reason: str = "no") -> End:
    return End("failed", 1, "failed", reason, kind)


COMPLETED = End("completed", 0, "completed")
DELAYED = End("delayed", 0, "delayed")
SUSPENDED = End("suspended", 0, "suspended")
UNPREPARED = "the outcome of the handler cannot be "
"""It is stored by the worker or sent by a sandbox."""
ENDS: dict[str, End] = {
    **dict.fromkeys(["none", "false", "text", "values", "empty", "lone surrogate", "discards and returns"], COMPLETED),
    **dict.fromkeys(["delayed", "delayed with data", "delayed in its last attempt", "moves"], DELAYED),
    "moves to a step": DELAYED,
    **dict.fromkeys(["suspended", "suspended for a time", "suspends", "waits for a signal"], SUSPENDED),
    "waits for children": End("waiting-children", 0, "waiting-children"),
    "limits its group": End("group-waiting", 0, "delayed"),
    "no group": retried("GlideMQError", "job "),
    "object": retried("SerializationError", "option 'result' = <object object at "),
    "generator": retried("SerializationError", "option 'result' = <generator object "),
    "hostile result": retried("GlideMQError", UNPREPARED),
    "raises": retried("ValueError"),
    "raises in its last attempt": failed("ValueError"),
    "raises without backoff": End("failed", 2, "failed", "no", "ValueError"),
    "key": retried("KeyError", "'k'"),
    "silent": retried("SilentError", "SilentError"),
    "unicode": retried("ValueError", "ünïcode ☃"),
    "half a pair": retried("ValueError", "half ? a pair"),
    "long": retried("ValueError", "x" * 4_095 + "…"),
    "group": retried("ExceptionGroup", "many (2 sub-exceptions)"),
    "hostile group": retried("ExceptionGroup", "boom (1 sub-exception)"),
    "cause": retried("ValueError", "boom"),
    "stop": retried("StopAsyncIteration"),
    "memory": retried("MemoryError"),
    "recurses": retried("RecursionError", "maximum recursion depth exceeded"),
    "asyncio timeout": retried("TimeoutError"),
    "cancelled": retried("CancelledError"),
    "exit": retried("SystemExit", "3"),
    "not an exception": retried("Hard"),
    "no text": retried("NoTextError", "NoTextError"),
    **{name: retried(kind, "boom") for name, kind in {
        "missing key": "MissingKeyError", "recursive": "RecursiveError", "mocked": "MockedError",
        "no notes": "NoNotesError",
    }.items()},
    "no class": retried("GlideMQError", UNPREPARED),
    "discards": failed("ValueError"),
    "unrecoverable": failed("UnrecoverableError"),
    "final": failed("FinalError"),
    "raises JobTimeoutError": retried("JobTimeoutError"),
    "raises JobRevokedError": failed("JobRevokedError"),
    "times out": retried("JobTimeoutError", "the attempt exceeded its timeout of 50 ms"),
    "is revoked": failed("JobRevokedError", "revoked"),
}  # fmt: skip
IN_BATCHES = ENDS | dict.fromkeys(
    ["suspended", "suspended for a time", "suspends", "waits for a signal"],
    failed("UnrecoverableError", "job "),
)
OPTIONS: dict[str, dict[str, Any]] = {
    "raises in its last attempt": {}, "delayed in its last attempt": {}, "raises without backoff": {"attempts": 2},
    "times out": {"attempts": 2, "backoff": HOUR_MS, "timeout": 50},
    "limits its group": {"ordering": {"key": "k", "concurrency": 1}},
    "moves to a step": {"data": {}},
}  # fmt: skip
OF_JOBS = {
    "suspended", "suspended for a time", "suspends", "waits for a signal", "waits for children", "moves to a step",
    "limits its group", "no group", "delayed with data",
}  # fmt: skip
"""Messages have no data of their own, no children, no groups, no signals."""
OF_THE_CALLER = {"object", "generator", "hostile result", "no class", "no group"}
"""The report of a lease raises these errors itself."""


def tasks(worker: Worker):
    """Register a task for each row."""

    def register(name: str):
        async def task(job: Job, /):
            return await named(name, job)

        worker.task(name)(task)

    for name in ENDS:
        register(name)


@pytest.fixture
async def jobs(queue: Queue, url: Any) -> dict[str, Job]:
    """Add a job for each row."""
    default = {"attempts": 2, "backoff": HOUR_MS}
    jobs: dict[str, Job] = {name: await queue.add(name, **OPTIONS.get(name, default)) for name in ENDS}
    async with Queue(f"{queue.name}-2", url) as other:
        await other.add("child", parent=jobs["waits for children"])
    return jobs


def differences(ends: dict[str, End], expected: dict[str, End] = ENDS) -> dict[str, tuple[End, End]]:
    """Return the ends that are not as expected. A reason may go on after the expected text."""
    return {
        name: (found, wanted)
        for name, found in ends.items()
        if (*found[:3], found.kind) != (*(wanted := expected[name])[:3], wanted.kind)
        or not (found.reason or "").startswith(wanted.reason or "")
    }


class Last:
    """The last event of each job or message, by its id."""

    def __init__(self, worker: Worker | BroadcastWorker):
        self._recorded = EventRecorder(worker)

    def __call__(self, job_id: str) -> str:
        ended = [name for name, args in self._recorded.calls if args and getattr(args[0], "id", "") == job_id]
        return ended[-1] if ended else ""

    async def reach(self, expected: dict[str, str]):
        with suppress(TimeoutError):  # the comparison shows more
            await with_timeout(until(lambda: all(self(job_id) == event for job_id, event in expected.items())), 30)


async def end_of(queue: Queue, job: Job, event: str) -> End:
    read = await queue.get_job(job.id)
    assert read is not None
    return End(str(await read.get_state()), read.attempts_made, event, read.failed_reason, read.failed_type)


@pytest.mark.parametrize("runner", ["worker", "thread", "batch", "tasks", "sandbox"])
async def test_job(url: Any, queue: Queue, jobs: dict[str, Job], runner: str):
    runners: dict[str, dict[str, Any]] = {
        "worker": {"handler": end}, "thread": {"handler": end_in_thread},
        "batch": {"handler": end_all, "batch": {"size": 1}}, "tasks": {},
        "sandbox": {"handler": "tests.contract.deeds:end"},
    }  # fmt: skip
    worker = Worker(queue.name, connection=url, concurrency=4, lock_duration=1_000, **runners[runner])
    if runner == "tasks":
        tasks(worker)
    last = Last(worker)
    async with worker:
        revoked = jobs["is revoked"]
        await last.reach({revoked.id: "active"})
        await queue.revoke(revoked.id)
        expected = IN_BATCHES if runner == "batch" else ENDS
        await last.reach({jobs[name].id: each.event for name, each in expected.items()})
        await with_timeout(until(lambda: not worker.active_count))  # a killed process of a sandbox ends a little later
    ends = {name: await end_of(queue, job, last(job.id)) for name, job in jobs.items()}
    assert differences(ends, expected) == {}


async def test_lease(queue: Queue, jobs: dict[str, Job]):
    ends: dict[str, End] = {}
    for lease in await queue.fetch(len(jobs), lock_duration=60_000):
        expected = ENDS[name := lease.name]
        if name in OF_THE_CALLER | {"times out", "is revoked"}:
            continue
        try:
            result = await end(lease.job)
        except BaseException as error:
            await lease.fail(error)
        else:
            await lease.complete(result)
        assert lease.ended
        ends[name] = await end_of(queue, jobs[name], expected.event)
        if name == "raises without backoff":
            assert ends.pop(name)[:2] == ("waiting", 1)
    assert len(ends) == len(ENDS) - len(OF_THE_CALLER) - 3
    assert differences(ends) == {}
    await queue.fetch(1)  # fails the job that has timed out


INTERRUPTED = {name: End("waiting", 0, ENDS[name].event, None, ENDS[name].kind) for name in ("cancelled", "exit")}
"""The program ends, rather than the attempt."""


async def test_block_of_a_lease(queue: Queue, jobs: dict[str, Job]):
    """The caller gets its own error, except for signals."""
    ends: dict[str, End] = {}
    lease: Any = True
    while lease:
        raised = None
        try:
            async with queue.lease(lock_duration=60_000) as lease:
                if lease and lease.name in OF_THE_CALLER | {"times out", "is revoked"}:
                    await lease.release()
                    await lease.job.remove()
                elif lease:
                    await end(lease.job)
        except BaseException as error:
            raised = type(error).__name__
        if lease and await jobs[lease.name].get_state():
            expected = ENDS[lease.name]
            ended = await end_of(queue, jobs[lease.name], expected.event)
            ends[lease.name] = End(*ended[:4], raised)
            if lease.name in INTERRUPTED:
                await lease.job.remove()
    assert len(ends) == len(ENDS) - len(OF_THE_CALLER) - 2
    assert differences(ends, ENDS | INTERRUPTED) == {}


@pytest.mark.exclude("partitioned", reason="a broadcast has no partitions")
async def test_message(url: Any, queue_name: str):
    names = [name for name in ENDS if name not in OF_JOBS | {"is revoked"}]
    worker = BroadcastWorker(queue_name, ending, url, subscription="s", start_from="0-0", concurrency=4)
    last = Last(worker)
    async with Broadcast(queue_name, url) as broadcast:
        default = {"attempts": 2, "backoff": HOUR_MS}
        ids = {name: str(await broadcast.publish("a", name, **OPTIONS.get(name, default))) for name in names}
        async with worker:
            await last.reach({ids[name]: ENDS[name].event for name in names})
        ends: dict[str, End] = {}
        for name in names:
            delivery = await broadcast.get_delivery(ids[name], "s")
            assert delivery is not None
            ends[name] = End(
                str(delivery.state), delivery.attempts_made, last(ids[name]), delivery.failed_reason,
                delivery.failed_type,
            )  # fmt: skip
    assert differences(ends) == {}
