"""One run of a row: its server, its processes, its ledger, and the verdict."""

from __future__ import annotations

import math
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from glidemq_py.sync import Queue
from glidemq_py.testing import RespClient, ServerProcess, server_binary
from tests.chaos.control import Control
from tests.chaos.fleet import Fleet, Party
from tests.chaos.ledger import COMPLETED, Ledger, Step
from tests.chaos.settings import PartySettings
from tests.chaos.slots import left_behind
from tests.key_leaks import KeyLeaks

__all__ = ["Bound", "ChaosRun", "Verdict"]

QUEUE: Final = "chaos"
EVENTS_KEPT: Final = 50_000_000
STALLED_DRAIN_S: Final = 60.0
"""A drain fails if no job has ended for so long."""
SETTLED_S: Final = 25.0
"""A flow whose producer lost a reply is completed by a worker, about 15 seconds later."""
SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Bound:
    """A measured value and its limit. A missed limit fails a long run; short forms only report it.

    `slowdown`: how many times longer work took on this machine than on an idle one, while the value was measured
    (control.py). An upper limit is multiplied by it, a lower one divided.
    """

    what: str
    value: float
    limit: float
    unit: str = "s"
    slowdown: float = 1.0
    least: bool = False
    """The limit is the lowest allowed value."""

    @property
    def use(self) -> float:
        """The share of the limit that was used; above 1: missed."""
        if self.least:
            return self.limit / self.slowdown / max(self.value, 1e-9)
        return self.value / max(self.limit * self.slowdown, 1e-9)

    @property
    def kept(self) -> bool:
        return self.use <= 1

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        limit = f"{'at least' if self.least else 'limit'} {self.limit:.3g}"
        if self.slowdown >= 1.05:
            limit += f", machine {self.slowdown:.1f} x slower"
        return f"{self.what}: {self.value:.3g}{unit} ({limit}){'' if self.kept else ' MISSED'}"


@dataclass(slots=True)
class Verdict:
    """The result of a run: all lists are empty in a run that passed."""

    seconds: float = 0.0
    attempted: int = 0
    acknowledged: int = 0
    completed: int = 0
    failed: int = 0
    present: int = 0
    runs: int = 0
    stale: int = 0
    unsure: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    excused: int = 0
    """Acknowledged jobs that are gone, and may be: the server lost the data of that moment, as the row states."""
    lost: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Jobs that completed and must fail, or failed and must complete."""
    findings: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def faults(self) -> dict[str, list[str]]:
        """What makes the run fail, except missed bounds."""
        names = ("lost", "unexpected", "twice", "wrong", "findings", "leaked", "problems")
        return {name: found for name in names if (found := getattr(self, name))}

    @property
    def missed(self) -> list[Bound]:
        return [bound for bound in self.bounds if not bound.kept]

    def __str__(self) -> str:
        lines = [
            f"ledger: attempted {self.attempted}, acknowledged {self.acknowledged}, started {self.runs} times, "
            f"completed {self.completed}, failed {self.failed}, present {self.present}, "
            f"stale results {self.stale}",
            f"adds repeated: {dict(self.unsure) or 'none'}; rejected: {dict(self.rejected) or 'none'}",
            f"verdict: lost {len(self.lost)}, unexpected {len(self.unexpected)}, completed twice {len(self.twice)}, "
            f"wrong end {len(self.wrong)}, findings {len(self.findings)}, leaked {len(self.leaked)}, "
            f"problems {len(self.problems)}" + (f", excused {self.excused}" if self.excused else ""),
            *(f"  {name}: {', '.join(found[:SHOWN])}" for name, found in self.faults.items()),
            *(f"measured: {bound}" for bound in self.bounds),
            *(f"note: {note}" for note in self.notes),
        ]
        return "\n".join(lines)


class ChaosRun:
    """The resources of a scenario: `start_server`, `fleet`, `ledger`, `faults`, `bound`, `note`.

    Args:
        seed: seed of all random choices of the harness, the producers and the workers.
        seconds: duration of the faults of a long run; None: the short form.
        keep: keep the folder with the ledger and the logs of the processes.
    """

    def __init__(self, *, seed: int, seconds: float | None = None, keep: bool = False):
        self.seed = seed
        self.random = random.Random(seed)
        self.seconds = seconds
        self.folder = Path(tempfile.mkdtemp(prefix="glidemq-chaos-"))
        self._keep = keep
        self.ledger = Ledger(self.folder)
        self.control = Control()
        if self.long:  # short forms judge no times
            self.control.start()
        self.began = time.monotonic()
        self._servers: list[ServerProcess] = []
        self._closing: list[Any] = []
        self._fleet: Fleet | None = None
        self._client: RespClient | None = None
        self._url = ""
        self._leaks: KeyLeaks | None = None
        self.verdict = Verdict()
        self.excused: list[tuple[float, float]] = []
        """Periods (monotonic seconds) whose acknowledged adds and completions the server may lose."""
        self.durable_adds = False  # no acknowledged add may be lost, even in an excused period
        self.flushed_at = 0.0
        """Jobs whose add was attempted before this time may be lost."""
        self.expects_findings = False
        """The check may find what its repair must then remove: for servers that lose data."""
        self.no_stalls = False
        """No job may stall: its workers are healthy."""
        self.checks: list[Callable[[], None]] = []
        """Checks of the row after the drain."""
        self.names: tuple[str, ...] = (QUEUE,)
        """Names of the partitions of the queue."""
        self._least = 0
        self._killed: list[tuple[float, frozenset[str], float]] = []

    @property
    def long(self) -> bool:
        return self.seconds is not None

    # -- for rows -----------------------------------------------------------------------------------------

    def start_server(self, *, durable: bool = False, retain_events: bool = True, **config: Any) -> ServerProcess:
        """Start a server, and make it the one under test."""
        settings = {name.replace("_", "-"): value for name, value in config.items()}
        server = ServerProcess(server_binary("valkey-9.1"), durable=durable, config=settings).start()
        self._servers.append(server)
        self.use(server.url, server.client(timeout=60), retain_events=retain_events)
        return server

    def use(self, url: str, client: RespClient, *, parties: str | None = None, retain_events: bool = True):
        """Make a server the one under test.

        Args:
            url, client: the server.
            parties: URL that producers and workers use, such as a proxy's.
            retain_events: keep all events of the queue, to count completions.
        """
        self._url, self._client = url, client
        self._leaks = KeyLeaks(client)
        self._leaks.allow("*:group:*", "*:groupq:*")  # deleted after a day
        self._leaks.allow("*:fair-limits", "*:fair-rates", "*:fair-state")  # one of a queue
        self._fleet = Fleet(
            self.ledger, self.folder,
            PartySettings(
                party="", url=parties or url, queue=QUEUE, pipe=str(self.ledger.pipe), seed=self.seed
            ),
        )  # fmt: skip
        if retain_events:
            with self.queue() as queue:
                queue.settings.set_event_retention(EVENTS_KEPT)

    def closing(self, thing: Any) -> Any:
        """Close a thing at the end of the run; return it."""
        self._closing.append(thing)
        return thing

    @property
    def started(self) -> bool:
        """There is a server under test, to judge."""
        return self._client is not None

    @property
    def fleet(self) -> Fleet:
        assert self._fleet is not None
        return self._fleet

    @property
    def leaks(self) -> KeyLeaks:
        assert self._leaks is not None
        return self._leaks

    @property
    def client(self) -> RespClient:
        assert self._client is not None
        return self._client

    def queue(self, name: str = QUEUE, partitions: int | None = None) -> Queue:
        return Queue(name, self._url, partitions=partitions)

    def key(self, suffix: str, name: str = QUEUE) -> str:
        return f"glide:{{{name}}}:{suffix}"

    def partitioned(self, names: Iterable[str]):
        """The queue has these partitions, which are judged."""
        self.names = tuple(names)

    def ids(self, index: str) -> list[str]:
        """Return the ids of the jobs in an index, a sorted set, of each partition. One may be in it twice."""
        return [each for name in self.names for each in self.client.execute("ZRANGE", self.key(index, name), 0, -1)]

    def faults(
        self, short: int, *, every: float = 2.0, progress: int = 100, least: int = 0, jobs: int = 0
    ) -> Iterator[int]:
        """Yield a number whenever a fault is due.

        Args:
            short: number of faults of the short form; a long run continues until its time is over.
            every: seconds between two faults of a long run.
            progress: completed jobs before the first fault, and in a short form between two faults.
            least: number of faults of a long run, at least, whatever its time.
            jobs: acknowledged adds of a long run, at least.
        """
        until = None if self.seconds is None else time.monotonic() + self.seconds
        number = 0
        while (
            number < short if until is None
            else time.monotonic() < until or number < least or len(self.ledger.acknowledged) < jobs
        ):  # fmt: skip
            if self.long and number:
                self.ledger.wait(lambda: False, every)
            elif progress:
                self.progress(progress, 30)
            yield number
            number += 1

    def progress(self, jobs: int = 50, seconds: float = 60.0) -> bool:
        """Wait until so many more jobs were completed; return False after so many seconds."""
        wanted = self.ledger.completions + jobs
        return self.ledger.wait(lambda: self.ledger.completions >= wanted, seconds)

    def fleet_of(self, workers: int, producers: int = 1, *, jobs: int, rate: float = 150, **changes: Any):
        """Start workers, wait until they are ready, and start producers, which add jobs until the faults are over.

        `jobs`: least number of acknowledged adds per producer before the drain.
        `changes` are settings of the workers; producers share their request timeout.
        """
        for _ in range(workers):
            self.fleet.worker(**changes)
        for worker in self.fleet.workers:
            worker.wait_ready()
        for _ in range(producers):
            self.fleet.producer(rate=rate, request_timeout=changes.get("request_timeout"))
        self._least = producers * jobs

    def restart(self, server: ServerProcess, change: Callable[[], None] = lambda: None) -> float:
        """Kill the server (SIGKILL), change something on its disk, start it, and return the time its port was up."""
        server.kill()
        change()
        server.start(start_timeout=60_000)
        at = time.monotonic()
        self.client.close()
        return at

    def adopt(self, job_id: str, kind: str):
        """Enter a job into the ledger that no producer adds, such as one of a scheduler."""
        self.ledger.attempted.setdefault(job_id, kind)
        self.ledger.acknowledged.setdefault(job_id, time.monotonic())

    def serving(self, what: str, since: float, limit: float, workers: Iterable[Party] = ()):
        """Wait until these workers have fetched a job that was added after `since`; record how long that took.

        `workers`: default: any worker. A job that was fetched before may start, and end, after `since`; it does not
        count.
        """
        newest, names = self.ledger.newest_started, [worker.name for worker in workers]

        def reached() -> bool:
            if not names:
                return max(newest.values(), default=0.0) > since
            return all(newest.get(name, 0.0) > since for name in names)

        if not self.ledger.wait(reached, 90):
            late = [name for name in names if newest.get(name, 0.0) <= since]
            raise AssertionError(f"{what}: no job was fetched for 90 s (by {', '.join(late) or 'any worker'})")
        self.took(what, since, limit)

    def killed(self, jobs: frozenset[str], limit: float):
        """Measure when these jobs start again: `limit` seconds from now."""
        self._killed.append((time.monotonic(), jobs, limit))

    def excuse(self, begin: float, end: float | None = None):
        """The server may have lost writes acknowledged between these times (monotonic; `end`: default: now)."""
        self.excused.append((begin, time.monotonic() if end is None else end))

    def bound(
        self, what: str, value: float, limit: float, unit: str = "s", *, slowdown: float = 1.0, least: bool = False
    ):
        """Record a measured value; of several with one name, the one nearest to its limit is reported.

        `slowdown`: of the machine during the measurement. `least`: `limit` is the lowest value.
        """
        new = Bound(what, value, limit, unit, slowdown, least)
        for index, old in enumerate(self.verdict.bounds):
            if old.what == what:
                self.verdict.bounds[index] = max(old, new, key=lambda bound: bound.use)
                return
        self.verdict.bounds.append(new)

    def took(self, what: str, since: float, limit: float, end: float | None = None):
        """Record the seconds from `since` to `end` (default: now), with the slowness of the machine meanwhile."""
        end = time.monotonic() if end is None else end
        self.bound(what, end - since, limit, slowdown=self.control.slowdown(since, end))

    def note(self, text: str):
        self.verdict.notes.append(text)

    def problem(self, text: str):
        self.verdict.problems.append(text)

    def expect(self, condition: object, text: str):
        if not condition:
            self.problem(text)

    # -- the verdict --------------------------------------------------------------------------------------

    def drain(self):
        """Stop the producers, wait until all jobs have ended, and stop the workers."""
        self.finish_adding()
        self.wait_drained()
        self.fleet.stop_workers()
        self.ledger.sync()

    def finish_adding(self):
        """Wait until enough jobs have been added, and stop the producers."""
        self.ledger.wait(lambda: len(self.ledger.acknowledged) >= self._least, 120)
        self.fleet.finish_producers(stop=True)

    def wait_drained(self):
        """Wait until all acknowledged jobs have ended."""
        self.ledger.sync()
        missing: set[str] = set()
        with self.queue() as queue:
            last = time.monotonic()
            while True:
                before, missing = missing, set(self.ledger.acknowledged) - self._ended()
                counts = queue.get_job_counts()
                rest = {name: count for name in _UNFINISHED if (count := getattr(counts, name))}
                if not rest and not missing - self._excusable():
                    break
                if missing != before:
                    last = time.monotonic()
                if time.monotonic() - last > (STALLED_DRAIN_S if rest else SETTLED_S):
                    if not rest:
                        break  # the verdict lists the missing jobs
                    self.problem(f"not drained: {rest}, such as {sorted(missing)[:SHOWN]}")
                    break
                # An event of the queue is the signal; some ends write none.
                self.client.execute("XREAD", "BLOCK", 200, "STREAMS", self.key("events"), "$")

    def _excusable(self) -> set[str]:
        return {job_id for job_id in self.ledger.acknowledged if self._may_be_lost(job_id)}

    def _ended(self) -> set[str]:
        return {*self.ids("completed"), *self.ids("failed")}

    def judge(self) -> Verdict:
        """Compare the ledger with the server, check the queue, and look for leaks."""
        ledger, found = self.ledger, self.verdict
        for check in self.checks:
            check()
        completed, failed = set(self.ids("completed")), set(self.ids("failed"))
        keys = [key for name in self.names for key in self.client.keys(self.key("job:*", name))]
        records = {key.rpartition(":")[2] for key in keys}
        if len(self.names) > 1 and len(keys) > len(records):
            numbers = Counter(key.rpartition(":")[2] for key in keys)
            twice = [job_id for job_id, count in numbers.items() if count > 1]
            self.problem(f"{len(twice)} jobs are in several partitions: {', '.join(twice[:SHOWN])}")
        present = records - completed - failed
        found.attempted, found.acknowledged = len(ledger.attempted), len(ledger.acknowledged)
        found.completed, found.failed, found.present = len(completed), len(failed), len(present)
        found.runs = ledger.runs
        found.stale = ledger.stale.total()
        found.unsure, found.rejected = ledger.unsure, ledger.rejected
        if ledger.forgets:
            # Only jobs that have not ended, or not once, are left in the ledger; retention deletes the others.
            found.attempted += ledger.forgotten
            found.acknowledged += ledger.forgotten
            records = present
        gone = set(ledger.acknowledged) - completed - failed - present
        found.lost = sorted(job_id for job_id in gone if not self._may_be_lost(job_id))
        found.excused = len(gone) - len(found.lost)
        found.unexpected = sorted((records | set(ledger.started)) - set(ledger.attempted))
        found.twice = sorted(self._completed_twice())
        kinds = ledger.attempted
        if ledger.forgets:
            return self._finish_judging()
        found.wrong = sorted(
            f"{job_id} ({kinds.get(job_id)})"
            for job_id in (completed & _of(kinds, _MUST_FAIL)) | (failed - _of(kinds, _MUST_FAIL))
        )
        return self._finish_judging()

    def _finish_judging(self) -> Verdict:
        ledger, found = self.ledger, self.verdict
        found.problems += ledger.problems
        found.problems += [text for at, text in ledger.repeated if at > self.flushed_at and not self._excused(at)]
        for party in self.fleet.parties:
            if any(line.strip() == _TRACEBACK for line in party.lines()):
                found.problems.append(f"{party.name} logged a traceback (its log: --keep)")
        self._measure_killed()
        with self.queue() as queue:
            report = queue.check(repair=self.expects_findings, recheck_after=20)
            found.findings = [str(finding) for finding in report.findings if not finding.repaired]
            if len(report.findings) > len(found.findings):
                found.notes.append(f"check repaired {len(report.findings) - len(found.findings)} findings")
        for name in self.names:
            found.leaked += left_behind(self.client, self.key("", name))
        if self._leaks is not None:
            found.leaked += self._leaks.found()
        found.seconds = time.monotonic() - self.began
        return found

    def _may_be_lost(self, job_id: str) -> bool:
        if self.ledger.attempted_at.get(job_id, math.inf) <= self.flushed_at:
            return True
        return not self.durable_adds and self._excused(self.ledger.acknowledged[job_id])

    def _excused(self, at: float) -> bool:
        return any(begin <= at <= end for begin, end in self.excused)

    def _completed_twice(self) -> set[str]:
        events: Counter[str] = Counter()
        stalled = 0
        for event in self._events():
            if event.get("event") == COMPLETED:
                events[event.get("jobId", "")] += 1
            stalled += event.get("event") == "stalled"
        if self.no_stalls:
            self.expect(not stalled, f"{stalled} jobs of healthy workers stalled")
        reported = self.ledger.ends[COMPLETED]
        return {job_id for job_id, count in events.items() if count > 1} | {
            job_id for job_id, steps in reported.items() if self._counted(steps) > 1
        }

    def _events(self) -> Iterator[dict[str, str]]:
        for name in self.names:
            after = "-"
            while rows := self.client.execute("XRANGE", self.key("events", name), after, "+", "COUNT", 10_000):
                for _, fields in rows:
                    yield dict(zip(fields[::2], fields[1::2], strict=True))
                after = f"({rows[-1][0]}"

    def _counted(self, steps: list[Step]) -> int:
        """Return the number of completions, without those that the server may have lost."""
        return len(steps) - sum(step.at <= self.flushed_at or self._excused(step.at) for step in steps[:-1])

    def _measure_killed(self):
        for at, jobs, limit in self._killed:
            for job_id in jobs:
                later = [step.at for step in self.ledger.started.get(job_id, ()) if step.at > at]
                if later:
                    self.took("killed jobs ran again after", at, limit, min(later))

    # -- its end ------------------------------------------------------------------------------------------

    def close(self):
        if self._fleet is not None:
            self._fleet.close()
        for thing in reversed(self._closing):
            thing.close()
        if self._client is not None:
            self._client.close()
        for server in self._servers:
            server.close()
        self.ledger.close()
        self.control.close()
        if not self._keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self.close()


_TRACEBACK: Final = "Traceback (most recent call last):"
_UNFINISHED: Final = ("waiting", "active", "delayed", "prioritized", "group_waiting", "waiting_children", "suspended")
_MUST_FAIL: Final = frozenset({"failing", "poison", "endless"})


def _of(kinds: dict[str, str], wanted: frozenset[str]) -> set[str]:
    return {job_id for job_id, kind in kinds.items() if kind in wanted}
