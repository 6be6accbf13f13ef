"""Every test of the Lua functions runs on each supported server; see own_support.py."""

from collections.abc import Iterator

import pytest

from glidemq_py.testing import RespClient
from tests.lua.own_support import OwnQueue


@pytest.fixture
def q(core_resp: RespClient, glidemq_queue_name: str) -> Iterator[OwnQueue]:
    """A queue of the test's own, whose time stands still until the test moves it."""
    queue = OwnQueue(core_resp, glidemq_queue_name)
    yield queue
    queue.delete_everything()
