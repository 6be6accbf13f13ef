"""The harness itself: it must see what the rows are to prove absent."""

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from glidemq_py.testing import ServerProcess
from tests.chaos import report
from tests.chaos.control import Control
from tests.chaos.ledger import Ledger, Scribe
from tests.chaos.load_watch import FAULT, LoadWatch
from tests.chaos.rows import Row, all_rows
from tests.chaos.run import Bound, ChaosRun, Verdict
from tests.chaos.slots import left_behind

BASE = "glide:{leaky}:"


@pytest.mark.parametrize(
    ("commands", "found"),
    [
        ([("XGROUP", "CREATE", "stream", "workers", "0", "MKSTREAM"), ("XADD", "stream", "*", "jobId", "1"),
          ("XREADGROUP", "GROUP", "workers", "w", "STREAMS", "stream", ">")],
         ["1 pending entries", "stream: 1 entries"]),
        ([("SET", "list-active", "2")], ["list-active: 2"]),
        ([("HSET", "ordering", "g", "4"), ("HSET", "group:g", "active", "1", "nextSeq", "5")], ["group g: 1 slots"]),
        ([("HSET", "ordering", "g", "4"), ("HSET", "group:g", "active", "0", "nextSeq", "4", "skip:9", "1")],
         ["group g: waits for sequence 4, the last issued is 4", "group g: 1 skip marks"]),
        ([("HSET", "ordering", "g", "4"), ("HSET", "group:g", "active", "0", "nextSeq", "5")], []),
    ],
)  # fmt: skip
def test_leaked_slots_and_sequences_are_found(
    private_server: Callable[..., ServerProcess], commands: list[tuple[str, ...]], found: list[str]
):
    with closing(private_server().client()) as client:
        for command in commands:
            client.execute(*(BASE + word if word in _KEYS else word for word in command))
        assert left_behind(client, BASE) == found


_KEYS = frozenset({"stream", "list-active", "ordering", "group:g"})


def test_loads_are_counted_per_fault_and_client(private_server: Callable[..., ServerProcess]):
    server = private_server()
    library = "#!lua name={}\nredis.register_function('f{}', function() return 1 end)\n" + "-- filler\n" * 20_000
    with closing(LoadWatch(server)) as watch, closing(server.client()) as harness, closing(server.client()) as client:
        for number in range(2):
            harness.execute("ECHO", FAULT)
            harness.execute("FUNCTION", "FLUSH")
            for name in range(number + 1):
                client.execute("FUNCTION", "LOAD", library.format(f"l{name}", name))
        _until(lambda: sum(watch.loads.values()) == 3)
        assert sorted((fault, count) for (fault, _), count in watch.loads.items()) == [(1, 1), (2, 2)]


def test_a_slow_machine_stretches_a_limit():
    assert not Bound("x", 3.0, 2.0).kept
    assert Bound("x", 3.0, 2.0, slowdown=1.6).kept
    assert not Bound("x", 70, 80, "%", least=True).kept
    assert Bound("x", 70, 80, "%", slowdown=1.2, least=True).kept


def test_the_control_measures_the_machine():
    with closing(Control()) as control:
        assert control.slowdown(0, time.monotonic()) == 1.0
        control.start()
        begin = time.monotonic()
        _until(lambda: control.slowdown(begin, time.monotonic()) > 1.0)
        assert control.slowdown(begin + 3_600, begin + 3_601) == 1.0, "no measurement: no allowance"


def test_only_a_job_added_later_proves_a_later_fetch(tmp_path: Path):
    ledger = Ledger(tmp_path)
    scribe = Scribe(str(ledger.pipe), "worker1")
    scribe.write("attempted", "old", "plain")
    ledger.sync()
    fault_at = time.monotonic()
    scribe.write("started", "old", 0)
    ledger.sync()
    assert ledger.newest_started["worker1"] < fault_at
    scribe.write("attempted", "new", "plain")
    scribe.write("started", "new", 0)
    ledger.sync()
    assert ledger.newest_started["worker1"] > fault_at
    ledger.close()


def test_a_result_replaces_the_line_of_its_row(tmp_path: Path):
    page = tmp_path / "page.md"
    head = [
        line for line in report.PAGE.read_text(encoding="utf-8").splitlines() if line.endswith("| seed | verdict |")
    ]
    page.write_text("\n".join(["before", *head, "| --- |", "", "after"]) + "\n", encoding="utf-8")
    for row, seed in ((Row(2, "b", "two", _play), 1), (Row(1, "a", "one", _play), 2), (Row(2, "b", "two", _play), 3)):
        report.write(row, seed, Verdict(acknowledged=5), page)
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [line.split("|")[1].strip() for line in lines[3:5]] == ["1 a", "2 b"]
    assert "| 3 | passed |" in lines[4]
    assert lines[5:] == ["", "after"]


def _play(run: ChaosRun):
    """Be a row that is never played."""
    raise NotImplementedError(run)


def _until(reached: Callable[[], bool]):
    deadline = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_each_row_has_a_pass_criterion_and_a_result():
    page = report.PAGE.read_text(encoding="utf-8")
    criteria, results = page.split("## Run them")
    for row in all_rows():
        assert f"\n| {row.number} | " in criteria, row.label
        assert f"\n| {row.label} | " in results, row.label
