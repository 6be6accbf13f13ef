"""A process of any build, for test_rolling_deploy.py: it uses only what release 0.1.0 has, and writes lines.

Arguments: the URL, the queue, what to do, and what `produce` and `refuse` say.
"""

import asyncio
import sys
import time
from operator import attrgetter
from typing import Any

from glidemq_py import FlowProducer, Job, Queue, Worker
from glidemq_py.errors import UnsupportedFeatureError

URL, NAME, ROLE, *MORE = sys.argv[1:]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "delayed": {"delay": 300},
    "retried": {"attempts": 3, "backoff": 50},
    "ordered": {"ordering": "key"},
    "priority": {"priority": 3},
    "lifo": {"lifo": True},
}


def say(*words: object):
    """Write a line."""
    print(*words, flush=True)


async def handle(job: Job) -> object:
    """Run a job; the first attempt of some fails."""
    began = time.monotonic_ns()
    if job.name == "held":
        say("began", job.id)
        await asyncio.sleep(1)
    await asyncio.sleep(0.005)
    if job.name == "retried" and not job.attempts_made:
        raise ValueError("the first attempt")
    result = sorted((await job.get_children_values()).values()) if job.name == "parent" else job.data
    say("done", job.id, job.name, began, time.monotonic_ns(), str(result).replace(" ", ""))
    return result


async def work():
    """Work until SIGTERM, or until the queue is refused."""
    lock, slots = map(int, MORE)
    worker = Worker(NAME, handle, URL, concurrency=slots, lock_duration=lock, stalled_interval=lock, log_failures=False)
    running = asyncio.create_task(worker.run())
    await asyncio.sleep(0)  # starts the task
    await worker.wait_until_ready()
    say("ready")
    try:
        await running
    except UnsupportedFeatureError as error:
        say("refused", NAME, "worker", error.feature)


async def produce():
    """Add jobs of every kind, and say their ids."""
    prefix, rounds, *kinds = MORE
    async with Queue(NAME, URL) as queue, FlowProducer(URL) as flows:
        upsert: Any = attrgetter("schedulers.upsert" if hasattr(queue, "schedulers") else "upsert_job_scheduler")(queue)
        await upsert(prefix, every=40, limit=5, template={"name": "scheduled"})
        for number in range(int(rounds)):
            for job in await queue.add_bulk([(kind, number, KINDS[kind]) for kind in kinds]):
                say("added", job.id)
            say("added", (await queue.add("chosen", number, job_id=f"{prefix}-{number}")).id)
            children = [{"name": "child", "queue": NAME, "data": each} for each in range(2)]
            node = await flows.add({"name": "parent", "queue": NAME, "children": children})
            for each in (node, *node.children):
                say("added", each.job.id)


async def refuse():
    """Say what happens to calls about queues that this build must refuse."""
    for name in MORE:
        async with Queue(name, URL) as queue:
            calls = {
                "add": lambda: queue.add("n"),
                "read": queue.get_job_counts,
                "work": Worker(name, handle, URL).start,
            }
            for call, tried in calls.items():
                try:
                    await tried()
                except UnsupportedFeatureError as error:
                    say("refused", name, call, error.feature)
                else:
                    say("accepted", name, call)


asyncio.run({"work": work, "produce": produce, "refuse": refuse}[ROLE]())
