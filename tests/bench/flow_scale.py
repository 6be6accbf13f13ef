"""Measure a flow of 10,000 children: the time of each step, and the longest call of each.

The steps are adding, processing all jobs, and three operations on the completed parent: reading the flow back,
checking the queue, and removing the parent. As in `tests.bench.scale`, the limit applies to the median of the rounds'
longest calls.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from typing import Any

from glidemq_py import FlowJob, FlowProducer, Job, Queue, Worker
from tests.bench.server import BenchServer
from tests.bench.server_time import Gauge

CHILDREN = 10_000
TURNS = 5
ADD_SECONDS = 2.0
LONGEST_MS = 5.0

Turn = dict[str, tuple[float, float, str]]
"""Seconds, longest call in ms, and the function of that call, by step."""


async def _work(job: Job) -> Any:
    if job.name == "root":
        return len(await job.get_children_values())
    return {"n": job.data}


async def _turn(server: BenchServer, gauge: Gauge, queues: tuple[str, ...]) -> Turn:
    server.empty()
    url = server.url.replace("redis://", "valkey://", 1)
    found: Turn = {}
    began = 0.0

    def begin():
        nonlocal began
        gauge.start()
        began = time.perf_counter()

    def ended(phase: str):
        found[phase] = (time.perf_counter() - began, *gauge.longest())

    flow = FlowJob("root", queues[0], 1, None, [FlowJob("leaf", queues[-1], number) for number in range(CHILDREN)])
    async with FlowProducer(url) as producer, Queue(queues[0], url) as queue:
        await queue.get_job_counts()  # loads the library before the first measurement
        begin()
        node = await producer.add(flow)
        ended("add")
        workers = [Worker(name, _work, url, concurrency=100) for name in queues]
        begin()
        for worker in workers:
            await worker.start()
        result = await node.job.wait_until_finished(timeout=60_000)
        ended("process all jobs")
        for worker in workers:
            await worker.close()
        if result != CHILDREN:
            raise RuntimeError(f"the root found {result} results")
        begin()
        await producer.get_flow(queues[0], node.job.id, max_jobs=2 * CHILDREN)
        ended("read back")
        begin()
        await queue.check()
        ended("check")
        begin()
        await queue.remove(node.job.id)
        ended("remove the root")
    return found


async def flows(server: BenchServer) -> tuple[list[str], list[str]]:
    """Measure; return the lines of the report and the measurements above the limits."""
    gauge = Gauge(server)
    lines = [
        f"### A flow of {CHILDREN:,} children",
        "",
        "| step | seconds | longest call, median, ms | longest call of all, ms |",
        "| --- | ---: | ---: | ---: |",
    ]
    beyond: list[str] = []
    for title, queues in (("one queue", ("flows",)), ("two queues", ("parents", "children"))):
        turns: defaultdict[str, list[tuple[float, float, str]]] = defaultdict(list)
        for _ in range(TURNS):
            for phase, one in (await _turn(server, gauge, queues)).items():
                turns[phase].append(one)
        for phase, all_turns in turns.items():
            seconds = statistics.median(one[0] for one in all_turns)
            typical = statistics.median(one[1] for one in all_turns)
            worst = max(all_turns, key=lambda one: one[1])
            what = f"{title}: {phase}"
            lines.append(f"| {what} | {seconds:.2f} | {typical:.2f} | {worst[1]:.2f} {worst[2]} |")
            if typical > LONGEST_MS:
                beyond.append(f"{what}: {worst[2]} {typical:.1f} ms")
            if phase == "add" and seconds > ADD_SECONDS:
                beyond.append(f"{what}: {seconds:.1f} s")
    return [*lines, ""], beyond
