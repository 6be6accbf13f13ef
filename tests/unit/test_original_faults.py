"""For each repaired fault of the original, original_faults.txt names tests that fail on it: they exist."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
LISTED = re.findall(r"(?m)^W\d+ (\S+?)::(.+)$", (TESTS / "unit/original_faults.txt").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("file", "name"), sorted(set(LISTED)))
def test_the_test_exists(file: str, name: str):
    assert len(LISTED) > 120
    assert re.search(rf"(?m)^((async )?def test_{name}\(|== {name})", (TESTS / file).read_text(encoding="utf-8"))
