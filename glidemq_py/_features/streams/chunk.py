"""What a job streams while it runs."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StreamChunk"]


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """One entry of a job's stream.

    Attributes:
        id: stream entry id, ``<epoch ms>-<number>``; later chunks have greater ones.
        fields: what was streamed, as text.
    """

    id: str
    fields: dict[str, str]

    @property
    def timestamp(self) -> int:
        """When it was written, server time in epoch ms."""
        return int(self.id.partition("-")[0])

    @property
    def type(self) -> str | None:
        """Field ``type``, which `Job.stream_chunk` writes."""
        return self.fields.get("type")

    @property
    def content(self) -> str | None:
        """Field ``content``, which `Job.stream_chunk` writes."""
        return self.fields.get("content")
