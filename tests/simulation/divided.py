"""A queue that is created with partitions while others add to it: its jobs, workers and judgment."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from glidemq_py import Queue, Worker
from glidemq_py.errors import JobNotFoundError, QueuePartitionsError
from tests.simulation.network import Network, Source
from tests.simulation.producer import CARRIED, ORIGIN

if TYPE_CHECKING:
    from glidemq_py import Job
    from tests.simulation.ledger import Ledger

__all__ = ["DIVIDED", "DividedQueue"]

DIVIDED: Final = "divided"
"""The queue; the names of its partitions begin with it."""
_MOST_PARTITIONS: Final = 3
_ENDS: Final = (b"completed", b"failed", b"expired")


class DividedQueue:
    """The record of what was added to the partitioned queue, and what ran.

    Args:
        network: the network.
        ledger: gets the problems.
        chance: decides how long jobs take.
    """

    def __init__(self, network: Network, ledger: Ledger, chance: random.Random):
        self._network = network
        self._ledger = ledger
        self._chance = chance
        self.log: list[dict[bytes, bytes]] = []
        """The events of all partitions."""
        self.tries: Counter[str] = Counter()
        """How often each job was added."""
        self.acknowledged: dict[str, float] = {}
        self._lost: list[tuple[float, float]] = []
        """The times whose writes a failover lost."""
        self._named: list[str] = []
        """Jobs that others may wait for."""
        self._after: dict[str, list[str]] = {}
        """The jobs that a job waits for."""
        self.created = 0
        """How often it was opened with the number of partitions that it has."""

    def create_worker(self, number: int, **options: Any) -> Worker:
        """Return a worker; for the code of a party."""
        worker = Worker(DIVIDED, self._handle, Source(self._network), concurrency=3, middleware=[CARRIED], **options)
        worker.consumer = f"py-divided-{number}"
        return worker

    async def _handle(self, job: Job):
        if ORIGIN.get(None) != job.data["of"]:
            self._ledger.found.append(f"job {job.id} of {DIVIDED!r} ran with the context of {ORIGIN.get(None)}")
        await asyncio.sleep(0.001 + 0.03 * self._chance.random())

    async def add(self, queue: Queue, number: int, pick: random.Random, now: Callable[[], float]):
        """Add a job with an ordering key, with its own id, or with neither. Only an id makes a repetition safe.

        Some with an id wait for earlier ones, of any partition.
        """
        name = f"j{number}"
        options: dict[str, Any] = pick.choice(
            ({"ordering": {"key": f"o{pick.randint(1, 3)}"}}, {"ordering": {"key": f"o{pick.randint(1, 3)}"}},
             {"job_id": name}, {"job_id": name}, {})
        )  # fmt: skip
        after = self._after.get(name, [])
        if "job_id" in options and self._named and pick.random() < 0.5:
            after = self._after.setdefault(name, sorted({pick.choice(self._named) for _ in range(2)}))
            options |= {"depends_on": after, "on_dependency_failure": "ignore"}
        self.tries[name] += 1
        began = now()
        data = {"of": name, "key": options.get("ordering", {}).get("key"), "after": after}
        try:
            await queue.add("divided", data, **options)
        except JobNotFoundError:  # a failover lost the job that it would wait for
            return
        finally:
            if "job_id" in options:
                self.tries[name] = 1
        if "job_id" in options and name not in self._named:
            self._named.append(name)
        # With dependencies, an add takes several calls: a failover may lose the first one while a later one is made.
        if not any(began <= last and now() >= first for first, last in self._lost):
            self.acknowledged.setdefault(name, now())

    async def create(self, pick: random.Random):
        """Create the partitions, unless the queue has some, or has had jobs; connection errors are raised."""
        with contextlib.suppress(QueuePartitionsError):
            async with Queue(DIVIDED, Source(self._network), partitions=pick.randint(2, _MOST_PARTITIONS)):
                self.created += 1

    def lost_since(self, first: float, last: float):
        """A failover lost the writes of this time."""
        self._lost.append((first, last))
        self.acknowledged = {name: at for name, at in self.acknowledged.items() if not first <= at <= last}

    def judge(self) -> list[str]:
        """Return the problems: no job is lost or doubled, and the jobs of a key run one by one, in their order."""
        problems: list[str] = []
        of: dict[tuple[bytes, bytes], dict[str, Any]] = {}
        added: dict[str, list[tuple[bytes, bytes]]] = defaultdict(list)
        started: dict[str, dict[tuple[bytes, bytes], None]] = defaultdict(dict)
        active: dict[str, set[tuple[bytes, bytes]]] = defaultdict(set)
        ends: Counter[tuple[bytes, bytes]] = Counter()
        ended: set[str] = set()
        for event in self.log:
            job, kind = (event[b"queue"], event.get(b"jobId", b"")), event[b"event"]
            if b"new" in event:
                of[job] = json.loads(event[b"data"])
                added[of[job]["key"] or ""].append(job)
            elif job not in of:
                continue
            elif kind == b"state":
                key, running = of[job]["key"], event[b"state"] == b"active"
                (active[key].add if running else active[key].discard)(job)
                early = [each for each in of[job]["after"] if each in self.acknowledged and each not in ended]
                if running and early:
                    problems.append(f"job {of[job]['of']} {job} is active before {early}, for which it waits")
                if running and key is not None:
                    started[key].setdefault(job)
                    if len(active[key]) > 1:
                        problems.append(f"jobs {sorted(active[key])} of the key {key!r} are active together")
            elif kind in _ENDS:
                ends[job] += 1
                ended.add(of[job]["of"])
        for key, jobs in added.items():
            expected = [job for job in jobs if job in started[key]]
            if key and [*started[key]] != expected:
                problems.append(f"jobs of the key {key!r} started in the order {[*started[key]]}, not {expected}")
        copies = Counter(data["of"] for data in of.values())
        problems += [
            f"job {each} was added {count} times" for each, count in copies.items() if count > self.tries[each]
        ]
        problems += [f"job {of[job]['of']} {job} ended {ends[job]} times" for job in of if ends[job] != 1]
        problems += [f"job {each} of {DIVIDED!r} is lost" for each in self.acknowledged if not copies[each]]
        return problems
