"""Reads of streams that wait for entries, and the commands that serve several of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

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
