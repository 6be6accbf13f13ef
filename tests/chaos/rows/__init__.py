"""The rows of the chaos table: one module per fault.

A row's `play` starts the server and the processes, injects its faults, and returns; the harness then drains the queue
and judges. `TITLE` is its line in docs/operate/chaos.md.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from tests.chaos.run import ChaosRun, Verdict

__all__ = ["Row", "all_rows", "play"]


class _Play(Protocol):
    def __call__(self, run: ChaosRun): ...


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its number in the table, its name, and its program.

    Attributes:
        title: its line in the table.
        play: its program.
        missing: why this machine cannot run it; "" if it can.
        long_only: it has no short form here.
    """

    number: int
    name: str
    title: str
    play: _Play
    missing: str = ""
    long_only: bool = False

    @property
    def label(self) -> str:
        return f"{self.number} {self.name}"


def all_rows() -> list[Row]:
    """Return the rows by number. A module has NUMBER, TITLE, `play(run)` or `play(run, variant)` with VARIANTS."""
    rows: list[Row] = []
    for info in pkgutil.iter_modules(__path__):
        module: Any = importlib.import_module(f"{__name__}.{info.name}")
        for variant in getattr(module, "VARIANTS", ("",)):
            name = info.name + (f"_{variant}" if variant else "")
            title = module.TITLE + (f" ({variant})" if variant else "")
            missing = module.missing(variant) if hasattr(module, "missing") else ""
            program = partial(module.play, variant=variant) if variant else module.play
            long_only = getattr(module, "LONG_ONLY", False)
            rows.append(Row(module.NUMBER, name, title, program, missing, long_only))
    return sorted(rows, key=lambda row: row.number)


def play(row: Row, *, seed: int, seconds: float | None = None, keep: bool = False) -> Verdict:
    """Run a row and return its verdict."""
    with ChaosRun(seed=seed, seconds=seconds, keep=keep) as run:
        try:
            row.play(run)
            run.drain()
        except AssertionError as error:
            if not run.started:
                raise
            run.problem(str(error))
        return run.judge()
