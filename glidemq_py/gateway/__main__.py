"""``python -m glidemq_py.gateway``: a gateway that runs until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from contextlib import nullcontext
from importlib import import_module
from typing import Any, Final

from glidemq_py._client.transport import URL_VARIABLE
from glidemq_py._core.command_line import PROGRAM, ArgumentParser
from glidemq_py._core.keys import DEFAULT_PREFIX
from glidemq_py._core.logs import escape_control, get_logger
from glidemq_py._worker.command.arguments import LogFormat, WorkerArguments, log_line, set_up_logs
from glidemq_py._worker.command.supervisor import Line, supervise
from glidemq_py.errors import GlideMQError, GlideMQValidationError
from glidemq_py.gateway.config import SETTINGS, GivenNames, given_names, kept_server, settings_of
from glidemq_py.gateway.server import Gateway

_MODULE: Final = "glidemq_py.gateway"
_THRESHOLDS: Final = (10_000, 5, 2)
"""Of the garbage collector, by generation. The first is high; the last two limit what is left of closed queues to about
15 MiB."""
_log: Final = get_logger(_MODULE)


def main(argv: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; return 2 if an option is invalid, 1 if the gateway cannot start."""
    given = sys.argv[1:] if argv is None else argv
    flags = vars(_parser().parse_args(given))
    descriptor, _ = flags.pop("line"), flags.pop("slot")
    restored: list[str] | None = flags.pop("restore_ids")
    names = given_names()
    settings: dict[str, Any] | None = None
    try:
        settings = settings_of(os.environ, flags.pop("config"), flags, names)
        processes: int = settings.pop("processes", 1)
        if processes > 1:
            settings["share_port"] = True
            names.shared("share_port", "processes")
        level: int | None = settings.pop("log_level", None)
        log_format: LogFormat | None = settings.pop("log_format", None)
        url, data_path = settings.pop("url", None), settings.pop("data_path", None)
        if restored is not None:
            return _restore_ids(url, settings.get("prefix", DEFAULT_PREFIX), restored)
        gateway = Gateway(url, **settings)
    except GlideMQError as error:
        _print(str(error) if settings is None else _text_of(error, names))
        return 2
    set_up_logs(level, log_format)
    get_logger("uvicorn").setLevel(logging.WARNING)  # its start and end are those of the gateway
    if url is not None or os.environ.get(URL_VARIABLE):
        data_path = None
    try:
        with nullcontext() if data_path is None else kept_server(data_path):
            if processes > 1 and descriptor is None:
                _ignore_hangup()
                arguments = WorkerArguments(
                    processes=processes, shutdown_timeout=gateway.options.shutdown_timeout, log_level=level,
                    log_format=log_format,
                )  # fmt: skip
                return supervise(arguments, given, _MODULE)
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(_serve(gateway, descriptor))
    except (GlideMQError, OSError) as error:
        _print(_text_of(error, names), log_format, logging.CRITICAL)
        return 1
    return 0


def _restore_ids(url: str | None, prefix: str, queues: list[str]) -> int:
    from glidemq_py.gateway.client_names import restore_ids

    if url is None and not os.environ.get(URL_VARIABLE):
        _print(f"--restore-ids needs --url or {URL_VARIABLE}")
        return 2
    try:
        for each in asyncio.run(restore_ids(url, prefix=prefix, queues=queues)):
            taken = f"; {each.taken:,} are ids of jobs of other queues" if each.taken else ""
            _print(f"queue {each.queue!r}: restored the ids of {each.made + each.chosen:,} jobs{taken}")
    except GlideMQError as error:
        _print(str(error))
        return 2 if isinstance(error, GlideMQValidationError) else 1
    return 0


def _text_of(error: Exception, names: GivenNames) -> str:
    """Return the text of an error with the names of options as they were given."""
    if type(error) is GlideMQValidationError:
        return str(names.translated(error))
    if isinstance(error, socket.gaierror):
        return str(error).replace("option 'host'", f"option {names.of('host')!r}")
    return str(error)


def _ignore_hangup() -> None:
    """Ignore SIGHUP in the supervisor: its children notice a changed certificate."""
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop if it is installed."""
    try:
        return import_module("uvloop").Loop  # type: ignore[no-any-return]
    except ImportError:
        return None


def _relieve_collector() -> None:
    """Let the garbage collector skip what was imported, and run less often: usual commands leave no cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


async def _serve(gateway: Gateway, descriptor: int | None) -> None:
    _relieve_collector()
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    if hasattr(signal, "SIGHUP"):
        loop.add_signal_handler(signal.SIGHUP, gateway.reload_certificate)
    if descriptor is None:
        await _run(gateway, ended, None)
        return
    end = socket.socket(fileno=descriptor)
    end.set_inheritable(False)
    line = await Line.over(end)
    server_known = asyncio.Event()
    listening = asyncio.create_task(_listen(line, ended, server_known))
    line.send("loaded")
    if gateway.needs_server and not os.environ.get(URL_VARIABLE):
        line.send("server?")  # all processes share a private one
        await asyncio.wait(
            [asyncio.create_task(event.wait()) for event in (server_known, ended)], return_when=asyncio.FIRST_COMPLETED
        )
    if not ended.is_set():
        await _run(gateway, ended, line)
    line.send("ended")
    listening.cancel()


async def _run(gateway: Gateway, ended: asyncio.Event, line: Line | None) -> None:
    """Run until a request to stop, which may come while the gateway waits for its server."""
    tasks = starting, ending = asyncio.create_task(gateway.start()), asyncio.create_task(ended.wait())
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    try:
        if starting.done():
            starting.result()
            if line is not None:
                line.send("started")
            _log.info("gateway: listening on %s", _address(gateway))
            await ending
        _log.info("gateway: stopping")
    finally:
        starting.cancel()
        ending.cancel()
        await asyncio.wait(tasks)
        await gateway.close()


def _address(gateway: Gateway) -> str:
    text = f"{gateway.options.host}:{gateway.port}"
    return text if gateway.http_port is None else f"{text}, HTTP on port {gateway.http_port}"


async def _listen(line: Line, ended: asyncio.Event, server_known: asyncio.Event) -> None:
    """Process the messages of the supervisor; if it has ended, so does this process."""
    while True:
        word, rest = await line.receive()
        if word == "server":
            os.environ[URL_VARIABLE] = rest
            server_known.set()
        elif word in ("drain", "hurry", ""):
            ended.set()
            return


def _print(text: str, log_format: LogFormat | None = None, level: int = logging.INFO) -> None:
    if log_format == "json":
        sys.stderr.write(log_line(log_format, level, _MODULE, text) + "\n")
    else:
        sys.stderr.write(f"{PROGRAM.get() or 'python -m glidemq_py.gateway'}: {escape_control(text)}\n")
    sys.stderr.flush()


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m glidemq_py.gateway",
        description="Serve queues to bunqueue clients. AUTH_TOKENS holds tokens, separated by commas.",
        epilog="A flag counts more than the file, and the file more than an environment variable: "
        + ", ".join(f"{each.variable} ({each.name})" for each in SETTINGS if each.variable) + ".",
    )  # fmt: skip
    parser.add_argument("--line", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--slot", type=int, help=argparse.SUPPRESS)
    parser.add_argument(
        "--restore-ids", nargs="*", metavar="QUEUE",
        help="only let gateways find the jobs of restored queues, named as by clients or in Python, by their ids, and "
        "end; default: of all queues",
    )  # fmt: skip
    parser.add_argument("--config", metavar="FILE", help="TOML file with the names of the flags, with underscores")
    for setting in SETTINGS:
        if setting.is_secret:
            continue
        if setting.type.kinds == (bool,):
            parser.add_argument(setting.flag, action="store_true", default=None, help=setting.help)
        else:
            parser.add_argument(
                setting.flag,
                type=setting.type.parse,
                metavar=setting.metavar or setting.type.metavar,
                help=setting.help,
            )
    return parser


if __name__ == "__main__":
    sys.exit(main())
