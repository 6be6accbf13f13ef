"""Shrinks a failing scenario: removes work and faults as long as it still fails in the same way."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tests.simulation.fleet import simulate
from tests.simulation.ledger import Verdict
from tests.simulation.scenario import Scenario

__all__ = ["shrink", "sort_of"]


def sort_of(problem: str) -> str:
    """Return the problem without ids, times and numbers."""
    return re.sub(r"\(.*?\)|\[.*|\{.*|'[^']*'|j\d+[-\w]*|\d+", "", problem.splitlines()[0]).strip()[:60]


def shrink(
    scenario: Scenario,
    verdict: Verdict,
    *,
    seconds: float = 60.0,
    runs: int | None = None,
    run: Callable[[Scenario], Verdict] = simulate,
) -> Scenario:
    """Return a smaller scenario that has a problem of the same sort.

    Each list (faults of parties, faults of messages, work) is reduced by delta debugging: halves, quarters, ... down to
    single items are removed while the problem remains.

    Args:
        scenario: the scenario.
        verdict: its result.
        seconds: how long to try, at most.
        runs: how many smaller scenarios to run, at most; None: no limit but the time.
        run: runs a scenario.
    """
    sorts = {sort_of(problem) for problem in verdict.problems}
    until = time.monotonic() + seconds
    done = 0

    def left() -> bool:
        return time.monotonic() < until and (runs is None or done < runs)

    def fails(candidate: Scenario) -> bool:
        nonlocal done
        done += 1
        return any(sort_of(problem) in sorts for problem in run(candidate).problems)

    def reduce(items: Sequence[Any], build: Callable[[Sequence[Any]], Scenario]) -> Sequence[Any]:
        size = max(1, len(items))
        while items and left():
            removed = False
            at = 0
            while at < len(items) and left():
                rest = [*items[:at], *items[at + size :]]
                if fails(build(rest)):
                    items, removed = rest, True
                else:
                    at += size
            if size == 1 and not removed:
                break
            size = max(1, size // 2)
        return items

    before = None
    while scenario != before and left():
        before = scenario
        for name in ("acts", "messages", "work"):
            found = reduce(getattr(scenario, name), partial(_with, scenario, name))
            scenario = _with(scenario, name, found)
        for workers in range(1, scenario.workers if left() else 0):
            smaller = replace(
                scenario, workers=workers, acts=tuple(replace(act, party=act.party % workers) for act in scenario.acts)
            )
            if fails(smaller):
                scenario = smaller
                break
    return scenario


def _with(scenario: Scenario, name: str, items: Sequence[Any]) -> Scenario:
    changed: dict[str, Any] = {name: tuple(items)}
    return replace(scenario, **changed)
