"""`glidemq worker` as processes: what transcripts/processes tells, and what needs more than a transcript."""

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import Queue, __version__
from glidemq_py.testing import RespClient
from tests.server.cli_support import Shell
from tests.server.command import Command, alive
from tests.server.gateway.script import Case, Reader, compare, resolved
from tests.server.player import Request, cases_of
from tests.server.test_transcripts import FOLDER, OperatorPlayer, play_for_operators

pytestmark = pytest.mark.slow
PROGRAMS = FOLDER / "processes" / "programs"
Start = Callable[..., Command]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path in PROGRAMS.glob("*.txt"):
        (tmp_path / f"{path.stem}.py").write_text(path.read_text(encoding="utf-8"))
    return tmp_path


@pytest.fixture
def start(folder: Path, url: str, queue_name: str) -> Start:
    """`start("glidemq_py.worker", "application:worker", ...)`: a command, with a queue of its own."""

    def run(module: str, *arguments: str, **env: str | None) -> Command:
        return Command(folder, module, *arguments, env={"GLIDEMQ_URL": url, "QUEUE": queue_name, **env})

    return run


class ProcessPlayer(OperatorPlayer):
    """Starts commands as processes; the letter of a step names one of them."""

    def __init__(self, *given: Any, start: Start, folder: Path, **known: Any):
        super().__init__(*given, **known)
        self._start, self._folder = start, folder
        self._commands: dict[str, Command] = {}
        self._verbs |= {
            name: getattr(self, f"_{name}")
            for name in ("begin", "printed", "signal", "ends", "output", "touch", "remove", "gone", "clock")
        }
        self._verbs["start"] = self._begin

    def _words(self, request: Request) -> list[str]:
        return shlex.split(str(resolved(f" {request.rest}".replace(" @", " $q"), self._known)))

    async def _begin(self, request: Request):
        """Start a module, after settings of its environment."""
        words = self._words(request)
        env: dict[str, str | None] = {}
        while re.match(r"[A-Z_]+=", words[0]):
            name, _, value = words.pop(0).partition("=")
            env[name] = value or None
        words[0] = words[0].replace("worker", "glidemq_py.worker")
        command = self.stack.enter_context(self._start(*words, **env))
        self._commands[request.connection] = command
        self._known[f"pid{request.connection}"] = command.pid

    async def _printed(self, request: Request):
        """Wait for lines; the answer is the groups of each."""
        (pattern,), named = Reader(request.rest).pairs()
        found = await self._commands[request.connection].printed(resolved(pattern, self._known), **dict(named))
        self._compare(request, [[int(text) if text.isdecimal() else text for text in each.groups()] for each in found])

    async def _signal(self, request: Request):
        """Send a signal to the command, its group, or a process."""
        name, *to = self._words(request)
        number, command = signal.Signals[f"SIG{name}"], self._commands[request.connection]
        if to == ["group"]:
            os.killpg(command.pid, number)
        else:
            os.kill(int(to[0]) if to else command.pid, number)

    async def _ends(self, request: Request):
        self._compare(request, await self._commands[request.connection].ends())

    async def _output(self, request: Request):
        self._compare(request, self._commands[request.connection].text)

    async def _touch(self, request: Request):
        (self._folder / request.rest).touch()

    async def _remove(self, request: Request):
        (self._folder / request.rest).unlink()

    async def _gone(self, request: Request):
        """Poll until processes have ended; only the end of a child can be awaited."""
        async with asyncio.timeout(120):
            while any(alive(int(pid)) for pid in self._words(request)):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def _clock(self, request: Request):
        """Return the time of the server plus some ms."""
        now = int(self._known["server"].execute("TIME")[0]) * 1_000
        compare(request.outcome, now + int(self._words(request)[0]), self._known)


@pytest.mark.parametrize(("path", "case", "count"), cases_of(FOLDER / "processes"))
async def test_transcript(
    start: Start, folder: Path, url: str, queue_name: str, caplog: pytest.LogCaptureFixture, resp: RespClient,
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, path: Path, case: Case, count: int,
):  # fmt: skip
    await play_for_operators(
        url, queue_name, path, case, count, caplog, monkeypatch, shell=Shell(url, capfd, monkeypatch), port=0,
        player=ProcessPlayer, start=start, folder=folder, server=resp, host=socket.gethostname(), version=__version__,
    )  # fmt: skip


SINGLE_AND_SUPERVISED = pytest.mark.parametrize("options", [(), ("--processes", "1")], ids=["single", "supervised"])


FAILING = """
    from glidemq_py import Worker

    async def handle(job):
        raise ValueError("bad\\nline")

    worker = Worker("{queue}", handle)
"""


@SINGLE_AND_SUPERVISED
async def test_json_lines_of_failing_jobs(
    start: Start, folder: Path, url: str, queue_name: str, options: tuple[str, ...]
):
    (folder / "failing.py").write_text(textwrap.dedent(FAILING.replace("{queue}", queue_name)))
    async with Queue(queue_name, url) as queue:
        with start("glidemq_py.worker", "failing:worker", "--log-format", "json", *options) as command:
            job = await queue.add("na\nme", attempts=2)
            await command.printed('"job_outcome": "failed"')
            command.signal(signal.SIGTERM)
            assert await command.ends() == 0
    lines = [json.loads(line) for line in command.lines]
    retried, failed = (line for line in lines if line["logger"] == "glidemq_py.failures")
    assert (retried["level"], retried["job_outcome"], retried["job_attempt"]) == ("WARNING", "retrying", 1)
    assert (failed["level"], failed["job_id"], failed["job_name"]) == ("ERROR", job.id, "na\nme")
    assert (failed["queue_name"], failed["job_attempt"], failed["job_attempts"]) == (queue_name, 2, 2)
    assert failed["traceback"].endswith("ValueError: bad\nline")
    assert failed["worker_id"].split("-")[-2] == str(failed["process"])
    assert ("glidemq_py.worker.supervisor" in {line["logger"] for line in lines}) is bool(options)


async def test_max_jobs_replaces_the_process(queue: Queue, start: Start):
    jobs = await queue.add_bulk([("a", None)] * 12)
    with start("glidemq_py.worker", "application:eager", "--max-jobs", "3") as command:
        pids = [await job.wait_until_finished() for job in jobs]
        command.signal(signal.SIGTERM)
        assert await command.ends() == 0
        assert "recycled: 3 jobs have ended" in command.text
        assert "handed back" not in command.text
    # One more was fetched by the call that reported the third.
    assert {pids.count(pid) for pid in pids} <= {3, 4}
    assert (await queue.get_job_counts()).completed == 12


async def test_without_a_url_all_children_share_one_private_server(start: Start, queue_name: str):
    with start("glidemq_py.worker", "application:eager", "--processes", "2", GLIDEMQ_URL=None) as command:
        await command.printed("has started", times=2)
        (found,) = await command.printed(r"private Valkey at (\S+) \(password in (\S+)\), data directory")
        url = found[1].replace("***", await asyncio.to_thread(Path(found[2]).read_text))
        async with Queue(queue_name, url) as queue:
            assert len(await queue.get_workers()) == 2
            await (await queue.add("a")).wait_until_finished()
        command.signal(signal.SIGTERM)
        assert await command.ends() == 0
        with pytest.raises(OSError, match="refused"):
            RespClient.from_url(url).execute("PING")
