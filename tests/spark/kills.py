"""Random SIGKILLs of real Spark programs: the driver program, the JVM, a Python worker, or all of them.

Each write has 3,000 rows for three queues, as one DataFrame or as a stream of three micro-batches. Its program is
killed one to three times and restarted until it succeeds; a driver program or JVM that was killed alone leaves the
other processes running beside the restarted ones. Then every row must be one job, nothing may be staged, and `check`
must be clean. One half of the kills happens in mid-commit, before a call that the seed selects; the other half when the
server has received a number of calls that the seed selects.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from glidemq_py.sync import Queue
from glidemq_py.testing import RespClient
from tests.spark.conftest import ROOT, Written, environment

__all__ = ["Kills"]

VICTIMS = ("driver", "jvm", "python", "all")
FILES, ROWS = 3, 1_000
CALLS_OF_A_WRITE = 700
"""Server calls of a write that nothing disturbs, about."""
CALLS_OF_A_COMMIT = 12
"""A ballot, two queues prepared, the decision, and the first pieces."""
PATIENCE = 1_800


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill: its victim, and after how many calls of the commit, or else of the program."""

    victim: str
    commit: int | None
    calls: int

    def __str__(self) -> str:
        moment = f"call {self.calls}" if self.commit is None else f"call {self.commit} of the commit"
        return f"{self.victim} at {moment}"


@dataclass(slots=True)
class Program:
    """One run of the driver program."""

    process: subprocess.Popen[bytes]
    folder: Path

    def members(self) -> dict[str, list[int]]:
        """Return the ids of its processes, all in one session: driver, jvm, python."""
        found: dict[str, list[int]] = {"driver": [], "jvm": [], "python": []}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                command = (entry / "cmdline").read_bytes()
                state, *fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) != self.process.pid or state == "Z":
                continue
            kind = "python" if b"pyspark.daemon" in command else "jvm" if b"java" in command else "driver"
            found[kind].append(int(entry.name))
        return found


@dataclass(slots=True)
class Kills:
    """A seeded sequence of kills on one server.

    Attributes:
        url, client: the server, which only these programs use.
        seed: seed of all random choices; the operating system's scheduling is not replayed.
        folder: for inputs, checkpoints and logs.
        report: receives a line per kill and write.
        problems: what went wrong; empty if all is well.
        killed: number of kills per victim.
        writes: number of completed writes.
    """

    url: str
    client: RespClient
    seed: int
    folder: Path
    report: Callable[[str], None] = print
    problems: list[str] = field(default_factory=list)
    killed: Counter[str] = field(default_factory=Counter)
    writes: int = 0

    def run(self, kills: int, until: float = 0.0):
        """Kill so often, and longer until the monotonic time `until`; stop after a problem."""
        rng = random.Random(self.seed)
        self.report(f"seed {self.seed}: {kills} kills")
        plan = self._plan(rng)
        while not self.problems and (self.killed.total() < kills or time.monotonic() < until):
            left = max(1, kills - self.killed.total())
            self._write(plan, min(left, rng.randint(1, 3)), stream=self.writes % 2 == 1)
            self.writes += 1

    @staticmethod
    def _plan(rng: random.Random) -> Iterator[Kill]:
        while True:
            victims = list(VICTIMS)
            rng.shuffle(victims)
            for victim in victims:
                commit = rng.randint(0, CALLS_OF_A_COMMIT) if rng.random() < 0.5 else None
                yield Kill(victim, commit, rng.randint(1, CALLS_OF_A_WRITE))

    def _write(self, plan: Iterator[Kill], kills: int, *, stream: bool):
        name = f"kills-{self.seed}-{self.writes}"
        queues, folder = [name, f"{name}-b", f"{name}-c"], self.folder / name
        (folder / "in").mkdir(parents=True)
        expected: dict[str, list[str]] = {queue: [] for queue in queues}
        for file in range(FILES):
            lines: list[str] = []
            for row in range(file * ROWS, file * ROWS + ROWS):
                expected[queues[row % 3]].append(str(row))
                lines.append(json.dumps({"data": str(row), "queue": queues[row % 3]}) + "\n")
            (folder / "in" / f"{file}.json").write_text("".join(lines))
        programs: list[Program] = []
        done = False
        for _ in range(kills):
            kill = next(plan)
            before = self.killed.total()
            done = self._run(folder, queues, stream, kill, programs)
            if done and before == self.killed.total():
                self.report(f"{name}: finished before {kill}")
            if done:
                break
        for _ in range(3):  # a program that survived in part may make the next one fail; Spark allows one query
            done = done or self._run(folder, queues, stream, None, programs)
        for program in programs:
            self._wait_gone(program)
        if not done and not self._run(folder, queues, stream, None, programs):
            self.problems.append(f"{name} does not finish: {(folder / 'log').read_text(errors='replace')[-3_000:]}")
            return
        for program in programs:
            self._wait_gone(program)
        self.report(f"{name}: {'stream' if stream else 'DataFrame'} finished after {len(programs)} programs")
        self._verify(expected)

    def _calls(self) -> int:
        stats = self.client.execute("INFO", "commandstats")
        text = stats if isinstance(stats, str) else bytes(stats).decode()
        lines = (line for line in text.splitlines() if line.startswith("cmdstat_fcall"))
        return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in lines)

    def _run(self, folder: Path, queues: list[str], stream: bool, kill: Kill | None, programs: list[Program]) -> bool:
        """Run the program; return whether it succeeded."""
        for pattern in ("crashed-*", "killed-*", "driver", "jvm"):
            for note in folder.glob(pattern):
                note.unlink()
        given = {"url": self.url, "queues": queues, "stream": stream, "victim": kill.victim if kill else ""}
        given["calls"] = kill.commit if kill else None
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.killed_driver", str(folder), json.dumps(given)],
                cwd=ROOT, env=os.environ | environment(), start_new_session=True, stdout=log, stderr=log,
            )  # fmt: skip
        program = Program(process, folder)
        programs.append(program)
        if kill is not None and kill.commit is None:
            self._kill_at(program, kill)
        succeeded = process.wait(PATIENCE) == 0
        if kill is not None and list(folder.glob("killed-*")):
            self.killed[kill.victim] += 1
            self.report(f"{queues[0]}: killed {kill}")
        return succeeded

    def _kill_at(self, program: Program, kill: Kill):
        """Kill when the server has received so many calls, unless the program ends before."""
        goal = self._calls() + kill.calls
        while self._calls() < goal:
            if program.process.poll() is not None:
                return
            time.sleep(0.002)
        members = program.members()
        if kill.victim == "all":
            victims = [pid for each in members.values() for pid in each]
        else:
            victims = members[kill.victim][-1:]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        if victims:
            (program.folder / "killed-by-harness").write_text("")

    def _wait_gone(self, program: Program):
        """Wait until no process of the program is left; what survives the others for a minute is killed."""
        deadline = time.monotonic() + 60
        while members := [pid for each in program.members().values() for pid in each]:
            if time.monotonic() > deadline:
                for pid in members:
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        program.process.wait()

    def _verify(self, expected: dict[str, list[str]]):
        for queue, rows in expected.items():
            written = Written(self.client, queue)
            found = Counter(written.data)
            lost, twice = set(rows) - set(found), [row for row, count in found.items() if count > 1]
            if lost or twice or len(found) != len(rows):
                self.problems.append(f"{queue}: {len(lost)} rows lost, {len(twice)} twice, {len(found)} in all")
            jobs = len(self.client.keys(f"{written.base}job:*".replace("{", r"\{")))
            if jobs != len(rows):
                self.problems.append(f"{queue}: {jobs} jobs, {len(rows)} rows")
            # The outcome of the write and the ledger of the query, which expire.
            left = {name: kind for name, kind in written.staged.items() if kind not in ("done", "string")}
            left |= {name: "permanent" for name in written.staged if written.run("PTTL", name) < 0}
            if left:
                self.problems.append(f"{queue}: left over: {left}")
            with Queue(queue, self.url) as handle:
                findings = handle.check(recheck_after=50).findings
            if findings:
                self.problems.append(f"{queue}: check: {findings}")
