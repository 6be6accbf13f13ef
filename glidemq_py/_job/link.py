"""`QueueLink`: a job's access to its queue: connection, key names, serializer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Generic, Protocol

from typing_extensions import TypeVar

from glidemq_py._client.runtime import ASYNC_RUNTIME, Runtime
from glidemq_py._client.transport import JobTransport, Transport
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.payload import JSON_SERIALIZER
from glidemq_py._core.queue_options import Compression, Serializer

__all__ = ["Outcome", "QueueLink", "Waiter"]

TransportT = TypeVar("TransportT", bound=JobTransport, covariant=True, default=Transport)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended: the fields of its hash."""

    state: str
    returnvalue: str | None
    failed_reason: str | None
    failed_type: str | None


class Waiter(Protocol):
    """Waits for the end of jobs."""

    async def start(self) -> None:
        """Start, so that the end of a job added afterwards is not missed."""
        ...

    async def wait(self, job_id: str, timeout_ms: int) -> Outcome:
        """Wait for the job to end and return its outcome.

        Raises:
            WaitTimeoutError: If it did not end in time.
            JobNotFoundError: If it does not exist.
        """
        ...

    def beside(self, keys: QueueKeys) -> Waiter:
        """Return a waiter for another queue on the same connection."""
        ...

    async def close(self) -> None:
        """Stop."""
        ...


@dataclass(slots=True, kw_only=True)
class QueueLink(Generic[TransportT]):
    """A queue as its jobs use it; all jobs of a queue share one. Jobs need only a `JobTransport`."""

    transport: TransportT
    keys: QueueKeys
    waiter: Waiter
    serializer: Serializer = JSON_SERIALIZER
    compression: Compression = "none"
    runtime: Runtime = ASYNC_RUNTIME
    has_usage: bool = False
    """True if the queue is listed in the registry of queues with usage."""
    loop: asyncio.AbstractEventLoop | None = None
    """Event loop that runs the methods of `Job.blocking`, for jobs of a worker."""
    no_continuations: str | None = None
    """Why this link's jobs do not support ``on_resume``; None if they do."""
