"""Tests that the benchmark runs and that nothing became several times slower than the peers; figures are not tested.

Margins are wide, and a measure that misses its margin is repeated, because other programs share the machine.
Rows with a fixed bound in milliseconds are not judged: they depend on the machine.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import features
from tests.bench.__main__ import chosen_cases, find_peers, run
from tests.bench.measure import OURS, Runs
from tests.bench.report import Verdict, markdown, other_sections, readme_with_summary, verdicts

MARGIN = 3.0
JUDGED = "drain-100,drain-1,add-single-free,add-bulk,idle,memory"
"""Cases that are compared; in the others only our own driver runs."""
REPETITIONS = 3
"""How often a measure that misses its margin is repeated."""
ROOT = Path(__file__).parents[2]


def failed(found: Runs) -> list[str]:
    """Return the cases that glidemq_py did not complete."""
    return sorted(case for (case, peer), runs in found.items() if peer == OURS and None in runs)


def missed(found: Runs) -> list[Verdict]:
    return [verdict for verdict in verdicts(found) if verdict.row.peer and verdict.passed(MARGIN) is False]


@pytest.mark.nightly
@pytest.mark.timeout(1_000)
def test_ratios_of_the_quick_benchmark_are_sane():
    peers, missing = find_peers([OURS, "bullmq"])
    assert OURS in peers, missing
    found, server = run(peers, chosen_cases(JUDGED), 1, quick=True)
    assert failed(found) == []
    assert "| drain, async, concurrency 100 |" in markdown(found, peers, server, 1, missing)
    for _ in range(REPETITIONS):
        again = {verdict.row.case for verdict in missed(found)}
        if not again:
            return
        found, _ = run(peers, chosen_cases(",".join(again)), 1, quick=True)
    slow = [f"{verdict.row.label}: {verdict.ours} against {verdict.theirs}" for verdict in missed(found)]
    assert not slow, slow


@pytest.mark.nightly
@pytest.mark.timeout(1_000)
def test_our_driver_runs_every_other_case():
    peers, missing = find_peers([OURS])
    assert not missing
    judged = {case.key for case in chosen_cases(JUDGED)}
    others = [case for case in chosen_cases(None) if case.key not in judged and OURS in case.peers]
    assert len(others) > 8
    found, _ = run(peers, others, 1, quick=True, tiny=True)
    assert failed(found) == []
    assert {case for case, _ in found} == {case.key for case in others}


@pytest.mark.nightly
@pytest.mark.timeout(1_000)
def test_cost_of_features_can_be_measured():
    lines = features.table(features.measure(1, 0.03))
    assert [line.split(" | ")[0].strip("| ") for line in lines[2:]] == [each.label for each in features.VARIANTS]


def test_readme_summary_matches_the_report():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert readme_with_summary(readme, page) == readme


def test_a_new_report_keeps_the_sections_of_other_benchmarks():
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    kept = other_sections(page)
    assert page.endswith(kept)
    assert [line for line in kept.splitlines() if line.startswith("## ")] == ["## Features", "## Spark"]
    assert other_sections(page.removesuffix(kept)) == ""
