"""`glidemq backup`, `glidemq backups` and `glidemq restore`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glidemq_py._operate.parsing import pairs_of
from glidemq_py.cli.arguments import Queue, complete_queue
from glidemq_py.cli.shell import ExitCode, Shell, clock, size_text
from glidemq_py.errors import GlideMQValidationError

if TYPE_CHECKING:
    from glidemq_py._features.backup.manifest import BackupInfo

__all__ = ["backup", "backups", "restore"]

_Destination = Annotated[
    str, typer.Argument(metavar="DESTINATION", help="Directory, or URL of an object store.", show_default=False)
]
_Queues = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="QUEUES", help="Names of queues; default: queues in [tool.glidemq].", show_default=False,
        autocompletion=complete_queue,
    ),
]  # fmt: skip
_Storage = Annotated[
    list[str] | None,
    typer.Option("--storage-option", metavar="NAME=VALUE", help="Setting of the object store; repeatable."),
]


def _storage_options(given: list[str] | None) -> dict[str, str] | None:
    return {key: str(value) for key, value in pairs_of("--storage-option", given or ()).items()} or None


async def backup(
    shell: Shell,
    destination: _Destination,
    queues: _Queues = None,
    keep: Annotated[
        int | None, typer.Option("--keep", metavar="N", min=1, help="Number of backups to keep per queue.")
    ] = None,
    storage_option: _Storage = None,
) -> None:
    """Write a backup of queues while they are in use. See also `python -m glidemq_py.backup`."""
    names = list(dict.fromkeys(queues or shell.settings.queues))
    await _check_order(shell, "backup", destination, names)
    if not names:
        shell.fail("no queues given; name them, or set queues in [tool.glidemq]", ExitCode.USAGE)
    for name in names:
        await shell.check_exists(name)
    options = _storage_options(storage_option)
    found: list[Any] = []
    for name in names:
        queue = await shell.operator.queue(name)
        with shell.working(f"backing up queue {name!r}"):
            info = await queue.backups.create(destination, keep=keep, storage_options=options)
        found.append(info)
        shell.say(f"queue {name!r}: created {info.id}: {info.jobs:,} jobs, {info.size:,} bytes")
    shell.print_json(found)


async def backups(
    shell: Shell,
    destination: _Destination,
    queues: _Queues = None,
    storage_option: _Storage = None,
) -> None:
    """List the backups of queues. Needs no server; exit code 1 if one of them is damaged."""
    from glidemq_py._api.job_queue import Queue as JobQueue
    from glidemq_py._features.backup.area import list_backups

    names = list(dict.fromkeys(queues or shell.settings.queues))
    if not names:
        shell.fail("no queues given; name them, or set queues in [tool.glidemq]", ExitCode.USAGE)
    options = _storage_options(storage_option)
    found: list[BackupInfo] = []
    damaged: list[str] = []
    for name in names:
        some, unusable = await list_backups(
            JobQueue(name, prefix=shell.settings.prefix), destination, options
        )  # fmt: skip
        found += some
        damaged += [f"queue {name!r}: {error}" for error in unusable]
    shell.print_json({"backups": found, "damaged": damaged})
    rows = [(each.queue, each.id, clock(each.started), f"{each.jobs:,}", size_text(each.size)) for each in found]
    what = ", ".join(map(repr, names))
    shell.table(("QUEUE", "ID", "STARTED", ">JOBS", ">SIZE"), rows, f"no backup of {what} in {destination!r}")
    for text in damaged:
        shell.note(text)
    if damaged:
        shell.stop(ExitCode.FAILED)


async def restore(
    shell: Shell,
    destination: _Destination,
    queue: Queue,
    backup_id: Annotated[str | None, typer.Option("--backup", metavar="ID", help="Default: the newest one.")] = None,
    source: Annotated[str | None, typer.Option("--source", metavar="QUEUE", help="Queue that was backed up.")] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", metavar="N", help="Number of partitions; default: as the backup.")
    ] = None,
    storage_option: _Storage = None,
) -> None:
    """Restore a backup into an empty queue."""
    await _check_order(shell, "restore", destination, [queue])
    options = _storage_options(storage_option)
    target = await shell.operator.queue(queue)
    with shell.working(f"restoring queue {queue!r}"):
        report = await target.backups.restore(
            destination, backup_id=backup_id, source=source, partitions=partitions, storage_options=options
        )
    shell.print_json(report)
    again = " (continued)" if report.resumed else ""
    shell.say(f"queue {queue!r}: restored {report.jobs:,} jobs from {report.backup.id}{again}")
    for what, count in report.not_kept.items():
        shell.note(f"not kept: {count:,} {what}")


async def _check_order(shell: Shell, verb: str, destination: str, names: list[str]) -> None:
    """End the command if its destination is a queue or missing: the destination comes first.

    Args:
        shell: The command.
        verb: "backup" or "restore".
        destination: The first argument.
        names: Names of queues, the other arguments.
    """
    paths = [name for name in names if _is_place(name)]
    if _is_place(destination) or not (paths or (not names and await _is_queue(shell, destination))):
        return
    place, queues = (paths[0], [destination, *(name for name in names if name != paths[0])]) if paths else ("", [])
    right = f"glidemq {verb} {place or 'DESTINATION'} {' '.join(queues or [destination])}"
    what = (
        f"{destination!r} is taken for the destination" if paths else f"no destination given for queue {destination!r}"
    )
    shell.fail(f"{what}; a directory or URL comes first: {right}", ExitCode.USAGE)


def _is_place(text: str) -> bool:
    """Return True if an argument is a directory or a URL, not the name of a queue."""
    return "://" in text or text.startswith(("/", "./", "../", "~")) or Path(text).is_dir()


async def _is_queue(shell: Shell, name: str) -> bool:
    try:
        return await shell.operator.queue_exists(name)
    except GlideMQValidationError:
        return False
