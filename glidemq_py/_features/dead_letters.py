"""Dead letters: jobs that failed for good, in a queue of their own (``lua/features/dead_letters``)."""

from __future__ import annotations

from typing import Final

from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.logs import get_logger
from glidemq_py._core.queue_options import QueueOptions
from glidemq_py._features.outbox import Outbox, dead_letter_queue
from glidemq_py._partitions.link import QueueLink, Waiter
from glidemq_py.errors import GlideMQError

_log = get_logger(__name__)

_PATIENCE_S: Final = 0.5
"""How long a read waits for a worker that is delivering entries."""


async def declare_dead_letters(link: QueueLink, options: QueueOptions, subscription: str = "") -> str:
    """Store the dead letter queue in the queue's meta if the options set it; return the name in effect, '' = none.

    Args:
        link: the queue.
        options: its options.
        subscription: the subscription of a broadcast that the setting is for; '' = the queue itself.
    """
    given = options.dead_letter_queue
    name, on = (None, "") if given is None else ("", "") if given is False else (given.name, given.kinds_text)
    return await link.call(dead_letter_queue, name, on, subscription)


async def open_dead_letters(link: QueueLink, subscription: str = "") -> QueueLink | None:
    """Deliver pending entries of a queue or part and return its dead letter queue, or None if there is none.

    Args:
        link: the queue.
        subscription: a subscription of a broadcast; '' = the queue itself.
    """
    if link.dead_letters is None:
        link.dead_letters = _DeadLetterQueue()
    found: QueueLink | None = await link.dead_letters.open(link, subscription)
    return found


class _DeadLetterQueue:
    """The dead letter queue of a queue, as a link, and the outbox that delivers its entries."""

    def __init__(self) -> None:
        self._link: QueueLink | None = None
        self._waiter: Waiter | None = None
        self._outbox: tuple[object, Outbox] | None = None
        """The outbox, and the event loop that its lock belongs to."""

    async def open(self, link: QueueLink, subscription: str = "") -> QueueLink | None:
        name = await link.call(dead_letter_queue, subscription=subscription)
        if not name:
            return None
        loop, held = link.runtime.current_loop(), self._outbox
        outbox = held[1] if held is not None and held[0] is loop else Outbox(link)
        self._outbox = loop, outbox
        try:
            await link.runtime.there(outbox.deliver(_PATIENCE_S))
        except GlideMQError as error:
            _log.warning("queue %s: delivering dead letters failed, will be retried: %s", link.label, error)
        if self._link is None or self._link.keys.name != name:
            keys = QueueKeys(link.keys.prefix, name)
            if self._waiter is not None:
                await self._waiter.close()
            self._waiter = link.waiter.beside(keys)
            # Entries are always JSON, independent of the serializer of the queue.
            self._link = QueueLink(
                transport=link.transport, keys=keys, waiter=self._waiter, compression=link.compression,
                runtime=link.runtime,
            )  # fmt: skip
        return self._link
