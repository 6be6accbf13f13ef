"""Tests of the distribution of the suite to processes: tests/distribution.py."""

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("xdist")

from tests import conftest
from tests.distribution import SPARK, TOGETHER, Distribution

TESTS = Path(__file__).resolve().parents[1]


class Node:
    """A process that runs what it gets."""

    def __init__(self):
        self.gateway = mock.Mock(id="node")
        self.indexes: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indexes: list[int]):
        self.indexes += indexes

    def shutdown(self):
        self.shutting_down = True


def distribution(tests: list[str], nodes: list[Node]) -> Distribution:
    config = mock.Mock()
    config.getvalue.return_value = ["popen"] * len(nodes)
    config.option.loadscopereorder = True
    found = Distribution(config, None)
    for node in nodes:
        found.add_node(node)
        found.add_node_collection(node, tests)
    found.schedule()
    return found


def test_named_files_exist():
    assert SPARK.keys() <= {path.stem for path in (TESTS / "spark").glob("test_*.py")}
    assert {path.stem for path in TESTS.rglob("test_*.py")} >= TOGETHER


def test_every_test_runs_once_and_spark_first():
    files = ("test_connect", "test_types", "test_random_kills")
    spark = [f"tests/spark/{file}.py::test_{n}" for file in files for n in "ab"]
    tests = [*(f"tests/unit/test_rows.py::test_{n}" for n in range(40)), *spark]
    nodes = [Node(), Node()]
    scheduler = distribution(tests, nodes)
    assert {tests[node.indexes[0]] for node in nodes} == {spark[0], spark[2]}
    done: Any = {}
    while not scheduler.tests_finished or len(done) < len(tests):
        for node in nodes:
            for index in node.indexes[:]:
                node.indexes.remove(index)
                assert tests[index] not in done
                done[tests[index]] = node
                scheduler.mark_test_complete(node, index)
    assert done.keys() == set(tests)
    assert not scheduler.has_pending
    assert all(node.shutting_down for node in nodes)
    scope_of = scheduler._split_scope
    for scope in map(scope_of, spark):
        assert len({id(done[each]) for each in spark if scope_of(each) == scope}) == 1


def test_tests_of_a_crashed_process_run_elsewhere():
    tests = [f"tests/unit/test_rows.py::test_{n}" for n in range(9)]
    nodes = [Node(), Node()]
    scheduler = distribution(tests, nodes)
    crashed, other = nodes
    first, *_ = crashed.indexes
    scheduler.mark_test_complete(crashed, first)
    second = crashed.indexes[1]
    assert scheduler.remove_node(crashed) == tests[second]
    ran = {first}
    while not scheduler.tests_finished or other.indexes:
        index = other.indexes.pop(0)
        ran.add(index)
        scheduler.mark_test_complete(other, index)
    assert ran == set(range(len(tests)))


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_process_that_replaces_a_crashed_one_ends(count: int):
    """It runs a test when it has the next one, or has been told that there is none."""
    tests = [f"tests/unit/test_rows.py::test_{n}" for n in range(count)]
    crashed, replacing = Node(), Node()
    scheduler = distribution(tests, [crashed])
    scheduler.remove_node(crashed)
    scheduler.add_node(replacing)
    scheduler.add_node_collection(replacing, tests)
    scheduler.schedule()
    ran = set[int]()
    while len(replacing.indexes) > 1 or (replacing.indexes and replacing.shutting_down):
        ran.add(index := replacing.indexes.pop(0))
        scheduler.mark_test_complete(replacing, index)
    assert ran == set(range(count))
    assert replacing.shutting_down


def test_longest_tests_run_first():
    def turn(nodeid: str, *, slow: bool) -> int:
        return conftest.turn(mock.Mock(nodeid=nodeid, get_closest_marker=lambda _: slow or None))

    turns = [
        turn("tests/chaos/test_chaos.py::test_a", slow=True),
        turn("tests/server/test_poison.py::test_b[chaos]", slow=True),
        turn("tests/chaos/test_harness.py::test_c", slow=False),
    ]
    assert turns == [0, 1, 2]


def test_longest_tests_exist():
    assert {path.name for path in TESTS.rglob("*")} >= conftest.LONGEST
