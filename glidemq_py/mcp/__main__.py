"""``python -m glidemq_py.mcp``: queues for agents, over standard input and output or HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

try:
    from glidemq_py._web.serving import ServerParser
    from glidemq_py.mcp import AgentServer
except ImportError as error:
    raise ImportError('the MCP server requires the MCP SDK: pip install "glidemq-py[mcp]"') from error

from glidemq_py._client.transport import known_url
from glidemq_py._operate.conversion import REDACTED
from glidemq_py.errors import GlideMQError

TOKENS_VARIABLE = "GLIDEMQ_MCP_TOKENS"


def main(arguments: list[str] | None = None) -> int:
    """Run until the client leaves, SIGTERM or SIGINT; return 2 if an option is invalid."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        url = known_url(options.url)
        if url is None:
            return parser.refuse("no server: give --url, set GLIDEMQ_URL, or run glidemq dev")
        server = AgentServer(
            url, prefix=options.prefix, queues=options.queue, changeable=options.allow_changes or (),
            actions=options.action, redact=[*REDACTED, *options.redact], user=options.user,
        )  # fmt: skip
    except GlideMQError as error:
        return parser.refuse(str(error))
    if not options.http:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a thread waits for input, which Python cannot interrupt
        asyncio.run(server.serve())
        return 0
    tokens = os.environ.get(TOKENS_VARIABLE, "").split()
    remedy = "" if tokens else f"set {TOKENS_VARIABLE}, such as 7f31c9aa"
    return parser.serve(options, remedy, lambda hosts: (server.app(hosts=hosts, tokens=tokens), lambda: None))


def _parser() -> ServerParser:
    parser = ServerParser(
        "glidemq_py.mcp",
        "Let agents look at queues, over the Model Context Protocol: on standard input and output, or with --http at "
        f"http://HOST:PORT/mcp. {TOKENS_VARIABLE} holds bearer tokens for HTTP, separated by spaces.",
        8091,
    )
    add = parser.add_argument
    add("--url", help="URL of the server; default: GLIDEMQ_URL, then that of glidemq dev")
    add("--http", action="store_true", help="serve over HTTP")
    add("--queue", action="append", metavar="PATTERN", help="only queues whose names match; repeatable")
    add(
        "--allow-changes", action="append", metavar="PATTERN",
        help="allow changes of the queues whose names match, * = all; repeatable; default: none",
    )  # fmt: skip
    add("--action", action="append", metavar="NAME", help="allow this change only, such as retry_jobs; repeatable")
    add(
        "--redact", action="append", default=[], metavar="NAME",
        help="a further key whose values are hidden; repeatable",
    )  # fmt: skip
    add("--user", default="agent", help="who makes the changes, in the list of changes (agent)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
