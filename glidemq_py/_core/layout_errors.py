"""Signals of a partitioned queue whose layout changes. `Queue` handles them: it reads the layout and adds again."""

from __future__ import annotations

from glidemq_py.errors import GlideMQError

__all__ = ["JobMovedError", "LayoutChangedError"]


class LayoutChangedError(GlideMQError):
    """The partitions of the queue are others than the client knows. Nothing was added."""


class JobMovedError(GlideMQError):
    """The key of a new job has no jobs in its former partition any more. The job was not added."""
