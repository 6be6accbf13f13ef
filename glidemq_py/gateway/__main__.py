"""``python -m glidemq_py.gateway``: a gateway that runs until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from importlib import import_module

from glidemq_py._core.command_line import ArgumentParser, parse_duration, parse_port
from glidemq_py._core.logs import escape_control
from glidemq_py.errors import GlideMQError
from glidemq_py.gateway.server import Gateway

TOKENS_VARIABLE = "AUTH_TOKENS"


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; return 2 if an option is invalid, 1 if the gateway cannot start."""
    options = _parser().parse_args(arguments)
    tokens = [each.strip() for each in os.environ.get(TOKENS_VARIABLE, "").split(",") if each.strip()] or None
    try:
        gateway = Gateway(
            options.url, host=options.host, port=options.port, prefix=options.prefix, tokens=tokens,
            allow_anonymous=options.allow_anonymous, max_connections=options.max_connections,
            frame_timeout=options.frame_timeout, shutdown_timeout=options.shutdown_timeout,
        )  # fmt: skip
    except GlideMQError as error:
        _print(str(error))
        return 2
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(gateway))
    except (GlideMQError, OSError) as error:
        _print(str(error))
        return 1
    return 0


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop if it is installed."""
    try:
        return import_module("uvloop").Loop  # type: ignore[no-any-return]
    except ImportError:
        return None


async def _serve(gateway: Gateway) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    async with gateway:
        _print(f"listening on {gateway.options.host}:{gateway.port}")
        await ended.wait()


def _print(text: str) -> None:
    sys.stderr.write(f"python -m glidemq_py.gateway: {escape_control(text)}\n")
    sys.stderr.flush()


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m glidemq_py.gateway",
        description=f"Serve queues to bunqueue clients. {TOKENS_VARIABLE} holds tokens, separated by commas.",
    )
    parser.add_argument("--url", help="URL of the server; default: GLIDEMQ_URL, else a private embedded server")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=parse_port, default=6_789, help="port to listen on (6789); 0 = any free port")
    parser.add_argument("--prefix", default="glide", help="first part of every key (glide)")
    parser.add_argument(
        "--allow-anonymous", action="store_true",
        help="serve other machines without tokens: every client that reaches the gateway may use the queues",
    )  # fmt: skip
    parser.add_argument("--max-connections", type=int, default=20_000, metavar="N", help="open connections (20000)")
    parser.add_argument(
        "--frame-timeout", type=parse_duration, default=60_000, metavar="TIME",
        help="time between two reads of an incomplete frame (60s)",
    )  # fmt: skip
    parser.add_argument(
        "--shutdown-timeout", type=parse_duration, default=30_000, metavar="TIME",
        help="time for running commands at SIGTERM (30s)",
    )  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(main())
