"""Read the records of jobs for a backup.

A record is one hash, so one HGETALL reads it in one atomic step, and a pipeline of them costs the server a third of the
time of a function that does the same. The function ``backup_jobs`` reads the rest exactly: jobs that change while they
are read, and parents.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

from glidemq_py._core.calls import pieces
from glidemq_py._features.backup import calls
from glidemq_py._features.backup.names import text_of
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import GlideMQError

MOST_FIELDS: Final = 2000
"""Records with more fields are read as other keys, page by page, as in ``backup.lua``."""
MOST_RECORDS: Final = 20
"""So a pipeline takes about a tenth of a millisecond."""
PIPELINE_BYTES: Final = 256 * 1024
"""Size of the records of a pipeline, about."""
IDS_PER_CALL: Final = 10
SIZES: Final = 40
_SCHEDULED: Final = (b"delayed", b"prioritized")
_MOST_US: Final = 500
"""Most time of one command, microseconds: a record of 1 MiB."""
_OVERHEAD: Final = 1.6
"""CPU time of reading commands and writing replies, in proportion to that of the commands."""


class RecordReader:
    """Reads records in pieces that are short for the server.

    Args:
        link: the queue.
        add: called with rows of `BackedUpJob`.
        used: called with CPU time of the server, microseconds; may wait.

    Attributes:
        parents: ids of jobs with children, to be read at the end with `read_parents`.
        large: ids of jobs with too many fields, to be read as other keys.
        missing: ids of jobs that were deleted before they were read.
        count: number of rows.
    """

    def __init__(
        self,
        link: QueueLink[Any],
        add: Callable[[Sequence[Any]], Awaitable[None]],
        used: Callable[[float], Awaitable[None]],
    ) -> None:
        self._link = link
        self._add = add
        self._used = used
        self._most = 1
        """Records in the next pipeline."""
        self.parents: list[str] = []
        self.large: list[str] = []
        self.missing: set[str] = set()
        self.count = 0

    async def read(self, ids: Sequence[str]) -> None:
        """Read records; jobs with children and large records are only noted."""
        for piece in pieces(ids, SIZES):
            small = await self._small(piece)
            while small:
                batch, small = small[: self._most], small[self._most :]
                await self._read(batch)

    async def _send(self, commands: list[Sequence[str | bytes]]) -> list[Any]:
        replies: list[Any] = await self._link.transport.send_reads(
            self._link.keys.meta, [("TIME",), *commands, ("TIME",)]
        )
        for reply in replies:
            if isinstance(reply, GlideMQError) and "WRONGTYPE" not in str(reply):
                raise reply
        began, *found, ended = replies
        # Not more than the commands can take: the clock may step, and others may have stopped the server in between.
        elapsed = min(max(0, _microseconds(ended) - _microseconds(began)), _MOST_US * len(found))
        await self._used(elapsed * _OVERHEAD)
        return found

    async def _small(self, ids: Sequence[str]) -> list[str]:
        job = self._link.keys.job
        sizes = await self._send([("HLEN", job(each)) for each in ids])
        found = [(each, size) for each, size in zip(ids, sizes, strict=True) if isinstance(size, int)]  # a hash
        self.large += [each for each, size in found if size > MOST_FIELDS]
        self.missing.update(each for each, size in found if size == 0)
        return [each for each, size in found if 0 < size <= MOST_FIELDS]

    async def _read(self, ids: Sequence[str]) -> None:
        # Without the mark no job of this library has children, and those of a peer matter only while it waits for them.
        link, job = self._link, self._link.keys.job
        marked, *replies = await self._send([
            ("HEXISTS", link.keys.meta, "sideKeys"),
            *(("HGETALL", job(each)) for each in ids),
        ])  # fmt: skip
        records = {each: flat for each, reply in zip(ids, replies, strict=True) if (flat := _flat(reply))}
        self.missing.update(each for each in ids if each not in records)
        largest = max((sum(map(len, flat)) for flat in records.values()), default=1)
        self._most = max(1, min(MOST_RECORDS, 2 * self._most, PIPELINE_BYTES // largest))
        parents = await self._with_children(records, marked=marked is not False and marked != 0)
        self.parents += parents
        scheduled = {each: flat for each, flat in records.items() if _state(flat) in _SCHEDULED and each not in parents}
        rows = [
            calls.BackedUpJob(each.encode(), b"", flat)
            for each, flat in records.items()
            if each not in parents and each not in scheduled and _state(flat)
        ]
        await self._take(rows)
        if scheduled:
            await self._read_scheduled(scheduled)

    async def _with_children(self, records: dict[str, list[bytes]], *, marked: bool) -> set[str]:
        # Read after the records: a job that has no children now had none when its record was read.
        waiting = {each for each, flat in records.items() if _state(flat) == b"waiting-children"}
        others = [each for each in records if each not in waiting] if marked else []
        if not others:
            return waiting
        replies = await self._send([("EXISTS", self._link.keys.stem + "deps:" + each) for each in others])
        return waiting | {each for each, reply in zip(others, replies, strict=True) if reply == 1}

    async def _read_scheduled(self, records: dict[str, list[bytes]]) -> None:
        """Read the due times. A record that is the same before and after belongs to the time read in between."""
        keys, commands = self._link.keys, list[Sequence[str | bytes]]()
        for each in records:
            commands += [("ZSCORE", keys.scheduled, each), ("HGETALL", keys.job(each))]
        replies = await self._send(commands)
        rows, changed = list[calls.BackedUpJob](), list[str]()
        for (each, before), score, after in zip(records.items(), replies[::2], replies[1::2], strict=True):
            if _flat(after) == before and not isinstance(score, GlideMQError):
                rows.append(calls.BackedUpJob(each.encode(), b"" if score is None else b"%.17g" % float(score), before))
            else:
                changed.append(each)
        await self._take(rows)
        await self._call(changed, parents=False)

    async def read_parents(self) -> None:
        """Read the jobs with children: each record counts every child that ended and was removed meanwhile."""
        parents, self.parents = self.parents, []
        await self._call(parents, parents=True)

    async def _call(self, ids: Sequence[str], *, parents: bool) -> None:
        while ids:
            batch = ids[:IDS_PER_CALL]
            reply = await self._link.call(calls.backup_jobs, batch, parents=parents)
            self.parents += (text_of(each) for each in reply.deferred)
            self.large += (text_of(each) for each in reply.large)
            read = {text_of(each) for each in (*reply.deferred, *reply.large, *(name for name, *_ in reply.rows))}
            self.missing.update(each for each in batch[: reply.taken] if each not in read)
            await self._take(reply.rows)
            ids = ids[reply.taken :]
            await self._used(reply.used)

    async def _take(self, rows: Sequence[Any]) -> None:
        self.count += len(rows)
        await self._add(rows)


def _microseconds(reply: Any) -> int:
    seconds, microseconds = reply
    return int(seconds) * 1_000_000 + int(microseconds)


def _flat(reply: Any) -> list[bytes]:
    """Return fields and values by turns; nothing for a key that is not a hash."""
    if not isinstance(reply, dict):
        return []
    pairs = cast("dict[bytes, bytes]", reply).items()
    return [text for pair in pairs for text in pair]


def _state(flat: list[bytes]) -> bytes | None:
    for i in range(0, len(flat), 2):
        if flat[i] == b"state":
            return flat[i + 1]
    return None
