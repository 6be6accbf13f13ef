"""The table of docs/operate/chaos.md: the last result of each row."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Final

from tests.chaos.rows import Row
from tests.chaos.run import Verdict

__all__ = ["PAGE", "write"]

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "operate" / "chaos.md"
_HEAD: Final = (
    "| row | fault | day | duration | acknowledged | runs | lost | unexpected | twice | check | leaks | measured | "
    "seed | verdict |"
)
_RULE: Final = "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"


def write(row: Row, seed: int, verdict: Verdict, page: Path = PAGE) -> None:
    """Replace the row's line of the table."""
    lines = page.read_text(encoding="utf-8").splitlines()
    start = lines.index(_HEAD) + 2
    end = next((i for i in range(start, len(lines)) if not lines[i].startswith("|")), len(lines))
    kept = [line for line in lines[start:end] if line.split("|")[1].strip() != row.label]
    table = sorted([*kept, _line(row, seed, verdict)], key=_number)
    page.write_text("\n".join([*lines[:start], *table, *lines[end:]]) + "\n", encoding="utf-8")


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
        "; ".join(map(str, found.bounds)) or "-", seed, "passed" if passed else "FAILED",
    )  # fmt: skip
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
