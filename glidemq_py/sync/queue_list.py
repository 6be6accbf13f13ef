"""The blocking `list_queues`."""

from __future__ import annotations

from glidemq_py._client.portal import BlockingTransport, drive
from glidemq_py._client.transport import BlockingConnection
from glidemq_py._core.checks import check_bool
from glidemq_py._core.keys import DEFAULT_PREFIX, validate_prefix
from glidemq_py._features.queue_list import find_queues
from glidemq_py._partitions.stored import whole_queues

__all__ = ["list_queues"]


def list_queues(
    connection: BlockingConnection = None, *, prefix: str = DEFAULT_PREFIX, scan: bool = False
) -> list[str]:
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
    opened = BlockingTransport(connection)
    transport = opened.transport
    try:
        names = drive(find_queues(transport, prefix, scan=scan))
        return sorted(drive(whole_queues(transport, prefix, names)))
    finally:
        opened.close()
