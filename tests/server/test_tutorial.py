"""The tutorial, followed as a reader follows it: its files are written, and its commands print what it shows."""

import doctest
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.inside import embedded

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "start" / "tutorial.md"
SECONDS = 120
FENCED = re.compile(r'(?:<!-- (\w+) -->\n)?^```\w*(?: title="([^"]*)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
LIKE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def steps() -> list[tuple[str, str, str]]:
    """Return the mark, the title and the text of each block."""
    return [(mark or "", title or "", text) for mark, title, text in FENCED.findall(PAGE.read_text(encoding="utf-8"))]


def commands(text: str) -> list[tuple[str, str]]:
    """Return the commands of a block, each with the output that the page shows."""
    return [
        (each.partition("\n")[0], each.partition("\n")[2]) for each in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    ]


@contextmanager
def running(command: str, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """Run a worker from its start; stop it as Ctrl-C does, and check that it exits cleanly."""
    before = len(log_of(folder))
    with (folder / "worker.log").open("ab") as log:
        process = subprocess.Popen(shlex.split(command), cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        ends = time.monotonic() + SECONDS
        while "working on" not in log_of(folder)[before:]:
            assert process.poll() is None, log_of(folder)
            assert time.monotonic() < ends, log_of(folder)
            time.sleep(0.05)
        yield
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0, log_of(folder)
    finally:
        process.kill()
        process.wait()


def test_tutorial_can_be_followed(tmp_path: Path):
    folder, programs = tmp_path / "shop", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    is_installed = any(each.name == "glidemq" for each in entry_points(group="pytest11"))
    for name, module in (
        ("glidemq", "glidemq_py.cli"),
        ("pytest", "pytest" if is_installed else "pytest -p glidemq_py.testing.pytest_plugin"),
        ("python", ""),
    ):
        program = programs / name
        module = f"-m {module} " if module else ""
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module}"$@"\n')
        program.chmod(0o755)
    done = 0
    with embedded.start_embedded() as server, ExitStack() as worker:
        environment = {
            **os.environ, "GLIDEMQ_URL": server.url, "PYTHONPATH": str(ROOT), "COLUMNS": "200",
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        for mark, title, text in steps():
            if title and "/" not in title:
                (folder / title).write_text(text, encoding="utf-8")
            elif mark == "worker":
                worker.close()
                worker.enter_context(running(commands(text)[0][0], folder, environment))
            elif mark == "console":
                for command, expected in commands(text):
                    ran = subprocess.run(
                        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True,
                        timeout=SECONDS, check=False,
                    )  # fmt: skip
                    printed = ran.stdout
                    assert ran.returncode == 0, f"{command}\n{printed}\n{ran.stderr}\n{log_of(folder)}"
                    assert doctest.OutputChecker().check_output(expected, printed, LIKE), f"{command}\n{printed}"
                    done += 1
    assert done > 20


def log_of(folder: Path) -> str:
    """Return what the worker has logged."""
    log = folder / "worker.log"
    return log.read_text() if log.exists() else ""
