"""A Valkey or Redis server as a child process that cannot outlive us.

Two things of a server process are hard, and this file is where they are done. Its port is free and is ours:
the server that answers there must name our child's process id, and a port that somebody took in between is
given up for another. And it leaves nothing behind: a *guard*, a shell that reads from a pipe, kills the
server and removes its temporary directory when the pipe closes, which it does however this process ends,
SIGKILL included. (The death signal of Linux is no way to do that: it is sent when the *thread* that started
the child ends.)

What the server is for may not enter here: see embedded.py and testing/servers.py.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from glidemq_py.errors import EmbeddedServerError

__all__ = ["HOST", "ChildServer", "ConfigValue", "free_port", "is_ephemeral"]

HOST: Final = "127.0.0.1"

ConfigValue = str | int | Sequence[str]
"""A value of the server's configuration; a sequence stands for a setting of several words."""

# $1 is the directory to remove, empty for none. The first line names the server's process, the second says
# how it ended; where there is no second line, we are dead. A service manager that ends a whole group of
# processes must not end the guard before us, hence the trap.
_GUARD: Final = """
trap '' HUP INT TERM
read -r pid || exit 0
read -r end || { kill -KILL "$pid" 2>/dev/null; end=remove; }
if [ "$end" = remove ] && [ -n "$1" ]; then rm -rf -- "$1"; fi
"""

# Below the ports that Linux lends to outgoing connections: there a client that keeps trying to reach a
# stopped server may be lent the server's own port, connect to itself, and keep the server from coming back.
_PORTS: Final = (20_000, 32_768)
_POLL_SECONDS: Final = (0.002, 0.01)


class ChildServer:
    """A running server on 127.0.0.1, a child of this process.

    Made by :meth:`start`. Usable as a context manager that stops it. `host`, `port` and `url` say where it
    is, `data_dir` where it writes, `log_path` what it says, `pid` which process it is.
    """

    __slots__ = ("_guard", "_log_start", "_owner", "_process", "binary", "data_dir", "log_path", "port")

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        guard: "subprocess.Popen[bytes]",
        *,
        binary: Path,
        port: int,
        data_dir: Path,
        log_path: Path,
        log_start: int,
    ) -> None:
        self._process = process
        self._guard = guard
        self._owner = os.getpid()
        self.binary = binary
        self.port = port
        self.data_dir = data_dir
        self.log_path = log_path
        self._log_start = log_start

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
    ) -> Self:
        """Start `binary` and wait until it answers.

        `data_dir` must exist; where `temporary` is set it is removed with the server. `port`: a free one by
        default. `config`: settings by their names in the server's configuration file. `start_timeout`:
        milliseconds, for the loading of existing data too.

        Raises EmbeddedServerError where the server does not come up, with the end of its log.
        """
        deadline = time.monotonic() + start_timeout / 1000
        settings = dict(config or {})
        while True:
            server = cls._launch(binary, data_dir, port or free_port(), settings, temporary=temporary)
            try:
                problem = server._wait_ready(deadline, str(settings.get("requirepass", "")))
            except BaseException:  # an interrupt must not leave a server behind
                server.stop()
                raise
            if problem is None:
                return server
            said = server.log()
            taken = "already in use" in said and time.monotonic() < deadline
            server.stop(keep_data=taken)
            if not taken:
                raise EmbeddedServerError(f"{binary} {problem}; its last words:\n{said[-2000:] or '(none)'}")
            time.sleep(_POLL_SECONDS[0])

    @classmethod
    def _launch(
        cls, binary: Path, data_dir: Path, port: int, settings: Mapping[str, ConfigValue], *, temporary: bool
    ) -> Self:
        """Start the process and its guard; whether the server comes up is another question."""
        log_path = data_dir / "server.log"
        arguments = [str(binary), *_arguments(port, data_dir, settings)]
        with log_path.open("ab") as log:
            log_start = log.tell()
            try:
                process = _spawn(arguments, data_dir, log)
            except EmbeddedServerError:
                if temporary:
                    shutil.rmtree(data_dir, ignore_errors=True)
                raise
        guard = _spawn_guard(process, data_dir if temporary else None)
        if "appendonly" not in settings:
            _ephemeral.add((str(process.pid), str(port)))
        return cls(
            process,
            guard,
            binary=binary,
            port=port,
            data_dir=data_dir,
            log_path=log_path,
            log_start=log_start,
        )

    @property
    def host(self) -> str:
        """The address it is bound to, always 127.0.0.1."""
        return HOST

    @property
    def url(self) -> str:
        """`valkey://127.0.0.1:<port>`."""
        return f"valkey://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    def is_running(self) -> bool:
        """Whether the process lives. (A forked child must ask the system: it cannot wait for it.)"""
        if os.getpid() == self._owner:
            return self._process.poll() is None
        try:
            os.kill(self._process.pid, 0)
        except OSError:
            return False
        return True

    def log(self) -> str:
        """What the server has logged since it was started."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace").strip()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, SIGSTOP for instance, to the server."""
        self._process.send_signal(number)

    def stop(self, *, flush: bool = False, keep_data: bool = False) -> None:
        """Stop the server; without effect when it is stopped, or in a forked child of its owner.

        `flush`: let it write what its configuration asks for, up to 10 seconds; by default it is killed.
        `keep_data`: leave a temporary directory where it is, for another start.
        """
        if os.getpid() != self._owner:
            return
        if flush and self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        self._process.kill()
        self._process.wait()
        self._dismiss_guard("keep" if keep_data else "remove")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"pid={self.pid}" if self.is_running() else "stopped"
        return f"<{type(self).__name__} {self.url} {state} data_dir={str(self.data_dir)!r}>"

    def _dismiss_guard(self, end: str) -> None:
        """Tell the guard how it ended, and wait: after this the directory is gone."""
        pipe = self._guard.stdin
        if pipe is None or pipe.closed:
            return
        with contextlib.suppress(BrokenPipeError):  # somebody killed the guard
            pipe.write(f"{end}\n".encode())
        pipe.close()
        self._guard.wait()

    def _wait_ready(self, deadline: float, password: str) -> str | None:
        """Wait until our child answers on its port: None, or what went wrong."""
        pause, longest = _POLL_SECONDS
        while (code := self._process.poll()) is None:
            if _answering_process(self.port, password) == self.pid:
                return None
            if time.monotonic() > deadline:
                return "did not answer in time"
            time.sleep(pause)
            pause = min(pause * 1.5, longest)
        return f"ended with exit code {code}"


_ephemeral: set[tuple[str, str]] = set()
"""Process id and port of servers of this process that are meant to keep nothing."""


def is_ephemeral(pid: str, port: str) -> bool:
    """Return whether that server is a child of this process that was started without any persistence."""
    return (pid, port) in _ephemeral


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on at this moment."""
    for _ in range(100):
        port = random.randrange(*_PORTS)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise EmbeddedServerError(f"no free port of {HOST} between {_PORTS[0]} and {_PORTS[1]}")


def _arguments(port: int, data_dir: Path, settings: Mapping[str, ConfigValue]) -> list[str]:
    """The server's command line: loopback only and no persistence, unless `settings` say otherwise."""
    merged: dict[str, ConfigValue] = {
        "bind": HOST,
        "save": "",
        "appendonly": "no",
        "daemonize": "no",
        **settings,
        "port": port,
        "dir": str(data_dir),
    }
    arguments: list[str] = []
    for name, value in merged.items():
        words = [str(value)] if isinstance(value, str | int) else list(value)
        arguments += [f"--{name}", *words]
    return arguments


def _spawn(arguments: list[str], cwd: Path, log: IO[bytes]) -> "subprocess.Popen[bytes]":
    try:
        # A session of its own: Ctrl-C in the terminal is for us, and we may still have results to write.
        return subprocess.Popen(
            arguments,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise EmbeddedServerError(f"cannot run {arguments[0]}: {error}") from error


def _spawn_guard(server: "subprocess.Popen[bytes]", remove: Path | None) -> "subprocess.Popen[bytes]":
    try:
        guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "glidemq-guard", str(remove) if remove else ""],
            cwd="/",
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        server.kill()
        server.wait()
        raise EmbeddedServerError(f"cannot run /bin/sh, which guards the server: {error}") from error
    if guard.stdin is not None:
        guard.stdin.write(f"{server.pid}\n".encode())
    return guard


def _answering_process(port: int, password: str) -> int | None:
    """The process id of the server that answers on `port` and is ready for commands, None where none is."""
    request = (f"AUTH {password}\r\n" if password else "") + "PING\r\nINFO server\r\nQUIT\r\n"
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
