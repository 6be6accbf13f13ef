"""Deleting a queue, in steps that are short for the server."""

from __future__ import annotations

from glidemq_py.errors import JobStateError
from glidemq_py.job import QueueLink
from glidemq_py.options.checks import check_bool
from glidemq_py.wire.calls import control
from glidemq_py.wire.keys import usage_registry_key

__all__ = ["obliterate"]

_BATCH = 250


async def obliterate(link: QueueLink, *, force: bool) -> int:
    """Delete every key of the queue; returns the number of jobs deleted.

    The library empties what the queue's own indexes name. Jobs that only a Node peer's structures name (parents
    that wait, groups) are then found by their keys.

    Raises:
        GlideMQValidationError: ``force`` is neither True nor False.
        JobStateError: jobs are active and ``force`` is off.
    """
    check_bool("force", force)
    deleted, status = 0, "more"
    while status == "more":
        status, step = await link.transport.call(control.obliterate(link.keys.meta, force or deleted > 0, _BATCH))
        if status == "active":
            raise _refusal(link.keys.name, step)
        deleted += step
    deleted += await _sweep(link)
    await link.transport.command("SREM", usage_registry_key(link.keys.prefix), link.keys.name)
    link.has_usage = False
    return deleted


def _refusal(name: str, active: int) -> JobStateError:
    jobs = "1 job is" if active == 1 else f"{active} jobs are"
    return JobStateError(
        "*", "active", "obliterate",
        f"cannot obliterate queue {name!r}: {jobs} active. Close or pause its workers and wait until their jobs have "
        "ended; or use force=True, which deletes the jobs under their handlers",
    )  # fmt: skip


async def _sweep(link: QueueLink) -> int:
    deleted, prefix = 0, link.keys.job_prefix.encode()
    async for keys in link.transport.scan(f"{link.keys.stem}*"):
        for i in range(0, len(keys), _BATCH):
            batch = keys[i : i + _BATCH]
            # Beside a record may stand what subscriptions made of it: `job:<id>:sub:<name>`.
            deleted += sum(key.startswith(prefix) and b":" not in key[len(prefix) :] for key in batch)
            await link.transport.command("UNLINK", *batch)
    return deleted
