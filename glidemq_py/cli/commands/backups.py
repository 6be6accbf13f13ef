"""`glidemq backup`, `glidemq backups` and `glidemq restore`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from glidemq_py._operate.parsing import PARAMETERS, Param, pairs_of
from glidemq_py.cli.shell import ExitCode, Shell, clock, command, size_text
from glidemq_py.errors import GlideMQValidationError

if TYPE_CHECKING:
    from glidemq_py._features.backup.manifest import BackupInfo


def _storage_options(option: str, texts: list[str]) -> dict[str, str] | None:
    return {key: str(value) for key, value in pairs_of(option, texts).items()} or None


_PLACE: Final[dict[str, Any]] = {
    "destination": Param("DESTINATION", "Directory, or URL of an object store."),
    "storage_option": Param(
        "--storage-option NAME=VALUE", "Setting of the object store; repeatable.", _storage_options, is_many=True
    ),
}  # fmt: skip
_QUEUES: Final = PARAMETERS["queues"]._replace(text="Names of queues; default: queues in [tool.glidemq].")


@command("backup", queues=_QUEUES, keep=Param("--keep N", "Number of backups to keep per queue.", least=1), **_PLACE)
async def backup(
    shell: Shell, destination: str, queues: list[str] | None = None, keep: int | None = None, *, storage_option: Any
) -> None:
    """Write a backup of queues while they are in use. See also `python -m glidemq_py.backup`."""
    names = list(dict.fromkeys(queues or shell.settings.queues))
    await _check_order(shell, "backup", destination, names)
    if not names:
        shell.fail("no queues given; name them, or set queues in [tool.glidemq]", ExitCode.USAGE)
    for name in names:
        await shell.check_exists(name)
    found: list[Any] = []
    for name in names:
        queue = await shell.operator.queue(name)
        with shell.working(f"backing up queue {name!r}"):
            info = await queue.backups.create(destination, keep=keep, storage_options=storage_option)
        found.append(info)
        shell.say(f"queue {name!r}: created {info.id}: {info.jobs:,} jobs, {info.size:,} bytes")
    shell.print_json(found)


@command("backups", server=False, queues=_QUEUES, **_PLACE)
async def backups(shell: Shell, destination: str, queues: list[str] | None = None, *, storage_option: Any) -> None:
    """List the backups of queues. Needs no server; exit code 1 if one of them is damaged."""
    from glidemq_py._api.job_queue import Queue as JobQueue
    from glidemq_py._features.backup.area import list_backups

    names = list(dict.fromkeys(queues or shell.settings.queues))
    if not names:
        shell.fail("no queues given; name them, or set queues in [tool.glidemq]", ExitCode.USAGE)
    found: list[BackupInfo] = []
    damaged: list[str] = []
    for name in names:
        some, unusable = await list_backups(
            JobQueue(name, prefix=shell.settings.prefix), destination, storage_option
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


@command(
    "restore", backup_id=Param("--backup ID", "Default: the newest one."),
    source=Param("--source QUEUE", "Queue that was backed up."),
    partitions=Param("--partitions N", "Number of partitions; default: as the backup."), **_PLACE,
)  # fmt: skip
async def restore(
    shell: Shell, destination: str, queue: str, backup_id: str | None = None, source: str | None = None,
    partitions: int | None = None, *, storage_option: Any,
) -> None:  # fmt: skip
    """Restore a backup into an empty queue."""
    await _check_order(shell, "restore", destination, [queue])
    target = await shell.operator.queue(queue)
    with shell.working(f"restoring queue {queue!r}"):
        report = await target.backups.restore(
            destination, backup_id=backup_id, source=source, partitions=partitions, storage_options=storage_option
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
