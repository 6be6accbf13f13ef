"""``python -m glidemq_py.gateway``: a gateway that runs until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from importlib import import_module

from glidemq_py._core.command_line import ArgumentParser
from glidemq_py._core.logs import escape_control
from glidemq_py.errors import GlideMQError
from glidemq_py.gateway.config import SETTINGS, settings_of
from glidemq_py.gateway.server import Gateway


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; return 2 if an option is invalid, 1 if the gateway cannot start."""
    flags = vars(_parser().parse_args(arguments))
    try:
        settings = settings_of(os.environ, flags.pop("config"), flags)
        gateway = Gateway(settings.pop("url", None), **settings)
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
    if hasattr(signal, "SIGHUP"):
        loop.add_signal_handler(signal.SIGHUP, gateway.reload_certificate)
    async with gateway:
        _print(f"listening on {gateway.options.host}:{gateway.port}")
        await ended.wait()


def _print(text: str) -> None:
    sys.stderr.write(f"python -m glidemq_py.gateway: {escape_control(text)}\n")
    sys.stderr.flush()


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m glidemq_py.gateway",
        description="Serve queues to bunqueue clients. AUTH_TOKENS holds tokens, separated by commas.",
        epilog="A flag counts more than the file, and the file more than an environment variable: "
        + ", ".join(f"{each.variable} ({each.name})" for each in SETTINGS if each.variable) + ".",
    )  # fmt: skip
    parser.add_argument("--config", metavar="FILE", help="TOML file with the names of the flags, with underscores")
    for setting in SETTINGS:
        if setting.is_secret:
            continue
        if setting.kinds == (bool,):
            parser.add_argument(setting.flag, action="store_true", default=None, help=setting.help)
        else:
            parser.add_argument(setting.flag, type=setting.parse, metavar=setting.metavar, help=setting.help)
    return parser


if __name__ == "__main__":
    sys.exit(main())
