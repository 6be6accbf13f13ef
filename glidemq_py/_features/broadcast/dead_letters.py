"""The methods of `Broadcast` for failed messages."""

from __future__ import annotations

from typing import Any, Final, Protocol, cast

from glidemq_py._api.job_queue import Queue
from glidemq_py._core.checks import check_int
from glidemq_py._core.job_states import JobState
from glidemq_py._core.names import parse_job_id
from glidemq_py._features.broadcast import calls as broadcasting
from glidemq_py._features.broadcast.options import validate_subscription
from glidemq_py._features.dead_letters import envelope_of, remove_dead_letter, with_readable_data
from glidemq_py._job import reading
from glidemq_py._job.job import Job
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import GlideMQValidationError, JobNotFoundError, JobStateError

_PAGE: Final = 500


class BroadcastWithDeadLetters(Protocol):
    """A `Broadcast` as the methods of this module use it; the class lists them under their names."""

    _queue: Queue[Any, Any]


async def redeliver(self: BroadcastWithDeadLetters, message_id: str, subscription: str) -> None:
    """Deliver a message again to a subscription that has finished it, with all attempts available again.

    Args:
        message_id: id of the message.
        subscription: name of the subscription.

    Raises:
        JobNotFoundError: the message does not exist or was deleted.
        JobStateError: the message is waiting or active in the subscription.
        GlideMQValidationError: the subscription does not exist.
    """
    await _redeliver(self, parse_job_id(message_id, "message_id"), validate_subscription(subscription), "")


async def get_dead_letter_jobs(
    self: BroadcastWithDeadLetters, subscription: str | None = None, start: int = 0, end: int = -1
) -> list[Job[Any, Any]]:
    """Return dead-letter entries by position, oldest first.

    Each entry is a waiting job in the dead letter queue. Its ``data`` is the envelope: ``originalQueue`` (the
    broadcast), ``originalJobId`` (the message), ``subscription``, ``data``, ``failedReason``, ``attemptsMade``.

    Args:
        subscription: return only entries of this subscription, from its dead letter queue; None returns all
            entries in the dead letter queue of the broadcast.
        start: position of the first entry.
        end: position of the last entry, inclusive; -1 = the last one.
    """
    first = check_int("start", start, 0, 2**53)
    last = check_int("end", end, -1, 2**53)
    dead_queue = await _open(self, subscription)
    link = await self._queue._connected()
    found: list[Job[Any, Any]] = []
    if dead_queue is None:
        return found
    async for job in reading.iterate(dead_queue, JobState.WAITING, _PAGE):
        if last != -1 and len(found) > last:
            break
        if _is_ours(self, job, subscription):
            found.append(with_readable_data(job, link))
    return found[first:]


async def replay_dead_letter_job(self: BroadcastWithDeadLetters, job_id: str, subscription: str | None = None) -> bool:
    """Redeliver the message of a dead-letter entry to its subscription (`redeliver`), and delete the entry.

    Repeating an interrupted replay does not deliver the message twice. Raises the errors of `redeliver`; the entry
    is then kept.

    Args:
        job_id: id of the entry (not of the message).
        subscription: as for `get_dead_letter_jobs`.

    Returns:
        False if there is no such entry.
    """
    entry_id = parse_job_id(job_id)
    found = await _find(self, entry_id, subscription)
    if found is None:
        return False
    await replay_entry(self, *found)
    return True


async def replay_entry(self: BroadcastWithDeadLetters, dead_queue: QueueLink, entry: Job[Any, Any]) -> None:
    """Replay an entry that was found, as `replay_dead_letter_job` does."""
    envelope = cast("dict[str, Any]", entry.data)
    await _redeliver(self, str(envelope["originalJobId"]), str(envelope["subscription"]), entry.id)
    await remove_dead_letter(dead_queue, entry)


async def remove_dead_letter_job(self: BroadcastWithDeadLetters, job_id: str, subscription: str | None = None) -> bool:
    """Delete a dead-letter entry; return False if it does not exist.

    Args:
        job_id: id of the entry (not of the message).
        subscription: as for `get_dead_letter_jobs`.
    """
    found = await _find(self, parse_job_id(job_id), subscription)
    return False if found is None else await remove_dead_letter(*found)


async def _redeliver(self: BroadcastWithDeadLetters, message_id: str, subscription: str, once: str) -> None:
    link = await self._queue._connected()
    answer = await link.call(broadcasting.redeliver, message_id, subscription, once)
    if answer == "gone":
        raise JobNotFoundError(message_id)
    if answer == "no-subscription":
        raise GlideMQValidationError("subscription", subscription, "does not exist")
    if answer not in ("ok", "duplicate"):
        message = f"cannot redeliver message {message_id!r} to subscription {subscription!r}: it is {answer}"
        raise JobStateError(message_id, answer, "redeliver", message)


async def _open(self: BroadcastWithDeadLetters, subscription: str | None) -> QueueLink | None:
    name = "" if subscription is None else validate_subscription(subscription)
    return await self._queue._dead_letter_queue.open(await self._queue._connected(), name)


async def _find(
    self: BroadcastWithDeadLetters, job_id: str, subscription: str | None
) -> tuple[QueueLink, Job[Any, Any]] | None:
    dead_queue = await _open(self, subscription)
    job = None if dead_queue is None else await reading.get_job(dead_queue, job_id)
    if dead_queue is None or job is None or not _is_ours(self, job, subscription):
        return None
    return dead_queue, job


def _is_ours(self: BroadcastWithDeadLetters, job: Job[Any, Any], subscription: str | None) -> bool:
    envelope = envelope_of(job, self._queue.name)
    of = None if envelope is None else envelope.get("subscription")
    return isinstance(of, str) and subscription in (None, of)
