"""What removing finished jobs costs the server, compared with keeping them.

Removing all of them costs about the same; keeping a number of them costs more (docs/design/decisions.md). The server's
own processor time is compared, in rounds of neighbors, so a slow minute of the machine meets all of them.
"""

import asyncio
import statistics
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest

from glidemq_py import Job, Queue, Worker
from glidemq_py.testing import RespClient, ServerProcess
from tests.inside import libraries
from tests.server.worker_support import EventRecorder, until, with_timeout

JOBS: Final = 2_000
ROUNDS: Final = 9
DRAIN_S: Final = 60.0
"""Longest time in which the jobs of one round must end."""
KEPT: Final = 100

RULES: Final[dict[str, dict[str, Any]]] = {
    "keep": {},
    "remove": {"remove_on_complete": True},
    "count": {"remove_on_complete": KEPT},
}
MOST_TO_REMOVE: Final = 1.1
"""Largest ratio of the server's time per job to that of a kept job. Measured: 0.91 to 0.99, and up to 1.05 beside other
programs. Before records were deleted alone, it was 1.15 to 1.26.
"""
MOST_TO_COUNT: Final = 1.8
"""The same with a count of kept jobs, where each end also reads and removes an older job. Measured: 1.27 to 1.56, and
up to 1.70 beside other programs.
"""


async def handle(_: Job): ...


def cpu_of(client: RespClient) -> float:
    info = client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


class Rule:
    """A queue with one retention rule, and its worker."""

    def __init__(self, queue: Queue, worker: Worker[Any], client: RespClient, options: Any):
        self.queue = queue
        self.client = client
        self.options = options
        self.completed = 0
        self.recorder = EventRecorder(worker)

    async def microseconds(self) -> float:
        """Return the server's time per job, from the fetch to the end."""
        await self.queue.pause()
        await self.queue.add_bulk([("task", {"user": 1, "text": "x" * 100}, self.options)] * JOBS)
        before = cpu_of(self.client)
        await self.queue.resume()
        self.completed += JOBS
        async with asyncio.timeout(DRAIN_S):
            await self.recorder.wait("completed", self.completed)
        return (cpu_of(self.client) - before) / JOBS * 1e6


@pytest.mark.slow
async def test_removing_costs_about_the_same_as_keeping(private_server: Any, monkeypatch: pytest.MonkeyPatch):
    """It costs at most a tenth more."""
    assert await cost_of("remove", private_server(), monkeypatch, kept=0) < MOST_TO_REMOVE


@pytest.mark.slow
async def test_a_count_costs_less_than_twice_as_much_as_keeping(private_server: Any, monkeypatch: pytest.MonkeyPatch):
    """It costs less than `MOST_TO_COUNT` times as much: every end also removes an older job."""
    assert await cost_of("count", private_server(), monkeypatch, kept=KEPT) < MOST_TO_COUNT


async def cost_of(rule: str, server: ServerProcess, monkeypatch: pytest.MonkeyPatch, kept: int) -> float:
    """Return the median ratio of the server's time per job with this rule to that of a kept job.

    ``kept``: number of jobs that the rule must leave.
    """
    detections: list[libraries.PeerDetection] = []
    monkeypatch.setattr(libraries.PeerDetection, "start", lambda self: detections.append(self))
    compared = ("keep", rule)
    async with AsyncExitStack() as stack:
        client = stack.enter_context(server.client())
        rules: dict[str, Rule] = {}
        for name in compared:
            queue = await stack.enter_async_context(Queue(name, server.url))
            # With a client of its own, a worker has its maintenance tasks from the start.
            url = f"{server.url}?share_clients=false"
            worker = await stack.enter_async_context(Worker(name, handle, url, concurrency=100))
            rules[name] = Rule(queue, worker, client, RULES[name])
        await with_timeout(until(lambda: len(detections) == len(rules)))
        for detection in detections:
            await detection.run_once()
        assert [detection.alone for detection in detections] == [True] * len(rules)
        for each in rules.values():
            await each.microseconds()  # one-time costs belong to no rule
        rounds = [{name: await each.microseconds() for name, each in rules.items()} for _ in range(ROUNDS)]
        left = {name: (await each.queue.get_job_counts()).completed for name, each in rules.items()}
    assert left == {"keep": (ROUNDS + 1) * JOBS, rule: kept}
    for name in compared:
        print(f"{name}: {statistics.median(found[name] for found in rounds):.1f} us of server CPU per job")
    ratios = sorted(found[rule] / found["keep"] for found in rounds)
    shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"{rule}: {statistics.median(ratios):.2f} of the time of a kept job; rounds: {shown}")
    return statistics.median(ratios)
