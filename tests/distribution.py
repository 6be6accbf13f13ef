"""Distribution of the tests to the processes of pytest-xdist (`--dist loadscope`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

__all__ = ["Distribution"]

SPARK_SESSION = "a Spark session"
SPARK_GROUPS = {
    "another Spark session": ("test_reading", "test_results", "test_streams"),
    "some Spark processes": ("test_example", "test_killed_driver"),
    "other Spark processes": ("test_connect", "test_random_kills", "test_spark_cluster"),
}
SPARK = {file: group for group, files in SPARK_GROUPS.items() for file in files}
"""Files in tests/spark by what they share; the others share the first session.

The start of a session is costly, but all tests of Spark in one process take longer than the tests of all others.
"""
TOGETHER = {"test_browser", "test_packaging", "test_resharding", "test_screenshots"}
"""Files whose tests share something else that is costly to make."""


class Distribution(LoadScopeScheduling):  # type: ignore[misc]
    """Runs each test in any process, but the tests that share something costly in one; those of Spark first.

    It forgets finished tests and searches no lists, unlike its base: that takes many seconds for thousands of tests.
    """

    def __init__(self, config: Any, log: Any):
        super().__init__(config, log)
        self._indexes: dict[str, int] = {}

    def _split_scope(self, nodeid: str) -> str:
        path = Path(nodeid.partition("::")[0])
        if path.parent.name == "spark":
            return SPARK.get(path.stem, SPARK_SESSION)
        return path.stem if path.stem in TOGETHER else nodeid

    def _assign_work_unit(self, node: Any):
        if not self._indexes:
            self._indexes = {nodeid: index for index, nodeid in enumerate(self.collection or ())}
        scope, unit = self.workqueue.popitem(last=False)
        self.assigned_work[node][scope] = unit
        node.send_runtest_some([self._indexes[nodeid] for nodeid, finished in unit.items() if not finished])

    def schedule(self):
        replaces = self.collection is not None
        super().schedule()
        if replaces:
            # A process runs a test when it has the next one, or none is left.
            for node in self.nodes:
                self._reschedule(node)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0):
        nodeid = self.collection[item_index]
        scope = self._split_scope(nodeid)
        unit = self.assigned_work[node][scope]
        unit[nodeid] = True
        if all(unit.values()):
            del self.assigned_work[node][scope]
        self._reschedule(node)
