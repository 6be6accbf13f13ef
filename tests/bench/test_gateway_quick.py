"""Tests of the comparison of the gateway with bunqueue; figures are not tested."""

from __future__ import annotations

import pytest

from tests.bench.bunqueue import find_bunqueue
from tests.bench.gateway.__main__ import MEASURES, MEMORY, OURS, SQLITE, line_of, main
from tests.bench.install import PeerMissingError


def test_line_compares_with_each_bar():
    (measure,) = [each for each in MEASURES if each.key == "work-50"]
    figures = {OURS: {"rate": 3_000.0}, SQLITE: {"rate": 1_000.0}, MEMORY: {"rate": 6_000.0}}
    text, is_met = line_of(measure, figures)
    assert text.startswith(
        "| worker, concurrency 50 | 3,000/s | 1,000/s | 6,000/s | 3.00 x SQLite (at least 2); 0.50 x"
    )
    assert is_met is False
    figures[MEMORY]["rate"] = 4_000.0
    assert line_of(measure, figures)[1] is True


def test_line_of_a_measure_that_failed():
    text, is_met = line_of(MEASURES[0], {SQLITE: {"rate": 1.0}})
    assert "failed" in text
    assert is_met is None


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_quick_comparison_completes(capsys: pytest.CaptureFixture[str]):
    try:
        find_bunqueue()
    except PeerMissingError as reason:
        pytest.skip(str(reason))
    main(["--quick", "--only", "add-100,work-1,pick-up"])
    table = capsys.readouterr().out
    assert "| long-poll pick-up |" in table
    assert "failed" not in table
