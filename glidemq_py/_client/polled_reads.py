"""Reads of streams by polling: for those that no connection for blocking reads can serve."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from glidemq_py._client.stream_read import StreamRead, combine, distribute, ends_all, read_each
from glidemq_py._client.transport import JobTransport
from glidemq_py._core.times import monotonic
from glidemq_py.errors import ClosedError, GlideMQError

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
    """Return the reads of each command: those of one kind, with one position per stream."""
    commands = list[list[StreamRead]]()
    begun: dict[tuple[object, ...], list[tuple[list[StreamRead], set[str]]]] = {}
    for read in reads:
        of_kind = begun.setdefault(read.kind, [])
        for members, streams in of_kind:
            if len(streams) < _STREAMS_PER_READ and streams.isdisjoint(read.streams):
                members.append(read)
                streams.update(read.streams)
                if len(streams) >= _STREAMS_PER_READ:
                    of_kind.remove((members, streams))
                break
        else:
            members = [read]
            commands.append(members)
            of_kind.append((members, set(read.streams)))
    return commands
