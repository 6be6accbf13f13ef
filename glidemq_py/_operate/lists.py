"""Lists of an `Operator`: messages of broadcasts, dead-letter entries, and finished jobs from the newest on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final, Self

from glidemq_py._api.broadcast import replay_entry
from glidemq_py._api.dead_letters import envelope_of, get_newest_dead_letter_jobs, remove_dead_letter, shown_entry
from glidemq_py._api.job_queue import Queue
from glidemq_py._core.calls import pieces
from glidemq_py._core.record import JobState
from glidemq_py._features.broadcast import Subscription, get_delivery, get_subscriptions
from glidemq_py._features.dead_letters import open_dead_letters
from glidemq_py._features.failures import Failure
from glidemq_py._job import reading
from glidemq_py._job.job import Job
from glidemq_py._job.reading import ROWS_A_CALL, read_jobs
from glidemq_py._operate.conversion import data_of, dead_letter_of, encoding_of, score_of, summary_of
from glidemq_py._operate.filters import JobFilter
from glidemq_py._operate.operating import Operator
from glidemq_py._operate.snapshots import (
    DeadLetter,
    JobDetails,
    JobSummary,
    MessageDelivery,
    MessagePage,
    MessageSummary,
    record_of,
)
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import GlideMQError, GlideMQValidationError, JobNotFoundError, readable_reason

_AT_ONCE: Final = 50
_PAGE: Final = 200
_QUEUES_READ: Final = 20
"""Dead letter queues whose newest entries are read: two calls each."""


class BroadcastActionError(GlideMQError):
    """The operation is one for jobs, and the queue is a broadcast; nothing was read or changed."""

    def __init__(self, queue: str, instead: str) -> None:
        super().__init__(queue, instead)
        self.queue, self.instead = queue, instead

    def __str__(self) -> str:
        return f"{self.queue!r} is a broadcast, which has messages instead of jobs; {self.instead}"


class NoSubscriptionError(GlideMQError):
    """The subscription does not exist."""

    def __init__(self, queue: str, name: str, names: Iterable[str]) -> None:
        super().__init__(queue, name, names)
        self.queue, self.name, self.names = queue, name, sorted(names)

    def __str__(self) -> str:
        if not self.names:
            return f"queue {self.queue!r} is not a broadcast: it has no subscriptions"
        more = "" if len(self.names) <= 10 else f" and {len(self.names) - 10:,} more"
        known = f"{', '.join(self.names[:10])}{more}"
        return f"broadcast {self.queue!r} has no subscription {self.name!r}; it has {known}"


# -- messages ---------------------------------------------------------------------------------------------


async def get_messages(
    operator: Operator, queue: str, wanted: JobFilter, *, cursor: str = "", count: int = 50, most_examined: int = 1_500
) -> MessagePage:
    """Return a page of the messages of a broadcast; the arguments are those of `Operator.get_jobs`."""
    jobs, following, examined = await operator.read_jobs(
        queue, wanted, cursor, count, most_examined, with_data=True, newest=True
    )
    messages = tuple(_message_of(summary_of(job), data_of(job), encoding_of(job)) for job in jobs)
    return MessagePage(messages=messages, cursor=following, examined=examined)


def _message_of(job: JobSummary, data: Any, encoding: str | None) -> MessageSummary:
    due = job.due_at if job.state is JobState.DELAYED else None
    return MessageSummary(id=job.id, name=job.name, published_at=job.added_at, due_at=due, data=data, encoding=encoding)


def get_message(details: JobDetails) -> MessageSummary:
    """Return a message of a list, from everything about it."""
    return _message_of(details.job, details.data, details.encoding)


async def get_deliveries(
    operator: Operator, queue: str, message_id: str, subscriptions: Iterable[str]
) -> list[MessageDelivery]:
    """Return the state of a message in each of these subscriptions; a call each."""
    link, found = await operator.link(queue), list[MessageDelivery]()
    names = list(subscriptions)
    for some in pieces(names, _AT_ONCE):
        states = await asyncio.gather(*(get_delivery(link, message_id, name) for name in some))
        found += (
            record_of(
                MessageDelivery, state, subscription=name,
                error=None if state.failed_reason is None else readable_reason(state.failed_reason),
                error_type=state.failed_type,
            )
            for name, state in zip(some, states, strict=True)
            if state is not None
        )  # fmt: skip
    return found


# -- dead letters -----------------------------------------------------------------------------------------


class Letters:
    """The dead-letter entries of a broadcast, or of one of its subscriptions.

    Args:
        queue: The broadcast as a queue.
        link: Its link.
        subscription: Only entries of this subscription; None = all.
        places: Names of the dead letter queues, each with a subscription that uses it ('' = the broadcast itself).
    """

    def __init__(self, queue: Queue, link: QueueLink, subscription: str | None, places: Mapping[str, str]) -> None:
        self._queue = queue
        self._link = link
        self._subscription = subscription
        self.places = places

    @classmethod
    async def open(cls, operator: Operator, queue: str, subscription: str | None = None) -> Self | None:
        """Find the dead letter queues. Return None if the queue is not a broadcast, and no subscription is given.

        Raises:
            NoSubscriptionError: The subscription does not exist.
        """
        if not await operator.is_broadcast(queue):
            if subscription is not None:
                raise NoSubscriptionError(queue, subscription, ())
            return None
        link = await operator.link(queue)
        names = [each.name for each in await get_subscriptions(link)]
        if subscription is not None and subscription not in names:
            raise NoSubscriptionError(queue, subscription, names)
        targets = await dead_letter_queues(operator, queue, names if subscription is None else [subscription])
        places: dict[str, str] = {}
        for name, place in targets.items():
            if place:
                places.setdefault(place, name)
        return cls(await operator.queue(queue), link, subscription, places)

    async def _dead_queue(self, place: str) -> QueueLink | None:
        return await open_dead_letters(self._link, self.places[place])

    def _is_wanted(self, job: Job) -> bool:
        of = _subscription_of(job, self._link.keys.name)
        return of is not None and self._subscription in (None, of)

    async def iter(self) -> AsyncIterator[tuple[str, Job]]:
        """Yield the entries, each with the name of its dead letter queue: one queue after the other, oldest first."""
        for place in self.places:
            dead_queue = await self._dead_queue(place)
            if dead_queue is None:
                continue
            async for job in reading.iterate(dead_queue, JobState.WAITING, _PAGE):
                if self._is_wanted(job):
                    yield place, shown_entry(job, self._link)

    def shown(self, entry: Job) -> DeadLetter:
        """Return an entry as a snapshot."""
        return dead_letter_of(entry, self._link.keys.name)

    async def newest(self, count: int) -> tuple[list[DeadLetter], bool]:
        """Return the entries among the ``count`` newest of each dead letter queue, and whether there are more."""
        read = list(self.places.values())[:_QUEUES_READ]
        found: list[Job] = []
        is_cut = len(read) < len(self.places)
        for subscription in read:
            entries, has_more = await get_newest_dead_letter_jobs(self._queue, count, subscription=subscription)
            found += filter(self._is_wanted, entries)
            is_cut = is_cut or has_more
        found.sort(key=lambda each: each.timestamp, reverse=True)
        return [self.shown(each) for each in found[:count]], is_cut or len(found) > count

    async def find(self, entry_id: str) -> list[tuple[str, Job]]:
        """Return the entries with an id, which may be in several dead letter queues."""
        found: list[tuple[str, Job]] = []
        for place in self.places:
            dead_queue = await self._dead_queue(place)
            job = None if dead_queue is None else await reading.get_job(dead_queue, entry_id)
            if job is not None and self._is_wanted(job):
                found.append((place, job))
        return found

    async def replay(self, place: str, entry: Job) -> None:
        """Deliver the message of an entry to its subscription again, and delete the entry.

        Raises the errors of `Broadcast.replay_dead_letter_job`; the entry is then kept.
        """
        await replay_entry(self._link, await self._place(place, entry), entry)

    async def remove(self, place: str, entry: Job) -> bool:
        """Delete an entry; return False if it does not exist."""
        return await remove_dead_letter(await self._place(place, entry), entry)

    async def _place(self, place: str, entry: Job) -> QueueLink:
        dead_queue = await self._dead_queue(place)
        if dead_queue is None:  # the setting was changed meanwhile
            raise JobNotFoundError(entry.id)
        return dead_queue


async def iter_dead_letters(
    operator: Operator, queue: str, subscription: str | None = None
) -> AsyncIterator[DeadLetter]:  # fmt: skip
    """Iterate over the dead-letter entries of a queue, oldest first.

    Those of a broadcast are in several dead letter queues, which are read one after the other.

    Args:
        operator: Reads them.
        queue: Name of the queue or broadcast.
        subscription: Only entries of this subscription; None = all.

    Raises:
        NoSubscriptionError: The subscription does not exist.
    """
    letters = await Letters.open(operator, queue, subscription)
    if letters is not None:
        async for _, entry in letters.iter():
            yield letters.shown(entry)
        return
    async for entry in (await operator.queue(queue)).dead_letters.iter():
        yield dead_letter_of(entry, queue)


async def get_newest_dead_letters(
    operator: Operator, queue: str, count: int, subscription: str | None = None
) -> tuple[list[DeadLetter], bool]:
    """Return the entries of a queue among the ``count`` newest of its dead letter queue, and whether it has more.

    They are ordered from the newest on. ``subscription``: see `iter_dead_letters`.
    """
    letters = await Letters.open(operator, queue, subscription)
    if letters is not None:
        return await letters.newest(count)
    entries, is_cut = await get_newest_dead_letter_jobs(await operator.queue(queue), count)
    return [dead_letter_of(each, queue) for each in entries], is_cut


async def dead_letter_queues(operator: Operator, queue: str, subscriptions: Iterable[str]) -> dict[str, str | None]:
    """Return the names of the dead letter queues of a broadcast ('') and of these subscriptions; a call each."""
    names, found = ["", *subscriptions], dict[str, str | None]()
    for some in pieces(names, _AT_ONCE):
        targets = await asyncio.gather(*(operator.get_dead_letter_queue(queue, name) for name in some))
        found |= zip(some, targets, strict=True)
    return found


def slowest_first(subscriptions: Iterable[Subscription]) -> list[Subscription]:
    """Return subscriptions with the most unread messages first, then by name."""
    return sorted(subscriptions, key=lambda each: (each.waiting is not None, -(each.waiting or 0), each.name))


def _subscription_of(job: Job, queue: str) -> str | None:
    of = (envelope_of(job, queue) or {}).get("subscription")
    return of if isinstance(of, str) else None


_FINISHED: Final = (JobState.COMPLETED, JobState.FAILED)


async def iter_newest_jobs(operator: Operator, queue: str, wanted: JobFilter) -> AsyncIterator[JobSummary]:
    """Iterate over the jobs that match a filter, the last one that finished first.

    Raises:
        GlideMQValidationError: The state of the filter is not completed or failed.
    """
    state = wanted.state
    if state is None or state not in _FINISHED:
        raise GlideMQValidationError("state", state, "must be 'completed' or 'failed' to list the newest jobs")
    links = await operator.links(queue)
    async for low, high in _windows(links, state):
        found: list[Job] = []
        for link in links:
            key = _key(link, state)
            ids: Any = await link.command("ZRANGE", key, str(high), str(low), "BYSCORE", "REV")
            names = [each.decode() if isinstance(each, bytes) else str(each) for each in ids]
            for piece in pieces(names, ROWS_A_CALL):
                found += await read_jobs(link, piece)
        matching = [job for job in found if job.state == state and wanted.matches(job)]
        for job in sorted(matching, key=lambda each: -(each.finished_on or 0)):
            yield summary_of(job)


async def iter_newest_failures(operator: Operator, queue: str, **criteria: Any) -> AsyncIterator[Failure]:
    """Iterate over the failed jobs of a queue, the last failure first.

    ``criteria`` are those of `Queue.failures.iter`; ``since`` and ``until`` are epoch ms.
    """
    since, until = criteria.pop("since", None), criteria.pop("until", None)
    links = await operator.links(queue)
    async for low, high in _windows(links, JobState.FAILED, since or 0, until):
        until_ms = high if isinstance(high, int) else None
        of = [each async for each in operator.iter_failures(queue, since=low, until=until_ms, **criteria)]
        of.sort(key=lambda each: each.failed_at)
        for failure in reversed(of):
            yield failure


async def _windows(
    links: list[QueueLink], state: str, since: int = 0, until: int | None = None
) -> AsyncIterator[tuple[int, int | str]]:
    """Yield periods in which about `ROWS_A_CALL` jobs finished, at least 10 per partition, the latest first.

    A period is (first, last) in epoch ms, both included; the last of the latest one is "+inf". Jobs that finish
    meanwhile may be missing.
    """
    high: int | str = "+inf" if until is None else until
    count = max(10, ROWS_A_CALL // len(links))
    while True:
        low = since
        for link in links:
            limit = ("LIMIT", str(count - 1), "1", "WITHSCORES")
            command = ("ZRANGE", _key(link, state), str(high), str(since), "BYSCORE", "REV", *limit)
            oldest: Any = await link.command(*command)
            if oldest:
                low = max(low, score_of(oldest))
        yield low, high
        if low <= since:
            return
        high = low - 1


def _key(link: QueueLink, state: str) -> str:
    return link.keys.completed if state == JobState.COMPLETED else link.keys.failed
