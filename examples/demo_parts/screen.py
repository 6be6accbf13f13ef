"""Draws a progress bar and tables: ANSI on a terminal, plain lines elsewhere."""

import shutil
import sys
import time
from collections.abc import Iterable, Sequence

_PLAIN_EVERY_S = 2.0
_BAR = 30


class Progress:
    """A progress line: redrawn on a terminal, else printed every two seconds."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._terminal = sys.stdout.isatty()
        self._started = time.monotonic()
        self._next_line = self._started + _PLAIN_EVERY_S

    def show(self, done: int, notes: str, *, last: bool = False) -> None:
        """Draw the progress: `done` of the total, and a note."""
        now = time.monotonic()
        rate = done / max(now - self._started, 0.001)
        share = done / self._total if self._total else 1.0
        text = f"{done:,}/{self._total:,} {share:4.0%}  {rate:,.0f} jobs/s  {notes}"
        if self._terminal:
            filled = round(share * _BAR)
            line = f"  {'█' * filled}{'░' * (_BAR - filled)} {text}"
            width = shutil.get_terminal_size().columns - 1
            sys.stdout.write(f"\r\x1b[2K{line[:width]}" + ("\n" if last else ""))
            sys.stdout.flush()
        elif last or now >= self._next_line:
            self._next_line = now + _PLAIN_EVERY_S
            print(f"  {text}", flush=True)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under a title; numbers are right-aligned."""
    cells = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(columns, *cells, strict=True)]
    print(f"\n{title}")
    for n, row in enumerate([list(columns), *cells]):
        parts = [text.ljust(widths[0]) if i == 0 else text.rjust(widths[i]) for i, text in enumerate(row)]
        line = "  " + "  ".join(parts)
        print(f"\x1b[1m{line}\x1b[0m" if n == 0 and sys.stdout.isatty() else line)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value at this quantile; 0 if there are no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def duration(milliseconds: float) -> str:
    """Format milliseconds, as seconds if there are many."""
    return f"{milliseconds:,.0f} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:,.1f} s"
