"""The ledger of a chaos run: what producers and workers did, recorded outside the system under test.

Every process writes one line per step into one named pipe, atomically (a line is shorter than PIPE_BUF), so a line that
was written survives the SIGKILL of its writer, and the lines of all processes have one order. The harness stamps each
line with its own clock, appends it to `ledger.tsv`, and wakes those who wait for it.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Ledger", "Scribe", "Step"]

_LONGEST: Final = 1_000
"""Bytes of a line; writes of up to PIPE_BUF (4,096) bytes are atomic."""

DELAYED: Final = frozenset({"delay", "flow", ""})
"""Kinds of jobs that do not start when they are added."""
COMPLETED: Final = "completed"
FAILED: Final = "failed"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a job: when (seconds of the harness's monotonic clock), which process, and a detail."""

    at: float
    party: str
    detail: str


class Scribe:
    """Writes the ledger lines of one process."""

    def __init__(self, pipe: str, party: str):
        self._fd = os.open(pipe, os.O_WRONLY)
        self._party = party

    def write(self, kind: str, job_id: str = "", detail: object = ""):
        text = "\t".join((kind, self._party, job_id, " ".join(str(detail).split())))
        os.write(self._fd, text.encode(errors="replace")[:_LONGEST] + b"\n")


class Ledger:
    """The harness's side: reads the pipe in a thread.

    Attributes:
        attempted: kind of each job whose add was attempted, by id.
        attempted_at: time of the first attempt, by id.
        acknowledged: time of the first acknowledgement, by id.
        rejected: typed rejections of adds, by error type.
        unsure: adds whose outcome the producer could not know and repeated, by error type.
        started, ended, ends: steps per job id; `ends` are the worker's `completed` and `failed` events.
        stale: stale results that workers discarded, by job id.
        results: results of steps that handlers have got, by job, and when they got them first.
        repeated: what was done again after a step had a result, and when its handler had got that result.
        problems: errors that a user would have seen, and that no row expects.
        errors: errors of the workers themselves, by type.
        forgets: drop the lines of a job that was acknowledged and ended once, so that a ledger of hours stays small;
            `forgotten` counts these jobs. A second end of such a job is an unexpected one.
    """

    def __init__(self, folder: Path):
        self.pipe = folder / "ledger.pipe"
        os.mkfifo(self.pipe)
        # Opened for writing too: the pipe stays open while no party is.
        self._fd = os.open(self.pipe, os.O_RDWR)
        self._file = (folder / "ledger.tsv").open("a", buffering=1 << 16, encoding="utf-8")
        self._changed = threading.Condition()
        self.attempted: dict[str, str] = {}
        self.attempted_at: dict[str, float] = {}
        self.acknowledged: dict[str, float] = {}
        self.rejected: Counter[str] = Counter()
        self.unsure: Counter[str] = Counter()
        self.started: defaultdict[str, list[Step]] = defaultdict(list)
        self.ended: defaultdict[str, list[Step]] = defaultdict(list)
        self.ends: dict[str, defaultdict[str, list[Step]]] = {
            COMPLETED: defaultdict(list),
            FAILED: defaultdict(list),
        }
        self.completions = self.runs = 0
        self.stale: Counter[str] = Counter()
        self.results: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self.repeated: list[tuple[float, str]] = []
        self.problems: list[str] = []
        self.errors: Counter[str] = Counter()
        self.ready: set[str] = set()
        self.done: set[str] = set()
        self.active: defaultdict[str, set[str]] = defaultdict(set)
        """Jobs that have started and not ended, by party."""
        self.newest_started: dict[str, float] = {}
        """By party: when the add of the newest job that it started was attempted."""
        self.forgets = False
        self.forgotten = 0
        self._latency: list[float] = []
        self._marks = self._marks_wanted = 0
        self._thread = threading.Thread(target=self._read, daemon=True, name="ledger")
        self._thread.start()

    def wait(self, reached: Callable[[], object], seconds: float) -> bool:
        """Wait until the condition is true; return False after that many seconds."""
        with self._changed:
            return bool(self._changed.wait_for(reached, seconds))

    def sync(self):
        """Wait until every line written before this call has been read."""
        with self._changed:
            self._marks_wanted += 1
            wanted = self._marks_wanted
        os.write(self._fd, b"mark\n")
        if not self.wait(lambda: self._marks >= wanted, 60):
            raise TimeoutError("the ledger was not read")

    def take_latency(self) -> float:
        """Return the median time from attempted add to first start since the last call, seconds; needs `forgets`.

        0: no job has started.
        """
        with self._changed:
            taken, self._latency = self._latency, []
        return statistics.median(taken) if taken else 0.0

    def _forget(self, job_id: str):
        if not self.forgets or job_id not in self.acknowledged:
            return
        steps = [*self.ends[COMPLETED].get(job_id, ()), *self.ends[FAILED].get(job_id, ())]
        if len(steps) == 1:
            self.forgotten += 1
            for stored in (
                self.attempted,
                self.attempted_at,
                self.acknowledged,
                self.started,
                self.ended,
                self.results,
                *self.ends.values(),
            ):
                stored.pop(job_id, None)  # type: ignore[attr-defined]

    def wake(self):
        """Let the waiters look again: something outside the ledger has changed."""
        with self._changed:
            self._changed.notify_all()

    def close(self):
        os.write(self._fd, b"close\n")
        self._thread.join()
        os.close(self._fd)
        self._file.close()

    def _read(self):
        rest = b""
        while True:
            *lines, rest = (rest + os.read(self._fd, 1 << 16)).split(b"\n")
            now = time.monotonic()
            with self._changed:
                for line in lines:
                    if line == b"close":
                        return
                    if line == b"mark":
                        self._marks += 1
                        continue
                    text = line.decode(errors="replace")
                    self._file.write(f"{now:.6f}\t{text}\n")
                    with contextlib.suppress(ValueError):
                        self._take(now, *text.split("\t"))
                self._changed.notify_all()

    def _take(self, now: float, kind: str, party: str, job_id: str, detail: str):
        match kind:
            case "attempted":
                self.attempted[job_id] = detail
                self.attempted_at.setdefault(job_id, now)
            case "acknowledged":
                self.acknowledged.setdefault(job_id, now)
                self._forget(job_id)
            case "started":
                at = self.attempted_at.get(job_id, 0.0)
                if self.forgets and job_id not in self.started and self.attempted.get(job_id) not in DELAYED:
                    self._latency.append(now - at)
                self.newest_started[party] = max(at, self.newest_started.get(party, 0.0))
                self.started[job_id].append(Step(now, party, detail))
                self.active[party].add(job_id)
                self.runs += 1
            case "ended":
                self.ended[job_id].append(Step(now, party, detail))
                self.active[party].discard(job_id)
            case "completed" | "failed":
                self.ends[kind][job_id].append(Step(now, party, detail))
                self.completions += kind == COMPLETED
                self._forget(job_id)
            case "effect" | "result":
                self._take_step(now, kind, job_id, detail)
            case "rejected" | "unsure":
                (self.rejected if kind == "rejected" else self.unsure)[detail] += 1
            case "stale":
                self.stale[job_id] += 1
            case "error":
                self.errors[detail] += 1
            case "problem":
                self.problems.append(f"{party}: {detail}")
            case "ready":
                self.ready.add(party)
            case "done":
                self.done.add(party)
            case _:
                self.problems.append(f"unknown ledger line {kind!r} of {party}")

    def _take_step(self, now: float, kind: str, job_id: str, detail: str):
        known, step = self.results[job_id], detail.partition(" ")[0]
        for each, at in known.items():
            if each != detail and each.startswith(f"{step} "):
                self.repeated.append((at, f"step {step} of job {job_id}: {kind} {detail} after the result {each}"))
        if kind == "result":
            known.setdefault(detail, now)
