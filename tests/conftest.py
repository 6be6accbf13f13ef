"""Servers and names for the whole suite. tests/README.md says which fixture is for what."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import Queue
from glidemq_py._client.child_server import ConfigValue
from glidemq_py.errors import EmbeddedServerError
from glidemq_py.testing import SERVER_BINARIES, ClusterProcess, RespClient, ServerProcess, server_binary
from glidemq_py.testing import pytest_plugin as glidemq_fixtures
from glidemq_py.testing.pytest_plugin import GlideMQServer
from tests.key_leaks import KeyLeaks

CORE_SERVERS = ("valkey-9.1", "valkey-8.1", "cluster", "redis")


def pytest_configure(config: pytest.Config) -> None:
    """In a checkout that is not installed nobody has registered our own plugin."""
    if not config.pluginmanager.is_registered(glidemq_fixtures):
        config.pluginmanager.register(glidemq_fixtures, "glidemq")


# -- servers that are not installed ------------------------------------------------------------------------

NOT_RUN = pytest.StashKey[Counter[str]]()
"""Tests that were deselected, by what is missing: one line of the report each, not one a test."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of servers that are not installed."""
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    missing: dict[str, str] = {}
    not_run = config.stash.setdefault(NOT_RUN, Counter())
    for item in items:
        values = getattr(getattr(item, "callspec", None), "params", {}).values()
        name = next((each for each in values if isinstance(each, str) and _why_missing(each, missing)), None)
        (kept if name is None else left_out).append(item)
        if name is not None:
            not_run[missing[name]] += 1
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept
    output: dict[str, Any] | None = getattr(config, "workeroutput", None)
    if output is not None:
        output["tests_not_run"] = dict(not_run)


def _why_missing(name: str, known: dict[str, str]) -> str:
    """Why there is no server of that name; "" if there is one, or if it is not the name of a server."""
    if name not in SERVER_BINARIES:
        return ""
    if name not in known:
        try:
            server_binary(name)
            known[name] = ""
        except EmbeddedServerError as error:
            known[name] = str(error)
    return known[name]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker process of pytest-xdist left out; each of them collects the same tests."""
    node.config.stash[NOT_RUN] = Counter(getattr(node, "workeroutput", {}).get("tests_not_run", {}))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Report what was left out: a line for each server that is missing."""
    for reason, count in config.stash.get(NOT_RUN, Counter[str]()).items():
        terminalreporter.write_line(f"{reason}: {count} tests not run")


# -- the one server of most tests --------------------------------------------------------------------------


@pytest.fixture(scope="session")
def server(glidemq_server: GlideMQServer) -> GlideMQServer:
    """Valkey 9.1, or what GLIDEMQ_TEST_SERVER names. Shared: not to be stopped, flushed or configured."""
    return glidemq_server


@pytest.fixture
def url(server: GlideMQServer) -> str:
    """The shared server's URL."""
    return server.url


@pytest.fixture
def resp(server: GlideMQServer) -> Iterator[RespClient]:
    """A raw client of the shared server, to look at keys without our own code between."""
    with RespClient.from_url(server.url) as client:
        yield client


@pytest.fixture
def queue_name(glidemq_queue_name: str) -> str:
    """A queue name that no other test has."""
    return glidemq_queue_name


@pytest.fixture
def key_leaks(resp: RespClient) -> Iterator[KeyLeaks]:
    """Fails the test that leaves keys on the shared server which nothing leads to. See tests/key_leaks.py."""
    leaks = KeyLeaks(resp)
    yield leaks
    assert leaks.found() == []


@pytest.fixture
async def clean_check(request: pytest.FixtureRequest, queue_name: str) -> AsyncIterator[None]:
    """Ends the test with a consistency check of `queue_name`: however it was injured, it is in order again.

    It looks at the server of `core_url` or `url`; with a server of its own a test checks for itself.
    """
    place = "core_url" if "core_url" in request.fixturenames else "url"
    server_url: str = request.getfixturevalue(place)
    yield
    async with Queue(queue_name, server_url) as queue:
        report = await queue.check(recheck_after=50)
    assert not report.findings, str(report)


# -- the servers of the core tests -------------------------------------------------------------------------


class _Servers:
    """Servers by name, each started by the first test that wants it and kept for the rest of the run."""

    def __init__(self) -> None:
        self._running: dict[str, GlideMQServer] = {}
        self._processes: list[ServerProcess | ClusterProcess] = []

    def get(self, name: str) -> GlideMQServer:
        if name not in self._running:
            binary = _binary_or_skip("valkey-9.1" if name == "cluster" else name)
            process = ClusterProcess(binary) if name == "cluster" else ServerProcess(binary)
            process.start()
            self._processes.append(process)
            self._running[name] = GlideMQServer(url=process.url, host=process.host, port=process.port)
        return self._running[name]

    def close(self) -> None:
        for process in self._processes:
            process.close()


@pytest.fixture(scope="session")
def servers_by_version() -> Iterator[_Servers]:
    """`get("valkey-9.1" | "valkey-8.1" | "redis" | "cluster")`: a shared server, or a skip."""
    servers = _Servers()
    yield servers
    servers.close()


@pytest.fixture(params=CORE_SERVERS)
def core_server(request: pytest.FixtureRequest, servers_by_version: _Servers) -> GlideMQServer:
    """Runs the test on each server that we support: Valkey 9.1 and 8.1, a cluster, Redis 7."""
    return servers_by_version.get(request.param)


@pytest.fixture
def core_url(core_server: GlideMQServer) -> str:
    """The URL of `core_server`: the test runs once for each."""
    return core_server.url


@pytest.fixture
def core_resp(core_server: GlideMQServer) -> Iterator[RespClient]:
    """A raw client of `core_server`; it follows a cluster's redirections."""
    with RespClient(core_server.host, core_server.port) as client:
        yield client


@pytest.fixture
def cluster(servers_by_version: _Servers) -> GlideMQServer:
    """A cluster of three primaries, shared."""
    return servers_by_version.get("cluster")


@pytest.fixture
def cluster_url(cluster: GlideMQServer) -> str:
    """The URL of the cluster, all three addresses in it."""
    return cluster.url


@pytest.fixture
def cluster_resp(cluster: GlideMQServer) -> Iterator[RespClient]:
    """A raw client of the cluster; it follows redirections."""
    with RespClient(cluster.host, cluster.port) as client:
        yield client


# -- servers of a test's own -------------------------------------------------------------------------------


@pytest.fixture
def private_server() -> Iterator[Callable[..., ServerProcess]]:
    """`private_server(name="valkey-9.1", *, durable=False, **config)`: started, and the test's own.

    It may be flushed, configured, stopped, killed, frozen and restarted. An underscore in the name of a
    setting stands for a dash.
    """
    started: list[ServerProcess] = []

    def start(name: str = "valkey-9.1", *, durable: bool = False, **config: ConfigValue) -> ServerProcess:
        settings = {key.replace("_", "-"): value for key, value in config.items()}
        process = ServerProcess(_binary_or_skip(name), durable=durable, config=settings)
        started.append(process)
        return process.start()

    yield start
    for process in started:
        process.close()


@pytest.fixture
def restartable_server(private_server: Callable[..., ServerProcess]) -> Callable[..., ServerProcess]:
    """`private_server` with `durable=True`: what it acknowledged is there after a restart, even a kill -9."""

    def start(name: str = "valkey-9.1", **config: ConfigValue) -> ServerProcess:
        return private_server(name, durable=True, **config)

    return start


def _binary_or_skip(name: str) -> Path:
    try:
        return server_binary(name)
    except EmbeddedServerError as error:
        pytest.skip(str(error))
