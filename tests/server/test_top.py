"""`glidemq top`: the screen driven by keys, and once through a real pseudo-terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator, Callable
from fcntl import ioctl
from typing import Any

import pytest

from glidemq_py import Job, JobFailedError, Queue, Worker
from tests.operating import Operator

pytest.importorskip("textual")
from textual.widgets import DataTable, Static

from glidemq_py.cli.top_screen import Top

MINUTE_S = 60.0


@pytest.fixture
async def queue(url: str, queue_name: str) -> AsyncIterator[Queue]:
    async with Queue(queue_name, url) as queue:
        yield queue


def rows(app: Top, name: str) -> list[list[str]]:
    """Return the cells of a tab as texts."""
    table = app.query_one(f"#{name}-table", DataTable)
    return [[str(cell) for cell in table.get_row_at(at)] for at in range(table.row_count)]


async def until(pilot: Any, condition: Callable[[], object]):
    async with asyncio.timeout(MINUTE_S):
        while not condition():
            await pilot.pause(0.05)


@pytest.mark.slow
async def test_keys_pause_retry_cancel_and_run(url: str, queue: Queue):
    running, released = asyncio.Event(), asyncio.Event()

    async def handler(job: Job):
        if job.name == "bad":
            raise ValueError("no printer\x1b[31m")
        running.set()
        await released.wait()

    name = queue.name
    bad = await queue.add("bad")
    endless = await queue.add("endless")
    await queue.add("later", delay=3_600_000)
    await queue.schedulers.upsert("nightly", pattern="0 3 * * *", template={"name": "digest"})
    worker = Worker(name, handler, url, log_failures=False)
    async with worker, Operator(url) as operator, contextlib.AsyncExitStack() as at_the_end:
        at_the_end.callback(released.set)  # the worker waits for its job
        await running.wait()
        app = Top(operator, [name], interval=0.2)
        async with app.run_test(size=(140, 30)) as pilot:
            await until(
                pilot, lambda: [row[1:8] for row in rows(app, "queues")] == [["0", "1", "1", "0", "0", "0", "1"]]
            )
            await pilot.press("p")
            await until(pilot, lambda: "paused" in rows(app, "queues")[0][0])
            assert await queue.is_paused()
            await pilot.press("2")
            await until(pilot, lambda: [row[1:3] for row in rows(app, "running")] == [[endless.id, "endless"]])
            await pilot.press("c", "n")
            await pilot.pause()
            assert rows(app, "running")
            await pilot.press("c", "y")
            await until(pilot, lambda: rows(app, "running") == [])
            await pilot.press("3")
            await until(pilot, lambda: len(rows(app, "failures")) == 2)
            assert [row[1] for row in rows(app, "failures")] == [endless.id, bad.id], "the newest first"
            errors = {row[1]: row[5] for row in rows(app, "failures")}
            assert errors[bad.id].startswith("ValueError: no printer")
            assert "\x1b" not in errors[bad.id]
            while rows(app, "failures")[app.query_one("#failures-table", DataTable).cursor_row][1] != bad.id:
                await pilot.press("down")
            await pilot.press("r")
            await until(pilot, lambda: bad.id not in {row[1] for row in rows(app, "failures")})
            assert await bad.get_state() == "waiting"
            await pilot.press("4")
            await until(pilot, lambda: [row[1:3] for row in rows(app, "schedules")] == [["nightly", "0 3 * * *"]])
            await pilot.press("n")
            await until(pilot, lambda: "2 ready" in str(app.query_one("#status", Static).render()))
            await pilot.press("p")  # of the schedule
            await until(pilot, lambda: rows(app, "schedules")[0][3] == "paused")
            await pilot.press("p")
            await until(pilot, lambda: rows(app, "schedules")[0][3] != "paused")
            assert await queue.is_paused()
            await pilot.press("1", "p")
            await until(pilot, lambda: "paused" not in rows(app, "queues")[0][0])
            await pilot.press("q")


async def test_long_name_leaves_room_for_the_error(url: str, queue: Queue):
    async def handler(job: Job):
        raise ValueError("no printer")

    job = await queue.add("n" * 53)
    async with Worker(queue.name, handler, url, log_failures=False):
        with pytest.raises(JobFailedError):
            await job.wait_until_finished(timeout=60_000)
    async with Operator(url) as operator:
        app = Top(operator, [queue.name], interval=3_600)
        async with app.run_test(size=(140, 30)) as pilot:
            await pilot.press("3")
            await until(pilot, lambda: rows(app, "failures"))
            assert rows(app, "failures")[0][2] == "n" * 31 + "…"
            assert rows(app, "failures")[0][5] == "ValueError: no printer"


async def test_markup_of_a_job_is_shown_as_text(url: str, queue: Queue):
    async def handler(job: Job):
        raise ValueError("no printer")

    job = await queue.add("[b]name[/i]", job_id="[b]id[/i]")
    async with Worker(queue.name, handler, url, log_failures=False):
        with pytest.raises(JobFailedError):
            await job.wait_until_finished(timeout=60_000)
    async with Operator(url) as operator:
        app = Top(operator, [queue.name], interval=3_600)
        async with app.run_test(size=(200, 30)) as pilot:
            await pilot.press("3")
            await until(pilot, lambda: rows(app, "failures"))
            await pilot.pause()
            picture = app.export_screenshot()
    assert "[b]id[/i]" in picture
    assert "[b]name[/i]" in picture


async def test_cursor_stays_on_its_row(url: str, queue: Queue, queue_name: str):
    others = [f"{queue_name}-{n}" for n in range(3)]
    for name in others[1:]:
        async with Queue(name, url) as other:
            await other.add("a")
    async with Operator(url) as operator:
        app = Top(operator, interval=3_600)
        async with app.run_test(size=(140, 30)) as pilot:
            await until(pilot, lambda: rows(app, "queues"))
            names = [row[0] for row in rows(app, "queues")]
            await pilot.press(*["down"] * names.index(others[2]))
            async with Queue(others[0], url) as other:
                await other.add("a")
            await pilot.press("f5")
            await until(pilot, lambda: others[0] in [row[0] for row in rows(app, "queues")])
            at = app.query_one("#queues-table", DataTable).cursor_row
            assert rows(app, "queues")[at][0] == others[2]


async def test_lost_server_is_reported_and_the_screen_stays():
    async with Operator("valkey://127.0.0.1:1") as operator:
        app = Top(operator, ["q"], interval=3_600)
        async with app.run_test() as pilot:
            await until(pilot, lambda: "not current" in str(app.query_one("#status", Static).render()))


@pytest.mark.slow
def test_command_in_a_terminal(url: str, queue_name: str):
    async def fill():
        async with Queue(queue_name, url) as queue:
            await queue.add("a")

    asyncio.run(fill())
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 140, 0, 0))
    command = [sys.executable, "-m", "glidemq_py.cli", "top", queue_name, "--url", url]
    environment = {**os.environ, "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        seen, is_asked = b"", False
        deadline = time.monotonic() + 2 * MINUTE_S
        while time.monotonic() < deadline:
            if not select.select([ours], [], [], 1)[0]:
                continue
            try:
                piece = os.read(ours, 65_536)
            except OSError:  # the terminal is closed
                break
            if not piece:
                break
            seen += piece
            if not is_asked and queue_name.encode()[:40] in seen and b"ready" in seen:
                is_asked = True
                os.write(ours, b"q")
        assert process.wait(MINUTE_S) == 0, seen[-2_000:]
    os.close(ours)
    assert is_asked


@pytest.mark.slow
def test_without_a_terminal_it_explains_itself(url: str):
    command = [sys.executable, "-m", "glidemq_py.cli", "top", "--url", url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=100)
    assert done.returncode == 2
    assert "queue ls --json" in done.stderr
