"""A TCP proxy with network faults: half-open connections, delay, resets, limited bandwidth, lost replies."""

from __future__ import annotations

import random
import socket
import threading
import time

from tests.server.lossy_proxy import LossyProxy

__all__ = ["FaultProxy"]


class FaultProxy(LossyProxy):
    """A proxy whose faults may be changed at any time.

    Attributes:
        delay: seconds that each chunk is delayed in each direction: least and most.
        reset_share: share of the chunks at which the connection is closed.
        bytes_per_second: bandwidth of all connections together; 0: unlimited.
    """

    def __init__(self, url: str, *, seed: int):
        self.delay = (0.0, 0.0)
        self.reset_share = 0.0
        self.bytes_per_second = 0.0
        self.resets = 0
        self._random = random.Random(seed)
        self._line = threading.Lock()
        self._free_at = 0.0
        self._mute: set[socket.socket] = set()
        super().__init__(url)

    def half_open(self) -> int:
        """Forward nothing more on the existing connections, without closing them; return their number."""
        with self._changed:
            self._mute |= self._sockets
            return len(self._sockets) // 2

    def forward(self, chunk: bytes, source: socket.socket, target: socket.socket):
        if source in self._mute:
            return
        if self.reset_share and self._random.random() < self.reset_share:
            self.resets += 1
            raise ConnectionResetError("reset by the proxy")
        if self.delay[1]:
            time.sleep(self._random.uniform(*self.delay))
        if self.bytes_per_second:
            with self._line:
                now = time.monotonic()
                self._free_at = max(self._free_at, now) + len(chunk) / self.bytes_per_second
                pause = self._free_at - now
            time.sleep(pause)
        super().forward(chunk, source, target)
