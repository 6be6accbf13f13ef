"""The pytest fixtures, in a separate pytest run in which every warning is an error."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

SERVICE = """
from contextlib import asynccontextmanager

from glidemq_py import Worker

life = []


@asynccontextmanager
async def lifespan(worker):
    life.append("in")
    yield "context"
    life.append("out")


service = Worker("invoices", concurrency=4, lifespan=lifespan, serializer="msgpack")


@service.task(attempts=3)
async def invoice(customer: str) -> str:
    return f"{customer} pays"


async def send(job):
    return f"sent to {job.data['to']}"
"""

TESTS = """
import pytest
from service import invoice, life, send, service
from glidemq_py.testing import TestQueue
# MARKS


async def test_handler(glidemq_queue, glidemq_worker):
    worker = glidemq_worker(send, concurrency=2)
    await glidemq_queue.add("welcome", {"to": "ann"})
    assert (await worker.run_one()).result == "sent to ann"


@pytest.mark.glidemq_queue("bills", serializer="msgpack")
@pytest.mark.parametrize("turn", [1, 2])
async def test_service(glidemq_queue, glidemq_worker, turn):
    life.clear()
    worker = glidemq_worker(service)
    await invoice.add("ann")
    await glidemq_queue.assert_enqueued("invoice", {"customer": "ann"}, count=1)
    assert [run.result for run in await worker.run_until_idle()] == ["ann pays"]
    assert life == ["in"]
    assert service.queue_name == "bills"


async def test_they_were_closed(glidemq_worker):
    assert life == ["in", "out"]
    assert service.queue_name == "invoices"


class TestMethods:
    async def test_queues_share_the_server(self, glidemq_memory, glidemq_worker):
        async with TestQueue("other", glidemq_memory) as other:
            await other.add("n", {"to": "bob"})
            assert (await glidemq_worker(send, queue=other).run_one()).result == "sent to bob"


async def test_option_beside_a_worker_is_rejected(glidemq_worker):
    with pytest.raises(ValueError, match="concurrency"):
        glidemq_worker(service, concurrency=3)
"""

PLAIN = """
import asyncio

from service import send


def test_plain_function(glidemq_queue, glidemq_worker):
    async def scenario():
        async with glidemq_queue, glidemq_worker(send) as worker:
            await glidemq_queue.add("welcome", {"to": "ann"})
            return await worker.run_until_empty()

    assert [run.result for run in asyncio.run(scenario())] == ["sent to ann"]
"""

EVERY_MODULE = """
import inspect
import unittest
import warnings

import hypothesis
from glidemq_py import Queue, Worker
from glidemq_py.sync import Queue as SyncQueue


async def handle(job):
    return job.data


async def test_real_server(glidemq_url, glidemq_queue_name):
    async with Queue(glidemq_queue_name, glidemq_url) as queue, Worker(glidemq_queue_name, handle, glidemq_url):
        assert await queue.add_and_wait("n", 1) == 1


def test_blocking_code(glidemq_url, glidemq_queue_name):
    with SyncQueue(glidemq_queue_name, glidemq_url) as queue:
        assert queue.add("n", 1).id == "1"


@hypothesis.given(hypothesis.strategies.integers())
def test_hypothesis_reads_every_module(number):
    assert number == number


def test_inspect_reads_every_module():
    assert inspect.getmodule(compile("1", "nowhere", "eval")) is None


class TestCase(unittest.TestCase):
    def test_assert_warns_reads_every_module(self):
        with self.assertWarns(UserWarning):
            warnings.warn("expected", UserWarning)
"""


def run_pytest(folder: Path, *arguments: str):
    (folder / "service.py").write_text(SERVICE)
    (folder / "pytest.ini").write_text(
        "[pytest]\nfilterwarnings = error\nasyncio_default_fixture_loop_scope = function\n"
    )
    command = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *arguments]
    loads = "from glidemq_py.testing.pytest_plugin import *\n"
    if "glidemq" not in installed_plugins():  # a checkout without an installed package
        (folder / "conftest.py").write_text(loads)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert not any(word in ran.stdout for word in ("warning", "skipped", "deselected")), ran.stdout


def installed_plugins() -> set[str]:
    from importlib.metadata import entry_points

    return {each.name for each in entry_points(group="pytest11")}


STRICT = ["-o", "asyncio_mode=strict"]
ANYIO = """pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"
"""


@pytest.mark.parametrize(
    ("marks", "arguments"),
    [
        ("pytestmark = pytest.mark.asyncio", STRICT),
        ("pytestmark = pytest.mark.asyncio(loop_scope='module')", STRICT),
        (ANYIO, ["-p", "no:asyncio", "-W", "ignore::pytest.PytestConfigWarning"]),
    ],
    ids=["a loop per test", "one loop for all", "anyio"],
)
def test_fixtures_close_objects_in_the_loop_of_the_test(tmp_path: Path, marks: str, arguments: list[str]):
    (tmp_path / "test_it.py").write_text(TESTS.replace("# MARKS", marks))
    run_pytest(tmp_path, *arguments)


def test_plugin_and_dependencies_cause_no_warnings(tmp_path: Path):
    (tmp_path / "test_fixtures.py").write_text(TESTS)
    (tmp_path / "test_plain.py").write_text(PLAIN)
    (tmp_path / "test_every_module.py").write_text(EVERY_MODULE)
    run_pytest(tmp_path, "-o", "asyncio_mode=auto")
