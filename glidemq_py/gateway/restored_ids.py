"""The ids of jobs that were restored from a backup: commands name jobs by id alone, and a backup is of one queue.

The numbers of queues in the ids that gateways make, and the index of the ids that clients choose, are not parts of a
queue. After a restore they are written again, from the ids of its jobs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from glidemq_py._api.job_queue import Queue
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._core.job_states import JobState
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.gateway.chosen_ids import chosen_of
from glidemq_py.gateway.ids import queue_number
from glidemq_py.gateway.job_ids import JobIds
from glidemq_py.gateway.names import QueueNameError, engine_name
from glidemq_py.gateway.partitions import listed_queues

__all__ = ["RestoredIds", "restore_ids"]

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
    async with Queue[Any, Any]("ids", connection, prefix=prefix) as any_queue:
        transport = (await any_queue._connected()).transport
        known = await listed_queues(transport, prefix)
        for name in [_stored_name(each, known, prefix) for each in queues] or known:
            async with Queue[Any, Any](name, connection, prefix=prefix) as queue:

                async def open_queue(_: str, queue: Queue[Any, Any] = queue) -> Queue[Any, Any]:
                    return queue

                await queue.connect()
                parts = [
                    await _restore(JobIds(transport, prefix, open_queue, open_queue), part) for part in queue._parts
                ]
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


async def _restore(ids: JobIds, part: Queue[Any, Any]) -> tuple[int, int, int]:
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
