"""The table of docs/operate/chaos.md: the last result of each row."""

from __future__ import annotations

import datetime
import fcntl
from pathlib import Path
from typing import Final

from tests.chaos.rows import Row
from tests.chaos.run import Verdict

__all__ = ["PAGE", "write"]

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "operate" / "chaos.md"
_HEAD: Final = (
    "| row | fault | day | duration | acknowledged | started | lost | unexpected | twice | check | leaks | measured | "
    "seed | verdict |"
)


def write(row: Row, seed: int, verdict: Verdict, page: Path = PAGE):
    """Replace the row's line of the table."""
    with page.open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # several rows may run at the same time
        text = _with_row(file.read(), _line(row, seed, verdict), row.label)
        file.seek(0)
        file.write(text)
        file.truncate()


def _with_row(text: str, new: str, label: str) -> str:
    lines = text.splitlines()
    start = lines.index(_HEAD) + 2
    end = next((i for i in range(start, len(lines)) if not lines[i].startswith("|")), len(lines))
    kept = [line for line in lines[start:end] if line.split("|")[1].strip() != label]
    return "\n".join([*lines[:start], *sorted([*kept, new], key=_number), *lines[end:]]) + "\n"


def _number(line: str) -> tuple[int, str]:
    label = line.split("|")[1].strip()
    return int(label.split()[0]), label


def _line(row: Row, seed: int, found: Verdict) -> str:
    passed = not found.faults and not found.missed
    lost = f"{len(found.lost)}" + (f" (+{found.excused} excused)" if found.excused else "")
    cells = (
        row.label, row.title, f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}", _duration(found.seconds),
        f"{found.acknowledged:,}", f"{found.runs:,}", lost, len(found.unexpected), len(found.twice),
        f"{len(found.findings)} findings" if found.findings else "clean", len(found.leaked),
        "; ".join(map(str, (*found.bounds, *found.notes))) or "-", seed, "passed" if passed else "FAILED",
    )  # fmt: skip
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
