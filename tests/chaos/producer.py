"""A producer of a chaos run: `python -m tests.chaos.producer`.

It adds jobs of every kind with custom ids. An add whose outcome is unknown, or that could not be sent, is repeated with
the same id until it is acknowledged, as a careful producer does. SIGTERM ends it after its current adds.
"""

from __future__ import annotations

import asyncio
import random
import signal
from typing import Any

from glidemq_py import FlowJob, FlowProducer, Queue
from glidemq_py.errors import (
    BulkAddError,
    DuplicateJobError,
    GlideMQConnectionError,
    ServerOutOfMemoryError,
)
from tests.chaos.ledger import Scribe
from tests.chaos.settings import PartySettings

REPEATED = (GlideMQConnectionError, ServerOutOfMemoryError)
"""After these the add is repeated. AmbiguousResultError is a GlideMQConnectionError."""
CONCURRENT = 4
BULK = 5
LIMITED = 2
"""Jobs of the name `limited` that may run at the same time."""


class Producer:
    """Adds jobs from `CONCURRENT` tasks."""

    def __init__(self, settings: PartySettings):
        self._settings = settings
        self._scribe = Scribe(settings.pipe, settings.party)
        self._random = random.Random(f"{settings.seed} {settings.party}")
        self._number = 0
        self._stop = asyncio.Event()

    async def run(self):
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        url = self._settings.connection()
        durable: Any = self._settings.durable
        name = self._settings.queue
        queue, flows = Queue(name, url, durable=durable), FlowProducer(url, durable=durable)
        for each in (queue, flows):  # the server may be loading its data
            await self._repeat("connecting", each.connect)
        async with queue, flows:
            if "limited" in self._settings.kinds:
                await self._repeat("limit of a name", lambda: queue.limits.set_for_name("limited", concurrency=LIMITED))
            self._scribe.write("ready")
            await asyncio.gather(*(self._produce(queue, flows) for _ in range(CONCURRENT)))
        self._scribe.write("done")

    async def _produce(self, queue: Queue, flows: FlowProducer):
        while not self._stop.is_set() and (self._settings.jobs is None or self._number < self._settings.jobs):
            self._number += 1
            kind = self._random.choice(self._settings.kinds)
            if kind == "flow":
                await self._add_flow(flows)
            elif kind == "bulk":
                await self._add_bulk(queue)
            elif kind == "dependent":
                await self._add_dependent(queue)
            else:
                await self._add_one(queue, kind)
            if self._settings.rate:
                pause = self._random.expovariate(self._settings.rate / CONCURRENT)
                try:
                    await asyncio.wait_for(self._stop.wait(), pause)
                except TimeoutError:
                    continue

    def _options(self, kind: str) -> dict[str, Any]:
        pick = self._random
        options: dict[str, dict[str, Any]] = {
            "plain": {},
            "priority": {"priority": pick.randint(1, 9)},
            "lifo": {"lifo": True},
            "delay": {"delay": pick.randint(1, 300)},
            "ordered": {"ordering": {"key": f"g{pick.randint(1, 5)}"}},
            "retried": {"attempts": 3, "backoff": 10},
            "failing": {"attempts": 2, "backoff": 10},
            "stepped": {},
            "logged": {},
            "steps": {},
            "expiring": {"ttl": 86_400_000},
            "ranked": {"rank": pick.randint(-5_000, 5_000), "lifo": pick.random() < 0.3},
            "fair": {"fair_key": f"f{pick.randint(1, 5)}", "attempts": 2},
            "fair_delayed": {"fair_key": f"f{pick.randint(1, 5)}", "delay": pick.randint(1, 300)},
            "limited": {},
            "unique": {"deduplication": {"id": self._new_id()}},
            "poison": {},
            "leaking": {"attempts": 3},
            "endless": {"timeout": 500},
        }
        return {**self._settings.retention, **options[kind]}

    def _data(self, job_id: str) -> dict[str, Any]:
        return {"of": job_id, "filler": "x" * self._settings.payload}

    def _new_id(self) -> str:
        return f"{self._settings.party}-{self._number}"

    async def _repeat(self, what: str, send: Any) -> bool:
        """Send repeatedly until the server has replied. Return False if only an earlier try was accepted."""
        pause = 0.02
        while True:
            try:
                await send()
                return True
            except DuplicateJobError:  # the first try was accepted
                return False
            except REPEATED as error:
                kind = "rejected" if isinstance(error, ServerOutOfMemoryError) else "unsure"
                self._scribe.write(kind, detail=type(error).__name__)
            except Exception as error:
                self._scribe.write("problem", detail=f"{what}: {error!r}")
                if self._stop.is_set():
                    return False
            await asyncio.sleep(pause * (0.5 + self._random.random()))
            pause = min(pause * 2, 0.5)

    async def _add_one(self, queue: Queue, kind: str):
        job_id, options = self._new_id(), self._options(kind)
        self._scribe.write("attempted", job_id, kind)

        async def send():
            await queue.add(kind, self._data(job_id), job_id=job_id, **options)
            self._scribe.write("acknowledged", job_id)

        await self._repeat(f"add {job_id}", send)

    async def _add_bulk(self, queue: Queue):
        ids = [f"{self._new_id()}-{n}" for n in range(BULK)]
        for job_id in ids:
            self._scribe.write("attempted", job_id, "bulk")
        missing = list(ids)

        async def send():
            keep = self._settings.retention
            rows: list[tuple[str, Any, Any]] = [("bulk", self._data(i), {"job_id": i, **keep}) for i in missing]
            try:
                results: list[Any] = list(await queue.add_bulk(rows))
            except BulkAddError as error:
                results = list(error.results)
            errors = [each for each in results if isinstance(each, Exception)]
            for job_id, result in zip(tuple(missing), results, strict=True):
                if not isinstance(result, Exception):
                    self._scribe.write("acknowledged", job_id)
                    missing.remove(job_id)
            if errors:
                raise errors[0]

        await self._repeat(f"add_bulk {ids[0]}", send)

    async def _add_dependent(self, queue: Queue):
        """Add a job and one that depends on it, in either order, in one bulk."""
        first = self._new_id()
        ids = [first, f"{first}-after"]
        for job_id in ids:
            self._scribe.write("attempted", job_id, "dependent")
        keep = self._settings.retention
        rows: list[tuple[str, Any, Any]] = [
            ("dependent", self._data(ids[0]), {"job_id": ids[0], **keep}),
            ("dependent", self._data(ids[1]), {"job_id": ids[1], "depends_on": [ids[0]], **keep}),
        ]
        if self._random.random() < 0.5:
            rows.reverse()

        async def send():
            try:
                await queue.add_bulk(rows)
            except BulkAddError as error:
                raise next(each for each in error.results if isinstance(each, Exception)) from None

        confirmed = await self._repeat(f"add dependent {first}", send)
        if self._settings.durable and not confirmed:
            return
        for job_id in ids:
            self._scribe.write("acknowledged", job_id)

    async def _add_flow(self, flows: FlowProducer):
        root, queue = self._new_id(), self._settings.queue
        ids = [root, f"{root}-a", f"{root}-b"]
        for job_id in ids:
            self._scribe.write("attempted", job_id, "flow")

        async def send():
            keep = self._settings.retention
            children = [FlowJob("flow", queue, self._data(name), {"job_id": name, **keep}) for name in ids[1:]]
            await flows.add(FlowJob("flow", queue, self._data(root), {"job_id": root, **keep}, children=children))

        confirmed = await self._repeat(f"add flow {root}", send)
        if self._settings.durable and not confirmed:
            return  # the flow exists, but nothing has confirmed that it is durable
        for job_id in ids:
            self._scribe.write("acknowledged", job_id)


if __name__ == "__main__":
    asyncio.run(Producer(PartySettings.read()).run())
