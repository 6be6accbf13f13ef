"""Servers and queue names for the whole suite. tests/README.md lists the fixtures."""

import contextlib
import faulthandler
import gc
import importlib
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tools.generate_sync import write_twins

write_twins()  # before the package is imported

# ruff: noqa: E402
from glidemq_py import Queue
from glidemq_py._client.embedded import ConfigValue
from glidemq_py.errors import EmbeddedServerError
from glidemq_py.testing import SERVER_BINARIES, ClusterProcess, RespClient, ServerProcess, server_binary
from glidemq_py.testing import pytest_plugin as glidemq_fixtures
from glidemq_py.testing.pytest_plugin import GlideMQServer
from tests.key_leaks import KeyLeaks

# Without deadlines, as a busy machine is no error. `--hypothesis-profile thorough` searches longer.
settings.register_profile("quick", max_examples=50, deadline=None)
settings.register_profile("thorough", max_examples=2_000, deadline=None)
settings.load_profile("quick")

CORE_SERVERS = (
    "valkey-9.1",
    pytest.param("cluster", marks=pytest.mark.slow),
    pytest.param("valkey-8.1", marks=pytest.mark.nightly),
    pytest.param("redis", marks=pytest.mark.nightly),
)
"""Older servers are for the session `nightly`; `-m "not slow"` runs a test on the newest server only."""

SERVER_AND_CLUSTER = ("valkey-9.1", pytest.param("cluster", marks=pytest.mark.slow))
"""For `core_server` of features that differ in a cluster only."""


LONGEST = {"bench", "chaos", "simulation", "test_examples.py", "test_state_machine.py"}
"""Folders and files of tests that take tens of seconds each; those of Spark run even before (tests/spark)."""

LONGEST_FAILURE = 8_000
"""Characters of the traceback and of the log that the report shows of a repeated test's first run."""

REPEATED = {"server", "cluster", "spark", "bench", "test_examples.py"}
"""Folders and files of tests with several processes and their real clocks, which a busy machine can stop for seconds.

A failed one runs once more, and the report lists it as RERUN. All others have no such excuse, least of all the chaos
tests and the simulation, whose failures are lost jobs.
"""


def pytest_configure(config: pytest.Config):
    """Register our plugin in a checkout that is not installed; let processes that tests start end at SIGINT.

    A shell starts background processes with SIGINT ignored, and their children inherit that.
    """
    config.stash[STDERR] = os.dup(2)  # nothing is captured here
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not config.pluginmanager.is_registered(glidemq_fixtures):
        config.pluginmanager.register(glidemq_fixtures, "glidemq")


STDERR = pytest.StashKey[int]()
MARGIN_S = 120.0


def pytest_runtest_logfinish(nodeid: str, location: tuple[str, int | None, str]):
    """Stop the timer of the test."""
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item):
    """See `_end_if_it_hangs`."""
    _end_if_it_hangs(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item):
    """See `_end_if_it_hangs`."""
    _end_if_it_hangs(item)


def _end_if_it_hangs(item: pytest.Item):
    """End the process if the test does not end; pytest reports it then as crashed, and runs the others elsewhere.

    pytest-timeout raises an error once per test: its timer is stopped by any failure, so a repeated test has none, nor
    has the clean-up after a failure.
    """
    marker, given = item.get_closest_marker("timeout"), item.config.getoption("timeout")
    usual = item.config.getini("timeout") if given is None else given
    limit = float(usual if marker is None else marker.kwargs.get("timeout", next(iter(marker.args), usual)))
    if limit > 0:
        faulthandler.dump_traceback_later(limit + MARGIN_S, exit=True, file=item.config.stash[STDERR])


# -- servers that are not installed ------------------------------------------------------------------------

NOT_RUN = pytest.StashKey[Counter[str]]()
"""Deselected tests by missing requirement: one line of the report each, not one per test."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]):
    """Deselect the tests of servers that are not installed; those of the night are slow."""
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    missing: dict[str, str] = {}
    not_run = config.stash.setdefault(NOT_RUN, Counter())
    for item in items:
        values = getattr(getattr(item, "callspec", None), "params", {}).values()
        name = next((each for each in values if isinstance(each, str) and _why_missing(each, missing)), None)
        (kept if name is None else left_out).append(item)
        if item.get_closest_marker("nightly"):
            item.add_marker("slow")
        if not REPEATED.isdisjoint(item.nodeid.split("::")[0].split("/")):
            item.add_marker(pytest.mark.flaky(reruns=1))
        if name is not None:
            not_run[missing[name]] += 1
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept
    if hasattr(config, "workerinput"):
        items.sort(key=turn)
    output: dict[str, Any] | None = getattr(config, "workeroutput", None)
    if output is not None:
        output["tests_not_run"] = dict(not_run)


def turn(item: pytest.Item) -> int:
    """Return when a test runs beside others: first those that take longest, so that no process has work at the end."""
    if item.get_closest_marker("slow") is None:
        return 2
    return int(LONGEST.isdisjoint(item.nodeid.split("::")[0].split("/")))


def _why_missing(name: str, known: dict[str, str]) -> str:
    """Return why the server of that name is missing; "" if it is installed, or if the name is not a server's."""
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
def pytest_testnodedown(node: Any):
    """Copy the deselected tests from a worker process of pytest-xdist; all of them collect the same tests."""
    node.config.stash[NOT_RUN] = Counter(getattr(node, "workeroutput", {}).get("tests_not_run", {}))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config):
    """Report the repeated tests, with the failures of their first runs, and the deselected ones: one line per missing
    server."""
    repeated = terminalreporter.stats.get("rerun", [])
    if repeated:
        terminalreporter.write_sep("=", "FAILURES OF REPEATED TESTS")
    for report in repeated:
        terminalreporter.write_sep("_", report.nodeid)
        terminalreporter.write_line(report.longreprtext[-LONGEST_FAILURE:])
        terminalreporter.write_line(report.caplog[-LONGEST_FAILURE:])
    for report in repeated:
        crash = getattr(report.longrepr, "reprcrash", None)
        terminalreporter.write_line(f"RERUN {report.nodeid} - {getattr(crash, 'message', report.longrepr)!s:.200}")
    for reason, count in config.stash.get(NOT_RUN, Counter[str]()).items():
        terminalreporter.write_line(f"{reason}: {count} tests not run")


# -- distribution to processes -----------------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadscope`, run each test in any process, but those that share something costly in one."""
    if config.getvalue("dist") != "loadscope":
        return None
    from tests.distribution import Distribution

    return Distribution(config, log)


def pytest_sessionstart(session: pytest.Session):
    """Without cached bytecode, let each process of pytest-xdist compile its part of the tests for all of them."""
    worker: dict[str, Any] | None = getattr(session.config, "workerinput", None)
    folders = [Path(each) for each in session.config.args]
    if worker is None or sys.dont_write_bytecode or not all(map(Path.is_dir, folders)):
        return
    root = session.config.rootpath
    files = sorted({file for folder in folders for file in folder.resolve().rglob("test_*.py")})
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        # The collection imports a module again that failed, and reports why.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(file.relative_to(root).with_suffix("").parts))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector away from the thousands of collected tests, now and later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# -- the one server of most tests --------------------------------------------------------------------------


_STARTED: list[GlideMQServer] = []
"""Shared servers that only this process uses."""


@pytest.fixture(scope="module", autouse=True)
def _empty_servers():
    """Delete the keys that other modules have left: some tests list all keys of a server."""
    for each in _STARTED:
        with RespClient.from_url(each.url) as client:
            client.execute_everywhere("FLUSHALL")


@pytest.fixture(scope="session")
def server(glidemq_server: GlideMQServer) -> GlideMQServer:
    """Return the shared server: Valkey 9.1, or GLIDEMQ_TEST_SERVER. Do not stop, flush or configure it."""
    if not os.environ.get("GLIDEMQ_TEST_SERVER"):
        _STARTED.append(glidemq_server)
    return glidemq_server


@pytest.fixture
def url(server: GlideMQServer) -> str:
    """Return the shared server's URL."""
    return server.url


@pytest.fixture
def resp(server: GlideMQServer) -> Iterator[RespClient]:
    """Return a raw client of the shared server, to inspect keys without our own code."""
    with RespClient.from_url(server.url) as client:
        yield client


@pytest.fixture
def queue_name(glidemq_queue_name: str) -> str:
    """Return a unique queue name."""
    return glidemq_queue_name


@pytest.fixture(params=["same", "other"])
async def same_or_other(request: pytest.FixtureRequest, url: Any, queue: Any) -> AsyncIterator[Any]:
    """Return the test's queue, or another one."""
    if request.param == "same":
        yield queue
    else:
        async with request.module.Queue(f"{queue.name}-other", url) as opened:
            yield opened


@pytest.fixture
def key_leaks(resp: RespClient) -> Iterator[KeyLeaks]:
    """Fail a test that leaves unreachable keys on the shared server. See tests/key_leaks.py."""
    leaks = KeyLeaks(resp)
    yield leaks
    assert leaks.found() == []


@pytest.fixture
async def clean_check(request: pytest.FixtureRequest, queue_name: str) -> AsyncIterator[None]:
    """Run a consistency check of `queue_name` after the test.

    It uses the server of `core_url` or `url`; a test with a private server must run its own check.
    """
    place = "core_url" if "core_url" in request.fixturenames else "url"
    server_url: str = request.getfixturevalue(place)
    yield
    async with Queue(queue_name, server_url) as queue:
        report = await queue.check(recheck_after=50)
    assert not report.findings, str(report)


# -- the servers of the core tests -------------------------------------------------------------------------


class _Servers:
    """Servers by name, each started on first use and kept for the rest of the run."""

    def __init__(self):
        self._running: dict[str, GlideMQServer] = {}
        self._processes: list[ServerProcess | ClusterProcess] = []

    def get(self, name: str) -> GlideMQServer:
        if name not in self._running:
            binary = _binary_or_skip("valkey-9.1" if name == "cluster" else name)
            process = ClusterProcess(binary) if name == "cluster" else ServerProcess(binary)
            process.start()
            self._processes.append(process)
            self._running[name] = GlideMQServer(url=process.url, host=process.host, port=process.port)
            _STARTED.append(self._running[name])
        return self._running[name]

    def close(self):
        for process in self._processes:
            process.close()


@pytest.fixture(scope="session")
def servers_by_version() -> Iterator[_Servers]:
    """Return an object with `get("valkey-9.1" | "valkey-8.1" | "redis" | "cluster")`: a shared server, or a skip."""
    servers = _Servers()
    yield servers
    servers.close()


@pytest.fixture(params=CORE_SERVERS)
def core_server(request: pytest.FixtureRequest, servers_by_version: _Servers) -> GlideMQServer:
    """Run the test on each supported server: Valkey 9.1 and 8.1, a cluster, Redis 7."""
    return servers_by_version.get(request.param)


@pytest.fixture
def core_url(core_server: GlideMQServer) -> str:
    """Return the URL of `core_server`; the test runs once per server."""
    return core_server.url


@pytest.fixture
def core_resp(core_server: GlideMQServer) -> Iterator[RespClient]:
    """Return a raw client of `core_server`; it follows a cluster's redirections."""
    with RespClient(core_server.host, core_server.port) as client:
        yield client


@pytest.fixture
def cluster(servers_by_version: _Servers) -> GlideMQServer:
    """Return a shared cluster of three primaries."""
    return servers_by_version.get("cluster")


@pytest.fixture
def cluster_url(cluster: GlideMQServer) -> str:
    """Return the URL of the cluster, with all three addresses."""
    return cluster.url


@pytest.fixture
def cluster_resp(cluster: GlideMQServer) -> Iterator[RespClient]:
    """Return a raw client of the cluster; it follows redirections."""
    with RespClient(cluster.host, cluster.port) as client:
        yield client


# -- private servers ---------------------------------------------------------------------------------------


@pytest.fixture
def private_server() -> Iterator[Callable[..., ServerProcess]]:
    """Return `private_server(name="valkey-9.1", *, durable=False, **config)`, which starts a server for this test.

    The test may flush, configure, stop, kill, freeze and restart it. An underscore in the name of a setting becomes a
    dash.
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
    """Return `private_server` with `durable=True`: acknowledged data survives a restart, including kill -9."""

    def start(name: str = "valkey-9.1", **config: ConfigValue) -> ServerProcess:
        return private_server(name, durable=True, **config)

    return start


def _binary_or_skip(name: str) -> Path:
    try:
        return server_binary(name)
    except EmbeddedServerError as error:
        pytest.skip(str(error))
