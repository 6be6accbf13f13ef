"""Calls that change settings, limits or schedulers, also while another client changes the partitions.

A client may know an older layout for some seconds, so these methods read it first. A change of the partitions may also
begin between that read and the write, or may have copied the settings before the write. Therefore partition 0 counts
the write afterwards (`note_settings`). If the layout is another one by then, the method runs again; and a layout is
replaced only if no write was counted since its settings were copied.

`set_partitions` divides limits of the whole queue before it replaces the layout. They are not changed meanwhile.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from glidemq_py._core import json_text as json
from glidemq_py._features.partitions.changing import note_settings
from glidemq_py._features.partitions.deleting import remove_remains
from glidemq_py._features.partitions.layout import Layout
from glidemq_py.errors import GlideMQConnectionError, GlideMQError, PermissionDeniedError

if TYPE_CHECKING:
    from glidemq_py._api.job_queue import Queue

__all__ = ["CHANGING", "OF_ALL", "WRITES", "is_changing", "present_layout", "write"]

CHANGING: Final = "changingLimits"
"""Field of the meta key of partition 0: the limits of the queue while they are divided."""

_DIVIDED: Final = frozenset((
    "set_global_concurrency", "set_global_rate_limit", "remove_global_rate_limit", "set_name_limits",
))  # fmt: skip
_AT_ONCE: Final = frozenset(("pause", "resume"))
"""Do not wait for a change of the partitions."""
WRITES: Final = _DIVIDED | _AT_ONCE | frozenset((
    "pause_fair_key", "pause_job_scheduler", "remove_failure_policy", "remove_job_scheduler", "remove_stalled_policy",
    "resume_fair_key", "resume_job_scheduler", "set_attempt_history", "set_event_retention", "set_failure_policy",
    "set_fair_key_defaults", "set_fair_key_limits", "set_group_limits", "set_metrics_by_name", "set_result_retention",
    "set_stalled_policy", "set_timeline", "upsert_job_scheduler",
))  # fmt: skip
"""Methods of `Queue` that `write` calls."""
OF_ALL: Final = frozenset((
    "clean", "create_job_index", "drain", "drop_job_index", "obliterate", "promote_jobs", "purge_failures",
    "rate_limit_group", "release_owner", "remove_deduplication", "requeue_completed", "reset_failure_stats",
    "retry_failures", "retry_jobs",
))  # fmt: skip
"""Methods that read the layout first: they would leave out the partitions that another client has just added."""

_ATTEMPTS: Final = 20
_PAUSE_S: Final = 0.05
_CHANGE_MS = 10_000
"""A change that began earlier is taken for an interrupted one. By the clocks of two clients, so waiting has a bound."""
_WAIT_S: Final = 2.0
"""Longest time that a method waits for a change."""


def present_layout(queue: Queue[Any, Any]) -> Layout:
    """Return the layout that the client knows."""
    return Layout.plain(queue.name) if queue._partitions is None else queue._partitions.layout


def is_changing(text: str, layout: Layout) -> bool:
    """Return whether a change of the partitions has begun, or was interrupted, before all have their shares of limits.

    A change from one number to another divides them before it writes its layout, and one that settles afterwards.

    Args:
        text: Value of `CHANGING`.
        layout: The present layout.
    """
    return bool(text) and json.loads(text)["number"] > layout.number - (len(layout.counts) == 1)


async def write(queue: Queue[Any, Any], method: str, run: Callable[[], Awaitable[Any]]) -> Any:
    """Call a method of `WRITES` until no other client has changed the partitions meanwhile; return its result.

    Raises:
        GlideMQError: If a change of the partitions goes on, and the method changes a limit that it divides.
    """
    result: Any = None
    for _ in range(_ATTEMPTS):
        if queue._layout_read_at is not None:  # else its first call reads it
            await queue._check_layout(always=True)
            if method not in _AT_ONCE:
                await _wait_for_change(queue, method)
        found = await run()
        result = found or result if result is not None else found
        noted = await queue._transport.call(note_settings(queue._keys.meta))
        layout = present_layout(queue)
        if noted.number == layout.number and not (method in _DIVIDED and is_changing(noted.changing, layout)):
            return result
        if layout.number and not noted.number:  # deleted, perhaps before the method has written to its partitions
            with contextlib.suppress(PermissionDeniedError):
                await remove_remains(queue._transport, queue._keys, layout.names)
    raise GlideMQError(
        f"queue {queue.name!r}: other clients keep changing its partitions; {method} may not apply to all of them: "
        "call it again"
    )


async def _wait_for_change(queue: Queue[Any, Any], method: str) -> None:
    until = time.monotonic() + _WAIT_S
    while True:
        text = ""
        with contextlib.suppress(GlideMQConnectionError, PermissionDeniedError):  # the method itself reports it
            text = (await queue._transport.command("HGET", queue._keys.meta, CHANGING) or b"").decode()
        if not is_changing(text, present_layout(queue)):
            return
        is_recent = time.time() * 1_000 - json.loads(text)["number"] < _CHANGE_MS
        if not is_recent or time.monotonic() > until:
            break
        await queue._runtime.sleep(_PAUSE_S)
        await queue._check_layout(always=True)
    if method in _DIVIDED:
        raise GlideMQError(
            f"queue {queue.name!r}: {method} is not possible while another client divides the limits among other "
            "partitions; if that was interrupted, call set_partitions again first"
        )
