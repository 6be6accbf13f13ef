"""What only the tests of queues and workers need."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from glidemq_py import Queue, Worker
from glidemq_py.sync import Queue as BlockingQueue
from glidemq_py.testing import RespClient
from tests.inside import broadcasts, fetch_calls, waiting, wake
from tests.server.tls_support import certificates, start_tls
from tests.server.worker_support import Raw, WorkerFor

__all__ = ["certificates", "connect", "raw", "start_tls", "without_polling", "worker_for"]

NEVER_S = 3_600.0


@pytest.fixture
def without_polling(monkeypatch: pytest.MonkeyPatch):
    """Idle workers and waiters for results poll once an hour: what arrives in time was brought by a signal."""
    for module in (fetch_calls, wake, broadcasts):
        monkeypatch.setattr(module, "BLOCK_MS", int(NEVER_S * 1000))
    monkeypatch.setattr(wake, "_PATIENCE_S", 2 * NEVER_S)
    monkeypatch.setattr(waiting, "_FIRST_POLL_S", NEVER_S)
    monkeypatch.setattr(waiting, "_LAST_POLL_S", NEVER_S)


@pytest.fixture
def raw(resp: RespClient, queue_name: str) -> Raw:
    """The queue of the test, read and written without the library."""
    return Raw(resp, queue_name)


@pytest.fixture
def partitions() -> int | None:
    """Return the number of partitions of `queue`; modules of partitioned queues return another one."""
    return None


@pytest.fixture
async def queue(url: str, queue_name: str, partitions: int | None) -> AsyncIterator[Queue]:
    """Return a queue for this test."""
    async with Queue(queue_name, url, partitions=partitions) as queue:
        yield queue


@pytest.fixture
def worker_for(url: Any, queue_name: str) -> WorkerFor:
    """Return `worker_for(handler, **options)`, which makes a worker of the test's queue."""
    return lambda handler, **options: Worker(queue_name, handler, url, **options)


async def connect_async(connection: Any):
    async with Queue("q", connection) as queue:
        await queue.count()


async def connect_blocking(connection: Any):
    with BlockingQueue("q", connection) as queue:
        queue.count()


@pytest.fixture(params=[connect_async, connect_blocking], ids=["async", "blocking"])
def connect(request: pytest.FixtureRequest) -> Callable[[Any], Awaitable[None]]:
    """Connect a queue and use it once."""
    return request.param
