"""Runs many seeds in several processes and adds up their results."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import Any

from tests.simulation.fleet import simulate
from tests.simulation.ledger import Verdict
from tests.simulation.scenario import draw

__all__ = ["Totals", "run_seed", "run_seeds"]


def run_seed(seed: int, options: Mapping[str, Any]) -> Verdict:
    """Run the scenario of a seed; a crash of the simulation is a problem of the verdict."""
    begun = time.process_time()
    try:
        verdict = simulate(draw(seed, **options))
    except Exception as error:
        verdict = Verdict(seed, problems=[f"the simulation failed: {error!r}"])
    verdict.cpu_s = time.process_time() - begun
    return verdict


def run_seeds(
    seeds: Iterable[int],
    options: Mapping[str, Any],
    processes: int,
    until: float | None = None,
    is_enough: Callable[[], bool] = lambda: False,
) -> Iterator[Verdict]:
    """Yield the verdicts of the seeds as they end.

    Start no more after ``until`` (of `time.monotonic`), or once ``is_enough`` returns True.
    """
    rest = iter(seeds)
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), max_tasks_per_child=200) as pool:
        pending: set[Future[Verdict]] = set()
        while True:
            if (until is None or time.monotonic() < until) and not is_enough():
                new = itertools.islice(rest, 2 * processes - len(pending))
                pending |= {pool.submit(run_seed, seed, options) for seed in new}
            if not pending:
                return
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()


class Totals:
    """The sum of many verdicts."""

    def __init__(self):
        self.runs = self.jobs = self.ends = self.attempts = self.excused = self.messages = 0
        self.simulated_s = self.cpu_s = 0.0
        self.faults: Counter[str] = Counter()
        self.failed: list[int] = []

    def add(self, verdict: Verdict):
        self.runs += 1
        self.jobs += verdict.jobs
        self.ends += verdict.completed + verdict.failed
        self.attempts += verdict.runs
        self.excused += verdict.excused
        self.messages += verdict.messages
        self.simulated_s += verdict.simulated_s
        self.cpu_s += verdict.cpu_s
        self.faults.update(verdict.faults)
        if verdict.problems:
            self.failed.append(verdict.seed)

    def report(self, seconds: float) -> str:
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        return (
            f"{self.runs} runs, {self.jobs} jobs, {self.attempts} attempts, {self.messages} messages, "
            f"{self.simulated_s / 3600:.1f} simulated hours in {seconds:.0f} s ({self.cpu_s:.0f} s of processor time); "
            f"{self.excused} adds in reach of a failover; faults: {faults or 'none'}\n"
            + (f"FAILED seeds: {sorted(self.failed)}" if self.failed else "no problems")
        )

    @staticmethod
    def replay(seed: int, options: Mapping[str, Any]) -> str:
        """Return the command that replays a seed."""
        words = ["python -m tests.simulation", f"--seed {seed}", f"--jobs {options['jobs']}"]
        words += [] if options.get("faults", True) else ["--quiet-world"]
        words += [] if options.get("extras", True) else ["--no-extras"]
        words += [] if options.get("backups", True) else ["--no-backups"]
        words += [] if options.get("shares", True) else ["--no-shares"]
        words += [] if options.get("features", True) else ["--no-features"]
        words += [f"--mutation {options['mutation']}"] if options.get("mutation") else []
        return " ".join(words)
