"""Run rows of the chaos table: `python -m tests.chaos --minutes 10`.

python -m tests.chaos                          the short form of every row
python -m tests.chaos --row 1 --seed 7         one row, the seed of a report
python -m tests.chaos --minutes 60 --write     long forms, one hour together; results go to docs/operate/chaos.md
"""

from __future__ import annotations

import argparse
import random
import sys

from tests.chaos import report
from tests.chaos.rows import Row, all_rows, play


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--row", action="append", default=[], metavar="NUMBER|NAME", help="only these rows")
    parser.add_argument("--seed", type=int, help="seed of all random choices; default: a new one")
    parser.add_argument("--minutes", type=float, help="long forms: minutes of faults, of all rows together")
    parser.add_argument("--write", action="store_true", help="write the results into docs/operate/chaos.md")
    parser.add_argument("--keep", action="store_true", help="keep the folders with ledgers and logs")
    given = parser.parse_args(arguments)
    rows = [row for row in all_rows() if not given.row or str(row.number) in given.row or row.name in given.row]
    if not rows:
        parser.error(f"no such row; there are: {', '.join(row.label for row in all_rows())}")
    able = [row for row in rows if not row.missing and (given.minutes is not None or not row.long_only)]
    for row in rows:
        if row.missing:
            print(f"row {row.label}: skipped: {row.missing}")
    seconds = None if given.minutes is None else given.minutes * 60 / max(1, len(able))
    failed: list[str] = []
    for row in able:
        seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
        if not _one(row, seed, seconds, write=given.write, keep=given.keep):
            failed.append(row.label)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def _one(row: Row, seed: int, seconds: float | None, *, write: bool, keep: bool) -> bool:
    print(f"row {row.label}: {row.title}; seed {seed}", flush=True)
    verdict = play(row, seed=seed, seconds=seconds, keep=keep)
    passed = not verdict.faults and not verdict.missed
    print(verdict)
    print(f"row {row.label}: {'passed' if passed else 'FAILED'} in {verdict.seconds:.0f} s")
    minutes = "" if seconds is None else f" --minutes {seconds / 60:g}"
    print(f"replay: python -m tests.chaos --row {row.name} --seed {seed}{minutes}\n", flush=True)
    if write:
        report.write(row, seed, verdict)
    return passed


if __name__ == "__main__":
    sys.exit(main())
