"""Every test in this folder runs in memory, on one server and on a cluster."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from glidemq_py import Queue
from glidemq_py.testing import MemoryServer

PLACES = ("memory", "standalone", "cluster")


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, servers_by_version: Any) -> MemoryServer | str:
    """Return a value for the `connection` option."""
    if request.param == "memory":
        return MemoryServer()
    url: str = servers_by_version.get("cluster" if request.param == "cluster" else "valkey-9.1").url
    return url


@pytest.fixture
async def queue(place: MemoryServer | str, queue_name: str) -> AsyncIterator[Queue[Any, Any]]:
    """Return a queue for this test; check its consistency after the test."""
    async with Queue[Any, Any](queue_name, place) as queue:
        yield queue
        report = await queue.check(recheck_after=50)
        assert not report.findings, str(report)
