"""The same behaviour everywhere: every test here runs in memory, on one server and on a cluster."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from glidemq_py import Queue
from glidemq_py.testing import MemoryServer

PLACES = ("memory", "standalone", "cluster")


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, servers_by_version: Any) -> MemoryServer | str:
    """What a queue takes as its connection."""
    if request.param == "memory":
        return MemoryServer()
    url: str = servers_by_version.get("cluster" if request.param == "cluster" else "valkey-9.1").url
    return url


@pytest.fixture
async def queue(place: MemoryServer | str, queue_name: str) -> AsyncIterator[Queue[Any, Any]]:
    """A queue of the test's own; when the test is over, it is in order."""
    async with Queue[Any, Any](queue_name, place) as queue:
        yield queue
        report = await queue.check(recheck_after=50)
        assert not report.findings, str(report)
