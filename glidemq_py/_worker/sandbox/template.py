"""The program of the fork server: imports the handler once, then forks a process per request.

A request with a socket forks a process that uses the socket; the reply is its pid. A request with a pid waits for that
process; the reply is its exit code. The fork server runs no jobs and has one thread.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from typing import Any, Final

from glidemq_py._worker.sandbox.child import calm_signals, load, serve
from glidemq_py._worker.sandbox.framing import Message, receive_message

_PID: Final = struct.Struct(">q")


def main(descriptor: int) -> None:
    """Process requests until the worker closes the connection."""
    line = socket.socket(fileno=descriptor)
    line.set_inheritable(False)
    calm_signals()
    start = receive_message(line)
    if start is None:
        return
    loaded: Any = _NOT_YET
    while True:
        try:
            request, sockets, _, _ = socket.recv_fds(line, _PID.size, 1)
        except OSError:
            return
        if len(request) < _PID.size:
            return
        if not sockets:
            line.sendall(_PID.pack(_wait(_PID.unpack(request)[0])))
            continue
        with socket.socket(fileno=sockets[0]) as end:
            if loaded is _NOT_YET:
                # Imported at the first request, whose socket can report an import error.
                loaded = load(end, start)
            pid = os.fork()
            if pid == 0:
                line.close()
                _become_child(end, loaded, start)
            loaded = _NOT_YET if loaded is None else loaded
        line.sendall(_PID.pack(pid))


_NOT_YET: Final = object()


def _become_child(end: socket.socket, loaded: Any, start: Message) -> None:
    code = 1
    try:
        os.setsid()
        if loaded is not None:
            serve(end, loaded, start)
        code = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(pid: int) -> int:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return 0
