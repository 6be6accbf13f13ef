"""A TCP proxy between client and server that can lose replies: the request arrives, the reply does not.

It parses requests and replies only enough to find a command's name. It runs one thread per connection and direction;
`close` stops them.
"""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

from glidemq_py.sync import Queue


class LossyProxy:
    """A TCP proxy that can drop the reply to a request.

    After `lose(part, times)`, the next ``times`` requests that contain ``part`` (case-insensitive) are forwarded, and
    the client's connection is closed instead of a reply. `lost` counts them; `wait_lost` waits.

    `lose` loads the library on the server: on a new server, the first request would be answered with its absence.

    Args:
        url: URL of the local server.
    """

    def __init__(self, url: str):
        self._server_url = url
        self._server = ("127.0.0.1", int(url.rpartition(":")[2]))
        self._is_loaded = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._changed = threading.Condition()
        self._lose: bytes | None = None
        self._left = 0
        self.lost = 0
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True, name="lossy-proxy").start()

    @property
    def url(self) -> str:
        return f"{self._server_url.rpartition(':')[0]}:{self.port}"

    def lose(self, part: str, times: int = 1):
        if not self._is_loaded:
            self._is_loaded = True
            with Queue("library", self._server_url) as queue:
                queue.get_job_counts()
        with self._changed:
            self._lose, self._left = part.lower().encode(), times

    def wait_lost(self, count: int, seconds: float = 20.0) -> bool:
        """Wait (in a thread) until ``count`` replies have been lost."""
        with self._changed:
            return self._changed.wait_for(lambda: self.lost >= count, seconds)

    def cut(self):
        """Close all connections; new ones are accepted."""
        with self._changed:
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            _shut(each)

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._server)
            except OSError:
                client.close()
                continue
            with self._changed:
                self._sockets |= {client, server}
            doomed = threading.Event()
            for target, args in ((self._forth, (client, server, doomed)), (self._back, (client, server, doomed))):
                threading.Thread(target=target, args=args, daemon=True, name="lossy-proxy").start()

    def _forth(self, client: socket.socket, server: socket.socket, doomed: threading.Event):
        with contextlib.suppress(OSError):
            while chunk := client.recv(1 << 16):
                with self._changed:
                    wanted = self._lose is not None and self._left > 0 and self._lose in chunk.lower()
                    if wanted and not doomed.is_set():  # one loss per connection, which closes it
                        self._left -= 1
                        doomed.set()
                self.forward(chunk, client, server)
        _shut(client, server)

    def _back(self, client: socket.socket, server: socket.socket, doomed: threading.Event):
        with contextlib.suppress(OSError):
            while chunk := server.recv(1 << 16):
                if doomed.is_set():
                    # The server has executed the request; its reply is dropped.
                    with self._changed:
                        self.lost += 1
                        self._changed.notify_all()
                    break
                self.forward(chunk, server, client)
        _shut(client, server)

    def forward(self, chunk: bytes, source: socket.socket, target: socket.socket):
        """Pass on received data. Subclasses add faults; an OSError closes the connection."""
        target.sendall(chunk)

    def close(self):
        self._listener.close()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self.close()


def _shut(*sockets: socket.socket):
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
