"""Every fault in docs/design/found-faults.md has a test or a seed that exists, and every seed has a row."""

import re
from pathlib import Path

import pytest

from tests.simulation.test_simulation import FOUND

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "design" / "found-faults.md"
SEED = re.compile(r"seed (\d+) \((\d+) jobs(?:, (?:extras|backups))?\)")
SEEDS = {(seed, jobs) for seed, jobs, *_ in FOUND}


def guards() -> dict[str, list[str]]:
    """Return the tests and seeds of each fault."""
    found: dict[str, list[str]] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 3 and cells[0] not in ("fault", "---"):
            assert cells[0] not in found, f"{cells[0]} is listed twice"
            found[cells[0]] = re.findall(r"`([^`]+)`", cells[2])
    return found


def test_every_fault_has_a_guard():
    found = guards()
    assert len(found) > 40
    assert [fault for fault, names in found.items() if not names] == []


@pytest.mark.parametrize("guard", sorted({guard for names in guards().values() for guard in names}))
def test_the_guard_exists(guard: str):
    if seed := SEED.fullmatch(guard):
        assert (int(seed[1]), int(seed[2])) in SEEDS
        return
    file, _, name = guard.partition("::")
    text = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"^(async )?def {name}\(|^== {name}", text, re.MULTILINE)


def test_every_seed_has_a_row():
    listed = {SEED.fullmatch(guard) for names in guards().values() for guard in names}
    assert {(int(seed[1]), int(seed[2])) for seed in listed if seed} == SEEDS
