"""``python -m glidemq_py.dashboard``: the dashboard under uvicorn, with limits on connections and half-sent headers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

try:
    from glidemq_py._web.serving import ServerParser
except ImportError as error:
    raise ImportError('the dashboard requires uvicorn: pip install "glidemq-py[dashboard]"') from error

from glidemq_py._client.transport import known_url
from glidemq_py._core.command_line import parse_duration
from glidemq_py._operate.conversion import REDACTED
from glidemq_py.dashboard import Dashboard
from glidemq_py.errors import EmbeddedServerError

TOKENS_VARIABLE = "GLIDEMQ_DASHBOARD_TOKENS"


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; return 2 if an option is invalid."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        url = known_url(options.url)
    except EmbeddedServerError as error:
        return parser.refuse(str(error))
    if url is None:
        return parser.refuse("no server: give --url, set GLIDEMQ_URL, or run glidemq dev")
    tokens = _tokens(os.environ.get(TOKENS_VARIABLE, ""))
    remedy = "" if tokens else f"set {TOKENS_VARIABLE}, such as 'alice=7f31c9aa'"

    def create(hosts: list[str]) -> tuple[Dashboard, Callable[[], None]]:
        dashboard = Dashboard(
            url, prefix=options.prefix, title=options.title, allow_changes=options.allow_changes, tokens=tokens,
            hosts=hosts, redact=[*REDACTED, *options.redact], refresh_interval=options.refresh_interval,
        )  # fmt: skip
        return dashboard, dashboard.begin_closing

    return parser.serve(options, remedy, create, access_log=False)


def _tokens(text: str) -> dict[str, str] | None:
    """Return the tokens of words such as ``alice=secret``; a word without a name is named by its position."""
    found: dict[str, str] = {}
    for at, word in enumerate(text.split(), 1):
        name, equals, token = word.partition("=")
        found[name if equals else f"token {at}"] = token if equals else word
    return found or None


def _parser() -> ServerParser:
    parser = ServerParser(
        "glidemq_py.dashboard",
        f"Show queues in a browser. {TOKENS_VARIABLE} holds tokens that open the pages, separated by "
        "spaces, such as alice=7f31c9aa; the name stands in the list of changes.",
        8090,
    )
    add = parser.add_argument
    add("--url", help="URL of the server; default: GLIDEMQ_URL")
    add("--allow-changes", action="store_true", help="show buttons that change queues and jobs")
    add(
        "--redact", action="append", default=[], metavar="NAME",
        help="a further key whose values are hidden; repeatable",
    )  # fmt: skip
    add("--title", default="Queues", help="name in the head of each page (Queues)")
    add(
        "--refresh-interval", type=parse_duration, default=2_000, metavar="TIME",
        help="time between two updates of an open page (2s)",
    )  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(main())
