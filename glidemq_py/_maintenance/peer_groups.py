"""A maintenance task: repairs ordering groups that a Node peer's own library has blocked.

That library leaves a sequence number without a job when it revokes, removes, drains or rejects a job of a group, and
in some states a slot without a job. The group then waits for a job that never comes. While Node workers are
registered, and for a day afterwards, groups whose parked jobs have not moved for some time are checked as by
`Queue.check`, and repaired.
"""

from __future__ import annotations

import secrets
from typing import Final

from glidemq_py._client.background import PeriodicTask
from glidemq_py._core.logs import get_logger
from glidemq_py._features.consistency.calls import blocked_groups
from glidemq_py._features.consistency.queue_api import repair_groups
from glidemq_py._job.link import QueueLink

__all__ = ["GroupRepair"]

_log = get_logger(__name__)

_POLL_S: Final = 10.0
_HOLD_MS: Final = 30_000
_BLOCKED_MS: Final = 30_000
_FULL_MS: Final = 300_000
_RECHECK_AFTER_MS: Final = 1_000
_PAGES_MAX: Final = 50


class GroupRepair(PeriodicTask):
    """Runs every ten seconds (±10%), in one worker at a time.

    Args:
        link: The queue.
        blocked: Time without progress after which a group is checked, in ms.
        full: The same for a group whose slots are all occupied, in ms.
    """

    def __init__(self, *, link: QueueLink, blocked: int = _BLOCKED_MS, full: int = _FULL_MS) -> None:
        super().__init__("groups", queue=link.keys.name, what="repairing ordering groups", every=_POLL_S, at_once=False)
        self._link = link
        self._blocked = blocked
        self._full = full
        self._holder = secrets.token_hex(8)
        self._cursor = ""

    async def run_once(self) -> list[str]:
        """Check up to 50 pages of groups, repair blocked ones, and return their names.

        Raises:
            GlideMQError: If a call fails.
        """
        link, names = self._link, set[str]()
        for _ in range(_PAGES_MAX):
            call = blocked_groups(link.keys.meta, self._holder, _HOLD_MS, self._blocked, self._full, self._cursor)
            page, self._cursor = await link.transport.call(call)
            names.update(page)
            if not self._cursor:
                break
        if not names:
            return []
        found = await repair_groups(link, names, recheck_after=_RECHECK_AFTER_MS)
        for suspect in found:
            _log.warning(
                "queue %r: ordering group %r was blocked (%s); repaired",
                link.keys.name,
                suspect.subject,
                suspect.detail,
            )
        return sorted({suspect.subject for suspect in found})
