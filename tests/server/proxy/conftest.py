"""Fixtures: one proxy per module, and an HTTP client of each test."""

from collections.abc import Iterator

import httpx
import pytest

from glidemq_py.testing.pytest_plugin import GlideMQServer
from tests.server.proxy.support import client_of, running_proxy


@pytest.fixture(scope="module")
def proxy_address(server: GlideMQServer) -> Iterator[str]:
    """Yield the URL of a proxy for the tests of a module, which use queues of their own; comments are frequent."""
    with running_proxy(server.url, keep_alive=200) as (client, _):
        yield str(client.base_url)


@pytest.fixture
def http(proxy_address: str) -> Iterator[httpx.Client]:
    """Yield an HTTP client whose paths are relative to the proxy."""
    with client_of(proxy_address) as client:
        yield client


@pytest.fixture
def base(queue_name: str) -> str:
    """Return the path of the test's queue."""
    return f"/queues/{queue_name}"
