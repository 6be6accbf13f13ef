"""Random failures of Spark writes, without a JVM: every row becomes one job, or none does, and no state blocks a write.

The writers of the data source run against the in-memory server. Drivers, tasks and sweeps are threads, one of which
runs at a time. Before every call a seeded generator selects the next one, and whether its call fails before or after it
takes effect, is sent twice, arrives after its process has died, or its process dies. Tasks are retried, run twice, and
continue after their driver; drivers share a write.

``GLIDEMQ_FUZZ_RUNS`` sets the number of runs of each kind, ``GLIDEMQ_FUZZ_SEED`` the first seed.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from glidemq_py.errors import (
    AmbiguousResultError,
    GlideMQConnectionError,
    GlideMQError,
    ServerOutOfMemoryError,
    StagedWriteError,
)
from glidemq_py.spark import sinks
from glidemq_py.spark import writer as writing
from glidemq_py.spark.api import TaskFacts, pa
from glidemq_py.spark.options import WriteOptions
from glidemq_py.spark.write_schema import plan_write
from glidemq_py.spark.writer import FrameWriter, StreamWriter
from glidemq_py.testing import Clock, MemoryServer
from tests.inside import BlockingTransport, QueueKeys
from tests.inside import staged_writes as staging

RUNS = int(os.environ.get("GLIDEMQ_FUZZ_RUNS", "15"))
SEED = int(os.environ.get("GLIDEMQ_FUZZ_SEED", "0"))
TTL = 60_000
ATTEMPTS = 4
FAULTS = ("before", "after", "twice", "full", "die before", "die after", "die and arrive late")
ALLOWED_WHEN_FULL = (
    "HGET", "write_claim", "write_commit", "write_abort", "write_drain", "write_finished", "writes", "write_report",
)  # fmt: skip
PATIENCE = 60
"""Seconds after which a run is considered blocked."""


class Died(BaseException):
    """The process of this thread was killed."""


class Actor(threading.Thread):
    """One thread of a process. It runs only between `World.resume` and its next call."""

    def __init__(self, world: World, process: str, work: Callable[[], Any], facts: TaskFacts | None):
        super().__init__(daemon=True, name=process)
        self.world, self.process, self.facts = world, process, facts
        self._work = work
        self.go = threading.Semaphore(0)
        self.ready: Callable[[], bool] = lambda: True
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False

    def run(self):
        _local.actor = self
        self.go.acquire()
        try:
            if self.process not in self.world.dead:
                self.result = self._work()
        except BaseException as error:  # judged by the test
            self.error = error
        finally:
            self.done = True
            self.world.parked.release()

    def park(self, ready: Callable[[], bool] | None = None):
        """Let others run until this thread is selected again."""
        self.ready = ready or (lambda: True)
        self.world.parked.release()
        self.go.acquire()
        if self.process in self.world.dead:
            raise Died


_local = threading.local()


class Command:
    """A read by a command instead of a function."""

    def __init__(self, *words: Any):
        self.words, self.function = words, str(words[0])


class World:
    """One run: a server, its actors, and the faults."""

    def __init__(self, server: MemoryServer, seed: int, *, faults: float):
        self.server, self.clock = server, server.clock
        self.rng = random.Random(seed)
        self.seed = seed
        self.faults = faults
        self.transport = BlockingTransport(server)
        self.parked = threading.Semaphore(0)
        self.actors: list[Actor] = []
        self.dead: set[str] = set()
        self.faultless: set[str] = set()
        self.late: list[Any] = []
        self.expired = False
        self.log: list[str] = []
        self.names = Counter[str]()

    # -- actors -----------------------------------------------------------------------------------------------

    def process(self, kind: str) -> str:
        self.names[kind] += 1
        return f"{kind}{self.names[kind]}"

    def start(self, process: str, work: Callable[[], Any], facts: TaskFacts | None = None) -> Actor:
        actor = Actor(self, process, work, facts)
        self.actors.append(actor)
        actor.start()
        return actor

    def run(self, *, expiry: bool = False):
        """Run all actors to their end."""
        while True:
            active = [actor for actor in self.actors if not actor.done]
            runnable = [actor for actor in active if actor.ready() or actor.process in self.dead]
            if not runnable:
                assert not active, f"seed {self.seed}: blocked: {active}"
                break
            if self.late and self.rng.random() < 0.1:
                self.execute(self.late.pop(self.rng.randrange(len(self.late))))
            if self.rng.random() < 0.05:
                self.clock.advance(self.rng.choice((1, 500, 6_000)))
            if expiry and self.rng.random() < 0.004:
                self.expired = True
                self.clock.advance(TTL + 10)
            actor = self.rng.choice(runnable)
            actor.go.release()
            assert self.parked.acquire(timeout=PATIENCE), f"seed {self.seed}: {actor.name} does not return"
        for call in self.late:
            self.execute(call)
        self.late.clear()

    def execute(self, call: Any) -> Any:
        if isinstance(call, Command):
            return self.transport.command(*call.words)
        return self.transport.call(call)

    # -- the view of the writers ---------------------------------------------------------------------------------

    def call(self, call: Any) -> Any:
        actor: Actor = _local.actor
        actor.park()
        rng, name = self.rng, f"{actor.name} {call.function}"
        if actor.process in self.faultless or rng.random() >= self.faults:
            self.log.append(name)
            try:
                return self.execute(call)
            except BaseException as error:
                self.log.append(f"{name}: {error}")
                raise
        fault = rng.choice(FAULTS)
        self.log.append(f"{name}: {fault}")
        if fault == "full":
            if call.function in ALLOWED_WHEN_FULL:
                return self.execute(call)
            raise ServerOutOfMemoryError("maxmemory")
        if fault in ("after", "twice", "die after"):
            self.execute(call)
        if fault == "twice":
            actor.park()
            return self.execute(call)
        if fault == "before":
            raise GlideMQConnectionError("lost before the call")
        if fault == "after":
            raise AmbiguousResultError("lost after the call")
        if fault == "die and arrive late":
            self.late.append(call)
        self.dead.add(actor.process)
        raise Died

    def pause(self, seconds: float):
        """Replace `time.sleep` of the writers."""
        actor: Actor = _local.actor
        self.clock.advance(max(1, int(seconds * 1_000)))
        actor.park()

    def now(self) -> float:
        """Replace `time.monotonic` of the writers."""
        return self.clock.now() / 1_000


class FuzzTransport:
    """The connection of every actor."""

    def __init__(self, world: World):
        self._world = world

    def call(self, call: Any) -> Any:
        return self._world.call(call)

    def command(self, *command: Any) -> Any:
        return self._world.call(Command(*command))

    def send_reads(self, _key: str, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Run commands that only read."""
        return [self._world.call(Command(*command)) for command in commands]

    def call_all(self, calls: Sequence[Any]) -> list[Any]:
        """Run calls that are sent together: those after a failed one are executed, too.

        Sometimes all are executed and all replies are lost, so that all are repeated.
        """
        world, actor = self._world, _local.actor
        if actor.process not in world.faultless and world.rng.random() < world.faults:
            actor.park()
            world.log.append(f"{actor.name}: the replies of {len(calls)} calls are lost")
            for call in calls:
                world.execute(call)
        found: list[Any] = []
        failure: GlideMQError | None = None
        for call in calls:
            try:
                found.append(world.call(call))
            except GlideMQError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return found


# -- Spark ---------------------------------------------------------------------------------------------------


def schema() -> Any:
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([StructField("data", StringType()), StructField("queue", StringType())])


class Messages(list[Any]):
    """The messages of the tasks of one driver, and the errors of those that failed."""

    def __init__(self, messages: list[Any], errors: list[BaseException]):
        super().__init__(messages)
        self.errors = errors


class Spark:
    """What Spark does with a writer: tasks with retries and speculation, then commit or abort."""

    def __init__(self, world: World, queue: str, rows: dict[str, str], **options: str):
        self.world, self.queue, self.rows = world, queue, rows
        given = {"url": "valkey://localhost:1", "queue": queue, "jobName": "n", "batchSize": "2"}
        self.given = given | {"stagingTtl": str(TTL)} | options

    def options(self, *, streaming: bool) -> WriteOptions:
        return WriteOptions.parse(self.given, streaming=streaming)

    def _partitions(self, rows: list[tuple[str, str]]) -> list[list[tuple[str, str]]]:
        # A new plan may distribute the rows otherwise.
        rng = self.world.rng
        rng.shuffle(rows)
        count = rng.randint(1, 3)
        return [rows[i::count] for i in range(count)]

    def _batches(self, rows: list[tuple[str, str]]) -> Iterator[Any]:
        for i in range(0, len(rows), 3):
            part = rows[i : i + 3]
            yield pa.RecordBatch.from_pydict({"data": [r[0] for r in part], "queue": [r[1] for r in part]})

    def tasks(self, driver: str, writer: Any, rows: list[tuple[str, str]], query: str, batch: int) -> Messages:
        """Run the tasks of a write; return the messages, None for a failed partition."""
        world, faultless = self.world, driver in self.world.faultless
        partitions = self._partitions(rows)
        attempts: list[list[Actor]] = [[] for _ in partitions]
        number = 0

        def launch(at: int):
            nonlocal number
            process = world.process("task")
            if faultless:
                world.faultless.add(process)
            facts = TaskFacts(at, number, query, batch)
            number += 1
            attempts[at].append(world.start(process, lambda: writer.write(self._batches(partitions[at])), facts))

        for at in range(len(partitions)):
            launch(at)
            if world.rng.random() < 0.2:
                launch(at)  # speculation
        me: Actor = _local.actor

        def message(at: int) -> Any:
            ended = (actor.result for actor in attempts[at] if actor.done and actor.result is not None)
            return next(ended, None)

        def failed(at: int) -> int:
            return sum(actor.done and actor.result is None for actor in attempts[at])

        while True:
            me.park(lambda: any(a.done for each in attempts for a in each))
            for at in range(len(partitions)):
                if message(at) is None and failed(at) == len(attempts[at]) < ATTEMPTS:
                    launch(at)
            messages = [message(at) for at in range(len(partitions))]
            broken = [at for at, m in enumerate(messages) if m is None and failed(at) >= ATTEMPTS]
            if broken or all(m is not None for m in messages):
                errors = [a.error for at in broken for a in attempts[at] if a.error is not None]
                return Messages(messages, errors)  # copies of tasks that still run are zombies

    def finish(self, writer: Any, messages: Messages, *batch: int):
        """Commit or abort."""
        if None in messages:
            writer.abort(messages, *batch)
            raise messages.errors[-1] if messages.errors else RuntimeError("task failed")
        try:
            writer.commit(messages, *batch)
        except GlideMQError:
            writer.abort(messages, *batch)
            raise

    def save(self, driver: str, *, replace: bool = False):
        """Save a DataFrame; ``replace``: in mode overwrite."""
        options = self.options(streaming=False)
        writer = FrameWriter(options, plan_write(schema(), options), replace)
        messages = self.tasks(driver, writer, list(self.rows.items()), "", -1)
        self.finish(writer, messages)

    def stream(self, driver: str, query: str, checkpoint: list[int], batches: int):
        """Run a query from its checkpoint (a list of finished micro-batches) to the end of its input."""
        options = self.options(streaming=True)
        rows = list(self.rows.items())
        size = -(-len(rows) // batches)
        for batch in range(max(checkpoint, default=-1) + 1, batches):
            writer = StreamWriter(options, plan_write(schema(), options))
            messages = self.tasks(driver, writer, rows[batch * size : batch * size + size], query, batch)
            self.finish(StreamWriter(options, plan_write(schema(), options)), messages, batch)
            _local.actor.park()  # may die here: published, but not in the checkpoint
            checkpoint.append(batch)


# -- the runs ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> MemoryServer:
    return MemoryServer(Clock())


def returning(value: Any) -> Callable[..., Any]:
    def fixed(*args: Any, **options: Any) -> Any:
        return value

    return fixed


class SameThread:
    """Runs the calls of a sink in the thread of its actor, which is the only one that the world schedules."""

    def __init__(self, *_: object):
        """Nothing to start."""

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self):
        """Nothing to stop."""


@pytest.fixture
def world(server: MemoryServer, monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    def make(seed: int, *, faults: float) -> World:
        made = World(server, seed, faults=faults)
        transport = FuzzTransport(made)
        monkeypatch.setattr(writing, "transport_of", returning(transport))
        monkeypatch.setattr(writing, "forget", returning(None))
        monkeypatch.setattr(writing, "task_context", lambda: _local.actor.facts)
        monkeypatch.setattr(writing, "_MANY_PIECES", 10**9)
        for module, name, value in (
            (staging, "_sleep", made.pause),
            (writing, "_monotonic", made.now),
            (sinks, "_monotonic", made.now),
            (sinks, "ThreadPoolExecutor", SameThread),
        ):
            monkeypatch.setattr(module, name, value, raising=False)
        return made

    return make


class Scene:
    """The queues of one run and their contents."""

    def __init__(self, world: World, kind: str):
        self.world = world
        rng = world.rng
        self.home = f"fuzz-{kind}-{world.seed}"
        self.queues = [self.home, *(f"{self.home}-{n}" for n in range(rng.randint(0, 2)))]
        self.rows = {f'"{n}"': rng.choice(self.queues) for n in range(rng.randint(1, 14))}

    def keys(self, queue: str, pattern: str = "*") -> list[str]:
        return self.world.server.keys(f"glide:{{{queue}}}:{pattern}")

    def jobs(self, queue: str) -> list[str]:
        execute = self.world.server.execute
        return [execute(b"HGET", key.encode(), b"data").decode() for key in self.keys(queue, "job:*")]

    def sweep(self, idle: int = 0):
        for queue in self.queues:
            staging.run_blocking(self.world.transport, staging.finish_writes(QueueKeys("glide", queue), idle))

    def clean(self):
        """Sweep until nothing can change any more, also what expires."""
        self.sweep()
        self.sweep()
        self.world.clock.advance(TTL + 10)
        for _ in range(3):
            self.sweep()

    def fail(self, problem: str):
        trace = "\n".join(self.world.log[-200:])
        pytest.fail(f"seed {self.world.seed}: {problem}\nqueues {self.queues}\n{trace}", pytrace=False)

    def check(self, expected: bool | None):
        """Check that all rows are jobs (True), none is (False), or one of both (None); and that nothing is staged."""
        found = {queue: sorted(self.jobs(queue)) for queue in self.queues}
        wanted = {queue: sorted(d for d, q in self.rows.items() if q == queue) for queue in self.queues}
        nothing: dict[str, list[str]] = {queue: [] for queue in self.queues}
        allowed = {True: [wanted], False: [nothing], None: [wanted, nothing]}[expected]
        if found not in allowed:
            self.fail(f"jobs {found}, expected {wanted}")
        for queue in self.queues:
            for key in self.keys(queue, "write*"):
                if ":try:" in key or key.rpartition(":")[2] in ("tried", "won", "queues", "drivers", "writes"):
                    self.fail(f"left over: {key}")
            streamed = self.world.server.execute(b"XLEN", f"glide:{{{queue}}}:stream".encode())
            if streamed != len(found[queue]):
                self.fail(f"{queue}: {streamed} entries, {len(found[queue])} jobs")


def frame_drivers(world: World, spark: Spark, count: int) -> list[Actor]:
    found: list[Actor] = []
    for _ in range(count):
        name = world.process("driver")
        found.append(world.start(name, partial(spark.save, name)))
    return found


def stream_driver(world: World, spark: Spark, checkpoint: list[int], batches: int) -> Actor:
    name = world.process("driver")
    return world.start(name, lambda: spark.stream(name, "query", checkpoint, batches))


def sweeper(world: World, scene: Scene):
    """A worker of each queue, which looks at abandoned writes now and then."""
    name = world.process("sweeper")
    world.faultless.add(name)
    transport: Any = FuzzTransport(world)

    def work():
        for _ in range(world.rng.randint(0, 6)):
            queue = QueueKeys("glide", world.rng.choice(scene.queues))
            staging.run_blocking(transport, staging.finish_writes(queue, world.rng.choice((0, 5_000))))
            for _ in range(world.rng.randint(0, 30)):
                _local.actor.park()

    world.start(name, work)


def unexpected(actor: Actor, world: World) -> bool:
    """Return whether a driver without faults failed."""
    if actor.error is None or isinstance(actor.error, Died):
        return False
    return not (world.expired and isinstance(actor.error, StagedWriteError))


def outcome(driver: Actor) -> str:
    """Return the result that the user of the driver got: 'decided', 'undecided', or '' if nothing is certain."""
    error = driver.error
    if error is None or isinstance(error, Died) or driver.process in driver.world.dead:
        return ""
    state = error.state if isinstance(error, StagedWriteError) else ""
    return {"decided": "decided", "unknown": ""}.get(state, "undecided")


@pytest.mark.slow
@pytest.mark.parametrize("faults", [0.0, 0.03, 0.15])
def test_frames_survive_every_failure(world: Callable[..., World], faults: float):
    for seed in range(SEED, SEED + RUNS):
        w = world(seed * 3 + int(faults * 100), faults=faults)
        scene = Scene(w, f"frame{int(faults * 100)}")
        spark = Spark(w, scene.home, scene.rows, writeId="w")
        drivers = frame_drivers(w, spark, w.rng.randint(1, 3))
        if w.rng.random() < 0.5:
            w.faultless.add(drivers[0].process)
        sweeper(w, scene)
        w.run(expiry=w.rng.random() < 0.3)
        for actor in drivers:
            if actor.process in w.faultless and unexpected(actor, w):
                scene.fail(f"{actor.name} failed: {actor.error!r}")
        for actor in w.actors:
            if actor.error is not None and not isinstance(actor.error, Died | GlideMQError | RuntimeError):
                scene.fail(f"{actor.name} failed: {actor.error!r}")
        saved = any(a.done and a.error is None and a.process not in w.dead for a in drivers)
        if w.rng.random() < 0.5:
            name = w.process("driver")
            w.faultless.add(name)
            w.expired = False
            last = w.start(name, partial(spark.save, name))
            w.run()
            if last.error is not None:
                scene.fail(f"a later driver failed: {last.error!r}")
            saved = True
        outcomes = {outcome(driver) for driver in drivers}
        scene.clean()
        scene.check(True if saved or "decided" in outcomes else False if outcomes == {"undecided"} else None)


@pytest.mark.slow
@pytest.mark.parametrize("faults", [0.0, 0.03, 0.1])
def test_streams_survive_every_failure(world: Callable[..., World], faults: float):
    for seed in range(SEED, SEED + RUNS):
        w = world(seed * 3 + int(faults * 100), faults=faults)
        scene = Scene(w, f"stream{int(faults * 100)}")
        spark = Spark(w, scene.home, scene.rows)
        checkpoint: list[int] = []
        batches = w.rng.randint(1, 3)

        drivers = [stream_driver(w, spark, checkpoint, batches) for _ in range(w.rng.choice((1, 1, 2)))]
        sweeper(w, scene)
        w.run(expiry=w.rng.random() < 0.3)
        for actor in w.actors:
            if actor.error is not None and not isinstance(actor.error, Died | GlideMQError | RuntimeError):
                scene.fail(f"{actor.name} failed: {actor.error!r}")
        if faults == 0 and not w.expired:
            for actor in drivers:
                if actor.error is not None:
                    scene.fail(f"{actor.name} failed: {actor.error!r}")
        w.faults = 0
        last = stream_driver(w, spark, checkpoint, batches)
        w.run()
        if last.error is not None:
            scene.fail(f"a restarted query failed: {last.error!r}")
        scene.clean()
        scene.check(True)


class Savers:
    """Several DataFrames of one run, saved at once in the modes append and overwrite."""

    def __init__(self, world: World, scene: Scene):
        self.world, self.scene = world, scene
        self.rows: list[set[str]] = []
        self.replaces: list[bool] = []
        self.actors: list[list[Actor]] = []

    def start(self, *, replace: bool, drivers: int, faultless: bool = False):
        number, rng = len(self.rows), self.world.rng
        rows = {f'"{number}.{n}"': queue for n, queue in enumerate(self.scene.queues * rng.randint(1, 4))}
        spark = Spark(self.world, self.scene.home, rows, writeId=f"w{number}", overwrite="drain")
        names = [self.world.process("driver") for _ in range(drivers)]
        if faultless:
            self.world.faultless.update(names)
        self.rows.append(set(rows))
        self.replaces.append(replace)
        save = partial(spark.save, replace=replace)
        self.actors.append([self.world.start(name, partial(save, name)) for name in names])

    def saved(self, number: int) -> bool:
        return any(actor.error is None and actor.process not in self.world.dead for actor in self.actors[number])

    def check(self):
        """Check that whole frames remain: of one overwrite and of some appends."""
        found = Counter(data for queue in self.scene.queues for data in self.scene.jobs(queue))
        kept = [found.keys() & rows for rows in self.rows]
        if any(count > 1 for count in found.values()) or sum(map(len, kept)) != len(found):
            self.scene.fail(f"jobs {found}")
        overwrites = [n for n, replace in enumerate(self.replaces) if replace]
        present = [n for n, here in enumerate(kept) if here]
        if not all(map(self.saved, overwrites)):
            return  # it may have deleted jobs without adding its own
        parts = [n for n in present if kept[n] != self.rows[n]]
        remaining = [n for n in present if n in overwrites]
        lost = [n for n in range(len(self.rows)) if self.saved(n) and n not in present]
        if parts or len(remaining) != min(1, len(overwrites)) or (lost and not overwrites):
            self.scene.fail(f"overwrites {overwrites}; jobs of {present}, parts of {parts}, lost {lost}")


@pytest.mark.slow
@pytest.mark.parametrize("faults", [0.0, 0.03, 0.15])
def test_overwrites_replace_whole_frames(world: Callable[..., World], faults: float):
    """Overwrites and appends at once: the rows of one overwrite remain, and those of each append, or none of them."""
    for seed in range(SEED, SEED + RUNS):
        w = world(seed * 3 + int(faults * 100), faults=faults)
        scene = Scene(w, f"over{int(faults * 100)}")
        savers = Savers(w, scene)
        for _ in range(w.rng.randint(2, 4)):
            savers.start(replace=w.rng.random() < 0.6, drivers=w.rng.choice((1, 1, 2)))
        sweeper(w, scene)
        w.run()
        for actor in w.actors:
            if actor.error is not None and not isinstance(actor.error, Died | GlideMQError | RuntimeError):
                scene.fail(f"{actor.name} failed: {actor.error!r}")
        last = w.rng.random() < 0.5
        if last:
            savers.start(replace=True, drivers=1, faultless=True)
            w.run()
        scene.clean()
        savers.check()
        if last:
            scene.rows = {data: queue for queue in scene.queues for data in scene.jobs(queue)}
            if not savers.saved(-1) or set(scene.rows) != savers.rows[-1]:
                scene.fail(f"after the last overwrite: {scene.rows}; {savers.actors[-1][0].error!r}")
