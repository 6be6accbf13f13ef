"""Fixtures: one proxy per test, and its HTTP client."""

from collections.abc import Iterator

import httpx
import pytest

from tests.server.proxy.support import running_proxy


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    """Yield an HTTP client whose paths are relative to the proxy; keep-alive comments are frequent."""
    with running_proxy(url, keep_alive=200) as (client, _):
        yield client


@pytest.fixture
def base(queue_name: str) -> str:
    """Return the path of the test's queue."""
    return f"/queues/{queue_name}"
