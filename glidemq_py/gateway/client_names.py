"""The names of queues and the ids of jobs as clients of gateways have them, for Python programs.

The numbers of queues in the ids that gateways make, and the index of the ids that clients choose, are not parts of a
queue. After a restore they are written again, from the ids of its jobs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from glidemq_py._api.job_queue import Queue
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.transport import Transport, check_connection, open_transport
from glidemq_py._core.checks import check_text
from glidemq_py._core.keys import DEFAULT_PREFIX, parse_job_id, validate_prefix, validate_queue_name
from glidemq_py._core.record import JobState
from glidemq_py.errors import ClosedError, GlideMQValidationError
from glidemq_py.gateway.chosen_ids import chosen_of
from glidemq_py.gateway.job_ids import JobIds, queue_number
from glidemq_py.gateway.names import QueueNameError, engine_name, listed_queues, wire_name

__all__ = ["ClientIds", "JobAddress", "RestoredIds", "client_queue_name", "queue_name", "restore_ids"]

_MOST_CHARS = 1_024


def queue_name(client_name: str) -> str:
    """Return the name in Python of a queue, from the name that clients of gateways give it.

    Args:
        client_name: Name of the client, such as "mail:out", which is "mail%3Aout" in Python.

    Raises:
        GlideMQValidationError: No queue can have this name.
    """
    try:
        return engine_name(check_text("client_name", client_name, maximum=_MOST_CHARS))
    except QueueNameError as error:
        raise GlideMQValidationError("client_name", client_name, str(error)) from None


def client_queue_name(name: str) -> str:
    """Return the name that clients of gateways give a queue.

    Args:
        name: Name of the queue in Python.

    Raises:
        GlideMQValidationError: No queue can have this name.
    """
    return wire_name(validate_queue_name(name))


class JobAddress(NamedTuple):
    """Queue and id of a job, for `Queue` and `Queue.get_job`.

    Attributes:
        queue: Name of the queue in Python.
        job_id: Id of the job in the queue; in a partitioned queue, it names the partition.
    """

    queue: str
    job_id: str


class ClientIds:
    """Translates the ids of jobs that clients of gateways use, and back: ``async with ClientIds(url) as ids``.

    Args:
        connection: URL or options of the server, as for `Queue`.
        prefix: First part of every key.

    Raises:
        GlideMQValidationError: An argument is invalid.
    """

    def __init__(self, connection: str | ConnectionOptions | None = None, *, prefix: str = DEFAULT_PREFIX) -> None:
        check_connection(connection)
        self._connection, self._prefix = connection, validate_prefix(prefix)
        self._transport: Transport | None = None
        self._ids: JobIds | None = None
        self._queues: dict[str, Queue] = {}

    async def __aenter__(self) -> Self:
        """Connect."""
        self._transport = await open_transport(self._connection)
        self._ids = JobIds(self._transport, self._prefix, self._queue)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connection."""
        await self.close()

    async def find(self, client_id: str) -> JobAddress | None:
        """Return queue and id of the job that a client names by its id; None if no job has had this id.

        The job may have been deleted.

        Args:
            client_id: The id as clients have it: one that a gateway has made, one that a client has chosen, or
                ``queue:id`` of a job that another program added.

        Raises:
            GlideMQValidationError: The id is invalid.
            GlideMQConnectionError: The server cannot be reached.
        """
        found = await self._opened().find(check_text("client_id", client_id, maximum=_MOST_CHARS))
        return None if found is None else JobAddress(*found)

    async def client_id(self, queue: str, job_id: str) -> str:
        """Return the id by which clients name a job.

        Args:
            queue: Name of the queue in Python.
            job_id: Id of the job in the queue.

        Raises:
            GlideMQValidationError: The name or the id is invalid.
            GlideMQConnectionError: The server cannot be reached.
        """
        return await self._opened().on_wire(validate_queue_name(queue, "queue"), parse_job_id(job_id))

    async def close(self) -> None:
        """Close the connection. Idempotent; after it, `async with` connects again."""
        queues, self._queues, self._ids = self._queues, {}, None
        for queue in queues.values():
            await queue.close()
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()

    def _opened(self) -> JobIds:
        if self._ids is None:
            raise ClosedError("the connection is closed: open it with `async with`")
        return self._ids

    async def _queue(self, name: str) -> Queue:
        found = self._queues.get(name)
        if found is None:
            found = self._queues[name] = Queue(name, self._connection, prefix=self._prefix)
        return found


_TOGETHER: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredIds:
    """Result of `restore_ids` for a queue.

    Attributes:
        queue: Name of the queue.
        made: Number of its jobs with ids that a gateway made; clients find them by these ids.
        chosen: Number of its jobs with other ids than those that the queue counts; clients find them by their ids.
        taken: Number of its jobs with ids that are those of jobs of other queues; clients find them only as
            ``queue:id``.
    """

    queue: str
    made: int
    chosen: int
    taken: int


async def restore_ids(
    connection: str | ConnectionOptions | None, *, prefix: str, queues: Sequence[str] = ()
) -> list[RestoredIds]:
    """Let gateways find the jobs of restored queues by their ids. Running it again changes nothing.

    Jobs that other programs added with an id of their own are found by it as well.

    Args:
        connection: URL or options of the server.
        prefix: First part of every key.
        queues: Names of the queues, in Python or as clients have them; none = all queues of the prefix.

    Returns:
        A result per queue.

    Raises:
        GlideMQValidationError: A queue does not exist, or an argument is invalid. Nothing was written.
        GlideMQConnectionError: The server cannot be reached.
    """
    found: list[RestoredIds] = []
    async with Queue("ids", connection, prefix=prefix) as any_queue:
        transport = (await any_queue._connected()).transport
        known = await listed_queues(transport, prefix)
        for name in [_stored_name(each, known, prefix) for each in queues] or known:
            async with Queue(name, connection, prefix=prefix) as queue:

                async def open_queue(_: str, queue: Queue = queue) -> Queue:
                    return queue

                await queue.connect()
                parts = [await _restore(JobIds(transport, prefix, open_queue), part) for part in queue._parts]
                made, chosen, taken = (sum(counts) for counts in zip(*parts, strict=True))
                found.append(RestoredIds(queue=name, made=made, chosen=chosen, taken=taken))
    return found


def _stored_name(name: str, known: Collection[str], prefix: str) -> str:
    """Return the name in Python of a queue that a user has named."""
    if name in known:
        return name
    try:
        escaped = engine_name(name)
    except QueueNameError:
        escaped = name
    if escaped in known:
        return escaped
    problem = "does not exist" if escaped == name else f"does not exist, nor does {escaped!r}"
    raise GlideMQValidationError("queues", name, f"{problem} (prefix {prefix!r})")


async def _restore(ids: JobIds, part: Queue) -> tuple[int, int, int]:
    """Let gateways find the jobs of a queue or partition; return the counts of `RestoredIds`."""
    numbers: dict[int, bool] = {}
    made = chosen = taken = 0
    page: list[str] = []

    async def claim() -> None:
        nonlocal chosen, taken
        refused = await ids.chosen.restore(part.name, page)
        chosen, taken = chosen + len(page) - refused, taken + refused
        page.clear()

    for state in JobState:
        async for job in part.iter_jobs(str(state), exclude_data=True):
            own = job._stored_id
            number = queue_number(own)
            if number is None:
                mine = chosen_of(own)
                if mine is not None:
                    page.append(mine)
                if len(page) == _TOGETHER:
                    await claim()
                continue
            if number not in numbers:
                numbers[number] = await ids.restore_number(number, part.name)
            made, taken = made + numbers[number], taken + (not numbers[number])
    await claim()
    return made, chosen, taken
