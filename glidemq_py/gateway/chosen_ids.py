"""The index of the ids that clients have chosen for jobs: unique over all queues, since commands name jobs by id alone.

The hashes `<prefix>:gateway:ids:<0 to 15>` map an id to `<queue>|<epoch seconds of its claim>`, with the partition of a
partitioned queue, and to `<queue>|0` once its job was added. An id is claimed before its job is added, so an entry
without a job is possible: it is free to be claimed again, if the job was added or time has passed, and is removed by
`sweep`.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
import zlib
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar
from urllib.parse import unquote

from glidemq_py._api.job_queue import Queue
from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import Packed, administration, call, pieces
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.record import JobState
from glidemq_py._partitions.routing import candidates
from glidemq_py._partitions.stored import read_layout
from glidemq_py.errors import GlideMQError, GlideMQValidationError, JobStateError
from glidemq_py.gateway.names import queue_of_part
from glidemq_py.gateway.table import CommandError

SHARDS: Final = 16
"""Number of hashes of a prefix. It must never change."""
UNUSED_S: Final = 3_600
"""Age from which an entry without a job is removed."""
_BEING_ADDED_S: Final = 10
_PATIENCE_S: Final = 1.0
"""How long a job that another client is adding is awaited."""
_LOOK_S: Final = 0.02
_CLOSE_S: Final = 0.5
_KEPT: Final = 10_000
_TRIES: Final = 5
_IDS_PER_CALL: Final = 500
_MOST_CHARS: Final = 256
_PAGE: Final = "500"
_TO_ESCAPE: Final = re.compile(r"[\x00-\x1f\x7f{}:%|]")
K = TypeVar("K")
V = TypeVar("V")
_FINISHED: Final = tuple(state for state in JobState if state.is_finished)

OpenQueue = Callable[[str], Awaitable[Queue]]


def engine_id(chosen: str) -> str:
    """Return the id that a job of this package has: characters of our keys are escaped, and numbers are marked.

    Raises:
        CommandError: If it is too long.
    """
    escaped = _TO_ESCAPE.sub(lambda found: f"%{ord(found[0]):02X}", chosen)
    if escaped.isdecimal():
        escaped = "%#" + escaped  # ids of digits are those that queues count
    if not chosen or len(escaped) > _MOST_CHARS:
        raise CommandError(f"jobId must have 1 to {_MOST_CHARS} characters, of which {{ }} : % | count 3")
    return escaped


def chosen_of(own: str) -> str | None:
    """Return the id that a client has chosen, from the id of its job; None if no gateway stores such an id."""
    chosen = own[2:] if own.startswith("%#") else unquote(own, errors="replace")
    try:
        return chosen if engine_id(chosen) == own else None
    except CommandError:
        return None


@call("claim_ids", has_queue=False)
def claim_ids(claims: Packed[list[str]]) -> list[str]:
    """Change entries: a flat list of id, expected and new value ('' = none); returns the values before."""
    ...


class ChosenIds:
    """Claims and looks up the ids that clients choose.

    Args:
        transport: Connection to the server of the queues.
        prefix: First part of every key.
        open_part: Returns the open queue, or the partition of one, with a name.
    """

    def __init__(self, transport: Transport, prefix: str, open_part: OpenQueue) -> None:
        self._transport, self._prefix, self._open_part = transport, prefix, open_part
        self._known: OrderedDict[str, str] = OrderedDict()
        self._swept, self._cursor = 0, b"0"
        self._added: dict[str, str] = {}
        self._noting: asyncio.Task[None] | None = None

    def known_queue(self, chosen: str) -> str | None:
        """Return the queue of an id if this process has met it."""
        return self._known.get(chosen)

    async def queue_of(self, chosen: str) -> str | None:
        """Return the queue for which an id was claimed; None if it was not.

        Raises:
            GlideMQConnectionError: If the server cannot be reached.
        """
        found = await self._transport.command("HGET", self._shard(chosen), chosen)
        if found is None:
            self._known.pop(chosen, None)
            return None
        queue, _ = _parsed(found.decode("utf-8", "replace"))
        keep(self._known, chosen, queue)
        return queue

    async def claim(
        self, queue: str, every: Sequence[str], own: dict[str, str], opened: Queue
    ) -> set[str]:  # fmt: skip
        """Claim ids for jobs of a queue; return those of unfinished jobs, which are not claimed. See `JobIds.claim`.

        Finished jobs with the ids are deleted: as with bunqueue, such an id names a new job.

        Args:
            queue: Name of the queue or partition.
            every: The ids, each once.
            own: The entries of a former call for the same jobs. They are updated.
            opened: The queue, if its partitions are chosen by the ids; else the queue or partition of this name.

        Raises:
            CommandError: If another client is adding a job with one of the ids to another queue.
            GlideMQConnectionError: If the server cannot be reached.
        """
        value = f"{queue}|{int(time.time())}"
        existing = set[str]()
        claims = [self._claim_new(shard, ids, value) for shard, ids in self._by_shard(every).items()]
        # Another program may have used an id before any client. A job that it adds from now on is one that a client
        # has met, even if it finishes before the job of the client is added.
        used, claimed = await asyncio.gather(_used_in(opened, every), asyncio.gather(*claims))
        for each, before in itertools.chain.from_iterable(claimed):
            if before == own.get(each) and await self._replaced(each, before, value) == before:
                continue
            if not await self._claim_again(queue, each, before, value):
                existing.add(each)
        for each in used:
            if each not in existing and await _remove_finished(opened, each) is False:
                existing.add(each)
        for each in every:
            if each not in existing:
                own[each] = value
                keep(self._known, each, queue)
        return existing

    async def restore(self, queue: str, chosen: Iterable[str]) -> int:
        """Write the entries of jobs that exist; return how many ids are those of jobs of other queues.

        Raises:
            GlideMQConnectionError: If the server cannot be reached.
        """
        value, refused = f"{queue}|{int(time.time())}", 0
        for shard, ids in self._by_shard(chosen).items():
            for each, before in await self._claim_new(shard, ids, value):
                is_other = _parsed(before)[0] != queue and await self._exists(each, before)
                refused += is_other
                if not is_other:
                    await self._transport.call(claim_ids(shard, [each, before, value]))
        return refused

    async def _claim_new(self, shard: str, ids: list[str], value: str) -> list[tuple[str, str]]:
        """Claim the ids without an entry; return the others with their entries."""
        taken: list[tuple[str, str]] = []
        for piece in pieces(ids, _IDS_PER_CALL):
            found = await self._transport.call(claim_ids(shard, [text for each in piece for text in (each, "", value)]))
            taken += [(each, before) for each, before in zip(piece, found, strict=True) if before]
        return taken

    async def _replaced(self, chosen: str, before: str, value: str) -> str:
        """Replace an entry, unless another client has changed it; return the one that was there."""
        (now,) = await self._transport.call(claim_ids(self._shard(chosen), [chosen, before, value]))
        return now

    async def _claim_again(self, queue: str, chosen: str, before: str, value: str) -> bool:
        """Claim an id that has an entry; return False if its job is unfinished."""
        until, tries = time.monotonic() + _PATIENCE_S, 0
        while tries < _TRIES:
            owner, since = _parsed(before)
            if before:
                is_removed = await _remove_finished(await self._open_part(owner), chosen)
                if is_removed is False:
                    return False
                if is_removed is None and owner != queue and time.time() - since < _BEING_ADDED_S:
                    if time.monotonic() >= until:
                        by = "by another client" if queue_of_part(owner) == queue_of_part(queue) else "to another queue"
                        raise CommandError(f"a job with the id {chosen} is being added {by}")
                    await asyncio.sleep(_LOOK_S)
                    text = await self._transport.command("HGET", self._shard(chosen), chosen)
                    before = "" if text is None else text.decode("utf-8", "replace")
                    continue
            now = await self._replaced(chosen, before, value)
            if now == before:
                return True
            before, tries = now, tries + 1
        raise CommandError(f"the id {chosen} is being claimed by other clients")

    def added(self, claimed: Mapping[str, str]) -> None:
        """Note soon that the jobs of claimed ids were added: when they are deleted, the ids are free at once.

        Args:
            claimed: Entries by id, from `claim`.
        """
        if claimed:
            self._added.update(claimed)
            if self._noting is None:
                self._noting = asyncio.create_task(self._note_added())

    async def _note_added(self) -> None:
        try:
            while self._added:
                added, self._added = self._added, {}
                calls = [
                    claim_ids(shard, [
                        text for each in piece for text in (each, added[each], f"{_parsed(added[each])[0]}|0")
                    ])
                    for shard, ids in self._by_shard(added).items() for piece in pieces(ids, _IDS_PER_CALL)
                ]  # fmt: skip
                await asyncio.gather(*map(self._transport.call, calls))
        except GlideMQError:  # the ids are free a little later
            self._added.clear()
        finally:
            self._noting = None

    async def close(self) -> None:
        """Wait for a moment until added jobs are noted. Idempotent."""
        noting = self._noting
        if noting is not None:
            await asyncio.wait((noting,), timeout=_CLOSE_S)
            noting.cancel()
            await asyncio.wait((noting,))

    async def sweep(self) -> int:
        """Remove entries without a job from a page of the index; return how many.

        Raises:
            GlideMQConnectionError: If the server cannot be reached.
        """
        shard = f"{self._prefix}:gateway:ids:{self._swept}"
        self._cursor, pairs = await self._transport.command("HSCAN", shard, self._cursor, "COUNT", _PAGE)
        if self._cursor == b"0":
            self._swept = (self._swept + 1) % SHARDS
        oldest = time.time() - UNUSED_S
        texts = [text.decode("utf-8", "replace") for text in pairs]
        old = [pair for pair in zip(texts[::2], texts[1::2], strict=True) if _parsed(pair[1])[1] < oldest]
        exist = await asyncio.gather(*(self._exists(*pair) for pair in old))
        gone = [pair for pair, exists in zip(old, exist, strict=True) if not exists]
        if gone:
            claims = [text for chosen, entry in gone for text in (chosen, entry, "")]
            await self._transport.call(claim_ids(shard, claims))
        return len(gone)

    async def _exists(self, chosen: str, entry: str) -> bool:
        name = _parsed(entry)[0]
        try:
            own = engine_id(chosen)
            key = QueueKeys(self._prefix, name).job(own)
        except (GlideMQValidationError, CommandError):
            return False
        if await self._transport.command("EXISTS", key):
            return True
        layout = await read_layout(self._transport, QueueKeys(self._prefix, queue_of_part(name)))
        for number, _ in () if layout is None else candidates(own, layout):  # the job of a flow
            assert layout is not None
            if await self._transport.command("EXISTS", QueueKeys(self._prefix, layout.names[number]).job(own)):
                return True
        return False

    def _by_shard(self, chosen: Iterable[str]) -> dict[str, list[str]]:
        """Return the ids by the hashes that have their entries."""
        shards: defaultdict[str, list[str]] = defaultdict(list)
        for each in chosen:
            shards[self._shard(each)].append(each)
        return shards

    def _shard(self, chosen: str) -> str:
        return f"{self._prefix}:gateway:ids:{zlib.crc32(chosen.encode('utf-8', 'surrogatepass')) % SHARDS}"


def keep(kept: OrderedDict[K, V], key: K, value: V) -> None:
    """Remember a value as the latest; the oldest of too many is forgotten."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > _KEPT:
        kept.popitem(last=False)


async def _used_in(opened: Queue, chosen: Sequence[str]) -> list[str]:
    """Return those of the ids that jobs of a queue or partition have."""
    by_own = {engine_id(each): each for each in chosen}
    used: list[str] = []
    await opened._plain_link()
    if opened._partitions is None:
        parts = [(opened, list(by_own))]
    else:
        placed: defaultdict[int, list[str]] = defaultdict(list)
        for own in by_own:
            for number, _ in candidates(own, opened._partitions.layout):
                placed[number].append(own)
        parts = [(opened._partitions.queues[number], ids) for number, ids in placed.items()]
    for part, wanted in parts:
        link = await part._connected()
        for piece in pieces(wanted, _IDS_PER_CALL):
            call = administration.records(link.keys.meta, piece, ("state",))
            used += [by_own[own] for own, _ in await link.transport.call(call)]
    return used


async def _remove_finished(opened: Queue, chosen: str) -> bool | None:
    """Delete the job of an id if it has finished; return False if it has not, and None if there is no job."""
    job = await opened.get_job(engine_id(chosen), exclude_data=True)
    if job is None:
        return None
    try:
        await job.remove(states=_FINISHED)
    except JobStateError:
        return False
    return True


def _parsed(entry: str) -> tuple[str, int]:
    """Return the queue and the time of an entry."""
    queue, _, since = entry.rpartition("|")
    return queue, int(since) if since.isdecimal() and len(since) <= 15 else 0
