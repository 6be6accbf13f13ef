"""What is read of all queues of a prefix, without a `Queue`: their names, and their usage."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from glidemq_py._client.transport import Connection, open_transport
from glidemq_py._core.checks import check_bool
from glidemq_py._core.keys import DEFAULT_PREFIX, validate_prefix
from glidemq_py._core.times import Milliseconds
from glidemq_py._features.queue_list import find_queues
from glidemq_py._features.usage import UsageSummary
from glidemq_py._features.usage_summaries import summarize_usage
from glidemq_py._partitions.stored import whole_queues


async def list_queues(connection: Connection = None, *, prefix: str = DEFAULT_PREFIX, scan: bool = False) -> list[str]:
    """Return the names of the queues of a prefix, sorted.

    A queue is listed from its first use by this package on: an add, a worker, or a `Queue` opened on a queue that
    exists. It costs 16 short reads for up to 16,000 queues, independent of their jobs. Broadcasts are listed too. A
    partitioned queue is one name.

    Args:
        connection: As for `Queue`; a connection made here is closed again.
        prefix: Key prefix of the queues.
        scan: If True, also search all keys of the server, in steps of a thousand, for queues that no client of this
            package has used, such as those of Node peers, and list them from now on.

    Raises:
        GlideMQValidationError: If an argument is invalid.
        GlideMQConnectionError: If the server cannot be reached.
    """
    validate_prefix(prefix)
    check_bool("scan", scan)
    transport = await open_transport(connection)
    try:
        return sorted(await whole_queues(transport, prefix, await find_queues(transport, prefix, scan=scan)))
    finally:
        await transport.close()


async def get_usage_summary(
    connection: Connection = None,
    *,
    prefix: str = DEFAULT_PREFIX,
    queues: Iterable[str] | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    window: Milliseconds | None = None,
) -> UsageSummary:
    """Return the total usage of queues over a time range, as `Queue.usage.get_summary` does, without a `Queue`.

    Args:
        connection: as for `Queue`; a connection made here is closed again.
        prefix: key prefix of the queues.
        queues: as for `Queue.usage.get_summary`.
        start: as for `Queue.usage.get_summary`.
        end: as for `Queue.usage.get_summary`.
        window: as for `Queue.usage.get_summary`.

    Raises:
        GlideMQValidationError: an argument is invalid, or minutes times queues exceed 100,000.
    """
    validate_prefix(prefix)
    transport = await open_transport(connection)
    try:
        return await summarize_usage(transport, prefix, queues, start=start, end=end, window=window)
    finally:
        await transport.close()
