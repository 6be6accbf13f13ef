"""The producer of a simulated fleet: it adds jobs of every kind, and repeats an add until the server has replied."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from glidemq_py import Broadcast, ContextHeaders, Durability, FlowJob, FlowProducer, Queue
from glidemq_py.errors import BulkAddError, DuplicateJobError, DurabilityError, GlideMQConnectionError
from tests.simulation.feature_work import FeatureWork
from tests.simulation.ledger import BEGAN, Ledger
from tests.simulation.loop import SimulatedLoop
from tests.simulation.scenario import SHARES, Work

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.simulation.control import Control
    from tests.simulation.divided import DividedQueue

__all__ = ["CARRIED", "ORIGIN", "QUEUE", "ExpectedError", "Producer"]

QUEUE: Final = "simulated"
ORIGIN: ContextVar[str] = ContextVar("ORIGIN")
"""The step of the work that a job comes from, which the middleware carries to its handler."""
CARRIED: Final = ContextHeaders({"origin": ORIGIN})
_KEEP: Final[tuple[dict[str, Any], ...]] = (
    {}, {}, {"remove_on_complete": True}, {"remove_on_complete": 10}, {"remove_on_complete": {"age": 5}},
)  # fmt: skip

Send = Callable[[], Coroutine[Any, Any, None]]


class ExpectedError(Exception):
    """Raised by jobs that must fail."""


class Producer:
    """Adds jobs and records them.

    Args:
        queue: the queue.
        flows: adds flows.
        ledger: records attempts and acknowledgments.
        loop: time.
        chance: decides how long to wait before a repetition.
        broadcast: publishes messages.
        others: further queues, by name.
        control: sends commands to workers.
        divided: records the jobs of the partitioned queue.
    """

    def __init__(
        self,
        queue: Queue,
        flows: FlowProducer,
        ledger: Ledger,
        loop: SimulatedLoop,
        chance: random.Random,
        broadcast: Broadcast,
        others: Mapping[str, Queue],
        control: Control,
        divided: DividedQueue,
    ):
        self._queue = queue
        self._flows = flows
        self._ledger = ledger
        self._loop = loop
        self._chance = chance
        self._broadcast = broadcast
        self._features = FeatureWork(queue, others, ledger, loop, control, divided)

    async def do(self, work: Work):
        """Do a step of the work."""
        pick = random.Random(work.chance)
        ORIGIN.set(f"j{work.number}")
        build = {"bulk": self._bulk, "flow": self._flow, "failing_flow": self._flow, "scheduler": self._scheduler,
                 "message": self._message, "dependent": self._dependent, **self._features.build}  # fmt: skip
        for send in build.get(work.kind, self._one)(work, pick):
            await self._repeat(send)

    async def _repeat(self, send: Send):
        """Send repeatedly until the server has replied, as a careful producer does."""
        pause = 0.02
        while True:
            BEGAN.set(self._loop.now)
            try:
                await send()
                return
            except DuplicateJobError:  # the first try was accepted
                return
            except (GlideMQConnectionError, DurabilityError):
                await asyncio.sleep(pause * (0.5 + self._chance.random()))
                pause = min(pause * 2, 1.0)

    def _attempt(self, job_id: str, kind: str) -> str:
        self._ledger.attempted[job_id] = kind
        return job_id

    def _acknowledge(self, job_id: str):
        self._ledger.acknowledge(job_id, self._loop.now)

    def _bulk(self, work: Work, pick: random.Random) -> list[Send]:
        keep = pick.choice(_KEEP)
        missing = [self._attempt(f"j{work.number}-{n}", "bulk") for n in range(5)]

        async def send():
            rows: list[Any] = [("bulk", {"of": job_id}, {"job_id": job_id, **keep}) for job_id in missing]
            try:
                results: list[Any] = list(await self._queue.add_bulk(rows))
            except BulkAddError as error:
                results = list(error.results)
            failure = None
            for job_id, result in zip(tuple(missing), results, strict=True):
                if isinstance(result, Exception):
                    failure = result
                else:
                    self._acknowledge(job_id)
                    missing.remove(job_id)
            if failure is not None:
                raise failure

        return [send]

    def _dependent(self, work: Work, pick: random.Random) -> list[Send]:
        """A job that waits for two others: of the same bulk, in an order drawn from the seed."""
        first, second, last = (self._attempt(f"j{work.number}-{n}", "dependent") for n in range(3))
        rows: list[Any] = [("dependent", {"of": job_id}, {"job_id": job_id}) for job_id in (first, second)]
        rows.append(("dependent", {"of": last}, {"job_id": last, "depends_on": [first, second],
                                                         "on_dependency_failure": "ignore"}))  # fmt: skip
        pick.shuffle(rows)

        async def send():
            try:
                results: list[Any] = list(await self._queue.add_bulk(rows))
            except BulkAddError as error:
                results = list(error.results)
            failure = None
            for row, result in zip(tuple(rows), results, strict=True):
                if isinstance(result, Exception) and not isinstance(result, DuplicateJobError):
                    failure = result
                else:
                    self._acknowledge(row[2]["job_id"])
            if failure is not None:
                raise failure

        return [send]

    def _flow(self, work: Work, pick: random.Random) -> list[Send]:
        keep, last = pick.choice(_KEEP), "failing" if work.kind == "failing_flow" else "flow"
        names, root = (work.kind, "flow", last), f"j{work.number}"
        ids = [
            self._attempt(job_id, name) for job_id, name in zip((root, f"{root}-a", f"{root}-b"), names, strict=True)
        ]
        if work.kind == "failing_flow":
            self._attempt(ids[1], "flow")

        async def send():
            options = [{"job_id": job_id, **keep} for job_id in ids]
            children = [FlowJob(names[n], QUEUE, {"of": ids[n]}, options[n]) for n in (1, 2)]
            await self._flows.add(FlowJob(names[0], QUEUE, {"of": root}, options[0], children=children))
            for job_id in ids:
                self._acknowledge(job_id)

        return [send]

    def _scheduler(self, work: Work, pick: random.Random) -> list[Send]:
        name, limit, every = f"scheduler-{work.number}", pick.randint(1, 5), pick.choice((100, 700, 1_500))
        immediately, ledger, tries = pick.random() < 0.5, self._ledger, 0

        async def send():
            nonlocal tries
            tries += 1
            await self._queue.schedulers.upsert(
                name, every=every, limit=limit, immediately=immediately, template=(name, {"of": name})
            )
            # A repetition creates a scheduler again whose first runs are over.
            if not ledger.may_be_lost(self._loop.now):
                ledger.schedulers[name], ledger.scheduled_at[name] = (limit, limit * tries), self._loop.now

        return [send]

    def _message(self, work: Work, pick: random.Random) -> list[Send]:
        message = f"m{work.number}"

        async def send():
            await self._broadcast.publish(f"news.{pick.randint(1, 3)}", {"of": message}, job_id=message)
            self._ledger.published.setdefault(message, self._loop.now)

        return [send]

    def _one(self, work: Work, pick: random.Random) -> list[Send]:
        kind, ledger, tries = work.kind, self._ledger, 0
        job_id = self._attempt(f"j{work.number}", kind)
        options = {**pick.choice(_KEEP), **(_share_options if kind in SHARES else _options)(kind, pick)}
        if kind == "durable":
            options["durable"] = Durability(disk=False, replicas="all", timeout=2_000)
        if "ordering" in options and kind != "debounce":  # delayed jobs join their group when they are due
            ledger.groups[job_id] = options["ordering"]["key"]

        async def send():
            nonlocal tries
            tries += 1
            await self._limit(kind, options)
            job = await self._queue.add(kind, {"of": job_id}, job_id=job_id, **options)
            if kind == "debounce" or (kind in ("simple", "throttle") and (tries > 1 or job.outcome != "added")):
                ledger.unsure.add(job_id)
            if kind == "durable":
                ledger.durable.add(job_id)
            self._acknowledge(job_id)

        async def signal():
            await self._queue.signal(job_id, "go", work.number)

        return [send, signal] if kind in ("suspended", "durable_steps") and work.chance < 0.8 else [send]

    async def _limit(self, kind: str, options: dict[str, Any]):
        """Set the limits of the job's name or fair key, as a program does at each start."""
        if kind == "named":
            await self._queue.limits.set_for_name("named", concurrency=3)
        elif options.get("fair_key") == "t1":
            await self._queue.fair_keys.set_limits("t1", concurrency=2)
        elif options.get("fair_key") == "t2":
            await self._queue.fair_keys.set_limits("t2", rate_limit={"max": 20, "duration": 500})


def _share_options(kind: str, pick: random.Random) -> dict[str, Any]:
    if kind == "fair":
        more = pick.choice(({}, {}, {"priority": 3}, {"delay": 50}, {"attempts": 3}))
        return {"fair_key": f"t{pick.randint(1, 4)}", **more}
    return dict(pick.choice(({}, {}, {"priority": 3}, {"lifo": True}, {"rank": 3_000}, {"delay": 50})))


def _options(kind: str, pick: random.Random) -> dict[str, Any]:
    group = pick.randint(1, 4)
    match kind:
        case "priority":
            return pick.choice(({"priority": pick.randint(1, 9)}, {"rank": pick.choice((-9, -1, 3_000, 4_000))}))
        case "lifo":
            return {"lifo": True, "rank": pick.choice((None, -9, 5, 3_000))}
        case "delay":
            return {"delay": pick.choice((1, 50, 300, 3_000))}
        case "ordered":
            return {"ordering": {"key": f"g{group}"}}
        case "wide":
            return {"ordering": {"key": f"w{group}", "concurrency": 3}}
        case "limited":
            return {"ordering": {"key": f"l{group}", "rate_limit": {"max": 20, "duration": 500}}}
        case "bucket":
            return {"ordering": {"key": f"b{group}", "token_bucket": {"capacity": 10, "refill_rate": 50}},
                    "cost": pick.choice((1, 2.5))}  # fmt: skip
        case "retried":
            return {"attempts": 3, "backoff": pick.choice((10, 500))}
        case "failing" | "durable_steps":  # of steps, a call that fails in an outage ends an attempt
            return {"attempts": 2 if kind == "failing" else 1_000, "backoff": 10}
        case "simple":
            return {"deduplication": {"id": f"s{group}"}}
        case "throttle":
            return {"deduplication": {"id": f"t{group}", "mode": "throttle", "ttl": 500}}
        case "debounce":
            ordering = {"ordering": {"key": f"d{group}"}} if pick.random() < 0.5 else {}
            return {"deduplication": {"id": f"d{group}", "mode": "debounce"}, "delay": 200, **ordering}
        case "ttl":
            return {"ttl": pick.choice((50, 5_000))}
        case "timeout":
            return {"timeout": 100}
        case _:
            return {}
