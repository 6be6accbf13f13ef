"""A minimal blocking client of the server's protocol (RESP), for tests that inspect keys without our own code.

It follows the redirections of a cluster. Not for production: one command at a time, no reconnects.
"""

import socket
import ssl
from types import TracebackType
from typing import Any, Final, Self

from glidemq_py._client.connection_options import ConnectionOptions

__all__ = ["RespClient", "RespError"]

Argument = str | bytes | int | float

_MAX_REDIRECTIONS: Final = 5


class RespError(Exception):
    """An error reply of the server."""


class RespClient:
    """A raw client: `execute("HGET", key, field)` on a server or a cluster.

    Replies: integers as `int`, strings as `str` (UTF-8; invalid bytes become lone surrogates, so
    `text.encode("utf-8", "surrogateescape")` restores them), arrays as `list`, nil as `None`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        username: str | None = None,
        password: str | None = None,
        tls: bool = False,
        database: int = 0,
        timeout: float = 10.0,
    ) -> None:
        """`timeout`: longest wait for a connection and for each reply, seconds; includes blocking commands."""
        self._home = (host, port)
        self._username = username
        self._password = password
        self._tls = tls
        self._database = database
        self._timeout = timeout
        self._links: dict[tuple[str, int], _Link] = {}

    @classmethod
    def from_url(cls, url: str, *, timeout: float = 10.0) -> Self:
        """Return a client for `valkey://[user:password@]host:port[/database]`; uses the first of several hosts."""
        options = ConnectionOptions.from_url(url)
        address = options.addresses[0]
        return cls(
            address.host, address.port, username=options.username, password=options.password, tls=options.tls,
            database=options.database_id, timeout=timeout,
        )  # fmt: skip

    def execute(self, *arguments: Argument) -> Any:
        """Run one command and return its reply. Raises RespError, or OSError if the server is unreachable."""
        address = self._home
        asking = False
        for _ in range(_MAX_REDIRECTIONS):
            link = self._link(address)
            if asking:
                link.call("ASKING")
            reply = link.call(*arguments)
            if not isinstance(reply, RespError):
                return reply
            kind, *rest = str(reply).split()
            if kind not in ("MOVED", "ASK"):
                raise reply
            host, _, port = rest[1].rpartition(":")
            address, asking = (host or address[0], int(port)), kind == "ASK"
        raise RespError(f"more than {_MAX_REDIRECTIONS} redirections: {arguments[0]!r}")

    def execute_everywhere(self, *arguments: Argument) -> list[Any]:
        """Run one command on every primary and return the replies in slot order."""
        replies: list[Any] = []
        for address in self.primaries():
            reply = self._link(address).call(*arguments)
            if isinstance(reply, RespError):
                raise reply
            replies.append(reply)
        return replies

    def primaries(self) -> list[tuple[str, int]]:
        """Return the addresses of the cluster's primaries, or of the one server."""
        if self.info("cluster").get("cluster_enabled") != "1":
            return [self._home]
        slots = self.execute("CLUSTER", "SLOTS")
        return list(dict.fromkeys((row[2][0] or self._home[0], row[2][1]) for row in sorted(slots)))

    def keys(self, pattern: str = "*") -> list[str]:
        """Return the matching keys of all primaries, sorted. Uses SCAN, which does not block the server."""
        found: set[str] = set()
        for address in self.primaries():
            cursor = "0"
            while True:
                reply = self._link(address).call("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
                if isinstance(reply, RespError):
                    raise reply
                cursor, page = reply
                found.update(page)
                if cursor == "0":
                    break
        return sorted(found)

    def hash(self, key: str) -> dict[str, str]:
        """Return HGETALL as a dict."""
        flat = self.execute("HGETALL", key)
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def info(self, section: str = "default") -> dict[str, str]:
        """Return INFO of the first server as a dict of strings."""
        lines = self.execute("INFO", section).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def close(self) -> None:
        """Close all connections. The next command opens new ones."""
        while self._links:
            self._links.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _link(self, address: tuple[str, int]) -> "_Link":
        link = self._links.get(address)
        if link is None or link.broken:
            if link is not None:
                link.close()
            link = self._links[address] = _Link(address, tls=self._tls, timeout=self._timeout)
            if self._password is not None:
                user = [self._username] if self._username else []
                link.must("AUTH", *user, self._password)
            if self._database:
                link.must("SELECT", self._database)
        return link


class _Link:
    """One connection to a server."""

    def __init__(self, address: tuple[str, int], *, tls: bool, timeout: float) -> None:
        self.broken = False
        raw = socket.create_connection(address, timeout=timeout)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = ssl.create_default_context().wrap_socket(raw, server_hostname=address[0]) if tls else raw
        self._file = self._socket.makefile("rb")

    def must(self, *arguments: Argument) -> None:
        reply = self.call(*arguments)
        if isinstance(reply, RespError):
            self.close()
            raise reply

    def call(self, *arguments: Argument) -> Any:
        """Return the reply; an error reply is returned, not raised."""
        self.send(arguments)
        return self.receive()

    def send(self, *commands: tuple[Argument, ...]) -> None:
        out = bytearray()
        for command in commands:
            out += b"*%d\r\n" % len(command)
            for argument in command:
                data = argument if isinstance(argument, bytes) else str(argument).encode("utf-8", "surrogateescape")
                out += b"$%d\r\n%b\r\n" % (len(data), data)
        try:
            self._socket.sendall(out)
        except OSError:
            self.broken = True
            raise

    def receive(self) -> Any:
        try:
            return self._read()
        except OSError:
            self.broken = True  # a late reply would be mistaken for the next command's
            raise

    def _read(self) -> Any:
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            return RespError(rest.decode("utf-8", "surrogateescape"))
        if kind == b":":
            return int(rest)
        length = int(rest)
        if length < 0:
            return None
        if kind == b"*":
            return [self._read() for _ in range(length)]
        data = self._file.read(length + 2)
        if len(data) != length + 2:
            raise ConnectionResetError("the server closed the connection")
        return data[:-2].decode("utf-8", "surrogateescape")

    def close(self) -> None:
        self.broken = True
        self._file.close()
        self._socket.close()
