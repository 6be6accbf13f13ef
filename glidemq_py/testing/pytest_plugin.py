"""Pytest fixtures for the tests of whoever uses queues: a server in memory, and a real Valkey. Registered by itself on
installation.

    async def test_welcome(glidemq_memory):
        async with TestQueue("emails", glidemq_memory) as queue: ...

    async def test_welcome_for_real(glidemq_url, glidemq_queue_name):
        async with Queue(glidemq_queue_name, glidemq_url) as queue: ...

The in-memory server is each test's own (extra `testing`). The real one is one for the whole run: keep tests apart by
unique queue names, which is what `glidemq_queue_name` gives. The environment variable GLIDEMQ_TEST_SERVER chooses it:
nothing for the embedded one (extra `embedded`), `docker` for a container (testcontainers; GLIDEMQ_TEST_IMAGE names the
image), or a URL of a server that runs. Imported at the start of every pytest run where the package is installed, so
nothing heavy is imported up here.
"""

import importlib
import os
import re
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from glidemq_py.client.memory import MemoryServer

__all__ = ["GlideMQServer", "glidemq_memory", "glidemq_queue_name", "glidemq_server", "glidemq_url"]

_DEFAULT_IMAGE: Final = "valkey/valkey:9"


@dataclass(frozen=True, slots=True, kw_only=True)
class GlideMQServer:
    """Where a test's server is: `url` as Queue and Worker take it; `host` and `port` of its first node."""

    url: str
    host: str
    port: int

    @classmethod
    def at(cls, url: str) -> "GlideMQServer":
        """The server that a URL names."""
        host, _, port = url.partition("://")[2].rpartition("@")[2].split("/")[0].split(",")[0].rpartition(":")
        return cls(url=url, host=host.strip("[]"), port=int(port.split("?")[0]))


@pytest.fixture(scope="session")
def glidemq_server() -> Iterator[GlideMQServer]:
    """The one Valkey of this test run, as GLIDEMQ_TEST_SERVER says: `url`, `host`, `port`."""
    wanted = os.environ.get("GLIDEMQ_TEST_SERVER", "")
    if wanted == "docker":
        yield from _container(os.environ.get("GLIDEMQ_TEST_IMAGE", _DEFAULT_IMAGE))
    elif wanted:
        yield GlideMQServer.at(wanted)
    else:
        from glidemq_py.client.embedded import start_embedded

        with start_embedded() as server:
            yield GlideMQServer(url=server.url, host=server.host, port=server.port)


@pytest.fixture
def glidemq_memory() -> "MemoryServer":
    """An in-memory server of the test's own, whose clock stands still until the test moves it."""
    from glidemq_py.client.memory import Clock, MemoryServer

    return MemoryServer(Clock())


@pytest.fixture
def glidemq_url(glidemq_server: GlideMQServer) -> str:
    """The URL to give to Queue, Worker and the rest. The server is shared: use unique queue names."""
    return glidemq_server.url


@pytest.fixture
def glidemq_queue_name(request: pytest.FixtureRequest) -> str:
    """A queue name that no other test has: the test's own name and a random end."""
    name = str(request.node.name)  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    test = re.sub(r"\W+", "-", name, flags=re.ASCII).strip("-")[:60]
    return f"{test}-{uuid.uuid4().hex[:8]}"


def _container(image: str) -> Iterator[GlideMQServer]:
    from glidemq_py.testing.resp import RespClient, RespError

    containers: Any = importlib.import_module("testcontainers.core.container")
    with containers.DockerContainer(image).with_exposed_ports(6379) as container:
        host, port = str(container.get_container_host_ip()), int(container.get_exposed_port(6379))
        deadline = time.monotonic() + 60
        while True:
            try:
                with RespClient(host, port, timeout=2) as client:
                    client.execute("PING")
                break
            except (OSError, RespError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield GlideMQServer(url=f"valkey://{host}:{port}", host=host, port=port)
