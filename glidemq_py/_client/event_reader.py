"""Listening to what happens in a queue: the events stream, read without a gap.

Events are news, not state: the stream keeps about the last thousand (data-model.md section 6), or as many as
`Queue.set_event_retention` says. Whoever needs a job's result asks for the job.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from glidemq_py._client.transport import Transport
from glidemq_py._core.logs import get_logger

__all__ = ["EventReader", "QueueEvent"]

_log = get_logger(__name__)

_BLOCK_MS = 1_000
_PAGE = 200
_MAX_PAUSE_S = 5.0
_NAME_LENGTH = 1_024
_ANOTHER = "make another QueueEvents for another reader"

_Entries = dict[bytes, list[list[bytes]]]


@dataclass(frozen=True, slots=True)
class QueueEvent:
    """One thing that happened in a queue.

    Attributes:
        id: stream entry id, ``<epoch ms>-<number>``; later events have greater ones.
        event: its name, such as ``completed`` (the table is in data-model.md section 6).
        job_id: the job it is about; "0" or a count for events of the whole queue.
        fields: everything else in the entry, as text.
    """

    id: str
    event: str
    job_id: str
    fields: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def timestamp(self) -> int:
        """When it happened, server time in epoch ms."""
        return int(self.id.partition("-")[0])


class EventReader:
    """Reads an events stream from a known position on; blocks on a connection of its own."""

    def __init__(self, transport: Transport, key: str) -> None:
        self._transport = transport
        self._key = key
        self.position = ""

    async def resolve(self) -> None:
        """Fix the position to what is last now, so that nothing after this call is missed."""
        found = await self._transport.command("XREVRANGE", self._key, "+", "-", "COUNT", "1")
        self.position = next(iter(found)).decode() if found else "0-0"

    async def read(self) -> list[QueueEvent]:
        """What came since the position, waiting up to a second for it; empty if nothing did."""
        reply: dict[bytes, _Entries] | None = await self._transport.command(
            "XREAD", "COUNT", str(_PAGE), "BLOCK", str(_BLOCK_MS), "STREAMS", self._key, self.position
        )
        if not reply:
            return []
        events = [_event(entry, pairs) for entries in reply.values() for entry, pairs in entries.items()]
        if events:
            self.position = events[-1].id
        return events

    async def page(self, count: int) -> list[QueueEvent]:
        """Up to ``count`` events after the position, without waiting for any."""
        start = f"({self.position}" if self.position != "0-0" else "-"
        found: _Entries | None = await self._transport.command("XRANGE", self._key, start, "+", "COUNT", str(count))
        events = [_event(entry, pairs) for entry, pairs in (found or {}).items()]
        if events:
            self.position = events[-1].id
        return events

    async def check_rewound(self) -> None:
        """After a lost connection: a stream that was emptied (FLUSHALL, a new server) is read from its start."""
        found = await self._transport.command("XREVRANGE", self._key, "+", "-", "COUNT", "1")
        last = next(iter(found)).decode() if found else "0-0"
        if _order(last) < _order(self.position):
            self.position = "0-0"


def _order(entry: str) -> tuple[int, int]:
    ms, _, number = entry.partition("-")
    return int(ms), int(number or 0)


def _event(entry: bytes, pairs: list[list[bytes]]) -> QueueEvent:
    fields = {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in pairs}
    return QueueEvent(entry.decode(), fields.pop("event", ""), fields.pop("jobId", ""), fields)
