"""`QueueLink`: a job's access to its queue: connection, key names, serializer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol

from typing_extensions import TypeVar

from glidemq_py._client.runtime import ASYNC_RUNTIME, Runtime
from glidemq_py._client.transport import JobTransport, Transport
from glidemq_py._core.calls import Call
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.payload import JSON_SERIALIZER, PAYLOAD_LIMIT
from glidemq_py._core.queue_options import Compression, Serializer
from glidemq_py._partitions.layout import Partition, shares
from glidemq_py.errors import JobNotFoundError, JobStateError

T = TypeVar("T")
P = ParamSpec("P")
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
    payload_limit: int = PAYLOAD_LIMIT
    """Maximum size of data and results, bytes."""
    runtime: Runtime = ASYNC_RUNTIME
    has_usage: bool = False
    """True if the queue is listed in the registry of queues with usage."""
    is_listed: bool = False
    """True if the queue was added to the list of queues, or an attempt to do so failed."""
    loop: asyncio.AbstractEventLoop | None = None
    """Event loop that runs the methods of `Job.blocking`, for jobs of a worker."""
    is_closing: bool = False
    """True once the worker of this link's jobs closes: jobs that can continue later end at their next step."""
    subscription: str = ""
    """Subscription whose messages this link's jobs are; "" = they are no messages."""
    has_batches: bool = False
    """True if the handler of this link's jobs gets several at once."""
    no_continuations: str | None = None
    """Why this link's jobs do not support ``on_resume``; None if they do."""
    partition: Partition | None = None
    """Of a partitioned queue: which part of it this is; None = a queue by itself."""
    layout: int = 0
    """Number of the layout of a partitioned queue."""
    parts: int = 1
    """Number of the queue's parts."""
    dead_letters: Any = None
    """The dead letter queue; see `open_dead_letters`."""
    has_peers: bool = False
    """Whether workers of glide-mq for Node were registered when it was read last."""
    peers_read_at: float = float("-inf")
    """When that was, as `time.monotonic` tells it."""
    steps: Any = None
    """The `StepSender` that stores the steps of its jobs; made at first use."""
    references: Any = None
    """The `References` that find jobs in other partitions; made at first use."""

    @property
    def queue_name(self) -> str:
        """Name of the queue; of a partition, that of the whole queue."""
        return self.keys.name if self.partition is None else self.partition.queue_name

    @property
    def label(self) -> str:
        """The queue as logs name it; with the partition, because each has a server and tasks of its own."""
        part = self.partition
        return repr(self.keys.name) if part is None else f"{part.queue_name!r} (partition {part.number})"

    def shown_id(self, stored_id: str) -> str:
        """Return the id of a job in the whole queue, given that in this partition."""
        return stored_id if self.partition is None else self.partition.id_of(stored_id)

    def share(self, option: str, total: int) -> int:
        """Return this part's share in a limit of the whole queue; 0 = no limit.

        Raises:
            GlideMQValidationError: The limit is smaller than the number of parts.
        """
        return total if self.partition is None else shares(option, total, self.parts)[self.partition.number]

    def call(
        self, make: Callable[Concatenate[str, P], Call[T]], *args: P.args, **options: P.kwargs
    ) -> Coroutine[Any, Any, T]:
        """Make a server call of the queue, given the function that returns it; see `Transport.call`."""
        return self.transport.call(make(self.keys.meta, *args, **options))

    def command(self, *args: str | bytes) -> Coroutine[Any, Any, Any]:
        """Run a plain command; see `Transport.command`."""
        return self.transport.command(*args)

    def not_found(self, job_id: str) -> JobNotFoundError:
        """Return the error for a job that does not exist, which names the queue."""
        return JobNotFoundError(job_id, f"in queue {self.queue_name!r}")


async def scan_fields(transport: Transport, key: str) -> AsyncIterator[tuple[bytes, bytes]]:
    """Yield the fields of a hash with their values; one may come twice if others are added meanwhile."""
    cursor = b"0"
    while True:
        cursor, pairs = await transport.command("HSCAN", key, cursor, "COUNT", "500")
        for pair in zip(pairs[::2], pairs[1::2], strict=True):
            yield pair
        if cursor == b"0":
            return


async def server_time(connection: QueueLink[Any] | JobTransport) -> int:
    """Return the time of the server, epoch ms."""
    seconds, microseconds = await connection.command("TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000


_REJECT_REASONS: Final = {
    "held": "being fetched by a worker",
    "keyed": "one of a fair key or limited name, which has no ranks; use change_priority",
    "ordered": "one of an ordering group, whose jobs run in order",
    "lost": "missing from the structure of its state",
}


async def change_job(link: QueueLink[JobTransport], job_id: str, call: Call[str], action: str) -> None:
    """Make a call that changes a job which has not started; ``action`` is what it does, for the error.

    Raises:
        JobNotFoundError: If the job does not exist.
        JobStateError: If its state does not allow the change.
    """
    reply = await link.transport.call(call)
    if reply == "gone":
        raise link.not_found(link.shown_id(job_id))
    if reply not in ("ok", "no_op"):
        raise JobStateError(link.shown_id(job_id), _REJECT_REASONS.get(reply, reply), action, queue=link.queue_name)
