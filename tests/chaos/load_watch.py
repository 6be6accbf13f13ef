"""Counts how often each client loads the function library on a node, with MONITOR."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections import Counter
from typing import Final

from glidemq_py.testing import ServerProcess

__all__ = ["FAULT", "LoadWatch"]

_COMMAND: Final = re.compile(rb"\+[\d.]+ \[\d+ ([^\]]+)\] \"(function|echo)\" \"(load|chaos: fault)\"", re.IGNORECASE)
FAULT: Final = "chaos: fault"
"""Text of an ECHO that the harness sends before each fault."""
_HEAD: Final = 200


class LoadWatch:
    """Watches one node from its creation until `close`.

    Attributes:
        loads: number of FUNCTION LOAD commands by (number of the last fault, address of the client).
    """

    def __init__(self, node: ServerProcess):
        self.loads: Counter[tuple[int, str]] = Counter()
        self._own: set[str] = set()
        self._faults = 0
        self._socket = socket.create_connection(("127.0.0.1", node.port))
        self._socket.sendall(b"MONITOR\r\n")
        self._socket.recv(5)  # the replies of later commands are in the stream
        self._thread = threading.Thread(target=self._read, daemon=True, name="load watch")
        self._thread.start()

    def _read(self):
        line = b""
        while chunk := self._receive():
            first, *others = chunk.split(b"\n")
            # Only the beginning of a line is kept: that of a FUNCTION LOAD has the whole library.
            line = (line + first)[:_HEAD]
            for other in others:
                self._take(line)
                line = other[:_HEAD]

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(1 << 16)
        except OSError:
            return b""

    def _take(self, line: bytes):
        found = _COMMAND.match(line)
        if found is None:
            return
        address = found[1].decode()
        if found[2].lower() == b"echo":
            self._faults += 1
            self._own.add(address)  # the harness's connection, which loads a foreign library
        elif address not in self._own:
            self.loads[self._faults, address] += 1

    def close(self):
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
