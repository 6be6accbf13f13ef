"""Pytest fixtures for programs that use queues: in-memory queues and workers, and a real Valkey.

Installing the package registers the plugin.

    async def test_welcome(glidemq_queue, glidemq_worker):
        worker = glidemq_worker(send)
        await glidemq_queue.add("welcome", {"to": "ann"})
        assert (await worker.run_one()).result == "sent to ann"

    async def test_welcome_on_a_server(glidemq_url, glidemq_queue_name):
        async with Queue(glidemq_queue_name, glidemq_url) as queue: ...

Each test has its own in-memory server (extra `testing`). The real server is shared by the whole run: use unique queue
names, from `glidemq_queue_name`. The environment variable GLIDEMQ_TEST_SERVER selects it: empty for the embedded server
(extra `embedded`), `docker` for a container (testcontainers; GLIDEMQ_TEST_IMAGE names the image), or the URL of a
running server. pytest imports this module in every run if the package is installed, so no heavy import may be at the
top.
"""

import contextlib
import functools
import importlib
import inspect
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from glidemq_py.errors import GlideMQValidationError

if TYPE_CHECKING:
    from glidemq_py._client.memory import MemoryServer
    from glidemq_py.testing.in_memory import TestQueue, TestWorker

__all__ = [
    "GlideMQServer",
    "glidemq_endpoints",
    "glidemq_memory",
    "glidemq_queue",
    "glidemq_queue_name",
    "glidemq_server",
    "glidemq_url",
    "glidemq_worker",
]

_DEFAULT_IMAGE: Final = "valkey/valkey:9"


@dataclass(frozen=True, slots=True, kw_only=True)
class GlideMQServer:
    """The server of a test run: `url` for Queue and Worker; `host`, `port` and `password` of its first node."""

    url: str = field(repr=False)
    host: str
    port: int
    password: str | None = field(default=None, repr=False)

    @classmethod
    def at(cls, url: str) -> "GlideMQServer":
        """Return the server for a URL."""
        from glidemq_py._client.connection_options import ConnectionOptions

        options = ConnectionOptions.from_url(url)
        address = options.addresses[0]
        return cls(url=url, host=address.host, port=address.port, password=options.password)


@pytest.fixture(scope="session")
def glidemq_server() -> Iterator[GlideMQServer]:
    """Return the Valkey of this test run, selected by GLIDEMQ_TEST_SERVER: `url`, `host`, `port`."""
    wanted = os.environ.get("GLIDEMQ_TEST_SERVER", "")
    if wanted == "docker":
        yield from _container(os.environ.get("GLIDEMQ_TEST_IMAGE", _DEFAULT_IMAGE))
    elif wanted:
        yield GlideMQServer.at(wanted)
    else:
        from glidemq_py._client.embedded import start_embedded

        with start_embedded() as server:
            yield GlideMQServer.at(server.url)


@pytest.fixture
def glidemq_memory() -> "MemoryServer":
    """Return an in-memory server for this test, whose clock is frozen until the test advances it."""
    from glidemq_py._client.memory import Clock, MemoryServer

    return MemoryServer(Clock())


@pytest.fixture
def glidemq_queue(request: pytest.FixtureRequest, glidemq_memory: "MemoryServer") -> "TestQueue":
    """Return a `TestQueue` on the test's in-memory server. It is closed when the test ends.

    Its name is "test" and it has the default options; ``@pytest.mark.glidemq_queue("emails", serializer="msgpack")``
    sets another name and options of `TestQueue`.
    """
    from glidemq_py.testing.in_memory import TestQueue

    node: pytest.Item = request.node
    mark = node.get_closest_marker("glidemq_queue")
    given: dict[str, Any] = {} if mark is None else {**mark.kwargs}
    given["server"] = glidemq_memory
    queue: TestQueue = TestQueue(*(() if mark is None else mark.args), **given)
    _closing(request).append(queue)
    return queue


@pytest.fixture
def glidemq_worker(request: pytest.FixtureRequest, glidemq_queue: "TestQueue") -> "Callable[..., TestWorker]":
    """Return a function that creates a `TestWorker` of `glidemq_queue`. It is closed when the test ends.

    ``glidemq_worker(handler, **options)`` takes a handler and the options of `Worker`. ``glidemq_worker(worker)`` takes
    a `Worker` of the program under test, whose tasks then add their jobs to `glidemq_queue`. ``queue=`` selects another
    queue on the test's server.

    A test that is not a coroutine must close the worker itself: ``async with glidemq_worker(handler) as worker``.
    """
    from glidemq_py._worker.base_worker import BaseWorker
    from glidemq_py.testing.in_memory import TestWorker

    closing = _closing(request)

    def make(handler: Any = None, /, *, queue: "TestQueue | None" = None, **options: Any) -> TestWorker:
        on = glidemq_queue if queue is None else queue
        if isinstance(handler, BaseWorker):
            if options:
                name, value = next(iter(options.items()))
                raise GlideMQValidationError(name, value, "must be set on the given worker")
            made = TestWorker.of(cast("Any", handler), on)
        else:
            made = TestWorker(on, handler, **options)
        closing.append(made)
        return made

    return make


@pytest.fixture
def glidemq_endpoints(glidemq_memory: "MemoryServer") -> "Iterator[Callable[[Any], dict[str, TestQueue]]]":
    """Return a function that replaces the queues of an `AppQueues` by `TestQueue` objects, and returns these by name.

    They are on the test's in-memory server and have the options of the queues that they replace, but `durable`. They
    keep their jobs while the application starts and ends. The workers of the `AppQueues` do not start.
    """
    from glidemq_py.testing.in_memory import TestQueue

    def like(queue: Any) -> "TestQueue":
        return TestQueue.like(queue, glidemq_memory)

    with contextlib.ExitStack() as stack:
        yield lambda queues: stack.enter_context(queues.replaced(like))


@pytest.fixture
def glidemq_url(glidemq_server: GlideMQServer) -> str:
    """Return the URL of the test run's server. The server is shared: use unique queue names."""
    return glidemq_server.url


@pytest.fixture
def glidemq_queue_name(request: pytest.FixtureRequest) -> str:
    """Return a unique queue name: the name of the test and a random suffix."""
    name = str(request.node.name)  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    test = re.sub(r"\W+", "-", name, flags=re.ASCII).strip("-")[:60]
    return f"{test}-{uuid.uuid4().hex[:8]}"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker `glidemq_queue`; no test, nor a process that it starts, uses the server of `glidemq dev`."""
    os.environ["GLIDEMQ_NO_PROJECT"] = "1"
    config.addinivalue_line(
        "markers", "glidemq_queue(name, **options): name and options of the fixture glidemq_queue, passed to TestQueue"
    )


_CLOSING: Final = pytest.StashKey[list[Any]]()


def _closing(request: pytest.FixtureRequest) -> list[Any]:
    """Return the list of objects to close when the test ends, last first, in the test's event loop.

    Fixture teardown cannot do this: only pytest-asyncio or anyio has the loop, and either may be missing.
    """
    item: Any = request.node
    closing: list[Any] | None = item.stash.get(_CLOSING, None)
    if closing is None:
        closing = item.stash[_CLOSING] = []
        if inspect.iscoroutinefunction(getattr(item, "obj", None)):
            item.obj = _and_close(item.obj, closing)
    request.addfinalizer(closing.clear)
    return closing


def _and_close(function: Callable[..., Any], closing: list[Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def test(*args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(_close, closing)
            await function(*args, **kwargs)

    return test


async def _close(closing: list[Any]) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for each in closing:
            stack.push_async_callback(each.close)


def _container(image: str) -> Iterator[GlideMQServer]:
    from glidemq_py.testing.servers import RespClient, RespError

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
