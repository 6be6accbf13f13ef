"""``python -m glidemq_py.dashboard``: the dashboard under uvicorn, with limits on connections and half-sent headers."""

from __future__ import annotations

import os
import sys

try:
    from glidemq_py._web.serving import HttpServer, accepted_hosts, public_name, server_config
except ImportError as error:
    raise ImportError('the dashboard requires uvicorn: pip install "glidemq-py[dashboard]"') from error

from glidemq_py._core.command_line import PREFIX_VARIABLE, ArgumentParser, parse_duration, parse_port
from glidemq_py._core.keys import DEFAULT_PREFIX
from glidemq_py._core.logs import escape_control
from glidemq_py.dashboard import Dashboard
from glidemq_py.dashboard.options import REDACTED
from glidemq_py.errors import GlideMQError

TOKENS_VARIABLE = "GLIDEMQ_DASHBOARD_TOKENS"


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; return 2 if an option is invalid."""
    parser = _parser()
    options = parser.parse_args(arguments)
    url = options.url or os.environ.get("GLIDEMQ_URL")
    if not url:
        _print(parser.prog, "no server: give --url, or set GLIDEMQ_URL")
        return 2
    tokens, hosts = _tokens(os.environ.get(TOKENS_VARIABLE, "")), accepted_hosts(options.host, options.allowed_host)
    public = None if tokens else public_name(options.host, hosts)
    if public is not None:
        _print(parser.prog, f"{public} is not a local address: set {TOKENS_VARIABLE}, such as 'alice=7f31c9aa'")
        return 2
    try:
        dashboard = Dashboard(
            url,
            prefix=options.prefix,
            title=options.title,
            allow_changes=options.allow_changes,
            tokens=tokens,
            hosts=hosts,
            redact=[*REDACTED, *options.redact],
            refresh_interval=options.refresh_interval,
        )
        config = server_config(
            dashboard, host=options.host, port=options.port, log_level=options.log_level,
            max_connections=options.max_connections, access_log=False,
        )  # fmt: skip
    except GlideMQError as error:
        _print(parser.prog, str(error))
        return 2
    HttpServer(config, dashboard.begin_closing).run()
    return 0


def _tokens(text: str) -> dict[str, str] | None:
    """Return the tokens of words such as ``alice=secret``; a word without a name is named by its position."""
    found: dict[str, str] = {}
    for at, word in enumerate(text.split(), 1):
        name, equals, token = word.partition("=")
        found[name if equals else f"token {at}"] = token if equals else word
    return found or None


def _print(program: str, text: str) -> None:
    sys.stderr.write(f"{program}: {escape_control(text)}\n")


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m glidemq_py.dashboard",
        description=f"Show queues in a browser. {TOKENS_VARIABLE} holds tokens that open the pages, separated by "
        "spaces, such as alice=7f31c9aa; the name stands in the list of changes.",
    )
    parser.add_argument("--url", help="URL of the server; default: GLIDEMQ_URL")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=parse_port, default=8090, help="port to listen on (8090); 0 = any free port")
    parser.add_argument("--allow-changes", action="store_true", help="show buttons that change queues and jobs")
    parser.add_argument(
        "--allowed-host", action="append", metavar="NAME",
        help="accepted name in the header Host; * = any; default: local names, and --host if it is one address",
    )  # fmt: skip
    parser.add_argument(
        "--redact",
        action="append",
        default=[],
        metavar="NAME",
        help="a further key whose values are hidden; repeatable",
    )
    parser.add_argument("--title", default="Queues", help="name in the head of each page (Queues)")
    parser.add_argument(
        "--refresh-interval", type=parse_duration, default=2_000, metavar="TIME",
        help="time between two updates of an open page (2s)",
    )  # fmt: skip
    parser.add_argument("--max-connections", type=int, default=1_000, metavar="N", help="open connections (1000)")
    parser.add_argument("--prefix", default=os.environ.get(PREFIX_VARIABLE) or DEFAULT_PREFIX,
                        help=f"first part of every key; default: {PREFIX_VARIABLE}, else glide")  # fmt: skip
    parser.add_argument("--log-level", default="info", choices=["critical", "error", "warning", "info", "debug"])
    return parser


if __name__ == "__main__":
    sys.exit(main())
