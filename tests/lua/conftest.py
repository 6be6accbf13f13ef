"""Tests of the Lua functions run on one server; the contract tests run on the others. See own_support.py."""

from collections.abc import Iterator
from typing import Any

import pytest

from glidemq_py.testing import RespClient
from tests.lua.own_support import OwnQueue
from tests.wire_library.support import wire_fixture

__all__ = ["wire_fixture"]


@pytest.fixture
def core_resp(servers_by_version: Any) -> Iterator[RespClient]:
    """A raw client of the newest server."""
    server = servers_by_version.get("valkey-9.1")
    with RespClient.from_url(server.url) as client:
        yield client


@pytest.fixture
def q(core_resp: RespClient, glidemq_queue_name: str) -> Iterator[OwnQueue]:
    """Return a queue for one test, whose clock only the test advances."""
    queue = OwnQueue(core_resp, glidemq_queue_name)
    yield queue
    queue.delete_everything()
