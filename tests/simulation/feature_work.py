"""Work of later features: batches, replacing jobs, full fair keys, promotions, requeues, control of workers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

from glidemq_py import Queue
from glidemq_py.errors import (
    FairKeyFullError,
    GlideMQConnectionError,
    JobBatchNotFoundError,
    JobStateError,
)
from tests.simulation.ledger import Batch

if TYPE_CHECKING:
    from tests.simulation.control import Control
    from tests.simulation.divided import DividedQueue
    from tests.simulation.ledger import Ledger
    from tests.simulation.loop import SimulatedLoop
    from tests.simulation.scenario import Work

__all__ = ["FULL_KEY", "FeatureWork", "join_batch"]

FULL_KEY: Final = "full"
"""A fair key with a maximum backlog, and one job at a time."""
_HOUR_MS: Final = 3_600_000

Send = Callable[[], Coroutine[Any, Any, None]]


class FeatureWork:
    """Adds the jobs of later features and records them.

    Args:
        queue: the queue.
        others: further queues, by name.
        ledger: records attempts and acknowledgments.
        loop: time.
        control: sends commands to workers.
        divided: records the jobs of the partitioned queue.
    """

    def __init__(
        self,
        queue: Queue,
        others: Mapping[str, Queue],
        ledger: Ledger,
        loop: SimulatedLoop,
        control: Control,
        divided: DividedQueue,
    ):
        self._queue = queue
        self._others = others
        self._ledger = ledger
        self._loop = loop
        self._control = control
        self._divided = divided
        self.build: dict[str, Callable[[Work, random.Random], list[Send]]] = {
            "batch": self._batch, "replace": self._replace, "backlog": self._backlog, "promoted": self._promoted,
            "requeued": self._requeued, "exclusive": self._exclusive, "cancelled": self._cancelled,
            "controlled": self._controlled, "many": self._many, "divided": self._add_divided, "dividing": self._divide,
        }  # fmt: skip

    def _attempt(self, job_id: str, kind: str) -> str:
        self._ledger.attempted[job_id] = kind
        return job_id

    def _acknowledge(self, job_id: str):
        self._ledger.acknowledge(job_id, self._loop.now)

    # -- adding -------------------------------------------------------------------------------------------

    def _batch(self, work: Work, pick: random.Random) -> list[Send]:
        """A batch of up to four jobs, one of which may add another, may fail, or is in another queue."""
        root = f"j{work.number}"
        fails, grows = pick.random() < 0.4, pick.random() < 0.6
        kinds = ["growing" if grows else "batched", "batched", "failing" if fails else "batched"]
        ids = [self._attempt(f"{root}-{n}", kind) for n, kind in enumerate(kinds)]
        if grows:
            self._attempt(f"{root}-late", "batched")
        batch = self._ledger.batches[f"b{work.number}"] = Batch(members={*ids, f"{root}-late"})
        name, elsewhere = f"b{work.number}", self._others.get("usual")

        def callback(kind: str) -> tuple[str, dict[str, str]]:
            return f"{kind}-of-{name}", {"of": f"{kind}-of-{name}"}

        async def create() -> Any:
            return await self._queue.job_batches.create(
                batch_id=name, on_complete=callback("complete"), on_success=callback("success"),
                on_failure=callback("failure"),
            )  # fmt: skip

        async def add(n: int):
            if batch.is_lost:
                return
            failovers = self._ledger.failovers
            try:
                found = await self._queue.job_batches.get(name)
                await found.add(kinds[n], {"of": ids[n]}, queue=elsewhere if n == 1 else None, job_id=ids[n])
            except (JobBatchNotFoundError, JobStateError):  # lost by a failover, in whole or in part
                batch.is_lost = True
                return
            finally:
                batch.is_torn = batch.is_torn or self._ledger.failovers != failovers
            self._acknowledge(ids[n])

        async def close():
            if batch.is_lost:
                return
            try:
                await (await self._queue.job_batches.get(name)).close()
            except JobBatchNotFoundError:  # lost by a failover
                batch.is_lost = True
            else:
                batch.closed_at = self._loop.now

        def adding(n: int) -> Send:
            return lambda: add(n)

        return [create, *(adding(n) for n in range(len(ids))), close]

    def _replace(self, work: Work, pick: random.Random) -> list[Send]:
        key = f"r{pick.randint(1, 3)}"
        job_id = self._attempt(f"j{work.number}", "replace")
        options: dict[str, Any] = pick.choice(({}, {}, {"priority": 2}, {"delay": 100}))
        self._ledger.replacing[job_id] = key

        async def send():
            await self._queue.add(
                "replace", {"of": job_id}, job_id=job_id, deduplication={"id": key, "replace": True}, **options
            )
            self._acknowledge(job_id)

        return [send]

    def _backlog(self, work: Work, pick: random.Random) -> list[Send]:
        job_id = self._attempt(f"j{work.number}", "backlog")
        options: dict[str, Any] = pick.choice(({}, {}, {"priority": 2}))

        async def send():
            while True:
                try:
                    await self._queue.add("backlog", {"of": job_id}, job_id=job_id, fair_key=FULL_KEY, **options)
                except FairKeyFullError:
                    self._ledger.rejected_adds += 1
                    await asyncio.sleep(0.05)
                else:
                    self._acknowledge(job_id)
                    return

        return [send]

    def _promoted(self, work: Work, pick: random.Random) -> list[Send]:
        """Three jobs that are due in an hour, and are promoted by their name."""
        name = f"promoted-{work.number}"
        options: dict[str, Any] = pick.choice(({}, {"priority": 2}, {"rank": 3_000}, {"fair_key": "p1"}))
        ids = [self._attempt(f"j{work.number}-{n}", "promoted") for n in range(3)]
        self._ledger.promotions[name] = None

        def adding(job_id: str) -> Send:
            async def add():
                await self._queue.add(name, {"of": job_id}, job_id=job_id, delay=_HOUR_MS, **options)
                self._acknowledge(job_id)

            return add

        async def promote():
            failovers = self._ledger.failovers
            await self._queue.jobs.promote_delayed(name=name)
            self._ledger.promotions[name] = self._loop.now if self._ledger.failovers == failovers else None

        return [*(adding(job_id) for job_id in ids), promote]

    def _requeued(self, work: Work, pick: random.Random) -> list[Send]:
        queue = self._others["again"]
        job_id = self._attempt(f"j{work.number}", "requeued")

        async def add():
            await queue.add("requeued", {"of": job_id}, job_id=job_id)
            self._acknowledge(job_id)

        async def requeue():
            failovers, count = self._ledger.failovers, await queue.jobs.requeue_completed(pick.randint(0, 2) or None)
            if self._ledger.failovers == failovers:
                self._ledger.requeues.append((self._loop.now, count))

        return [add, requeue] if pick.random() < 0.5 else [add]

    def _exclusive(self, work: Work, pick: random.Random) -> list[Send]:
        """A scheduler that is due more often than its jobs end."""
        name, limit, ledger, tries = f"scheduler-x{work.number}", pick.randint(2, 4), self._ledger, 0
        overlap: Any = pick.choice(("skip", "buffer_one"))

        async def send():
            nonlocal tries
            tries += 1
            if tries > 1:  # the first one may have ended, with an unfinished job
                ledger.exclusive.discard(name)
            else:
                ledger.exclusive.add(name)
            await self._queue.schedulers.upsert(
                name, every=100, limit=limit, immediately=True, overlap=overlap, template=(name, {"of": name})
            )
            ledger.schedulers[name], ledger.scheduled_at[name] = (limit, limit * tries), self._loop.now

        return [send]

    def _many(self, work: Work, pick: random.Random) -> list[Send]:
        queue = self._others[pick.choice(("urgent", "usual", "bulky"))]
        job_id = self._attempt(f"j{work.number}", "many")

        async def send():
            await queue.add("many", {"of": job_id}, job_id=job_id)
            self._acknowledge(job_id)

        return [send]

    def _add_divided(self, work: Work, pick: random.Random) -> list[Send]:
        chance = pick.random()

        async def add():
            await self._divided.add(
                self._others["divided"], work.number, random.Random(chance), lambda: self._loop.now
            )  # fmt: skip

        return [add]

    def _divide(self, work: Work, pick: random.Random) -> list[Send]:
        chance = pick.random()
        return [lambda: self._divided.create(random.Random(chance))]

    # -- control ------------------------------------------------------------------------------------------

    def _cancelled(self, work: Work, pick: random.Random) -> list[Send]:
        job_id = self._attempt(f"j{work.number}", "cancelled")

        async def add():
            await self._queue.add("cancelled", {"of": job_id}, job_id=job_id)
            self._acknowledge(job_id)

        return [add, lambda: self._control.cancel(self._queue, job_id)]

    def _controlled(self, work: Work, pick: random.Random) -> list[Send]:
        return [lambda: self._control.command(self._queue, pick)]


async def join_batch(queue: Queue, job: Any, job_id: str, ledger: Ledger):
    """Add a job to the batch of a running job, until the server replies.

    The batch may have ended without this attempt.
    """
    failovers = ledger.failovers
    while True:
        try:
            ref = await job.get_batch_ref()
            if ref is None:
                return
            await (await queue.job_batches.get(ref)).add("batched", {"of": job_id}, job_id=job_id)
        except (JobBatchNotFoundError, JobStateError):
            return
        except GlideMQConnectionError:
            await asyncio.sleep(0.05)
        else:
            return
        finally:
            batch = ledger.batches[f"b{job_id.partition('-')[0][1:]}"]
            batch.is_torn = batch.is_torn or ledger.failovers != failovers
