"""What subscriptions have given up: their dead letters, and another turn for a message."""

from __future__ import annotations

from typing import Any, cast

from glidemq_py._api.queue import Queue
from glidemq_py._core.checks import check_int
from glidemq_py._core.job_states import JobState
from glidemq_py._core.names import parse_job_id
from glidemq_py._features.broadcast import calls as broadcasting
from glidemq_py._features.broadcast.options import validate_subscription
from glidemq_py._features.dead_letters.queue_api import envelope_of, remove_dead_letter
from glidemq_py._job import Job, QueueLink, reading
from glidemq_py.errors import GlideMQValidationError, JobNotFoundError, JobStateError

__all__ = ["BroadcastDeadLetters"]

_PAGE = 500


class BroadcastDeadLetters:
    """The part of `Broadcast` that looks after what has failed."""

    _queue: Queue[Any, Any]

    async def redeliver(self, message_id: str, subscription: str) -> None:
        """Have a message come once more to a subscription that has done with it, with all its attempts.

        Raises:
            JobNotFoundError: the message is not kept any more.
            JobStateError: the subscription is yet to get it, or is at it.
            GlideMQValidationError: there is no such subscription.
        """
        await self._redeliver(parse_job_id(message_id, "message_id"), validate_subscription(subscription), "")

    async def get_dead_letter_jobs(
        self, subscription: str | None = None, start: int = 0, end: int = -1
    ) -> list[Job[Any, Any]]:
        """Dead letters by position, oldest first; ``end`` inclusive, -1 = the last.

        Each is a job that waits in the dead letter queue. Its ``data`` is the envelope: ``originalQueue`` (the
        broadcast), ``originalJobId`` (the message), ``subscription``, ``data``, ``failedReason``, ``attemptsMade``.

        Args:
            subscription: whose, from the queue where its letters go; None = all in the broadcast's own dead letter
                queue.
        """
        first = check_int("start", start, 0, 2**53)
        last = check_int("end", end, -1, 2**53)
        letters = await self._dead_letters(subscription)
        found: list[Job[Any, Any]] = []
        if letters is None:
            return found
        async for job in reading.iterate(letters, JobState.WAITING, _PAGE):
            if last != -1 and len(found) > last:
                break
            if self._is_ours(job, subscription):
                found.append(job)
        return found[first:]

    async def replay_dead_letter_job(self, job_id: str, subscription: str | None = None) -> bool:
        """Have the message of a dead letter come once more to its subscription (`redeliver`), and delete the letter.

        A replay that was cut off and is made again delivers nothing twice.

        Args:
            job_id: the letter's own. subscription: as for `get_dead_letter_jobs`.

        Returns:
            False if there is no such letter.

        Raises:
            as `redeliver`; the letter stays.
        """
        letter_id = parse_job_id(job_id)
        found = await self._letter(letter_id, subscription)
        if found is None:
            return False
        letters, letter = found
        envelope = cast("dict[str, Any]", letter.data)
        await self._redeliver(str(envelope["originalJobId"]), str(envelope["subscription"]), letter_id)
        await remove_dead_letter(letters, letter)
        return True

    async def remove_dead_letter_job(self, job_id: str, subscription: str | None = None) -> bool:
        """Delete a dead letter; False if there is none of that id. Arguments as for `replay_dead_letter_job`."""
        found = await self._letter(parse_job_id(job_id), subscription)
        return False if found is None else await remove_dead_letter(*found)

    async def _redeliver(self, message_id: str, subscription: str, once: str) -> None:
        link = await self._queue._connected()
        call = broadcasting.redeliver(link.keys.meta, message_id, subscription, once)
        answer = await link.transport.call(call)
        if answer == "gone":
            raise JobNotFoundError(message_id)
        if answer == "no-subscription":
            raise GlideMQValidationError("subscription", subscription, "there is none of that name")
        if answer not in ("ok", "duplicate"):
            raise JobStateError(message_id, answer, f"deliver anew to the subscription {subscription!r}")

    async def _dead_letters(self, subscription: str | None) -> QueueLink | None:
        return await self._queue._dead_letters("" if subscription is None else validate_subscription(subscription))

    async def _letter(self, job_id: str, subscription: str | None) -> tuple[QueueLink, Job[Any, Any]] | None:
        letters = await self._dead_letters(subscription)
        job = None if letters is None else await reading.get_job(letters, job_id)
        if letters is None or job is None or not self._is_ours(job, subscription):
            return None
        return letters, job

    def _is_ours(self, job: Job[Any, Any], subscription: str | None) -> bool:
        envelope = envelope_of(job, self._queue.name)
        of = None if envelope is None else envelope.get("subscription")
        return isinstance(of, str) and subscription in (None, of)
