"""A proxy for each test, and an HTTP client of it."""

from collections.abc import Iterator

import httpx
import pytest

from tests.server.proxy.support import running_proxy


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    """Paths are relative to the proxy; its streams say often that they are alive."""
    with running_proxy(url, keep_alive=200) as (client, _):
        yield client


@pytest.fixture
def base(queue_name: str) -> str:
    """The path of the test's queue."""
    return f"/queues/{queue_name}"
