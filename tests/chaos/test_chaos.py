"""The short form of each chaos row; of its variants the last, and the others only in `noxfile.py nightly`.

`python -m tests.chaos` and `noxfile.py chaos` run the long forms.
"""

import zlib

import pytest

from tests.chaos.rows import Row, all_rows, play

pytestmark = pytest.mark.slow

LAST = {row.title.partition(" (")[0]: row.name for row in all_rows()}


def variant(row: Row):
    return pytest.param(row, id=row.name, marks=() if row.name in LAST.values() else pytest.mark.nightly)


@pytest.mark.parametrize("row", [variant(row) for row in all_rows() if not row.long_only])
def test_nothing_is_lost(row: Row):
    """No job is lost, unexpected or completed twice, and nothing leaks. Times are measured, not judged."""
    if row.missing:
        pytest.skip(row.missing)
    seed = zlib.crc32(row.name.encode()) % 1_000_000
    verdict = play(row, seed=seed)
    print(verdict)
    replay = f"replay: python -m tests.chaos --row {row.name} --seed {seed}"
    assert verdict.faults == {}, f"{replay}\n{verdict}"
    assert verdict.acknowledged > 0
    assert verdict.completed > 0
