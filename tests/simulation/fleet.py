"""The simulated fleet: producers and workers as parties, the faults that meet them, and the end of a run."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import traceback
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final, cast

from glidemq_py import Broadcast, BroadcastWorker, FlowProducer, Job, Queue, Worker
from glidemq_py.errors import ClosedError, GlideMQError, JobBatchNotFoundError, RateLimitError, SignalTimeout
from tests.inside import durable_adds, heartbeat, libraries, opening, wake_channel
from tests.inside import queues as maintaining
from tests.key_leaks import KeyLeaks
from tests.simulation.backups import Backups, small_steps
from tests.simulation.control import Control
from tests.simulation.divided import DIVIDED, DividedQueue
from tests.simulation.feature_rules import MOST_BACKLOG
from tests.simulation.feature_work import FULL_KEY, join_batch
from tests.simulation.history import History
from tests.simulation.ledger import Ledger, Verdict
from tests.simulation.loop import PARTY, DeadlockError, Party, SimulatedLoop
from tests.simulation.memory_client import MemoryClient
from tests.simulation.mutations import library_with
from tests.simulation.network import Network, Source, subscribe
from tests.simulation.parties import (
    BROADCAST,
    IDLE_QUEUE,
    SUBSCRIPTIONS,
    LeaseHolder,
    Subscribers,
    maintain,
    open_queue,
)
from tests.simulation.pool import POOL_QUEUES, create_pool_worker, judge_pool
from tests.simulation.producer import CARRIED, ORIGIN, QUEUE, ExpectedError, Producer
from tests.simulation.scenario import Act, Scenario, Work
from tests.simulation.server import SimulatedServer
from tests.simulation.substitutes import substituted

__all__ = ["Fleet", "simulate"]

LOCK_MS, STALLED_MS = 5_000, 2_000
DRAIN_S: Final = 600.0
"""Longest virtual time from the last fault until every job has ended."""


class SimulatedHeartbeat(heartbeat.Heartbeat):
    """The heartbeat, in the event loop instead of a thread."""

    _task: asyncio.Task[None] | None = None

    def _spawn(self):
        self._task = asyncio.create_task(self._beat_on())


class _Logs(logging.Handler):
    """Collects what only a defect logs."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord):
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, (GlideMQError, ExpectedError)):
            self.found.append(f"{record.getMessage()}: {''.join(traceback.format_exception(error))}")


class Fleet:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario):
        self.scenario = scenario
        self.loop = SimulatedLoop()
        self.chance = random.Random(f"run {scenario.seed}")
        mutate = library_with(scenario.mutation)
        self.server = SimulatedServer(self.loop, mutate, queues=(QUEUE, *POOL_QUEUES, DIVIDED))
        self.network = Network(self.loop, self.server, random.Random(f"network {scenario.seed}"), scenario.messages)
        self.ledger = Ledger()
        self.divided = DividedQueue(self.network, self.ledger, random.Random(f"divided {scenario.seed}"))
        self.divided_workers: dict[int, tuple[Party, Worker]] = {}
        self.server.on_event = self._record
        self.workers: dict[int, tuple[Party, Worker]] = {}
        self.producers: dict[int, Party] = {}
        self.producing = 0
        self.started_workers = 0
        self.holders: dict[int, Party] = {}
        self.subscribers: dict[int, Party] = {}
        self.maintainers: dict[int, Party] = {}
        self.savers: dict[int, Party] = {}
        self.handed = asyncio.Queue[tuple[str, str]]()
        """Tokens of leases that another holder reports, with the results."""
        self.subscriptions = Subscribers(
            self.network, self.ledger, self.chance, lock_ms=LOCK_MS, stalled_ms=STALLED_MS
        )  # fmt: skip
        self.backups = Backups(self.network, self.ledger, random.Random(f"backups {scenario.seed}"))
        self.history = History(scenario.settings, self.ledger, self.server)
        self.control = Control(self.ledger, self._worker_named)
        self.pool: dict[int, tuple[Party, Worker]] = {}
        self.failovers = 0
        self._work = asyncio.Queue[Work]()
        self._pending: dict[int, Party | None] = {}
        """Steps that are not done, by number; with the producer that has begun."""
        self.verdict = Verdict(scenario.seed)
        self.lock_ms, self.stalled_ms = LOCK_MS, STALLED_MS
        self.drain_s = DRAIN_S
        self.idle_s = 1.0
        """How long the fleet runs on after the last work and fault."""

    def _record(self, event: dict[bytes, bytes]):
        (self.divided.log if event[b"queue"].startswith(DIVIDED.encode()) else self.ledger.log).append(event)

    def run(self) -> Verdict:
        logs, logger = _Logs(), logging.getLogger("glidemq_py")
        before = logger.handlers[:], logger.propagate, logger.level
        logger.handlers, logger.propagate = [logs], False
        verdict = self.verdict
        try:
            chance = random.Random(f"package {self.scenario.seed}")
            with _rare_collections(), substituted(self.loop, chance), _own_process(), small_steps():
                asyncio.set_event_loop(self.loop)
                try:
                    self.loop.run_until_complete(self._play())
                except DeadlockError as error:
                    verdict.problems.append(f"deadlock: {error}")
                finally:
                    self.loop.end()
                    asyncio.set_event_loop(None)
        finally:
            logger.handlers, logger.propagate = before[0], before[1]
            logger.setLevel(before[2])
        verdict.problems += [f"logged: {text}" for text in logs.found]
        verdict.problems += [f"unhandled: {text}" for text in self.loop.errors]
        verdict.messages = self.network.messages
        verdict.faults.update(fault.kind for fault in self.network.injected)
        verdict.trace = f"{self.network.trace:08x}"
        verdict.simulated_s = self.loop.now - 1_000
        return verdict

    # -- parties --------------------------------------------------------------------------------------------

    def start_worker(self, place: int):
        self.started_workers += 1
        party = Party(f"worker {place}.{self.started_workers}")
        queues = [IDLE_QUEUE, QUEUE] if place < self.scenario.pooled_workers else QUEUE

        name = f"py-host-{self.started_workers}"

        async def handle(job: Job) -> str:
            self.ledger.started[name] += 1
            return await self._handle(job)

        def create() -> Worker:
            worker = Worker(
                queues, handle, Source(self.network), concurrency=self.scenario.concurrency,
                lock_duration=self.lock_ms, stalled_interval=self.stalled_ms, max_stalled_count=1_000_000,
                middleware=[CARRIED],
            )  # fmt: skip
            worker.consumer = name
            return worker

        worker = self.loop.run_in(party, create)
        self.workers[place] = party, worker
        self.loop.spawn(party, self._start(worker))

    @staticmethod
    async def _start(worker: Worker | BroadcastWorker):
        while True:
            try:
                await worker.start()
                return
            except ClosedError:  # closed while it started
                return
            except GlideMQError:  # a long outage: its supervisor starts it again
                await asyncio.sleep(1.0)

    def start_pool_worker(self, place: int):
        self.started_workers += 1
        party, number = Party(f"pool worker {place}.{self.started_workers}"), self.started_workers
        worker = self.loop.run_in(
            party, lambda: create_pool_worker(
                self.network, self._handle, self.scenario.pool, number, lock_duration=self.lock_ms,
                stalled_interval=self.stalled_ms, max_stalled_count=1_000_000,
            ),
        )  # fmt: skip
        self.pool[place] = party, worker
        self.loop.spawn(party, self._start(worker))

    def start_divided_worker(self, place: int):
        self.started_workers += 1
        party, number = Party(f"divided worker {place}.{self.started_workers}"), self.started_workers
        worker = self.loop.run_in(
            party, lambda: self.divided.create_worker(
                number, lock_duration=self.lock_ms, stalled_interval=self.stalled_ms, max_stalled_count=1_000_000
            ),
        )  # fmt: skip
        self.divided_workers[place] = party, worker
        self.loop.spawn(party, self._start(worker))

    def _worker_named(self, name: str) -> Worker | None:
        for party, worker in self.workers.values():
            if worker.consumer == name and not party.dead and worker.is_running:
                return worker
        return None

    def _revive_pool(self, place: int):
        if self.pool[place][0].dead:
            self.start_pool_worker(place)

    def start_holder(self, place: int):
        party = self.holders[place] = Party(f"lease holder {place}")
        holder = LeaseHolder(self.network, self._handle_lease, self.chance, self.handed)
        self.loop.spawn(party, holder.run())

    def start_maintainer(self, place: int):
        party = self.maintainers[place] = Party(f"maintainer {place}")
        self.loop.spawn(party, maintain(self.network, lock_ms=self.lock_ms, stalled_ms=self.stalled_ms))

    def start_saver(self, place: int):
        party = self.savers[place] = Party(f"saver {place}")
        self.loop.spawn(party, self.backups.save())

    def start_subscriber(self, place: int):
        party = self.subscribers[place] = Party(f"subscriber {place}")
        worker = self.loop.run_in(party, self.subscriptions.create, SUBSCRIPTIONS[place % len(SUBSCRIPTIONS)])
        self.loop.spawn(party, self._start(worker))

    def start_producer(self, place: int):
        party = self.producers[place] = Party(f"producer {place}")
        self.loop.spawn(party, self._produce())

    def kill(self, party: Party):
        party.dead = True
        self.network.leave(party)

    # -- producers --------------------------------------------------------------------------------------------

    async def _produce(self):
        source = Source(self.network)
        async with (
            await open_queue(self.network, middleware=[CARRIED]) as queue,
            FlowProducer(source, middleware=[CARRIED]) as flows,
            Broadcast(BROADCAST, source) as news,
            contextlib.AsyncExitStack() as stack,
        ):
            names = [*(POOL_QUEUES if self.scenario.pool else ()), *([DIVIDED] if self.scenario.divided else ())]
            others = {
                name: await stack.enter_async_context(await open_queue(self.network, name, middleware=[CARRIED]))
                for name in names
            }
            producer = Producer(
                queue, flows, self.ledger, self.loop, self.chance, news, others, self.control, self.divided
            )
            await asyncio.gather(*(self._produce_one(producer) for _ in range(4)))

    async def _produce_one(self, producer: Producer):
        while True:
            work = await self._work.get()
            self._pending[work.number] = PARTY.get()
            await producer.do(work)
            del self._pending[work.number]

    # -- handlers -------------------------------------------------------------------------------------------

    async def _handle_lease(self, job: Job) -> str:
        origin = job.headers.get("origin")  # leases are not within the middleware
        if origin is not None:
            ORIGIN.set(origin)
        return await self._run(job, origin)

    async def _handle(self, job: Job) -> str:
        return await self._run(job, ORIGIN.get(None))

    def _judge_origin(self, job: Job, origin: str | None):
        """The handler must see the context of the add; jobs that no producer has added have none."""
        ledger = self.ledger
        if "-of-" in job.name:
            return
        expected = None if job.name.startswith("scheduler") else job.id.partition("-")[0]
        if origin != expected:
            ledger.found.append(f"job {job.id} ran with the context of {origin}, not of {expected}")
        ledger.carried += origin is not None

    async def _run(self, job: Job, origin: str | None) -> str:
        ledger, name = self.ledger, job.name
        ledger.runs += 1
        ledger.names[job.id] = name
        self._judge_origin(job, origin)
        chance = self.chance.random()
        if name == "timeout":
            await asyncio.sleep(3_600)
        if name == "cancelled":
            await asyncio.sleep(60)
        if name == "growing":
            async with await open_queue(self.network, middleware=[CARRIED]) as queue:
                await join_batch(queue, job, f"{job.id.partition('-')[0]}-late", ledger)
        await asyncio.sleep(0.001 + 0.05 * chance * chance * (20 if chance > 0.9 else 1))
        if name == "failing" or (name == "retried" and job.attempts_made == 0):
            raise ExpectedError(name)
        if name == "stepped" and job.step is None:
            job.move_to_delayed(20, next_step="second")
        if name == "suspended" and not job.signals:
            job.suspend(timeout=3_000)
        if name == "durable_steps":
            await self._run_steps(job)
        if name == "pausing" and chance < 0.3:
            raise RateLimitError(50)
        attempt: Any = job._attempt
        return str(attempt.token[0])

    async def _run_steps(self, job: Job):
        """Steps of each kind; leases cannot wait. The effects, and what the runs have seen, are in the ledger."""
        ledger, attempt = self.ledger, cast("Any", job)._attempt
        life = f"{job.id} of {job.timestamp}"  # the id of a deleted job may be used again

        async def effect(step: str, fails: bool = False) -> int:
            effects = ledger.effects[life, step]
            effects.append(ledger.runs)
            await asyncio.sleep(0.005)
            if fails and len(effects) % 3:
                raise ExpectedError(step)
            return len(effects)

        async def seen(step: str, *arguments: Any, **options: Any):
            value = await job.run(step, effect, step, *arguments, **options)
            ledger.results[life, step].add((ledger.failovers, value))

        await seen("first")
        if attempt.owner is not None:
            await job.sleep("pause", 20)
        await asyncio.gather(seen("left"), seen("right", True, attempts=1_000, backoff=10))
        if attempt.owner is not None:
            with contextlib.suppress(SignalTimeout):
                await job.wait_for_signal("go", timeout=300)
        await seen("last")

    # -- the run --------------------------------------------------------------------------------------------

    async def _set_up(self):
        """Apply the settings of the queue, before the first fault."""
        scenario = self.scenario
        self.network.reliable = True
        async with Queue(QUEUE, Source(self.network)) as queue:
            await self.history.apply(queue)
            if any(work.kind == "backlog" for work in scenario.work):
                await queue.fair_keys.set_limits(FULL_KEY, concurrency=1, max_backlog=MOST_BACKLOG)
        self.network.reliable = not (scenario.messages or scenario.acts)

    async def _play(self):
        scenario, loop = self.scenario, self.loop
        await self._set_up()
        for place in range(scenario.workers):
            self.start_worker(place)
        self.ledger.may_stall_out = self.ledger.holds_leases = scenario.lease_holders > 0
        for place in range(2 if scenario.pool else 0):
            self.start_pool_worker(place)
        for place in range(scenario.divided):
            self.start_divided_worker(place)
        self.ledger.steps_clock = any(act.kind == "step_clock" for act in scenario.acts)
        self.ledger.loses_messages = bool(scenario.messages or scenario.acts)
        self.ledger.loses_workers = any(act.kind in ("kill_worker", "close_worker") for act in scenario.acts)
        for place in range(scenario.lease_holders):
            self.start_holder(place)
        for place in range(scenario.maintainers):
            self.start_maintainer(place)
        for place in range(scenario.savers):
            self.start_saver(place)
        if scenario.subscribers:
            self.network.reliable = True
            await self.subscriptions.subscribe()
            self.network.reliable = not (scenario.messages or scenario.acts)
            for place in range(len(SUBSCRIPTIONS) * scenario.subscribers):
                self.start_subscriber(place)
        for place in range(2):
            self.start_producer(place)
        self._pending = {work.number: None for work in scenario.work}
        begin = loop.now
        for act in scenario.acts:
            loop.call_at(begin + act.at, self._act, act)
        for work in scenario.work:
            if work.at > loop.now - begin:
                await asyncio.sleep(begin + work.at - loop.now)
            self._work.put_nowait(work)
        last = max((act.at for act in scenario.acts), default=0.0)
        if begin + last > loop.now:
            await asyncio.sleep(begin + last - loop.now)
        await asyncio.sleep(self.idle_s)
        self._repair_world()
        for party in self.savers.values():
            self.kill(party)
        await self._drain()

    def _repair_world(self):
        """End all faults: the rest of the run must bring every job to its end."""
        self.network.reliable, self.network.down_until = True, 0.0
        for place, (party, _) in list(self.workers.items()):
            if party.frozen:
                self.loop.thaw(party)
            if party.dead:
                self.start_worker(place)
        for place in list(self.pool):
            self._revive_pool(place)
        for place in list(self.divided_workers):
            self._revive_divided(place)

    async def _drain(self):
        loop, verdict = self.loop, self.verdict
        async with contextlib.AsyncExitStack() as stack:
            names = [QUEUE, *(POOL_QUEUES if self.scenario.pool else ()), *([DIVIDED] if self.scenario.divided else ())]
            queues = [await stack.enter_async_context(Queue(name, Source(self.network))) for name in names]
            queue = queues[0]
            begun, until = loop.now, loop.now + self.drain_s * (2 if self.ledger.batches else 1)
            while loop.now < until:
                await self._complete_work(queue)
                left = [await self._left(each) for each in queues]
                done = not any(map(any, left)) and not self._pending and not await queue.schedulers.get_all()
                done = done and await self.history.is_settled(queue) and await self._are_batches_done(queue)
                if done and (not self.scenario.subscribers or await self.subscriptions.are_done()):
                    break
                await asyncio.sleep(1.0 if loop.now < begun + 60 else 10.0)
            else:
                verdict.problems.append(
                    f"not drained after {self.drain_s:.0f} s: {left}; adds pending: {len(self._pending)}"
                )
            runs = -1
            while runs != self.ledger.runs:  # a late copy of an add may add jobs
                runs = self.ledger.runs
                await self.history.wait_for_figures()
            for each in queues:
                report = await each.check(recheck_after=0)
                verdict.problems += [f"check: {finding}" for finding in report.findings]
            present = {
                job_id.decode() for index in ("scheduled", "suspended", "list-heartbeats", "waiting-children")
                for job_id in self.server.execute("ZRANGE", f"glide:{{{QUEUE}}}:{index}", 0, -1)
            }  # fmt: skip
            self.ledger.judge(verdict, present)
            verdict.problems += await self.history.judge(queue)
        verdict.problems += self.divided.judge()
        if self.scenario.pool and not self.ledger.loses_messages:
            judge_pool(self.ledger, self.scenario.pool, len(self.pool), verdict.problems)
        verdict.problems += await self.backups.judge()
        if self.scenario.subscribers:
            verdict.problems += self.subscriptions.problems()
        leaks = KeyLeaks(MemoryClient(self.server))
        leaks.before = frozenset()
        leaks.allow(
            "*:group:*", "*:wake-channels", "glidemq_py:*", "*:fair-limits", "*:fair-rates", "*:fair-state",
            "*:batch:*", "*:batch-jobs:*", "*:batches",  # a late copy of a create leaves a batch open
        )  # fmt: skip
        verdict.problems += [f"leaked key {key}" for key in leaks.found()]

    @staticmethod
    async def _left(queue: Queue) -> tuple[int, ...]:
        counts = await queue.get_job_counts()
        return (counts.waiting, counts.active, counts.delayed, counts.prioritized, counts.waiting_children,
                counts.suspended, counts.group_waiting)  # fmt: skip

    async def _complete_work(self, queue: Queue):
        """Do what killed producers have left, or a failover has lost: resume workers, promote jobs, close batches."""
        for party, worker in self.workers.values():
            if worker.is_paused and self.control.is_idle:
                self.loop.run_in(party, worker.resume)
        if self._pending:
            return
        for name, batch in self.ledger.batches.items():
            if batch.closed_at is None or batch.is_lost:
                batch.closed_at, batch.is_lost = self.loop.now, False
                try:
                    await (await queue.job_batches.get(name)).close()
                except JobBatchNotFoundError:
                    batch.exists = False
        for name, at in self.ledger.promotions.items():
            if at is None or at < self.loop.now - 30:  # a late copy of an add may have added a job again
                await queue.jobs.promote_delayed(name=name)
                self.ledger.promotions[name] = self.loop.now

    async def _are_batches_done(self, queue: Queue) -> bool:
        """Return True if no closed batch has pending jobs: those that were never added leave it after some minutes."""
        if not self.ledger.batches:
            return True
        closed = [batch.id async for batch in queue.job_batches.iter() if (await batch.get_status()).is_closed]
        return not closed

    # -- faults ---------------------------------------------------------------------------------------------

    def _act(self, act: Act):
        self.verdict.faults[act.kind] += 1
        getattr(self, f"_{act.kind}")(act)

    def _kill_worker(self, act: Act):
        party, _ = self.workers[act.party]
        if not party.dead:
            self.kill(party)
            self.loop.call_later(5 * act.amount, self._revive, act.party)

    def _kill_holder(self, act: Act):
        """Its leases expire; the tokens that it has handed on are reported by others."""
        if not self.holders[act.party].dead:
            self.kill(self.holders[act.party])
            self.loop.call_later(5 * act.amount, self.start_holder, act.party)

    def _kill_subscriber(self, act: Act):
        if not self.subscribers[act.party].dead:
            self.kill(self.subscribers[act.party])
            self.loop.call_later(5 * act.amount, self.start_subscriber, act.party)

    def _kill_maintainer(self, act: Act):
        if not self.maintainers[act.party].dead:
            self.kill(self.maintainers[act.party])
            self.loop.call_later(5 * act.amount, self.start_maintainer, act.party)

    def _kill_saver(self, act: Act):
        """Its backup stays incomplete."""
        if not self.savers[act.party].dead:
            self.kill(self.savers[act.party])
            self.loop.call_later(act.amount, self.start_saver, act.party)

    def _revive_divided(self, place: int):
        if self.divided_workers[place][0].dead:
            self.start_divided_worker(place)

    def _kill_divided(self, act: Act):
        if act.party in self.divided_workers and not self.divided_workers[act.party][0].dead:
            self.kill(self.divided_workers[act.party][0])
            self.loop.call_later(5 * act.amount, self._revive_divided, act.party)

    def _kill_pool(self, act: Act):
        if act.party in self.pool and not self.pool[act.party][0].dead:
            self.kill(self.pool[act.party][0])
            self.loop.call_later(5 * act.amount, self._revive_pool, act.party)

    def _revive(self, place: int):
        if self.workers[place][0].dead:
            self.start_worker(place)

    def _freeze_worker(self, act: Act):
        party, _ = self.workers[act.party]
        if not party.dead and not party.frozen:
            party.frozen = True
            self.loop.call_later(3 * LOCK_MS / 1000 * act.amount, self.loop.thaw, party)

    def _close_worker(self, act: Act):
        party, worker = self.workers[act.party]
        if party.dead or party.frozen:
            return

        async def close():
            with contextlib.suppress(GlideMQError):
                await worker.close(None if act.amount < 0.5 else 100, force=act.amount > 0.8)
            party.dead = True
            self._revive(act.party)

        self.loop.spawn(party, close())

    def _kill_producer(self, act: Act):
        """What a killed producer had begun is not repeated: only acknowledged adds count."""
        place = act.party % len(self.producers)
        party = self.producers[place]
        self.kill(party)
        self._forget_waiters(party)
        self._pending = {number: by for number, by in self._pending.items() if by is not party}
        self.loop.call_later(act.amount, self.start_producer, place)

    def _forget_waiters(self, party: Party):
        """Give the next step of the work to no task of a killed party."""
        waiters: Any = self._work._getters  # type: ignore[attr-defined]
        for waiter in [*waiters]:
            if any(context.get(PARTY) is party for _, context in waiter._callbacks or ()):
                waiters.remove(waiter)
        if not self._work.empty():
            self._work._wakeup_next(waiters)  # type: ignore[attr-defined]

    def _failover(self, act: Act):
        """The primary dies; a replica that lacks its last writes takes over.

        A replica whose copy belongs to a history that an earlier failover has ended does not take over any more.
        """
        failovers = self.failovers
        loop, first, state = self.loop, self.loop.now, self.server.copy_state()
        length, divided_length = len(self.ledger.log), len(self.divided.log)
        self.server.lagging += 1

        def fail():
            self.server.lagging -= 1
            if self.failovers != failovers:
                return
            self.failovers += 1
            self.server.restore_state(state)
            del self.ledger.log[length:], self.divided.log[divided_length:]
            self.divided.lost_since(first, loop.now + 0.1)
            self.ledger.lost_since(first, loop.now + 0.1)
            self.network.cut_all(2 * act.amount)

        loop.call_later(act.amount**2, fail)

    def _restart_server(self, act: Act):
        self.network.cut_all(5 * act.amount)

    def _lose_functions(self, _: Act):
        self.server.lose_functions()

    def _step_clock(self, act: Act):
        """The server's clock steps forward by up to an hour."""
        self.server.virtual_clock.skew_us += round(act.amount * 3_600_000_000)

    def _skew_clock(self, act: Act):
        self.workers[act.party][0].skew = (act.amount - 0.5) * 7_200


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Collect garbage rarely: each collection visits all objects of the simulated processes."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextlib.contextmanager
def _own_process() -> Any:
    """Run heartbeats in the loop, hide the real process from consumer names, and start without its history."""
    process, marks = SimpleNamespace(getpid=lambda: 1), random.Random("marks")
    replaced: list[tuple[Any, str, Any]] = [
        (maintaining, "Heartbeat", SimulatedHeartbeat), (heartbeat, "os", process), (opening, "os", process),
        (heartbeat, "resident_memory", lambda: 2**26), (libraries, "_registered", {}),
        (wake_channel, "subscribe", subscribe), (durable_adds, "os", SimpleNamespace(urandom=marks.randbytes)),
    ]  # fmt: skip
    kept = [getattr(module, name) for module, name, _ in replaced]
    for module, name, value in replaced:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name, _), value in zip(replaced, kept, strict=True):
            setattr(module, name, value)


def simulate(scenario: Scenario) -> Verdict:
    """Run a scenario."""
    return Fleet(scenario).run()
