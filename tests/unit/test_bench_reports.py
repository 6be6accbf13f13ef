"""The benchmark reports in docs have the text that their generator writes."""

from pathlib import Path

from tests.bench.scale import _HEAD, Point, _table

PAGE = Path(__file__).parents[2] / "docs" / "cost-by-size.md"


def test_cost_by_size_has_the_text_of_its_generator() -> None:
    table = _table("Waiting jobs", [Point(1_000, 5.59, 13.51, 6.55, 1.79, 2.70, "exchange")])
    assert PAGE.read_text().startswith("\n".join([_HEAD, *table[:4]]))
