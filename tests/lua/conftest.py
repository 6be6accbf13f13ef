"""Every test of the Lua functions runs on each supported server and on the in-memory one; see own_support.py."""

from collections.abc import Iterator
from typing import Any

import pytest

from glidemq_py._client.memory import MemoryServer
from glidemq_py.testing import RespClient
from tests.conftest import CORE_SERVERS
from tests.lua.own_support import OwnQueue
from tests.memory_client import MemoryClient

# One newest server is enough for `-m "not slow"`.
PLACES = (*CORE_SERVERS, pytest.param("memory", marks=pytest.mark.slow))


@pytest.fixture(scope="session")
def in_memory() -> MemoryServer:
    """Return the in-memory server of all tests: to load the library costs more than most of them."""
    return MemoryServer()


@pytest.fixture(params=PLACES)
def core_resp(request: pytest.FixtureRequest, servers_by_version: Any, in_memory: MemoryServer) -> Iterator[RespClient]:
    """A raw client of each supported server, and of the in-memory one, which must not be another."""
    if request.param == "memory":
        in_memory.flush()
        yield MemoryClient(in_memory)
        return
    server = servers_by_version.get(request.param)
    with RespClient(server.host, server.port) as client:
        yield client


@pytest.fixture
def q(core_resp: RespClient, glidemq_queue_name: str) -> Iterator[OwnQueue]:
    """Return a queue for one test, whose clock only the test advances."""
    queue = OwnQueue(core_resp, glidemq_queue_name)
    yield queue
    queue.delete_everything()
