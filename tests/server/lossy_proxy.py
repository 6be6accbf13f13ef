"""A TCP proxy between a client and its server that can lose replies: the request arrives, the answer does not.

It knows requests and replies only as far as it must to find a command's name. One thread a connection and
direction; everything ends with `close`.
"""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class LossyProxy:
    """Passes everything on, until told to lose the answer to a request.

    Args:
        port: of the server on this machine.

    `lose(part, times)`: from now on a request that contains ``part`` (bytes of its text, any case) is passed on,
    and instead of its answer the client finds its connection closed. `lost` counts them; `wait_lost` waits.
    """

    def __init__(self, port: int) -> None:
        self._server = ("127.0.0.1", port)
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
        return f"valkey://127.0.0.1:{self.port}"

    def lose(self, part: str, times: int = 1) -> None:
        with self._changed:
            self._lose, self._left = part.lower().encode(), times

    def wait_lost(self, count: int, seconds: float = 20.0) -> bool:
        """Wait (in a thread) until that many answers have been lost."""
        with self._changed:
            return self._changed.wait_for(lambda: self.lost >= count, seconds)

    def cut(self) -> None:
        """Close every connection there is; new ones are accepted."""
        with self._changed:
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            _shut(each)

    def _accept(self) -> None:
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

    def _forth(self, client: socket.socket, server: socket.socket, doomed: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while chunk := client.recv(1 << 16):
                with self._changed:
                    wanted = self._lose is not None and self._left > 0 and self._lose in chunk.lower()
                    if wanted and not doomed.is_set():  # one loss a connection: it ends with it
                        self._left -= 1
                        doomed.set()
                server.sendall(chunk)
        _shut(client, server)

    def _back(self, client: socket.socket, server: socket.socket, doomed: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while chunk := server.recv(1 << 16):
                if doomed.is_set():
                    # The server has done it, and says so; nobody hears it.
                    with self._changed:
                        self.lost += 1
                        self._changed.notify_all()
                    break
                client.sendall(chunk)
        _shut(client, server)

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _shut(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
