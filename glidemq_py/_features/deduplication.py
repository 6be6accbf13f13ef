"""Deduplication: reading and removing the ids of unique jobs (``lua/features/deduplication``)."""

from __future__ import annotations

from functools import partial
from typing import Final

from glidemq_py._core.calls import Argument, call
from glidemq_py._core.checks import check_text
from glidemq_py._core.option_values import ID_LENGTH
from glidemq_py._partitions.link import QueueLink

check_id: Final = partial(check_text, "deduplication_id", maximum=ID_LENGTH)


@call("remove_deduplication", repeatable=True)
def remove_entry(id: Argument[str]) -> bool:
    """Remove a deduplication id; returns True if it existed."""
    ...


async def find_job_id(link: QueueLink, checked: str) -> str:
    """Return the id of the job that was added last with this deduplication id; '' if there is none."""
    found = await link.command("HGET", link.keys.dedup, checked)
    return found.decode("utf-8", "replace").rpartition(":")[0] if found else ""
