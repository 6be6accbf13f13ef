"""`python -m glidemq_py.backup`: create, list, verify and restore backups of queues.

    create    write a backup of each queue
    list      print the complete backups of each queue; exit code 1 if the manifest of one cannot be used
    verify    read a backup completely and verify its checksums
    restore   write a backup into an empty queue
    run       create backups at an interval, until stopped by SIGINT or SIGTERM

Every command needs a destination: a directory, or the URL of an object store, such as ``s3://bucket/prefix``. Settings
of a store are given by ``--storage-option region=eu-central-1`` or by environment variables (``AWS_ENDPOINT`` ...).
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime

from glidemq_py._api.backup_schedule import BackupSchedule
from glidemq_py._api.job_queue import Queue
from glidemq_py._client.transport import URL_VARIABLE, known_url
from glidemq_py._core.command_line import ArgumentParser, parse_duration, terminal_arguments
from glidemq_py._core.keys import DEFAULT_PREFIX
from glidemq_py._core.logs import escape_control
from glidemq_py._features.backup.area import list_backups
from glidemq_py._features.backup.manifest import BackupInfo
from glidemq_py.errors import BackupError, GlideMQError, GlideMQValidationError

__all__ = ["main"]

_WITHOUT_SERVER = ("list", "verify")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Return its exit code: 0 success, 1 failed, 2 invalid command line."""
    parser = _parser()
    given = parser.parse_args(terminal_arguments(sys.argv[1:] if argv is None else argv))
    try:
        needs_server = given.command not in _WITHOUT_SERVER
        url = known_url(given.url) if needs_server else None
        if needs_server and url is None:
            parser.error(f"no server given: use --url, {URL_VARIABLE}, or glidemq dev")
        errors = asyncio.run(_run(given, url))
    except GlideMQValidationError as error:
        parser.reject(str(error))
    except GlideMQError as error:
        errors = [str(error)]
    for each in errors:
        sys.stderr.write(f"{parser.prog}: {escape_control(each)}\n")
    return 1 if errors else 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m glidemq_py.backup", description="Backups of queues.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("create", "write a backup of each queue"),
        ("list", "print the complete backups of each queue"),
        ("verify", "read a backup completely and verify its checksums"),
        ("restore", "write a backup into an empty queue"),
        ("run", "create backups at an interval, until stopped"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        many = name in ("create", "list", "run")
        command.add_argument("destination", help="directory, or URL of an object store")
        command.add_argument("queues", nargs="+" if many else 1, metavar="queue", help="name of a queue")
        command.add_argument("--url", help=f"URL of the server; default: {URL_VARIABLE}")
        command.add_argument("--prefix", default=DEFAULT_PREFIX, help="prefix of the keys")
        command.add_argument(
            "--storage-option", action="append", type=_option, default=[], metavar="NAME=VALUE",
            help="setting of the object store; may be repeated",
        )  # fmt: skip
        if name in ("create", "run"):
            command.add_argument(
                "--allow-empty", action="store_true", help="accept a queue that has never been used on the server"
            )
            command.add_argument("--max-server-cpu", type=float, default=0.1, help="share of a core of the server")
            default = 7 if name == "run" else None
            command.add_argument("--keep", type=int, default=default, help="number of backups to keep per queue")
        if name in ("verify", "restore"):
            command.add_argument("--backup", help="id of the backup; default: the newest complete one")
        if name == "restore":
            command.add_argument("--source", help="queue that was backed up; default: the same name")
            command.add_argument("--partitions", type=int, metavar="N", help="number; default: that of the backup")
        if name == "run":
            command.add_argument(
                "--every", type=_interval, default=parse_duration("6h"), help="interval, such as 6h; at least 1m"
            )
    return parser


def _interval(text: str) -> int:
    milliseconds = parse_duration(text)
    if milliseconds < parse_duration("1m"):
        raise argparse.ArgumentTypeError(f"{text!r}: must be at least 1m")
    return milliseconds


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError("must be NAME=VALUE")
    return name, value


async def _run(given: argparse.Namespace, url: str | None) -> list[str]:
    """Run the command. Return an error for each backup that it has found unusable."""
    storage, errors = dict(given.storage_option) or None, list[str]()
    async with AsyncExitStack() as stack:
        queues: list[Queue] = [Queue(name, url, prefix=given.prefix) for name in dict.fromkeys(given.queues)]
        for queue in queues if given.command not in _WITHOUT_SERVER else ():
            await stack.enter_async_context(queue)
        for queue in queues if given.command in ("create", "run") and not given.allow_empty else ():
            await _check_used(queue)
        if given.command == "run":
            schedule = BackupSchedule(
                queues, given.destination, every=given.every, keep=given.keep, max_server_cpu=given.max_server_cpu,
                storage_options=storage,
            )  # fmt: skip
            await _until_stopped(schedule)
        for queue in queues if given.command != "run" else ():
            errors += await _one(given, queue, storage)
    return errors


async def _check_used(queue: Queue) -> None:
    """Reject a queue without any job or setting: its name is probably misspelled."""
    link = await queue._first_connected()
    keys = link.keys
    if not await link.command("EXISTS", keys.meta, keys.id, keys.stream):
        raise BackupError(
            f"queue {queue.name!r} has never been used on this server with the prefix {queue.options.prefix!r}; check "
            "the name, --url and --prefix, or use --allow-empty"
        )


async def _one(given: argparse.Namespace, queue: Queue, storage: dict[str, str] | None) -> list[str]:
    destination = given.destination
    if given.command == "create":
        share = given.max_server_cpu
        info = await queue.backups.create(destination, keep=given.keep, max_server_cpu=share, storage_options=storage)
        _print_backup("created ", info)
    elif given.command == "list":
        found, unusable = await list_backups(queue, destination, storage)
        for info in found:
            _print_backup("", info)
        return [f"queue {queue.name!r}: {error}" for error in unusable]
    elif given.command == "verify":
        _print_backup(
            "intact ", await queue.backups.verify(destination, backup_id=given.backup, storage_options=storage)
        )
    else:
        report = await queue.backups.restore(
            destination, backup_id=given.backup, source=given.source, partitions=given.partitions,
            storage_options=storage,
        )  # fmt: skip
        again = " (continued)" if report.resumed else ""
        _print(f"queue {queue.name!r}: restored {report.jobs:,} jobs from {report.backup.id}{again}")
        for what, count in report.not_kept.items():
            _print(f"queue {queue.name!r}: not kept: {count:,} {what}")
    return []


def _print_backup(what: str, info: BackupInfo) -> None:
    time = datetime.fromtimestamp(info.started / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    _print(f"queue {info.queue!r}: {what}{info.id}, {time}: {info.jobs:,} jobs, {info.size:,} bytes")


async def _until_stopped(schedule: BackupSchedule) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with schedule:
        await stopped.wait()


def _print(text: str) -> None:
    sys.stdout.write(f"{escape_control(text)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
