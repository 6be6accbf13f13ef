"""`glidemq` as processes: in a pipe of bash, and at a terminal."""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import termios
import threading
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

from glidemq_py import Job, Queue, Worker

pytest.importorskip("typer", reason="needs the extra `cli`")

from glidemq_py.cli import arguments, main

ROOT = Path(__file__).resolve().parents[2]
GLIDEMQ = f"{sys.executable} -m glidemq_py.cli"


def environment(url: str | None, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GLIDEMQ", "NO_COLOR", "FORCE"))}
    found = {**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "100", **more}
    return found if url is None else {**found, "GLIDEMQ_URL": url}


def bash(command: str, url: str | None, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    script = f'set -o pipefail; glidemq() {{ {GLIDEMQ} "$@"; }}; {command}'
    run = ["bash", "-c", script]
    return subprocess.run(
        run, env=environment(url, **more), cwd=folder, capture_output=True, text=True, timeout=100
    )  # fmt: skip


def fill(url: str, name: str):
    async def add():
        async with Queue(name, url) as queue:
            await queue.add_bulk([("hello", {"n": n}) for n in range(3)])
            await queue.pause()

    asyncio.run(add())


def _take_terminal():
    """Make the terminal that of this session, so that Ctrl-C is a signal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def at_a_terminal(arguments: list[str], typed: bytes, url: str, folder: Path) -> tuple[int, str]:
    """Run the command with a pseudo-terminal as its input and output; return its exit code and what it shows."""
    leader, follower = pty.openpty()
    try:
        process = subprocess.Popen(
            [*GLIDEMQ.split(), *arguments], env=environment(url), cwd=folder, stdin=follower, stdout=follower,
            stderr=follower, start_new_session=True, preexec_fn=_take_terminal,
        )  # fmt: skip
        os.close(follower)
        shown = b""
        answered = not typed
        while True:
            try:
                piece = os.read(leader, 4_096)
            except OSError:  # the process has closed its side
                break
            if not piece:
                break
            shown += piece
            if not answered and b"[y/N]" in shown:
                os.write(leader, typed)
                answered = True
        return process.wait(100), shown.decode()
    finally:
        os.close(leader)


@pytest.mark.slow
def test_commands_work_in_pipes(url: str, queue_name: str, tmp_path: Path):
    fill(url, queue_name)
    done = bash(f"glidemq job ls {queue_name} --json | {sys.executable} -m json.tool --compact", url, tmp_path)
    assert done.returncode == 0, done.stderr
    assert '"more":false' in done.stdout
    done = bash(f"glidemq job show {queue_name} 99 | cat", url, tmp_path)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == f"glidemq: queue '{queue_name}' has no job '99'\n"


@pytest.mark.slow
def test_interrupt_ends_a_question(url: str, queue_name: str, tmp_path: Path):
    fill(url, queue_name)
    code, shown = at_a_terminal(["queue", "drain", queue_name], b"\x03", url, tmp_path)
    assert code == 130
    assert "Traceback" not in shown
    assert "deleted" not in shown


@pytest.mark.slow
def test_progress_names_what_is_done(url: str, queue_name: str, tmp_path: Path):
    fill(url, queue_name)
    _, shown = at_a_terminal(
        ["queue", "clean", queue_name, "--state", "waiting", "--older-than", "0s"], b"y\n", url, tmp_path
    )
    assert "delete waiting jobs from queue" in shown
    _, shown = at_a_terminal(["queue", "obliterate", queue_name], b"y\n", url, tmp_path)
    assert "with jobs" not in shown


@pytest.mark.slow
def test_a_terminal_gets_colors_and_is_asked(url: str, queue_name: str, tmp_path: Path):
    fill(url, queue_name)
    code, shown = at_a_terminal(["queue", "ls", queue_name], b"", url, tmp_path)
    assert code == 0
    assert "\x1b[33mpaused\x1b[0m" in shown
    code, shown = at_a_terminal(["queue", "drain", queue_name], b"y\n", url, tmp_path)
    assert code == 0
    assert f"Delete 3 jobs that have not started from queue '{queue_name}'? [y/N]" in shown
    assert f"deleted 3 jobs that have not started from queue '{queue_name}'" in shown


@pytest.mark.slow
def test_a_terminal_shows_the_progress_of_a_change_of_many_jobs(url: str, queue_name: str, tmp_path: Path):
    async def add():
        async with Queue(queue_name, url) as queue:
            await queue.add_bulk([("hello", n, {"delay": 3_600_000}) for n in range(2_500)])

    asyncio.run(add())
    code, shown = at_a_terminal(["job", "cancel", queue_name, "--name", "hello", "--yes"], b"", url, tmp_path)
    assert code == 0
    assert "cancel jobs of queue 'test_a_terminal" in shown
    assert "2500/2500" in shown
    assert f"cancelled 2,500 jobs of queue '{queue_name}'" in shown
    done = bash(f"glidemq failures purge {queue_name} --yes", url, tmp_path)
    assert (done.stdout, done.stderr) == (f"deleted 2,500 failed jobs from queue '{queue_name}'\n", "")


@pytest.mark.slow
def test_ctrl_c_stops_a_change_of_many_jobs(url: str, queue_name: str, tmp_path: Path):
    async def add():
        async with Queue(queue_name, url) as queue:
            await queue.add_bulk([("hello", n) for n in range(8_000)])

    asyncio.run(add())
    process = subprocess.Popen(
        [*GLIDEMQ.split(), "job", "rm", queue_name, "--name", "hello", "--yes"], env=environment(url), cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:

        async def stop() -> int:
            async with Queue(queue_name, url) as queue:
                while (await queue.get_job_counts()).waiting == 8_000:
                    assert process.poll() is None
                process.send_signal(signal.SIGINT)
                output, errors = await asyncio.to_thread(process.communicate, timeout=100)
                assert (process.returncode, output) == (130, "")
                said = rf"stopped: deleted [\d,]+ jobs from queue '{queue_name}'; the same command continues"
                assert re.search(said, errors)
                return (await queue.get_job_counts()).waiting

        assert 0 < asyncio.run(stop()) < 8_000
        done = bash(f"glidemq job rm {queue_name} --name hello --yes && glidemq job ls {queue_name}", url, tmp_path)
        assert done.stderr == f"queue '{queue_name}' is empty\n"
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_events_are_followed_until_ctrl_c(url: str, queue_name: str, tmp_path: Path):
    process = subprocess.Popen(
        [*GLIDEMQ.split(), "events", "tail", queue_name, "--after", "0", "--json"], env=environment(url), cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        fill(url, queue_name)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "added"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=100)
        assert (process.returncode, errors) == (130, "")
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_for_every_shell(shell: str, tmp_path: Path):
    done = bash("glidemq", None, tmp_path, _GLIDEMQ_COMPLETE=f"source_{shell}")
    assert done.returncode == 0, done.stderr
    assert "_GLIDEMQ_COMPLETE=complete_" in done.stdout


@pytest.mark.slow
def test_commands_are_completed(tmp_path: Path):
    words = {"_GLIDEMQ_COMPLETE": "complete_bash", "COMP_WORDS": "glidemq queue ob", "COMP_CWORD": "2"}
    assert bash("glidemq", None, tmp_path, **words).stdout.split() == ["obliterate"]


def completed(words: str, url: str | None, folder: Path) -> list[str]:
    """Return what bash offers for the last of the words, '' after a space; nothing may be printed beside it."""
    shown, said = io.StringIO(), io.StringIO()
    with (
        chdir(folder), redirect_stdout(shown), redirect_stderr(said),
        mock.patch.dict(os.environ, environment(
            url, _GLIDEMQ_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(words.count(" "))
        ), clear=True),
        mock.patch.object(arguments, "_ANSWER_S", 90),  # the machine may be busy
    ):  # fmt: skip
        main([])
    assert said.getvalue() == ""
    return shown.getvalue().split()


@pytest.mark.slow
def test_names_of_queues_are_completed(url: str, queue_name: str, tmp_path: Path):
    first, second = f"{queue_name}-one", f"{queue_name}-two"
    fill(url, first)
    fill(url, second)
    assert completed(f"glidemq queue show {queue_name}", url, tmp_path) == [first, second]
    assert completed(f"glidemq queue ls {first} {second[:-2]}", url, tmp_path) == [second]
    assert completed(f"glidemq --url {url} job ls {first[:-1]}", None, tmp_path) == [first]
    assert completed(f"glidemq job ls --url {url} {first[:-1]}", None, tmp_path) == [first]
    assert completed(f"glidemq --prefix other queue show {queue_name}", url, tmp_path) == []


@pytest.mark.slow
def test_schedules_and_workers_are_completed(url: str, queue_name: str, tmp_path: Path):
    async def run() -> tuple[str, list[str], list[str]]:
        async def handle(_: Job): ...

        async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url):
            await queue.schedulers.upsert("nightly", pattern="0 3 * * *")
            (worker,) = await queue.get_workers()
            offered = await asyncio.to_thread(completed, f"glidemq worker quiet {queue_name} ", url, tmp_path)
            scheduled = await asyncio.to_thread(completed, f"glidemq cron show {queue_name} n", url, tmp_path)
            return worker.id, offered, scheduled

    worker, offered, scheduled = asyncio.run(run())
    assert (offered, scheduled) == ([worker], ["nightly"])


@pytest.mark.parametrize(
    ("words", "offered"),
    [("job ls emails --state wa", ["waiting", "waiting-children"]),
     ("queue clean emails --state a", []),
     ("failures ls emails --reason t", ["timeout", "ttl_expired"]),
     ("events tail emails --event re", ["retrying", "retried", "removed", "revoked", "resumed"]),
     ("worker ", ["inspect", "ls", "ping", "quiet", "resize", "resume"]),
     ("worker re", ["resize", "resume"]),
     ("doctor --role o", ["observer", "operator"])],
)  # fmt: skip
def test_words_of_options_are_completed(words: str, offered: list[str], tmp_path: Path):
    assert sorted(completed(f"glidemq {words}", None, tmp_path)) == sorted(offered)


@pytest.mark.slow
def test_unreachable_server_completes_nothing(tmp_path: Path):
    assert completed("glidemq queue show e", "valkey://127.0.0.1:1", tmp_path) == []
    assert completed("glidemq queue show e", "no-url", tmp_path) == []


def test_silent_server_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(arguments, "_ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        context = cast(
            "Any", SimpleNamespace(params={"url": f"valkey://127.0.0.1:{silent.getsockname()[1]}"}, parent=None)
        )
        assert arguments.complete_queue(context, "e") == []
        assert arguments._THREAD in {thread.name for thread in threading.enumerate()}  # GLIDE tries for longer


def test_imports_do_not_count_as_time_of_the_server(url: str, tmp_path: Path):
    code = """if True:
        import sys, threading
        from types import SimpleNamespace
        from glidemq_py.cli import arguments

        class Thread(threading.Thread):
            def start(self):
                known.update(sys.modules)
                super().start()

        known = set()
        arguments.threading = SimpleNamespace(Thread=Thread)
        arguments._ANSWER_S = 90
        arguments.complete_queue(SimpleNamespace(params={"url": sys.argv[1]}, parent=None), "")
        large = ("glide.", "glide_shared.", "glidemq_py._operate.")
        print(*sorted(name for name in set(sys.modules) - known if name.startswith(large)))
    """
    run = [sys.executable, "-c", code, url]
    done = subprocess.run(run, env=environment(None), cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (done.stdout.split(), done.stderr) == ([], "")


def test_completion_without_a_server_offers_the_queues_of_the_settings(tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text('[tool.glidemq]\nqueues = ["emails", "images"]\n')
    assert completed("glidemq queue show e", None, tmp_path) == ["emails"]


def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path):
    code = "import sys; sys.modules['typer'] = None; from glidemq_py.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code]
    done = subprocess.run([*command, "queue", "ls"], env=environment(None), capture_output=True, text=True, timeout=100)
    text = (
        "glidemq: requires typer and rich; install them with: pip install 'glidemq-py[cli]' "
        "(without them: glidemq worker, proxy, gateway, dashboard, dev, mcp, demo, library, spark)\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", text)
    done = subprocess.run(
        [*command, "worker", "--help"], env=environment(None), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0
    assert done.stdout.startswith("usage: glidemq worker ")
