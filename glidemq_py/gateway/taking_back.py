"""Deletes the jobs of a PUSHB of which others were refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from glidemq_py._api.job_queue import Queue
from glidemq_py._core.logs import get_logger
from glidemq_py.errors import AmbiguousResultError, GlideMQConnectionError, GlideMQError, JobStateError
from glidemq_py.gateway.job_objects import UNSTARTED
from glidemq_py.gateway.names import wire_name
from glidemq_py.gateway.pushing import again

__all__ = ["take_back"]

_log = get_logger(__name__)

_SHOWN: Final = 20
"""Ids in a log line."""


async def take_back(queue: str, added: Iterable[tuple[Queue[Any, Any], str]]) -> str:
    """Delete jobs, unless they have started; return what the error of the command adds if some were not deleted.

    A partition that does not reply is not called again. The ids of the jobs that were not deleted are logged.

    Args:
        queue: Name of the queue.
        added: The jobs, each with its queue or partition. Jobs that wait for others come before them: the deletion of
            a dependency may fail the jobs that wait for it.
    """
    left: list[str] = []
    silent = set[str]()
    cause: GlideMQError | None = None
    for part, job_id in added:
        if part.name not in silent:
            try:
                await again(lambda part=part, job_id=job_id: part.remove(job_id, states=UNSTARTED))  # type: ignore[misc]
                continue
            except JobStateError:
                continue
            except GlideMQError as error:
                cause = error
                if isinstance(error, AmbiguousResultError | GlideMQConnectionError):
                    silent.add(part.name)
        left.append(job_id if part._partition is None else part._partition.id_of(job_id))
    if not left:
        return ""
    shown = ", ".join(left[:_SHOWN]) + (", ..." if len(left) > _SHOWN else "")
    _log.warning(
        "gateway: queue %r: %d jobs of a rejected PUSHB were not deleted, and exist unless their add was lost: %s (%s)",
        wire_name(queue), len(left), shown, cause,
    )  # fmt: skip
    return f"; {len(left)} jobs of the command may exist, because deleting them failed"
