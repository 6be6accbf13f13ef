"""The benchmark itself works, and nothing has become slower by a factor: not a place for exact figures.

Margins are wide, and a measure that misses its own gets a second look, because the suite shares its machine
with whatever else runs there.
"""

from __future__ import annotations

import pytest

from tests.bench.__main__ import chosen_cases, find_peers, run
from tests.bench.measure import OURS
from tests.bench.report import Medians, Verdict, markdown, verdicts

MARGIN = 3.0


def missed(medians: Medians) -> list[Verdict]:
    return [verdict for verdict in verdicts(medians) if verdict.passed(MARGIN) is False]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_quick_benchmark_runs_and_its_ratios_are_sane() -> None:
    peers, missing = find_peers([OURS, "bullmq"])
    assert OURS in peers, missing
    medians, server = run(peers, chosen_cases(None, quick=True), 1, quick=True)

    failed = sorted(case for (case, peer), figures in medians.items() if peer == OURS and not figures)
    assert not failed, f"these measures of ours did not run: {failed}"
    again = {verdict.row.case for verdict in missed(medians)}
    if again:
        # A row may be judged against another case's figure (threads against async), so look at both anew.
        again |= {verdict.row.peer_case or verdict.row.case for verdict in missed(medians)}
        second, _ = run(peers, chosen_cases(",".join(again), quick=True), 1, quick=True)
        slow = [f"{verdict.row.label}: {verdict.ours} against {verdict.theirs}" for verdict in missed(second)]
        assert not slow, slow
    assert "| drain, async, concurrency 100 |" in markdown(medians, peers, server, 1, missing)
