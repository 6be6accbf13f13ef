"""Maintenance tasks that write to other queues: the outbox, and flows over several queues.

`OutboxTask` delivers a queue's outbox (dead-letter entries, child results). The same call reports staged writes that
were decided but not finished; they are published then. Every exchange reports whether the outbox has entries, and they
are delivered at once. Other calls that add entries (`remove`, `revoke`, `drain`) wake up an idle worker, whose exchange
reports them. The periodic run finds entries that were not reported because no worker was idle or the one that was woken
up died.

- `RemoteFlows`: a Node worker that ends a child in another slot does not notify its parents. So the child is remembered
  in its queue. Workers of that queue, and of the queues of its parents, look for remembered children that have ended
  and notify the parents.
- `UnfinishedFlowsTask`: a flow that needs several calls is recorded in the queue of its root before the first call
  (``docs/reference/functions.md``, "flow_stage"). The steps are idempotent, so two workers may complete the same flow.
- `WaitingParentsTask`: a library of a Node peer does not notify the parents of a child that it fails or removes. So
  long-waiting parents are checked page by page (``docs/reference/functions.md``, "watch_children"): the outcomes of
  their uncounted children are read from the queues of the children and delivered to the parents. It checks the jobs of
  unfinished batches, too ("batch_watch"): a client may have stopped between joining a batch and adding the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Final

from glidemq_py._client.failures import repeated_level
from glidemq_py._client.runtime import BackgroundTask, QueueTask, wait_for_event
from glidemq_py._core.calls import pieces
from glidemq_py._core.keys import QueueKeys, group_members
from glidemq_py._core.logs import get_logger
from glidemq_py._features.flows.adding import finish_flow
from glidemq_py._features.flows.calls import (
    ChildOutcome,
    child_outcomes,
    children_ended,
    flows_due,
    notify_remote_parents,
    remote_children,
    sweep_parents,
    watch_children,
)
from glidemq_py._features.job_batches import REMOVED, batch_watch
from glidemq_py._features.outbox import Outbox
from glidemq_py._features.staged_writes import LEFT_ALONE_MS, finish_writes, run_async
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import GlideMQError, GlideMQValidationError

_log = get_logger(__name__)

_POLL_S: Final = 1.0
_SELDOM_S: Final = 10.0
"""Interval of queues whose outbox has had no entries yet."""
_LAST_PAUSE_S: Final = 30.0
_LAST_DELIVERY_S: Final = 2.0
_AGAIN_S: Final = 0.1
_AGAIN_MAX_S: Final = 5.0
"""Pauses after rounds that left entries: the first, doubled with each such round up to the last."""


class OutboxTask(BackgroundTask):
    """Delivers at the start, when woken up, and every second.

    Args:
        link: The queue.
        expected: True if the queue has a dead letter queue.
    """

    def __init__(self, *, link: QueueLink, expected: bool) -> None:
        super().__init__(f"outbox-{link.keys.name}")
        self._link = link
        self._outbox = Outbox(link)
        self._expected = expected
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Deliver now: the outbox has entries."""
        self._expected = True
        self._woken.set()

    async def _repeat(self) -> None:
        failures = rounds_in_vain = 0
        while True:
            self._woken.clear()
            try:
                await self.run_once()
                failures = 0
            except GlideMQError as error:
                failures += 1
                level = repeated_level(self._link.transport, error) if failures == 1 else logging.DEBUG
                _log.log(level, "queue %s: outbox delivery failed: %s", self._link.label, error)
            except Exception as error:
                # A bug of ours must not end the deliveries.
                failures += 1
                _log.error("queue %s: outbox delivery failed; retrying", self._link.label, exc_info=error)
            rounds_in_vain = rounds_in_vain + 1 if self._outbox.left else 0
            if rounds_in_vain:
                await asyncio.sleep(min(_AGAIN_MAX_S, _AGAIN_S * 2 ** min(rounds_in_vain - 1, 10)))
            pause = min(_LAST_PAUSE_S, (_POLL_S if self._expected else _SELDOM_S) * 2 ** min(failures, 10))
            await wait_for_event(self._woken, pause)

    async def run_once(self) -> None:
        """Deliver the entries of the outbox and finish staged writes.

        Raises:
            GlideMQError: If a call fails.
        """
        await self._outbox.deliver()
        if self._outbox.writes:
            await run_async(self._link.transport, finish_writes(self._link.keys, LEFT_ALONE_MS))

    async def close(self) -> None:
        """Stop after a last delivery, because no other worker may be running."""
        if self._task is None:
            return
        await super().close()
        if self._expected:
            with contextlib.suppress(GlideMQError, TimeoutError):
                async with asyncio.timeout(_LAST_DELIVERY_S):
                    await self._outbox.deliver()


_REMOTE_EVERY_S: Final = 2.0
_REMOTE_PAUSE_MS: Final = 1_500
_REMOTE_PAGES_MAX: Final = 20
"""Maximum number of pages per queue and run."""


class RemoteFlows(QueueTask):
    """Runs every two seconds (±10%).

    Args:
        link: The queue.
        outbox_pending: Called when the queue's outbox has entries after a run.
    """

    def __init__(self, *, link: QueueLink, outbox_pending: Callable[[], None]) -> None:
        super().__init__("remote-flows", link, "notify parents of flows in other slots", _REMOTE_EVERY_S)
        self._outbox_pending = outbox_pending
        self._cursors: dict[str, str] = {}
        self._empty: list[str] = []

    async def run_once(self) -> None:
        """Notify the parents of this queue's ended children, and this queue's parents of children in other queues.

        Raises:
            GlideMQError: If a call fails.
        """
        notified, _ = await self._notify(self._link)
        if notified:
            self._outbox_pending()
        call = remote_children(self._link.keys.meta, self._empty)
        self._empty = []
        failure: GlideMQError | None = None
        for stem in await self._link.transport.call(call):
            try:
                link = _beside(self._link, stem[:-1])
                notified, left = await self._notify(link)
                if notified:
                    await _deliver_ends(link)
            except GlideMQValidationError as error:
                _log.warning("queue %s: removed invalid key prefix %r: %s", self._link.label, stem, error)
                self._empty.append(stem)
                continue
            except GlideMQError as error:
                failure = failure or error
                continue
            if not left:
                self._empty.append(stem)
        if failure is not None:
            raise failure

    async def _notify(self, link: QueueLink) -> tuple[int, int]:
        """Put ended children into the queue's outbox; return their number and the number of remembered children."""
        meta, notified, left = link.keys.meta, 0, 0
        cursor = self._cursors.pop(meta, "")
        for _ in range(_REMOTE_PAGES_MAX):
            reply = await link.transport.call(notify_remote_parents(meta, cursor, _REMOTE_PAUSE_MS))
            notified, cursor, left = notified + reply.notified, reply.cursor, reply.left
            if not cursor:
                return notified, left
        self._cursors[meta] = cursor
        return notified, left


def _beside(link: QueueLink, base: str) -> QueueLink:
    """Return the queue with a key base such as `glide:{emails}`. Raises GlideMQValidationError."""
    prefix, _, name = base[:-1].rpartition(":{")
    return QueueLink(
        transport=link.transport, keys=QueueKeys(prefix, name), waiter=link.waiter, serializer=link.serializer
    )


async def _deliver_ends(link: QueueLink) -> None:
    """Deliver the results of children in the outbox of a queue."""
    await Outbox(link, kinds=("child", "parents")).deliver()


_UNFINISHED_EVERY_S: Final = 10.0
_UNFINISHED_AGE_MS: Final = 15_000
_UNFINISHED_PAGE: Final = 10


class UnfinishedFlowsTask(QueueTask):
    """Runs at the start and every ten seconds (±10%).

    Args:
        link: The queue.
        age: Time after which a flow counts as unfinished, in ms.
    """

    def __init__(self, *, link: QueueLink, age: int = _UNFINISHED_AGE_MS) -> None:
        super().__init__("flows", link, "finish flows", _UNFINISHED_EVERY_S)
        self._age = age

    async def run_once(self) -> int:
        """Complete unfinished flows, and return their number.

        Raises:
            GlideMQError: If a flow could not be completed. The other flows are.
        """
        link, finished = self._link, 0
        failure: GlideMQError | None = None
        for token in await link.call(flows_due, self._age, _UNFINISHED_PAGE):
            try:
                await finish_flow(link.transport, link.keys, token)
            except GlideMQError as error:
                failure = error
                continue
            finished += 1
            _log.warning("queue %s: finished adding flow %s, whose producer had stopped", self._link.label, token)
        if failure is not None:
            raise failure
        return finished


_PARENTS_EVERY_S: Final = 60.0
_NEXT_PAGE_S: Final = 1.0
_PARENTS_AGE_MS: Final = 300_000
_PARENTS_PAUSE_MS: Final = 50_000
_PEER_EVERY_S: Final = 10.0
_PEER_AGE_MS: Final = 20_000
_PEER_PAUSE_MS: Final = 8_000
"""The same three while workers of a Node peer are registered, or were during the last day."""
_PARENTS_PAGE: Final = 100
_BATCH_PAGES_MAX: Final = 20
"""Maximum number of pages of batches per run, up to 500 jobs each."""
_SWEEPS_MAX: Final = 100
"""Maximum number of calls per run that remove parents that no longer wait from the index, up to 500 parents each."""


class WaitingParentsTask(QueueTask):
    """Runs every minute (±10%), every ten seconds beside Node peers, and every second while there are more pages.

    Args:
        link: The parents' queue.
        outbox_pending: Called when the queue's outbox has entries after a run.
        age: Minimum waiting time of the checked parents, in ms; beside Node peers, 20 s at most.
    """

    def __init__(self, *, link: QueueLink, outbox_pending: Callable[[], None], age: int = _PARENTS_AGE_MS) -> None:
        super().__init__("children", link, "check parents that wait for children", _PARENTS_EVERY_S, at_once=False)
        self._outbox_pending = outbox_pending
        self._age = age

    async def run_once(self) -> bool:
        """Check one page of parents, and return True if there are more.

        Raises:
            GlideMQError: If a call fails.
        """
        link = self._link
        for _ in range(_SWEEPS_MAX):
            if not await link.call(sweep_parents):
                break
        watched = await link.call(
            watch_children, self._age, _PARENTS_PAUSE_MS, min(self._age, _PEER_AGE_MS), _PEER_PAUSE_MS
        )
        parents: dict[str, list[str]] = {}
        for parent, members in watched.rows:
            for member in members:
                parents.setdefault(member, []).append(parent)
        ends = [
            end._replace(parent=parent) for end in await self._ended(list(parents)) for parent in parents[end.member]
        ]
        if ends:
            _log.warning("queue %s: delivered %d pending child results", link.label, len(ends))
            if await link.call(children_ended, ends):
                self._outbox_pending()
        if watched.batches:
            await self._check_batches()
        if watched.more:
            self._pause = _NEXT_PAGE_S
        elif watched.peers:
            self._pause = _PEER_EVERY_S
        return bool(watched.more)

    async def _check_batches(self) -> None:
        """Report jobs of batches that have ended or do not exist, from some pages of their pending jobs."""
        for _ in range(_BATCH_PAGES_MAX):
            page = await self._link.call(batch_watch, self._age)
            ends = [
                end._replace(parent=page.parent, text="", policy="")
                for end in await self._ended(page.members)
                if end.how != REMOVED or page.calm
            ]
            if ends:
                _log.warning("queue %s: reported %d jobs to their batch", self._link.label, len(ends))
                await self._link.call(children_ended, ends)
            if not page.more:
                return

    async def _ended(self, members: Sequence[str]) -> list[ChildOutcome]:
        """Return the outcomes of the children that have ended, without their parents."""
        ends: list[ChildOutcome] = []
        for base, ids in group_members(members).items():
            try:
                await self._read_outcomes(base, ids, ends)
            except GlideMQError as error:  # its shard may be down; the children of other queues are delivered
                level = repeated_level(self._link.transport, error)
                _log.log(level, "queue %s: reading the children in %s failed: %s", self._link.label, base, error)
        return ends

    async def _read_outcomes(self, base: str, ids: Sequence[str], ends: list[ChildOutcome]) -> None:
        for page in pieces(ids, _PARENTS_PAGE):
            reply = await self._link.transport.call(child_outcomes(f"{base}:meta", page))
            if reply.outbox_pending:  # the entries may be these outcomes; delivering them notifies the parents
                await self._deliver(base)
                break
            for job_id, child_outcome in zip(page, reply.rows, strict=True):
                if not isinstance(child_outcome, bool):
                    ends.append(ChildOutcome("", f"{base}:{job_id}", *child_outcome))

    async def _deliver(self, base: str) -> None:
        """Deliver the child results in the outbox of the children's queue, which may have no workers."""
        link = self._link
        if base == link.keys.base:
            self._outbox_pending()
            return
        try:
            await _deliver_ends(_beside(link, base))
        except GlideMQError as error:
            _log.debug("queue %s: outbox delivery of children in %s failed: %s", link.label, base, error)
