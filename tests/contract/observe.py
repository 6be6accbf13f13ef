"""What tests look at beside the public API: the keys of a queue, on every kind of server and in all partitions."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from glidemq_py import Job
from glidemq_py.testing import MemoryServer, RespClient
from tests.contract.api import Queue
from tests.inside import partition_of_key
from tests.server import worker_support
from tests.simulation.memory_client import MemoryClient

__all__ = ["START", "Clockwork", "Raw", "SetClock", "assert_order", "raw_client", "wait_for_workers"]


def assert_order(jobs: Iterable[Job], expected: Sequence[Any], value: Callable[[Job], Any] = lambda job: job.data):
    """Assert that jobs have these values, in this order; in a partitioned queue within each partition."""
    parts: dict[str, list[Any]] = defaultdict(list)
    for job in jobs:
        parts[job.id.rpartition("||")[0]].append(value(job))
    assert sum(map(len, parts.values())) == len(expected)
    for values in parts.values():
        left = iter(expected)
        assert all(each in left for each in values), (values, expected)


def raw_client(connection: Any) -> RespClient:
    """Return a client that reads and writes the keys without our own code."""
    return MemoryClient(connection) if isinstance(connection, MemoryServer) else RespClient.from_url(connection)


async def wait_for_workers(queue: Queue, count: int):
    """Wait until the queue lists that many workers; those of partitions may register after their start."""
    async with asyncio.timeout(worker_support.PATIENCE):
        while len(await queue.get_workers()) != count:  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.01)


_SUMMED = {"XLEN", "ZCARD", "LLEN", "SCARD"}
"""Numbers of entries, which are those of all partitions."""


class Raw(worker_support.Raw):
    """The keys of a queue; keys of a job are those of its partition."""

    @property
    def bases(self) -> list[str]:
        """Return the beginnings of the keys, of each partition."""
        layout = self.resp.execute("HGET", f"{self.base}:meta", "partitions")
        return [f"glide:{{{name}}}" for name in json.loads(layout)["names"]] if layout else [self.base]

    def key(self, suffix: str) -> str:
        kind, _, rest = suffix.partition(":")
        if kind == "group":
            bases = self.bases
            return f"{bases[partition_of_key(rest, len(bases)) if len(bases) > 1 else 0]}:{suffix}"
        part, divided, own = rest.partition("||")
        return f"{self.bases[int(part)]}:{kind}:{own}" if divided else super().key(suffix)

    def run(self, command: str, suffix: str, *args: str | bytes | float):
        if command not in _SUMMED or "||" in suffix:
            return super().run(command, suffix, *args)
        return sum(int(self.resp.execute(command, f"{base}:{suffix}", *args)) for base in self.bases)

    def score(self, suffix: str, job_id: str) -> float:
        """Return the score of a job in a sorted set of its partition."""
        _, _, own = job_id.rpartition("||")
        base = self.key(f"job:{job_id}").partition("}:")[0]
        return float(self.resp.execute("ZSCORE", f"{base}}}:{suffix}", own))

    def state(self, job_id: str) -> str | None:
        return self.job(job_id).get("state")

    def events(self, job_id: str | None = None) -> list[dict[str, str]]:
        part, divided, own = (job_id or "").partition("||")
        bases = self.bases if job_id is None else [self.bases[int(part)] if divided else self.base]
        found = [fields for base in bases for _, fields in self.resp.execute("XRANGE", f"{base}:events", "-", "+")]
        events = [dict(zip(fields[::2], fields[1::2], strict=True)) for fields in found]
        return events if job_id is None else [each for each in events if each.get("jobId") == (own or job_id)]

    def metric(self, kind: str) -> int:
        counts = [self.resp.hash(f"{base}:metrics:{kind}") for base in self.bases]
        return sum(int(value) for each in counts for field, value in each.items() if field.endswith(":c"))

    def keys(self, pattern: str) -> list[str]:
        """Return the names of keys, without the queue's."""
        bases = self.bases
        found = [key for base in bases for key in self.resp.keys(f"{base}:{pattern}")]
        return sorted(key.partition("}:")[2] for key in found)


START = 1_800_000_000_000
"""Where a set clock begins, epoch ms."""


class SetClock:
    """The clock of one queue: the key ``P:clock`` of a library for tests, in all partitions."""

    def __init__(self, raw: Raw):
        self._raw = raw
        self.set(START)

    def set(self, at: int):
        self.now = at
        for base in self._raw.bases:
            self._raw.resp.execute("SET", f"{base}:clock", at)

    def advance(self, ms: int):
        self.set(self.now + ms)

    def remove(self):
        for base in self._raw.bases:
            self._raw.resp.execute("DEL", f"{base}:clock")


class Clockwork(SetClock):
    """The clock of a queue, the tasks of a worker that fire its schedulers, and the entries of these."""

    def __init__(self, raw: Raw, queue: Queue, tasks: Sequence[Any]):
        super().__init__(raw)
        self.queue = queue
        self.tasks = tasks

    async def fire(self) -> int:
        """Fire everything that is due; return the ms until the next may be."""
        while not (wait := min([await task.fire() for task in self.tasks])):
            pass
        return wait

    async def until(self, at: int):
        """Advance the clock and fire each scheduler that becomes due."""
        while self.now + (wait := await self.fire()) <= at:
            self.advance(wait)
        self.set(at)
        await self.fire()

    async def jobs(self) -> list[Job]:
        """Return all jobs, in the order of their adds."""
        states = ("waiting", "active", "delayed", "completed", "failed")
        jobs = [job for state in states for job in await self.queue.get_jobs(state, 0, 999)]
        return sorted(jobs, key=lambda job: (len(job.id), job.id))

    async def instants(self) -> list[int]:
        """Return the due times of all jobs."""
        return [int(self._raw.job(job.id)["scheduledFor"]) for job in await self.jobs()]

    def _base(self, name: str) -> str:
        bases = self._raw.bases
        return bases[partition_of_key(name, len(bases)) if len(bases) > 1 else 0]

    def stored(self, name: str, home: str = "schedulers") -> dict[str, Any] | None:
        """Return the stored entry of a scheduler."""
        text = self._raw.resp.execute("HGET", f"{self._base(name)}:{home}", name)
        return None if text is None else dict(json.loads(text))

    def store(self, name: str, entry: dict[str, Any] | str):
        """Write an entry as a Node client does."""
        text = entry if isinstance(entry, str) else json.dumps(entry)
        self._raw.resp.execute("HSET", f"{self._base(name)}:schedulers", name, text)
