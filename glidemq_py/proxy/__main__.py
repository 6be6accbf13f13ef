"""``python -m glidemq_py.proxy``: the proxy under uvicorn, with limits on connections and half-sent headers."""

from __future__ import annotations

import os
import sys

try:
    from glidemq_py._web.serving import HttpServer, accepted_hosts, public_name, server_config
except ImportError as error:
    raise ImportError('the proxy requires uvicorn: pip install "glidemq-py[proxy]"') from error

from glidemq_py._core.command_line import PREFIX_VARIABLE, ArgumentParser, parse_duration, parse_port
from glidemq_py._core.keys import DEFAULT_PREFIX
from glidemq_py._core.logs import escape_control
from glidemq_py.errors import GlideMQError
from glidemq_py.proxy.app import create_proxy_app

TOKENS_VARIABLE = "GLIDEMQ_PROXY_TOKENS"


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; return 2 if an option is invalid."""
    parser = _parser()
    options = parser.parse_args(arguments)
    tokens = os.environ.get(TOKENS_VARIABLE, "").split() or None
    hosts = accepted_hosts(options.host, options.allowed_host)
    if tokens is None and not options.allow_anonymous:
        public = public_name(options.host, hosts)
        if public is not None:
            _print(parser.prog, f"{public} is not a local address: set {TOKENS_VARIABLE}, or give --allow-anonymous")
            return 2
    try:
        app = create_proxy_app(
            options.url, prefix=options.prefix, queues=options.queue or None, compression=options.compression,
            tokens=tokens, hosts=hosts, body_timeout=options.body_timeout,
            allow_anonymous=options.allow_anonymous,
        )  # fmt: skip
        config = server_config(
            app, host=options.host, port=options.port, log_level=options.log_level,
            max_connections=options.max_connections, header_timeout=options.header_timeout,
        )  # fmt: skip
    except GlideMQError as error:
        _print(parser.prog, str(error))
        return 2
    HttpServer(config, app.state.proxy.begin_closing).run()
    return 0


def _print(program: str, text: str) -> None:
    sys.stderr.write(f"{program}: {escape_control(text)}\n")


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m glidemq_py.proxy",
        description=f"Serve queues over HTTP. {TOKENS_VARIABLE} holds bearer tokens, separated by spaces.",
    )
    parser.add_argument("--url", help="URL of the server; default: GLIDEMQ_URL, else a private embedded server")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=parse_port, default=8080, help="port to listen on (8080); 0 = any free port")
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
    parser.add_argument("--prefix", default=os.environ.get(PREFIX_VARIABLE) or DEFAULT_PREFIX,
                        help=f"first part of every key; default: {PREFIX_VARIABLE}, else glide")  # fmt: skip
    parser.add_argument("--compression", default="none", choices=["none", "gzip"])
    parser.add_argument("--log-level", default="info", choices=["critical", "error", "warning", "info", "debug"])
    return parser


if __name__ == "__main__":
    sys.exit(main())
