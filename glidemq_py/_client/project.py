"""The server of a project: one Valkey that all processes of a folder share, with its data in `.glidemq/`.

A process without a connection uses it if its working directory or a parent contains `.glidemq/` of the same user, which
`glidemq dev` creates; otherwise it starts a private server. The first process starts the server, the last one ends it:

- Each process holds a shared lock on the file `users` until it ends.
- A *guard*, which is no process's child, runs the server. Two seconds after it could take `users` exclusively, it looks
  once more, and stops the server if it can take it again.
- Guard and server inherit the exclusive lock on the file `start`, so `start` is free only if both have ended, however
  that happened. A thread of each process waits for it, and starts the next guard.

A guard that is killed takes the server along (see `ChildServer`), and a server that ends its guard. The next server
has the data, and listens on the same port with the same password, so clients reconnect. No process waits for `users`
while it holds `start`, except for the guard, which the users do not wait for. The file `url` contains the password.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from secrets import token_hex
from typing import IO, Final, Literal
from urllib.parse import SplitResult, urlsplit

from glidemq_py._client.embedded import (
    EmbeddedServer,
    answering_process,
    is_free,
    open_private,
    start_embedded,
)  # fmt: skip
from glidemq_py._core.forks import call_in_child, new_lock
from glidemq_py._core.logs import get_logger
from glidemq_py.errors import EmbeddedServerError

if sys.platform != "win32":
    import fcntl

FOLDER: Final = ".glidemq"
OFF_VARIABLE: Final = "GLIDEMQ_NO_PROJECT"
"""Environment variable that disables the search for a project, as in tests."""

_log = get_logger(__name__)

_UNUSED_S: Final = 2.0
"""Time without a user until the server is stopped."""
_STOP_S: Final = 10.0
"""Time to stop until the server is killed."""
_START_MS: Final = 60_000
"""Maximum time for reading the data at the start."""
_POLL_S: Final = 0.01
_FIRST_PAUSE_S, _LAST_PAUSE_S = 1.0, 60.0
"""Pause after a start that has failed; it doubles each time."""
_STARTED: Final = "started"
"""Last output of a guard whose server replies; Python may have printed warnings before."""

_GUARD: Final = """
import sys
sys.path.append(sys.argv[1])
from glidemq_py._client.project import run_guard
run_guard(sys.argv[2], int(sys.argv[3]))
"""


def find_project() -> Path | None:
    """Return `.glidemq/` of this user in the working directory or its nearest parent that has one, or None.

    One that others may write to is not used: they could choose the server.
    """
    if os.environ.get(OFF_VARIABLE) or sys.platform == "win32":
        return None
    with contextlib.suppress(OSError):  # the working directory was deleted
        here = Path.cwd()
        for place in (here, *here.parents):
            with contextlib.suppress(OSError):
                found = (place / FOLDER).lstat()
                if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                    if not found.st_mode & 0o022:
                        return place / FOLDER
                    _log.warning("%s is not used: others may write to it (chmod 700)", place / FOLDER)
    return None


def make_project() -> Path:
    """Return the same directory, which is created in the working directory if there is none.

    Raises:
        OSError: It cannot be created.
        EmbeddedServerError: Something else has its name.
    """
    folder = find_project()
    if folder is None:
        folder = Path.cwd() / FOLDER
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            problem = "must be a directory of this user to which nobody else may write; remove it, or chmod 700"
            raise EmbeddedServerError(f"{folder}: {problem}") from None
        (folder / ".gitignore").write_text("*\n")
    return folder


def project_url() -> str | None:
    """Return the URL of the project's server, or None if there is no project, or no lock can be taken in its folder.

    The first call decides for the process. The server is started if it does not run, and runs until this process ends.

    Raises:
        EmbeddedServerError: if it does not start.
    """
    global _project
    with _project_lock:
        if _project is None:
            folder = find_project()
            try:
                _project = False if folder is None else _Project(folder)
            except OSError as error:
                _log.warning("the server of the project %s cannot be used: %s", folder, error)
                _project = False
        return _project.url() if _project else None


class _Project:
    """The use of a project's server by this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._users = open_private(folder / "users")
        fcntl.flock(self._users, fcntl.LOCK_SH)
        self._next: IO[bytes] | None = None
        call_in_child(self)

    def url(self) -> str:
        """Return the URL of the server. Start the server if it does not run."""
        deadline = time.monotonic() + _START_MS / 1000
        while True:
            with open_private(self._folder / "start") as start, contextlib.suppress(BlockingIOError):
                fcntl.flock(start, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._run(start)
            url = _url_of(self._folder)
            if url is not None and answering_process(url.port or 0, url.password or "") is not None:
                break
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"the server of the project {self._folder} does not reply; see its server.log, or set GLIDEMQ_URL"
                )
            time.sleep(_POLL_S)
        if self._next is None:
            _log.info("using the server of the project %s", self._folder)
            self._next = open_private(self._folder / "start")
            threading.Thread(target=self._restart, name="glidemq-project", daemon=True).start()
        return url.geturl()

    def _restart(self) -> None:
        """Start the server whenever it has ended."""
        pause = _FIRST_PAUSE_S
        with contextlib.suppress(FileNotFoundError):  # the folder was deleted
            while self._next is not None:
                fcntl.flock(self._next, fcntl.LOCK_EX)
                _log.warning("the server of the project %s has ended; starting it again", self._folder)
                try:
                    self._run(self._next)
                    pause = _FIRST_PAUSE_S
                except EmbeddedServerError as error:
                    _log.error("cannot start the server; trying again in %.0f s: %s", pause, error)
                    self._next.close()
                    time.sleep(pause)
                    pause = min(2 * pause, _LAST_PAUSE_S)
                self._next.close()
                self._next = open_private(self._folder / "start")

    def _run(self, start: IO[bytes]) -> None:
        """Start the guard and wait until the server replies. The guard inherits the lock."""
        package = str(Path(__file__).parents[2])
        command = [sys.executable, "-c", _GUARD, package, str(self._folder), str(start.fileno())]
        try:
            ended = subprocess.run(
                command, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                start_new_session=True, pass_fds=(start.fileno(),), check=False, text=True,
            )  # fmt: skip
        except OSError as error:
            raise EmbeddedServerError(f"cannot run {sys.executable}: {error}") from error
        if not ended.stdout.endswith(_STARTED):
            raise EmbeddedServerError(ended.stdout.strip() or "the process that runs it was killed")

    def _forked(self) -> None:
        """Close the file that the parent waits for: the lock would remain with this process."""
        if self._next is not None:
            self._next.close()
            self._next = None


_project: _Project | Literal[False] | None = None
"""None = not searched for yet, False = there is none."""
_project_lock = new_lock()


def _url_of(folder: Path) -> SplitResult | None:
    """Return the parsed URL of the last server, or None."""
    with contextlib.suppress(OSError, ValueError):  # it was damaged
        found = urlsplit((folder / "url").read_text())
        if found.port:
            return found
    return None


def run_guard(name: str, start: int) -> None:
    """Run the server of a project in a process of its own until it ends, or no process uses it.

    Args:
        name: path of the folder.
        start: descriptor of the file `start`, whose lock is held.
    """
    if os.fork():
        os._exit(0)
    folder = Path(name)
    try:
        users = (folder / "users").open("r+b")  # not created: the folder may have been deleted
        last = _url_of(folder)
        kept = last if last is not None and is_free(last.port or 0) else None
        server = start_embedded(
            folder,
            port=kept.port if kept else None,
            # With "everysec", the server delays writes during a slow sync, which a kill would lose; with "no", durable
            # queues would wait for a sync.
            config={"requirepass": kept.password or "" if kept else token_hex(16), "appendfsync": "always"},
            start_timeout=_START_MS,
            held=(start,),
        )
        with open_private(folder / "url.new") as file:
            file.truncate(0)
            file.write(server.url.encode())
        (folder / "url.new").replace(folder / "url")
    except (OSError, EmbeddedServerError) as error:
        sys.stdout.write(str(error))
        return
    sys.stdout.write(_STARTED)
    sys.stdout.flush()
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)  # the process that waits for the start goes on
    os.dup2(nothing, 2)
    threading.Thread(target=_stop_unused, args=(server, users), daemon=True).start()
    server.wait()
    server.stop()


def _stop_unused(server: EmbeddedServer, users: IO[bytes]) -> None:
    """Stop the server when no process uses it."""
    while True:
        fcntl.flock(users, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_UN)
        time.sleep(_UNUSED_S)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            server.signal(signal.SIGTERM)
            time.sleep(_STOP_S)
            server.signal(signal.SIGKILL)
            return
