"""The context of the blocking `Queue.lease`."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from glidemq_py._api.leasing import LeaseContext
from glidemq_py._client.portal import drive
from glidemq_py.sync.lease_twin import Lease

__all__ = ["BlockingLeaseContext"]


class BlockingLeaseContext:
    """The context of `Queue.lease`: ``with queue.lease() as lease``."""

    __slots__ = ("_context",)

    def __init__(self, context: LeaseContext) -> None:
        """Create a context; for queues only."""
        self._context = context

    def __enter__(self) -> Lease[Any, Any] | None:
        """Fetch a job, and enter the middleware of the queue; None if no job was ready in time."""
        found = drive(self._context.__aenter__())
        return None if found is None else Lease(found)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Leave the middleware, and report the lease, unless the block has done so.

        Returns:
            True if the error ends here: a signal, or an error that a middleware suppresses.
        """
        return drive(self._context.__aexit__(kind, error, trace))
