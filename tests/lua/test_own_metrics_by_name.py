"""Test the figures per job name and minute on the server."""

from typing import Any

import pytest

from tests.inside import NameMetrics, NameMetricsReport, metrics_page, set_settings, working
from tests.lua.own_support import START, OwnQueue

MINUTE = 60_000
THIS = START - START % MINUTE
BY_NAME = working.ExchangeFlags.BY_NAME


def turn_on(q: OwnQueue, minutes: int = 10, names: int = 5):
    q.run(set_settings(q.meta, metricsByName=f"{minutes}|{names}"))


def send(q: OwnQueue, number: int, *rows: NameMetrics, worker: str = "py-1", no_metrics: bool = False) -> int:
    """Return the flags of the reply."""
    report = NameMetricsReport(number, list(rows))
    return int(q.run(working.exchange(q.meta, worker, 0, (), False, no_metrics, by_name=report)).flags)


def row(name: str | bool = "a", minute: int = THIS, completed: int = 1, ran: int = 5) -> NameMetrics:
    return NameMetrics(minute, name, completed, 0, 0, [1, 3, 3, 1], [1, ran, ran, 1])


def read(q: OwnQueue, minutes: int = 60, name: object = False, last: int = 0) -> list[list[Any]]:
    found: list[list[Any]] = []
    cursor = 0
    while True:
        last, rows, cursor = q.run(metrics_page(q.meta, last, minutes, name, cursor))
        found += rows
        if not cursor:
            return sorted(found, key=lambda each: (each[0], str(each[1])))


def test_repeated_report_counts_once(q: OwnQueue):
    turn_on(q)
    rows = [row(minute=THIS - MINUTE), row()]
    for _ in range(3):
        send(q, 7, *rows)
    assert [each[:3] for each in read(q)] == [[THIS - MINUTE, "a", 1], [THIS, "a", 1]]
    send(q, 8, row())
    assert [each[2] for each in read(q)] == [1, 2]


def test_bounded_names(q: OwnQueue):
    turn_on(q, names=3)
    for number in range(10):
        send(q, number + 1, row(f"name-{number}"))
    send(q, 11, row(False), row("name-1"))
    assert [(each[1], each[2]) for each in read(q)] == [
        (False, 8), ("name-0", 1), ("name-1", 2), ("name-2", 1),
    ]  # fmt: skip


def test_bounded_minutes(q: OwnQueue):
    turn_on(q, minutes=10)
    send(q, 1, row(minute=THIS - 9 * MINUTE), row("late", THIS - 10 * MINUTE), row("early", THIS + 5 * MINUTE))
    assert [(each[0], each[1]) for each in read(q)] == [(THIS - 9 * MINUTE, "a"), (THIS, "early")]
    first, last = (int(q.redis("PTTL", f"metrics-by-name:{minute}")) for minute in (THIS - 9 * MINUTE, THIS))
    assert 0 < first <= 2 * MINUTE
    assert 10 * MINUTE < last <= 11 * MINUTE


def test_pages(q: OwnQueue):
    turn_on(q, minutes=1_440)
    minutes = [THIS - number * MINUTE for number in (0, 1, 199, 200, 201, 700)]
    for number, minute in enumerate(minutes):
        send(q, number + 1, row(minute=minute))
    assert [each[0] for each in read(q, 1_440)] == sorted(minutes)
    assert [each[0] for each in read(q, 200)] == sorted(minutes[:3])
    assert [each[0] for each in read(q, 2, last=minutes[4] + 59_999)] == [minutes[4]]


@pytest.mark.parametrize("junk", ["x", "0|5", "|", "-1|5"])
def test_malformed_setting_is_off(q: OwnQueue, junk: str):
    q.redis("HSET", "meta", "metricsByName", junk)
    assert not send(q, 1, row()) & BY_NAME
    assert read(q) == []


def test_malformed_figures(q: OwnQueue):
    turn_on(q)
    key = f"metrics-by-name:{THIS}"
    q.redis("HSET", key, "n:a", "junk", "n:b", "\x93\x01", "names", "x")
    send(q, 1, row())
    assert [each[:3] for each in read(q)] == [[THIS, "a", 1]]
    for wrong in ([1], [1, -1], ["a", 2], [1, 2] * 2_000, 5):
        send(q, 2, NameMetrics(THIS, "b", 1, 0, 0, [1, 2], wrong))  # type: ignore[arg-type]
    assert [each[1] for each in read(q)] == ["a"]
    q.redis("DEL", key)
    q.redis("RPUSH", key, "foreign")
    assert send(q, 3, row()) & BY_NAME
    assert read(q) == []
