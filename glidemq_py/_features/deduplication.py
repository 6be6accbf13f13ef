"""Deduplication: reading and removing the ids of unique jobs (``lua/features/deduplication``)."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from glidemq_py._core.calls import Argument, call
from glidemq_py._core.checks import check_text
from glidemq_py._core.deduplication import ID_LENGTH
from glidemq_py._job import reading
from glidemq_py._job.job import Job
from glidemq_py._job.link import ConnectedQueue

_check_id: Final = partial(check_text, "deduplication_id", maximum=ID_LENGTH)


@call("remove_deduplication", repeatable=True)
def remove_entry(id: Argument[str]) -> bool:
    """Remove a deduplication id; returns True if it existed."""
    ...


async def get_deduplication_job(self: ConnectedQueue, deduplication_id: str) -> Job[Any, Any] | None:
    """Return the job that was added last with this deduplication id, or None.

    Args:
        deduplication_id: The ``id`` of the option ``deduplication``, 1 to 256 characters.

    Returns:
        The job, which may have ended. None if there is no such job, or if it was deleted.

    Raises:
        GlideMQValidationError: If ``deduplication_id`` is invalid.
    """
    checked = _check_id(deduplication_id)
    link = await self._connected()
    found = await link.command("HGET", link.keys.dedup, checked)
    job_id = found.decode("utf-8", "replace").rpartition(":")[0] if found else ""
    return await reading.get_job(link, job_id, False) if job_id else None


async def remove_deduplication(self: ConnectedQueue, deduplication_id: str) -> bool:
    """Remove a deduplication id: the next add with it is not skipped. No job is changed.

    Args:
        deduplication_id: The ``id`` of the option ``deduplication``, 1 to 256 characters.

    Returns:
        True if a job had been added with the id.

    Raises:
        GlideMQValidationError: If ``deduplication_id`` is invalid.
    """
    checked = _check_id(deduplication_id)
    link = await self._connected()
    return await link.call(remove_entry, checked)
