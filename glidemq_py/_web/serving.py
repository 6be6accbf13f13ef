"""uvicorn with limits on connections and on half-sent headers, for everything of the package that serves HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from glidemq_py._core.checks import check_int
from glidemq_py._core.command_line import PREFIX_VARIABLE, ArgumentParser, parse_port
from glidemq_py._core.keys import DEFAULT_PREFIX
from glidemq_py._core.logs import escape_control, get_logger
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._web.clients import LOOPBACK_HOSTS, RepeatedWarnings, address_of, public_name
from glidemq_py.errors import GlideMQError

_HEADER_BYTES: Final = 16_384
_GRACE_S: Final = 30
_ANY_ADDRESS: Final = ("0.0.0.0", "::", "")  # nosec B104  # compared with an option, never a default
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: 52\r\n\r\n"
    b'{"error":"too many connections","code":"overloaded"}'
)


_log = get_logger(__name__)


class _ProtocolLogger(logging.LoggerAdapter[logging.Logger]):
    """uvicorn's logger, whose warnings are about requests that are no HTTP."""

    def __init__(self, logger: logging.Logger, warnings: RepeatedWarnings, address: str) -> None:
        super().__init__(logger)
        self._warnings, self._address = warnings, address

    @property
    def level(self) -> int:
        """The level, which uvicorn reads."""
        return self.logger.level

    def warning(self, msg: object, *args: object, **_: Any) -> None:
        """Log a warning with the address of the client, or count it."""
        text = str(msg) % args if args else str(msg)
        self._warnings.warn(text, f"HTTP connection of {self._address}: {text}")


class _Protocol(H11Protocol):
    """Limits the connections, and the time from the first byte of a request to the end of its headers.

    uvicorn has an idle timeout, which every byte resets, and its `limit_concurrency` counts requests, so that it
    keeps any number of half-sent requests.
    """

    max_connections: int
    header_timeout_s: float
    warnings: RepeatedWarnings
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Accept the connection unless there are too many."""
        logger: Any = _ProtocolLogger(self.logger, self.warnings, address_of(transport))
        self.logger = logger  # it has all that uvicorn uses
        if len(self.connections) >= self.max_connections:
            self.transport = transport
            transport.write(_FULL)
            transport.close()
            return
        super().connection_made(transport)
        self._await_headers()

    def data_received(self, data: bytes) -> None:
        """Process the bytes; the headers must be complete by the deadline, however often bytes arrive."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self not in self.connections:  # it has become a WebSocket, or it is closed
            self._cancel_deadline()
            return
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request, despite its annotation
        if cycle is not None and not cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
            self._cancel_deadline()
        elif self._deadline is None:
            self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._cancel_deadline()
        if self in self.connections:
            super().connection_lost(exc)

    def _await_headers(self) -> None:
        self._deadline = self.loop.call_later(self.header_timeout_s, self.transport.abort)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def server_config(
    app: ASGIApp, *, max_connections: int = 1_000, header_timeout: Milliseconds = 10_000,
    idle_timeout: Milliseconds = 5_000, ws: type[asyncio.Protocol] | None = None, **options: Any,
) -> uvicorn.Config:  # fmt: skip
    """Return the configuration of uvicorn.

    Args:
        app: the application.
        max_connections: maximum number of open connections; others are closed with the status 503.
        header_timeout: maximum time for the headers of a request, ms or timedelta; then the connection is closed.
        idle_timeout: maximum time between two requests of a connection, ms or timedelta.
        ws: protocol of WebSockets; without one there are none.
        options: other options of `uvicorn.Config`.

    Raises:
        GlideMQValidationError: if a limit is invalid.
    """
    limits = {
        "max_connections": check_int("max_connections", max_connections, 1, 1_000_000),
        "header_timeout_s": to_ms("header_timeout", header_timeout, minimum=100, maximum=3_600_000) / 1_000,
        "warnings": RepeatedWarnings(_log),
    }
    protocol = type("LimitedProtocol", (_Protocol,), limits)
    # uvicorn counts the seconds of the idle timeout with call_later, so fractions are valid.
    idle: Any = to_ms("idle_timeout", idle_timeout, minimum=100, maximum=3_600_000) / 1_000
    return uvicorn.Config(
        app, http=protocol, ws=ws or "none", h11_max_incomplete_event_size=_HEADER_BYTES, timeout_keep_alive=idle,
        timeout_graceful_shutdown=_GRACE_S, **options,
    )  # fmt: skip


class HttpServer(uvicorn.Server):
    """Ends the open streams first: uvicorn waits for open responses before it closes the application.

    Args:
        config: of `server_config`.
        begin_closing: ends the streams of the application.
    """

    def __init__(self, config: uvicorn.Config, begin_closing: Callable[[], None]) -> None:
        super().__init__(config)
        self._begin_closing = begin_closing

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down; see `uvicorn.Server`."""
        self._begin_closing()
        await super().shutdown(sockets)


def accepted_hosts(host: str, given: Sequence[str] | None) -> list[str]:
    """Return the names to accept in the header Host: those given, else those of this machine and ``host``.

    Args:
        host: the address to listen on; all addresses (``0.0.0.0``) add no name.
        given: names of the command line.
    """
    if given:
        return list(given)
    if host in _ANY_ADDRESS:
        return [*LOOPBACK_HOSTS]
    named = f"[{host}]" if ":" in host else host
    return [*LOOPBACK_HOSTS, *([named] if named not in LOOPBACK_HOSTS else [])]


class ServerParser(ArgumentParser):
    """The parser of a command that serves HTTP: address, hosts, connections, prefix, level of the log.

    Args:
        module: Name of the module that is the command.
        description: What it does.
        port: Default port.
    """

    def __init__(self, module: str, description: str, port: int) -> None:
        super().__init__(prog=f"python -m {module}", description=description)
        prefix, levels = (
            os.environ.get(PREFIX_VARIABLE) or DEFAULT_PREFIX,
            ["critical", "error", "warning", "info", "debug"],
        )
        add = self.add_argument
        add("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
        add("--port", type=parse_port, default=port, help=f"port to listen on ({port}); 0 = any free port")
        add(
            "--allowed-host",
            action="append",
            metavar="NAME",
            help="accepted name in the header Host; * = any; default: local names, and --host if it is one address",
        )
        add("--max-connections", type=int, default=1_000, metavar="N", help="open connections (1000)")
        add("--prefix", default=prefix, help=f"first part of every key; default: {PREFIX_VARIABLE}, else glide")
        add("--log-level", default="info", choices=levels)

    def serve(
        self, options: Any, remedy: str, create: Callable[[list[str]], tuple[ASGIApp, Callable[[], None]]],
        **given: Any,
    ) -> int:  # fmt: skip
        """Serve until SIGTERM or SIGINT; return 2 if an option is invalid.

        Args:
            options: The parsed arguments.
            remedy: What to do before other machines may send requests; "" = they may.
            create: Returns the application for the accepted names in the header Host, and what ends its streams.
            given: Further options of `server_config`.
        """
        hosts = accepted_hosts(options.host, options.allowed_host)
        public = public_name((options.host, *hosts))
        if remedy and public is not None:
            return self.refuse(f"{public} is not a local address: {remedy}")
        try:
            app, begin_closing = create(hosts)
            config = server_config(
                app, host=options.host, port=options.port, log_level=options.log_level,
                max_connections=options.max_connections, **given,
            )  # fmt: skip
        except GlideMQError as error:
            return self.refuse(str(error))
        HttpServer(config, begin_closing).run()
        return 0

    def refuse(self, text: str) -> int:
        """Print why the command cannot start, and return its exit code."""
        sys.stderr.write(f"{self.prog}: {escape_control(text)}\n")
        return 2
