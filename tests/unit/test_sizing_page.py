"""The page about sizing: its table and plot follow from the costs that it prints."""

from tests.bench import sizing


def test_needs_follow_from_the_printed_costs():
    cost = sizing.planned(sizing.table_on_page("costs"))
    assert sizing.need_table(cost) == sizing.table_on_page("needs"), "python -m tests.bench.sizing --recompute"
    assert sizing.plot(cost) == sizing.PLOT.read_text(encoding="utf-8")


def test_costs_are_read_as_they_are_printed():
    plain = sizing.Cost(9.12, 15.0, 3.04, 8.2, 258, 257, 0, 783.4, 1331)
    logged = sizing.Cost(11.4, 20.88, 9, 9, 9, 9, 1434, 9, 9)
    assert sizing.planned(sizing.cost_table(plain, logged)) == sizing.Cost(
        11.4, 20.9, 3.0, 8.2, 258, 257, 1434, 783, 1331
    )
    need = sizing.Need.of(1_000_000, sizing.planned(sizing.cost_table(plain, logged)))
    assert (need.producers, need.workers, need.primaries) == (5, 14, 57)
