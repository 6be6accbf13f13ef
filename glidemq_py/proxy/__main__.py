"""``python -m glidemq_py.proxy``: the proxy under uvicorn, with limits on connections and half-sent headers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

try:
    from glidemq_py._web.serving import ServerParser
except ImportError as error:
    raise ImportError('the proxy requires uvicorn: pip install "glidemq-py[proxy]"') from error

from starlette.applications import Starlette

from glidemq_py._core.command_line import parse_duration
from glidemq_py._operate.access import ROLES
from glidemq_py.proxy.app import create_proxy_app

TOKENS_VARIABLE = "GLIDEMQ_PROXY_TOKENS"


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; return 2 if an option is invalid."""
    parser = _parser()
    options = parser.parse_args(arguments)
    tokens = os.environ.get(TOKENS_VARIABLE, "").split() or None
    remedy = "" if tokens or options.allow_anonymous else f"set {TOKENS_VARIABLE}, or give --allow-anonymous"

    def create(hosts: list[str]) -> tuple[Starlette, Callable[[], None]]:
        app = create_proxy_app(
            options.url, prefix=options.prefix, queues=options.queue or None, compression=options.compression,
            tokens=tokens, hosts=hosts, body_timeout=options.body_timeout, allow_anonymous=options.allow_anonymous,
            role=options.role,
        )  # fmt: skip
        return app, app.state.proxy.begin_closing

    return parser.serve(options, remedy, create, header_timeout=options.header_timeout)


def _parser() -> ServerParser:
    parser = ServerParser(
        "glidemq_py.proxy", f"Serve queues over HTTP. {TOKENS_VARIABLE} holds bearer tokens, separated by spaces.", 8080
    )
    add = parser.add_argument
    add("--url", help="URL of the server; default: GLIDEMQ_URL, else that of glidemq dev, or a private one")
    add("--queue", action="append", metavar="NAME", help="a queue that clients may use; default: all")
    add(
        "--allow-anonymous", action="store_true",
        help="serve other machines without tokens: every client that reaches the proxy may use the queues",
    )  # fmt: skip
    add(
        "--header-timeout", type=parse_duration, default=10_000, metavar="TIME",
        help="time for a request's headers (10s)",
    )  # fmt: skip
    add("--body-timeout", type=parse_duration, default=30_000, metavar="TIME", help="time for a request's body (30s)")
    add("--compression", default="none", choices=["none", "gzip"])
    add("--role", default="operator", choices=ROLES, help="what clients may do: read, add jobs too, everything")
    return parser


if __name__ == "__main__":
    sys.exit(main())
