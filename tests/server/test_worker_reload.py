"""`glidemq worker --reload`: an edited program runs without a restart by hand."""

import os
import re
import signal
from pathlib import Path

import pytest

from glidemq_py import Queue
from glidemq_py._worker.command.supervisor import FileWatch
from tests.server.command import Command

APPLICATION = """
import asyncio
from pathlib import Path
import parts

async def handler(job):
    if job.name == "long":
        print("long runs", flush=True)
        await asyncio.sleep(1_000)
    return parts.ANSWER
"""


def write(path: Path, text: str):
    """Replace a file in one step, as editors do."""
    written = path.with_suffix(".new")
    written.write_text(text, encoding="utf-8")
    written.replace(path)


def test_files_that_matter_are_watched(tmp_path: Path):
    for folder in ("app", ".git", "__pycache__", "venv/lib", "site-packages"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    watched = [tmp_path / "main.py", tmp_path / "app" / "a.py"]
    others = [tmp_path / name for name in (".git/b.py", "__pycache__/c.py", "venv/lib/d.py", "site-packages/e.py",
                                           "app/notes.txt")]  # fmt: skip
    for path in (*watched, *others):
        path.write_text("1")
    watch = FileWatch([str(tmp_path)])
    assert watch.changed() == []
    for path in (*watched, *others):
        path.write_text("22")
    assert watch.changed() == sorted(map(str, watched))
    assert watch.changed() == []
    (tmp_path / "app" / "f.py").touch()
    watched[0].unlink()
    assert watch.changed() == sorted([str(tmp_path / "app" / "f.py"), str(watched[0])])


@pytest.mark.slow
async def test_an_edit_restarts_the_workers(url: str, queue: Queue, queue_name: str, tmp_path: Path):
    write(tmp_path / "application.py", APPLICATION)
    write(tmp_path / "parts.py", "ANSWER = 1")
    arguments = ("application:handler", "--queue", queue_name, "--url", url, "--reload", "--concurrency", "2")
    with Command(tmp_path, "glidemq_py.worker", *arguments, "--shutdown-timeout", "100ms") as command:
        await command.printed("child .* has started")
        assert await queue.add_and_wait("task", timeout=100_000) == 1
        # A job that runs is released, and runs again.
        job = await queue.add("long")
        await command.printed("long runs")
        write(tmp_path / "parts.py", "ANSWER = 2")
        await command.printed(r"parts\.py changed: reloading")
        await command.printed("long runs", times=2)
        assert await queue.add_and_wait("task", timeout=100_000) == 2
        await job.reload()
        assert job.attempts_made == 0
        # A mistake waits for its repair.
        write(tmp_path / "parts.py", "ANSWER = (")
        await command.printed("waiting for a change")
        await command.printed("SyntaxError")
        write(tmp_path / "parts.py", "ANSWER = 3")
        assert await queue.add_and_wait("task", timeout=100_000) == 3
        # A child that is killed needs no repair.
        children = [int(each) for each in re.findall(r"child (\d+) has started", command.text)]
        os.kill(children[-1], signal.SIGKILL)
        await command.printed("was killed by SIGKILL; restarting in")
        assert await queue.add_and_wait("task", timeout=100_000) == 3
        command.signal(signal.SIGTERM)
        assert await command.ends() == 0
    assert not (tmp_path / "__pycache__").exists()


@pytest.mark.slow
async def test_a_program_that_cannot_start_waits_for_its_repair(url: str, queue_name: str, tmp_path: Path):
    write(tmp_path / "application.py", "raise RuntimeError('not yet')")
    (tmp_path / "elsewhere").mkdir()
    arguments = ("application:handler", "--queue", queue_name, "--url", url, "--reload", "--processes", "2")
    folders = ("--reload-dir", "elsewhere", "--reload-dir", ".")
    with Command(tmp_path, "glidemq_py.worker", *arguments, *folders) as command:
        await command.printed("waiting for a change", times=2)
        write(tmp_path / "parts.py", "ANSWER = 1")
        write(tmp_path / "application.py", APPLICATION)
        await command.printed("child .* has started", times=2)
        command.signal(signal.SIGINT)
        assert await command.ends() == 0
    assert "giving up" not in command.text


@pytest.mark.slow
async def test_invalid_folders_are_rejected(tmp_path: Path):
    for given, message in (
        (("--reload", "--reload-dir", "nowhere"), "'nowhere': must be a directory"),
        (("--reload-dir", os.curdir), "--reload-dir requires --reload"),
    ):
        with Command(tmp_path, "glidemq_py.worker", "a:b", *given) as command:
            assert await command.ends() == 2
            assert message in command.text
