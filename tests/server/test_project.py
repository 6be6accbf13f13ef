"""The server of a project: the processes of a folder share it, and it ends with the last of them."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from glidemq_py.testing import RespClient
from tests.server.command import ROOT, alive

pytestmark = pytest.mark.slow

_PROGRAM = """
import os, sys
from glidemq_py.errors import GlideMQConnectionError
from glidemq_py.sync import Queue

def add(queue, name):
    while True:
        try:
            return queue.add(name, {}, job_id=name)
        except GlideMQConnectionError:  # the server is being restarted
            pass

with Queue("mail") as queue:
    for line in sys.stdin:
        name = line.strip()
        if name == "fork":
            child = os.fork()
            if child == 0:
                os.read(0, 1)
                os._exit(0)
            print(child, flush=True)
            os._exit(0)
        add(queue, name)
        print(*sorted(job.name for job in queue.get_jobs("waiting")), flush=True)
"""


class Program:
    """A program that adds jobs to the queue `mail` without a connection."""

    def __init__(self, folder: Path, **environment: str):
        kept = {name: value for name, value in os.environ.items() if name not in ("GLIDEMQ_URL", "GLIDEMQ_NO_PROJECT")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            cwd=folder,
            env={**kept, "PYTHONPATH": str(ROOT), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def begin(self, name: str):
        """Send a command: the name of a job to add."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{name}\n")
        self.process.stdin.flush()

    def reply(self) -> str:
        """Return the reply to a command: the waiting jobs."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def add(self, name: str) -> str:
        """Add a job and return the waiting jobs."""
        self.begin(name)
        return self.reply()

    def logged(self, text: str):
        """Wait until a line of the log contains a text."""
        assert self.process.stderr is not None
        assert any(text in line for line in self.process.stderr)

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def end(self) -> str:
        """End the program and return what it wrote to stderr."""
        return self.process.communicate()[1]


class Project:
    """A folder with `.glidemq/` and its programs."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.state = folder / ".glidemq"
        self.state.mkdir(mode=0o700, parents=True)
        self._programs: list[Program] = []

    def program(self, folder: str = ".", **environment: str) -> Program:
        (self.folder / folder).mkdir(exist_ok=True)
        program = Program(self.folder / folder, **environment)
        self._programs.append(program)
        return program

    @property
    def server(self) -> int:
        """Process id of the server, by its own account."""
        with RespClient.from_url((self.state / "url").read_text()) as client:
            return int(client.info("server")["process_id"])

    def end(self):
        """End all programs and wait until nothing runs."""
        for program in self._programs:
            program.kill()
        self.wait_until_stopped()

    def wait_until_stopped(self):
        with (self.state / "start").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # guard and server hold it


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path / "one")
    yield project
    project.end()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_programs_share_the_server_of_a_folder_and_its_data_are_kept(project: Project):
    first, second = project.program(), project.program("sub")
    assert first.add("a") == "a"
    assert second.add("b") == "a b"
    assert first.add("c") == "a b c"
    server = project.server
    assert first.end() == second.end() == ""
    project.wait_until_stopped()
    assert not alive(server)
    url = (project.state / "url").read_text()
    assert project.program().add("d") == "a b c d"
    assert (project.state / "url").read_text() == url


def test_programs_that_start_together_start_one_server(project: Project):
    programs = [project.program() for _ in range(5)]
    for name, program in zip("abcde", programs, strict=True):
        program.begin(name)
    for program in programs:
        program.reply()
    assert programs[0].add("last") == "a b c d e last"


def test_server_survives_the_program_that_started_it(project: Project):
    first, second = project.program(), project.program()
    first.add("a")
    second.add("b")
    server = project.server
    first.kill()
    assert second.add("c") == "a b c"
    assert project.server == server
    second.kill()
    project.wait_until_stopped()
    assert not alive(server)


@pytest.mark.parametrize("killed", ["guard", "server", "both"])
def test_running_programs_start_a_killed_server_again(project: Project, killed: str):
    programs = [project.program() for _ in range(2)]
    for name, program in zip("ab", programs, strict=True):
        program.add(name)
    server = project.server
    guard = parent_of(server)
    assert parent_of(guard) not in [program.process.pid for program in programs]
    for number in {"guard": [guard], "server": [server], "both": [guard, server]}[killed]:
        os.kill(number, signal.SIGKILL)
    deadline = time.monotonic() + 100
    while alive(server):  # the end of another process has no signal
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert programs[0].add("c") == "a b c"
    assert programs[1].add("d") == "a b c d"
    assert project.server != server
    assert project.program().add("e") == "a b c d e"


def test_a_start_that_fails_is_repeated(project: Project):
    program = project.program()
    program.add("a")
    log = project.state / "server.log"
    log.unlink()
    log.mkdir()
    os.kill(project.server, signal.SIGKILL)
    program.logged("cannot start the server; trying again in 1 s: ")
    log.rmdir()
    assert program.add("b") == "a b"


def test_nothing_starts_again_in_a_folder_that_was_deleted(project: Project):
    program = project.program()
    program.add("a")
    server = project.server
    moved = project.state.rename(project.folder / "moved")
    os.kill(server, signal.SIGKILL)
    program.logged("cannot start the server")
    assert not project.state.exists()
    program.kill()
    moved.rename(project.state)


def test_data_survive_if_everything_is_killed(project: Project):
    program = project.program()
    program.add("a")
    server = project.server
    for number in (parent_of(server), server):
        os.kill(number, signal.SIGKILL)
    program.kill()
    assert project.program().add("b") == "a b"


def test_a_forked_child_uses_the_server_of_its_parent(project: Project):
    program = project.program()
    program.add("a")
    child = int(program.add("fork"))
    other = project.program()
    assert other.add("b") == "a b"
    os.kill(project.server, signal.SIGKILL)
    assert other.add("c") == "a b c"
    server = project.server
    other.kill()
    os.kill(child, signal.SIGKILL)
    project.wait_until_stopped()
    assert not alive(server)


def test_two_projects_have_two_servers(project: Project, tmp_path: Path):
    other = Project(tmp_path / "two")
    try:
        assert project.program().add("a") == "a"
        assert other.program().add("b") == "b"
        assert project.server != other.server
    finally:
        other.end()


def test_the_reason_why_the_server_cannot_start_is_told(project: Project):
    (project.state / "server.log").mkdir()
    program = project.program()
    assert program.add("a") == ""
    assert "server.log" in program.end()


@pytest.mark.parametrize("reason", ["missing", "of another user", "writable by others", "without locks", "disabled"])
def test_server_is_private_without_a_project(project: Project, tmp_path: Path, reason: str):
    environment: dict[str, str] = {}
    if reason == "missing":
        project.state.rmdir()
    elif reason == "of another user":
        if os.geteuid() != 0:
            pytest.skip("requires root")
        os.chown(project.state, 12_345, -1)
    elif reason == "writable by others":
        project.state.chmod(0o770)
    elif reason == "without locks":
        (project.state / "users").mkdir()
    else:
        environment["GLIDEMQ_NO_PROJECT"] = os.environ["GLIDEMQ_NO_PROJECT"]  # by the pytest plugin
    programs = [project.program(**environment) for _ in range(2)]
    assert [program.add(name) for name, program in zip("ab", programs, strict=True)] == ["a", "b"]
    shown = programs[0].end()
    assert "no other process can reach it" in shown
    assert "'glidemq dev'" in shown
    assert (f"the server of the project {project.state} cannot be used" in shown) == (reason == "without locks")
    if reason == "missing":
        project.state.mkdir()
