"""The text of a consistency report."""

from glidemq_py import CheckReport, Finding, FindingKind


def findings(kind: FindingKind, count: int) -> list[Finding]:
    return [Finding(kind=kind, subject=str(number), detail="x") for number in range(count)]


def test_report_prints_20_findings_and_counts_the_others_by_kind():
    found = findings(FindingKind.GHOST, 21) + findings(FindingKind.TWICE, 17_000) + findings(FindingKind.COUNTER, 3)
    lines = str(CheckReport(queue="q", findings=tuple(found), jobs=5)).split("\n")
    assert lines[0] == "queue 'q': 17024 findings, 0 repaired (5 jobs, 0 groups)"
    assert lines[1:21] == [f"  ghost: {number}: x" for number in range(20)]
    assert lines[21:] == ["  and 17,004 more: twice 17,000, counter 3, ghost 1"]


def test_short_report_prints_all_findings():
    report = CheckReport(queue="q", findings=tuple(findings(FindingKind.GHOST, 20)))
    assert str(report).count("\n") == 20
    assert "more" not in str(report)
