"""A party of the simulation that backs the queue up under traffic, and the judgment of its backups."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from glidemq_py import Queue
from glidemq_py._features.backup import creating, manifest, records, restoring
from glidemq_py.errors import BackupError, GlideMQConnectionError
from glidemq_py.records import BackupInfo
from tests.inside import connected
from tests.inside import runtime as runtimes
from tests.simulation.network import Network, Source
from tests.simulation.parties import open_queue
from tests.simulation.producer import QUEUE

if TYPE_CHECKING:
    from tests.simulation.ledger import Ledger

__all__ = ["Backups", "small_steps"]

T = TypeVar("T")

_JOB: Final = f"glide:{{{QUEUE}}}:job:".encode()
_RESTORED: Final = "restored"


class _Store:
    """What backups use of a `BackupStore`: objects in memory."""

    runtime: Final = runtimes.ASYNC_RUNTIME
    name: Final = "memory"

    def __init__(self):
        self.objects: dict[str, bytes] = {}

    async def put(self, path: str, content: bytes):
        self.objects[path] = content

    async def get(self, path: str) -> bytes:
        return self.objects[path]

    def manifest_path(self, queue: str, backup: str) -> str:
        return self.part_path(queue, backup, "manifest.json")

    def part_path(self, queue: str, backup: str, part: str) -> str:
        return f"{queue}/{backup}/{part}"


@dataclass(frozen=True, slots=True)
class _Made:
    """A complete backup, and the jobs that it must contain."""

    info: BackupInfo
    lasting: frozenset[str]


class Backups:
    """The parties that create backups, and what is known of each backup.

    Args:
        network: the network.
        ledger: its log shows which jobs were added meanwhile.
        chance: decides about the pauses between backups.
    """

    def __init__(self, network: Network, ledger: Ledger, chance: random.Random):
        self._network = network
        self._ledger = ledger
        self._chance = chance
        self._store = _Store()
        self.made: list[_Made] = []
        self.interrupted = 0

    async def save(self):
        """Create backups until the party is killed."""
        async with await open_queue(self._network) as queue:
            while True:
                await asyncio.sleep(0.3 * self._chance.random())
                try:
                    link = await connected(queue)
                    before, begun = self._existing(), len(self._ledger.log)
                    info = await creating.create_backup(link, cast("Any", self._store), max_server_cpu=1)
                except (GlideMQConnectionError, BackupError):  # the next one is a new backup
                    self.interrupted += 1
                    continue
                # A job that was removed and added again meanwhile may be missing.
                again = {each[b"jobId"].decode() for each in self._ledger.log[begun:] if each[b"event"] == b"added"}
                self.made.append(_Made(info, frozenset((before & self._existing()) - again)))

    def _existing(self) -> set[str]:
        server = self._network.server
        return {key[len(_JOB) :].decode() for key in server.keys_of_jobs(_JOB)}

    async def judge(self) -> list[str]:
        """Return the problems of all backups, and restore the last one into another queue."""
        problems: list[str] = []
        for made in self.made:
            info = manifest.parse_manifest(self._store.objects[self._store.manifest_path(QUEUE, made.info.id)])
            found = Counter(self._jobs_in(info))
            problems += [f"backup {info.id} has job {each} {count} times" for each, count in found.items() if count > 1]
            problems += [f"backup {info.id} lacks job {each}" for each in sorted(made.lasting - found.keys())]
        if self.made:
            problems += await self._restore(self.made[-1].info)
        return problems

    def _jobs_in(self, info: BackupInfo) -> Iterator[str]:
        with tempfile.TemporaryDirectory() as folder:
            for part in info.parts:
                path = Path(folder, part.name)
                path.write_bytes(self._store.objects[self._store.part_path(QUEUE, info.id, part.name)])
                for kind, rows in manifest.chunks(path, info.id):
                    if kind == b"jobs":
                        yield from (row.id.decode() for row in rows)

    async def _restore(self, info: BackupInfo) -> list[str]:
        async with Queue(_RESTORED, Source(self._network)) as queue:
            link = await connected(queue)
            report = await restoring.restore_backup([link], cast("Any", self._store), info)
            problems = [f"restored backup: {finding}" for finding in (await queue.check(recheck_after=0)).findings]
            if report.jobs != info.jobs:
                problems.append(f"{report.jobs} of {info.jobs} jobs of backup {info.id} were restored")
            await queue.obliterate(force=True)
        return problems


async def _at_once(_: object, work: Callable[[], T]) -> T:
    """Run blocking work in the simulated loop, which has no threads."""
    return work()


@contextmanager
def small_steps() -> Iterator[None]:
    """Read few jobs and keys per call, so that much happens while a backup is made, and use no threads."""
    values: dict[Any, dict[str, Any]] = {
        creating: {"in_thread": _at_once, "JOBS_AT_ONCE": 20, "KEYS_PER_CALL": 5},
        restoring: {"in_thread": _at_once},
        records: {"MOST_RECORDS": 4, "SIZES": 10, "IDS_PER_CALL": 3},
    }
    kept = {module: {name: getattr(module, name) for name in names} for module, names in values.items()}
    try:
        _set(values)
        yield
    finally:
        _set(kept)


def _set(values: dict[Any, dict[str, Any]]):
    for module, names in values.items():
        for name, value in names.items():
            setattr(module, name, value)
