"""What a job needs to reach its queue: connection, key names, codecs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from glidemq_py._client.runtime import ASYNC_RUNTIME, Runtime
from glidemq_py._client.transport import Transport
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.payload import JSON_SERIALIZER
from glidemq_py._core.queue_options import Compression, Serializer

__all__ = ["Outcome", "QueueLink", "Waiter"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended: the texts of its hash."""

    state: str
    returnvalue: str | None
    failed_reason: str | None
    failed_type: str | None


class Waiter(Protocol):
    """Something that knows when a job has ended."""

    async def start(self) -> None:
        """Be ready: of a job that is added after this, no end is missed."""
        ...

    async def wait(self, job_id: str, timeout_ms: int) -> Outcome:
        """The job's end. Raises WaitTimeoutError, JobNotFoundError."""
        ...

    def beside(self, keys: QueueKeys) -> Waiter:
        """The same for another queue on this connection."""
        ...

    async def close(self) -> None:
        """Be ready no more."""
        ...


@dataclass(slots=True, kw_only=True)
class QueueLink:
    """The queue's side of its jobs; one is shared by all of them."""

    transport: Transport
    keys: QueueKeys
    waiter: Waiter
    serializer: Serializer = JSON_SERIALIZER
    compression: Compression = "none"
    runtime: Runtime = ASYNC_RUNTIME
    has_usage: bool = False
    loop: asyncio.AbstractEventLoop | None = None
    """Event loop that runs the methods of `Job.blocking`, for jobs of a worker."""
    no_continuations: str | None = None
    """Why handlers of this link's jobs cannot be gone on with by a function (``on_resume``); None where they can."""
    """The queue's name stands among those that have usage."""
