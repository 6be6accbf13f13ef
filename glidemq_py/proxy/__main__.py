"""``python -m glidemq_py.proxy``: the proxy under uvicorn."""

from __future__ import annotations

import argparse
import os
import socket
import sys

from starlette.applications import Starlette

try:
    import uvicorn
except ImportError as error:
    raise ImportError('the proxy requires uvicorn: pip install "glidemq-py[proxy]"') from error

from glidemq_py._core.command_line import ArgumentParser
from glidemq_py._core.logs import escape_control
from glidemq_py.errors import GlideMQError
from glidemq_py.proxy.app import create_proxy_app

TOKENS_VARIABLE = "GLIDEMQ_PROXY_TOKENS"
_LOCAL = ("127.0.0.1", "::1", "localhost")


class Server(uvicorn.Server):
    """Ends the streams first: uvicorn waits for open responses before it closes the application."""

    def __init__(self, app: Starlette, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down; see `uvicorn.Server`."""
        self._app.state.proxy.begin_closing()
        await super().shutdown(sockets)


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; return 2 if an option is invalid."""
    options = _parser().parse_args(arguments)
    tokens = os.environ.get(TOKENS_VARIABLE, "").split() or None
    if tokens is None and options.host not in _LOCAL:
        _print(f"{TOKENS_VARIABLE} is not set: every client that reaches {options.host} may use the queues")
    try:
        app = create_proxy_app(
            options.url, prefix=options.prefix, queues=options.queue or None, compression=options.compression,
            tokens=tokens,
        )  # fmt: skip
    except GlideMQError as error:
        _print(str(error))
        return 2
    config = uvicorn.Config(
        app, host=options.host, port=options.port, log_level=options.log_level, timeout_graceful_shutdown=30
    )
    Server(app, config).run()
    return 0


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
    parser.add_argument("--prefix", default="glide", help="first part of every key (glide)")
    parser.add_argument("--compression", default="none", choices=["none", "gzip"])
    parser.add_argument("--log-level", default="info", choices=["critical", "error", "warning", "info", "debug"])
    return parser


if __name__ == "__main__":
    sys.exit(main())
