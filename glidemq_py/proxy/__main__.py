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
    raise ImportError('the proxy needs uvicorn: pip install "glidemq-py[proxy]"') from error

from glidemq_py._core.command_line import ArgumentParser
from glidemq_py._core.logs import escape_control
from glidemq_py.errors import GlideMQError
from glidemq_py.proxy.app import create_proxy_app

TOKENS_VARIABLE = "GLIDEMQ_PROXY_TOKENS"
_LOCAL = ("127.0.0.1", "::1", "localhost")


class Server(uvicorn.Server):
    """Ends the streams first: uvicorn waits for open responses before it tells the application to close."""

    def __init__(self, app: Starlette, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`."""
        self._app.state.proxy.begin_closing()
        await super().shutdown(sockets)


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; 2 when an option cannot be."""
    options = _parser().parse_args(arguments)
    tokens = os.environ.get(TOKENS_VARIABLE, "").split() or None
    if tokens is None and options.host not in _LOCAL:
        _tell(f"{TOKENS_VARIABLE} is not set: whoever reaches {options.host} may use the queues")
    try:
        app = create_proxy_app(
            options.url, prefix=options.prefix, queues=options.queue or None, compression=options.compression,
            tokens=tokens,
        )  # fmt: skip
    except GlideMQError as error:
        _tell(str(error))
        return 2
    config = uvicorn.Config(
        app, host=options.host, port=options.port, log_level=options.log_level, timeout_graceful_shutdown=30
    )
    Server(app, config).run()
    return 0


def _tell(text: str) -> None:
    sys.stderr.write(f"python -m glidemq_py.proxy: {escape_control(text)}\n")


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 2**16):
        raise argparse.ArgumentTypeError(f"{text!r} is no port: 0 to 65535")
    return int(text)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m glidemq_py.proxy",
        description=f"The queues over HTTP. Bearer tokens, separated by spaces, are read from {TOKENS_VARIABLE}.",
    )
    parser.add_argument("--url", help="the server; default: GLIDEMQ_URL, else a private embedded one")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=_port, default=8080, help="port to listen on (8080); 0 = any free one")
    parser.add_argument("--queue", action="append", metavar="NAME", help="a queue that may be used; default: all")
    parser.add_argument("--prefix", default="glide", help="first part of every key (glide)")
    parser.add_argument("--compression", default="none", choices=["none", "gzip"])
    parser.add_argument("--log-level", default="info", choices=["critical", "error", "warning", "info", "debug"])
    return parser


if __name__ == "__main__":
    sys.exit(main())
