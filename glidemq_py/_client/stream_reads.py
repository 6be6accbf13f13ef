"""Reads of streams that wait for entries, the commands that serve several of them, and polling.

A `Poller` serves the reads for which no connection for blocking reads is free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from glidemq_py._client.transport import JobTransport
from glidemq_py._core.keys import hash_tag
from glidemq_py._core.times import monotonic
from glidemq_py.errors import ClosedError, GlideMQConnectionError, GlideMQError


class StreamRead:
    """An XREAD or XREADGROUP that waits for entries.

    Args:
        transport: Connection of the reader.
        args: The command, with BLOCK.
    """

    __slots__ = ("block", "deadline", "done", "head", "streams", "tag", "transport")

    def __init__(self, transport: JobTransport, args: Sequence[str | bytes], *, cluster: bool) -> None:
        words = [word if isinstance(word, str) else word.decode("utf-8", "surrogateescape") for word in args]
        at = words.index("BLOCK")
        self.transport = transport
        self.block = int(words[at + 1]) / 1000
        """Longest wait, seconds."""
        self.deadline = monotonic() + self.block
        del words[at : at + 2]
        first = words.index("STREAMS") + 1
        half = (len(words) - first) // 2
        self.head = tuple(words[: first - 1])
        """The words before STREAMS, without BLOCK. Reads with the same head can be served by one command."""
        self.streams = dict(zip(words[first : first + half], words[first + half :], strict=True))
        """The position in each stream."""
        self.tag = hash_tag(words[first]) if cluster else None
        """In a cluster, the hash tag of the streams: one command reads streams of one slot."""
        self.done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def kind(self) -> tuple[object, ...]:
        """Reads of one kind can be served by one command."""
        return self.tag, *self.head

    def end(self, reply: Any = None, error: Exception | None = None) -> None:
        """End the read; None is a read that found nothing."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(reply)
        else:
            self.done.set_exception(error)

    def command(self) -> list[str]:
        """Return the command without BLOCK."""
        return combine(self.head, self.streams)


def combine(head: Iterable[str], streams: Mapping[str, str], block_ms: int | None = None) -> list[str]:
    """Return the command that reads these streams."""
    block = [] if block_ms is None else ["BLOCK", str(block_ms)]
    return [*head, *block, "STREAMS", *streams, *streams.values()]


def distribute(reads: Iterable[StreamRead], reply: Any) -> bool:
    """End the reads for which a reply has entries; return whether there was one.

    Each entry of a consumer group ends one read: it wakes up one reader.
    """
    found = {name: entries for name, entries in cast("dict[bytes, Any]", reply or {}).items() if entries}
    if not found:
        return False
    for read in reads:
        if read.done.done():
            continue
        names = [name for name in (key.encode("utf-8", "surrogateescape") for key in read.streams) if name in found]
        if names:
            read.end({name: found[name] for name in names})
            if read.head[0] == "XREADGROUP":
                for name in names:
                    del found[name]
    return True


async def read_each(transport: JobTransport, reads: Sequence[StreamRead]) -> bool:
    """Serve each read by a command of its own, without waiting: an error ends only the read that causes it.

    Returns:
        True if one of them has ended.
    """
    replies = await asyncio.gather(*(transport.command(*read.command()) for read in reads), return_exceptions=True)
    for read, reply in zip(reads, replies, strict=True):
        if isinstance(reply, Exception):
            read.end(error=reply if isinstance(reply, GlideMQError) else ClosedError(f"reading failed: {reply!r}"))
        elif isinstance(reply, BaseException):
            raise reply
        else:
            distribute((read,), reply)
    return any(read.done.done() for read in reads)


def ends_all(error: GlideMQError) -> bool:
    """Return whether an error concerns the connection, and not one of the streams."""
    return isinstance(error, (ClosedError, GlideMQConnectionError))


_SHORTEST_S: Final = 0.01
_LONGEST_S: Final = 0.1
_GROWTH: Final = 1.3
_STREAM_S: Final = 0.0002
"""Share of an interval per stream, so that a thousand streams are read five times a second at most."""
_COMMAND_S: Final = 0.002
"""Share of an interval per command: in a cluster, the streams of each queue need one."""
_STREAMS_PER_READ: Final = 500


class Poller:
    """Polls for the reads of all readers over one client."""

    def __init__(self) -> None:
        self._reads: dict[StreamRead, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._pause = _SHORTEST_S

    def add(self, read: StreamRead) -> None:
        """Poll for a read until it has entries or its time is over."""
        self._reads[read] = None
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll(), name="glidemq-polled-reads")

    def remove(self, read: StreamRead) -> None:
        """End a read."""
        self._reads.pop(read, None)

    async def _poll(self) -> None:
        try:
            await self._poll_all()
        except BaseException as error:
            for read in list(self._reads):
                read.end(error=ClosedError(f"polling ended: {type(error).__name__}: {error}"))
            self._reads.clear()
            raise

    async def _poll_all(self) -> None:
        while self._reads:
            reads = list(self._reads)
            commands = commands_of(reads)
            # All transports of this poller use the same client.
            found = await asyncio.gather(*(_serve(command, reads[0].transport) for command in commands))
            now = monotonic()
            for read in reads:
                if now >= read.deadline:
                    read.end()
                if read.done.done():
                    self._reads.pop(read, None)
            self._pause = _SHORTEST_S if any(found) else min(self._pause * _GROWTH, _LONGEST_S)
            await asyncio.sleep(max(self._pause, len(reads) * _STREAM_S, len(commands) * _COMMAND_S))
        self._pause = _SHORTEST_S


async def _serve(reads: Sequence[StreamRead], transport: JobTransport) -> bool:
    """Serve reads by one command; return whether one has ended."""
    streams = {name: position for read in reads for name, position in read.streams.items()}
    try:
        return distribute(reads, await transport.command(*combine(reads[0].head, streams)))
    except GlideMQError as error:
        if len(reads) > 1 and not ends_all(error):
            return await read_each(transport, reads)
        # A transport may be closed while others go on.
        for read in reads:
            if not isinstance(error, ClosedError) or read.transport is transport:
                read.end(error=error)
        return True


def commands_of(reads: Sequence[StreamRead]) -> list[list[StreamRead]]:
    """Return the reads of each command: those of one kind, with one position per stream, groups one read."""
    commands = list[list[StreamRead]]()
    begun: dict[tuple[object, ...], list[tuple[list[StreamRead], dict[str, str]]]] = {}
    for read in reads:
        of_kind = begun.setdefault(read.kind, [])
        for members, streams in of_kind:
            known = streams.keys() & read.streams
            shares = read.head[0] == "XREAD" and all(streams[name] == read.streams[name] for name in known)
            if len(streams) < _STREAMS_PER_READ and (shares or not known):
                members.append(read)
                streams.update(read.streams)
                if len(streams) >= _STREAMS_PER_READ:
                    of_kind.remove((members, streams))
                break
        else:
            members = [read]
            commands.append(members)
            of_kind.append((members, {**read.streams}))
    return commands


def entries_of(reply: Any) -> dict[bytes, dict[bytes, list[tuple[bytes, bytes]]]] | None:
    """Return the entries of each stream as GLIDE does: names and values of fields in pairs, by the id of the entry."""
    if not reply:
        return None
    return {
        stream: {entry: list(zip(words[::2], words[1::2], strict=True)) for entry, words in entries}
        for stream, entries in reply.items()
    }
