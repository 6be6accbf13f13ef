"""One chunk of a job stream."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StreamChunk"]


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """One entry of a job's stream.

    Attributes:
        id: stream entry id, ``<epoch ms>-<number>``; later chunks have greater ids.
        fields: the fields of the chunk, as text.
    """

    id: str
    fields: dict[str, str]

    @property
    def timestamp(self) -> int:
        """Time of writing, epoch ms by the server's clock."""
        return int(self.id.partition("-")[0])

    @property
    def type(self) -> str | None:
        """The field ``type``, which `Job.stream_chunk` writes; or None."""
        return self.fields.get("type")

    @property
    def content(self) -> str | None:
        """The field ``content``, which `Job.stream_chunk` writes; or None."""
        return self.fields.get("content")
