"""``python -m glidemq_py.proxy``: the proxy under uvicorn, with limits on connections and half-sent headers."""

from __future__ import annotations

import argparse
import os
import socket
import sys

from fastapi import FastAPI

try:
    import uvicorn
except ImportError as error:
    raise ImportError('the proxy requires uvicorn: pip install "glidemq-py[proxy]"') from error

from glidemq_py._core.command_line import ArgumentParser, parse_duration
from glidemq_py._core.logs import escape_control
from glidemq_py._web.checks import LOOPBACK_HOSTS
from glidemq_py._web.serving import server_config
from glidemq_py.errors import GlideMQError
from glidemq_py.proxy.app import create_proxy_app

TOKENS_VARIABLE = "GLIDEMQ_PROXY_TOKENS"
# Compared with an option, never a default.
_ANY_ADDRESS = ("0.0.0.0", "::", "")  # nosec B104
_LOCAL = ("127.0.0.1", "::1", "localhost")


# -- server ----------------------------------------------------------------------------------------------------


class ProxyServer(uvicorn.Server):
    """Ends the streams first: uvicorn waits for open responses before it closes the application."""

    def __init__(self, app: FastAPI, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down; see `uvicorn.Server`."""
        self._app.state.proxy.begin_closing()
        await super().shutdown(sockets)


# -- command ---------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; return 2 if an option is invalid."""
    options = _parser().parse_args(arguments)
    tokens = os.environ.get(TOKENS_VARIABLE, "").split() or None
    if tokens is None and not options.allow_anonymous:
        public = [name for name in (options.host, *_hosts(options)) if name not in (*_LOCAL, *LOOPBACK_HOSTS)]
        if public:
            _print(f"{public[0]} is not a local address: set {TOKENS_VARIABLE}, or give --allow-anonymous")
            return 2
    try:
        app = create_proxy_app(
            options.url, prefix=options.prefix, queues=options.queue or None, compression=options.compression,
            tokens=tokens, hosts=_hosts(options), body_timeout=options.body_timeout,
            allow_anonymous=options.allow_anonymous,
        )  # fmt: skip
        config = server_config(
            app, host=options.host, port=options.port, log_level=options.log_level,
            max_connections=options.max_connections, header_timeout=options.header_timeout,
        )  # fmt: skip
    except GlideMQError as error:
        _print(str(error))
        return 2
    ProxyServer(app, config).run()
    return 0


def _hosts(options: argparse.Namespace) -> list[str]:
    """Return the accepted names: those given, else those of this machine and the address to listen on."""
    if options.allowed_host:
        return list(options.allowed_host)
    if options.host in _ANY_ADDRESS:
        return [*LOOPBACK_HOSTS]
    return [*LOOPBACK_HOSTS, f"[{options.host}]" if ":" in options.host else options.host]


def _print(text: str) -> None:
    sys.stderr.write(f"python -m glidemq_py.proxy: {escape_control(text)}\n")


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 2**16):
        raise argparse.ArgumentTypeError(f"invalid port {text!r}: must be 0 to 65535")
    return int(text)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m glidemq_py.proxy",
        description=f"Serve queues over HTTP. {TOKENS_VARIABLE} holds bearer tokens, separated by spaces.",
    )
    parser.add_argument("--url", help="URL of the server; default: GLIDEMQ_URL, else a private embedded server")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=_port, default=8080, help="port to listen on (8080); 0 = any free port")
    parser.add_argument("--queue", action="append", metavar="NAME", help="a queue that clients may use; default: all")
    parser.add_argument(
        "--allowed-host", action="append", metavar="NAME",
        help="accepted name in the header Host; * = any; default: local names, and --host if it is one address",
    )  # fmt: skip
    parser.add_argument(
        "--allow-anonymous", action="store_true",
        help="serve other machines without tokens: every client that reaches the proxy may use the queues",
    )  # fmt: skip
    parser.add_argument("--max-connections", type=int, default=1_000, metavar="N", help="open connections (1000)")
    parser.add_argument(
        "--header-timeout",
        type=parse_duration,
        default=10_000,
        metavar="TIME",
        help="time for a request's headers (10s)",
    )
    parser.add_argument(
        "--body-timeout", type=parse_duration, default=30_000, metavar="TIME", help="time for a request's body (30s)"
    )
    parser.add_argument("--prefix", default="glide", help="first part of every key (glide)")
    parser.add_argument("--compression", default="none", choices=["none", "gzip"])
    parser.add_argument("--log-level", default="info", choices=["critical", "error", "warning", "info", "debug"])
    return parser


if __name__ == "__main__":
    sys.exit(main())
