"""Numbers of queues, which ids of jobs contain, and the ids of jobs on the wire.

The hash `<prefix>:gateway:queues` has the field `next`, and per queue `n:<number>` (its name) and `q:<name>` (its
number). A number is never given to another queue. `n:` is written before `q:`, so every number in use leads to a name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from glidemq_py._client.transport import Transport
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.names import validate_existing_id
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.gateway.chosen_ids import ChosenIds, OpenQueue, engine_id, wire_id
from glidemq_py.gateway.ids import MAX_QUEUES, IdMaker, queue_number
from glidemq_py.gateway.names import QueueNameError, engine_name, wire_name
from glidemq_py.gateway.table import CommandError

__all__ = ["JobIds"]

_KEPT: Final = 10_000


class JobIds:
    """Makes and reads the ids of jobs on the wire.

    A job that a gateway added has a UUIDv7 with the number of its queue, or the id that the client chose. The job 17 of
    the queue q, which another program added, is `q:17`.

    Args:
        transport: Connection to the server of the queues.
        prefix: First part of every key.
        open_queue: Returns the open queue with a name.

    Attributes:
        chosen: The ids that clients have chosen.
        open_queue: Returns the open queue with a name.
    """

    def __init__(self, transport: Transport, prefix: str, open_queue: OpenQueue) -> None:
        self._transport, self._prefix, self.open_queue = transport, prefix, open_queue
        self.chosen = ChosenIds(transport, prefix, open_queue)
        self._key = f"{prefix}:gateway:queues"
        self._maker = IdMaker()
        self._numbers: OrderedDict[str, int] = OrderedDict()
        self._names: OrderedDict[int, str] = OrderedDict()

    async def make(self, queue: str) -> str:
        """Return the id of a new job.

        Raises:
            CommandError: If there are too many queues.
            GlideMQConnectionError: If the server cannot be reached.
        """
        number = self._numbers.get(queue)
        return self._maker.make(await self._number(queue) if number is None else number)

    def make_known(self, queue: str) -> str | None:
        """Return the id of a new job; None if this process does not know the number of the queue."""
        number = self._numbers.get(queue)
        return None if number is None else self._maker.make(number)

    async def find(self, job_id: str) -> tuple[str, str] | None:
        """Return the names of the queue and the job in this package; None if no job has this id.

        Raises:
            GlideMQConnectionError: If the server cannot be reached.
        """
        number = queue_number(job_id)
        if number is not None:
            queue = await self._name(number)
            if queue is not None:
                return queue, job_id
        chosen_for = await self.chosen.queue_of(job_id) if job_id else None
        if chosen_for is not None:
            return chosen_for, engine_id(job_id)
        return _in_its_queue(job_id)

    async def claim(self, queue: str, chosen: Iterable[str]) -> set[str]:
        """Claim ids that a client has chosen for jobs of a queue; return those of unfinished jobs.

        Raises:
            CommandError: If one of the ids cannot be used.
            GlideMQConnectionError: If the server cannot be reached.
        """
        ids = list(chosen)
        for each in ids:
            number = queue_number(each)
            if number is not None and await self._name(number) is not None:
                raise CommandError(f"jobId {each} is an id that the gateway makes; choose another one")
            found = _in_its_queue(each)
            key = None if found is None else QueueKeys(self._prefix, found[0]).job(found[1])
            if key is not None and await self._transport.command("EXISTS", key):
                raise CommandError(f"jobId {each} is the id of a job that another program added; choose another one")
        return await self.chosen.claim(queue, ids)

    def known_queue(self, job_id: str) -> str | None:
        """Return the queue of a job if this process knows it without a call."""
        number = queue_number(job_id)
        if number is not None:
            return self._names.get(number)
        found = _in_its_queue(job_id)
        return self.chosen.known_queue(job_id) or (None if found is None else found[0])

    def known_on_wire(self, queue: str, job_id: str) -> str | None:
        """Return the id on the wire of a job that a gateway added, if this process knows the number of the queue."""
        number = self._numbers.get(queue)
        return job_id if number is not None and queue_number(job_id) == number else None

    async def on_wire(self, queue: str, job_id: str) -> str:
        """Return the id of a job on the wire.

        Raises:
            GlideMQConnectionError: If the server cannot be reached.
        """
        number = queue_number(job_id)
        if number is not None and (self._numbers.get(queue) == number or await self._name(number) == queue):
            return job_id
        if not job_id.isdecimal():
            chosen = wire_id(job_id)
            if self.chosen.known_queue(chosen) == queue or await self.chosen.queue_of(chosen) == queue:
                return chosen
        return f"{wire_name(queue)}:{job_id}"

    async def restore_number(self, number: int, queue: str) -> bool:
        """Give a number to a queue whose restored jobs have it in their ids; return False if another queue has it.

        Raises:
            GlideMQConnectionError: If the server cannot be reached.
        """
        await self._transport.command("HSETNX", self._key, f"n:{number}", queue)
        found = await self._transport.command("HGET", self._key, f"n:{number}")
        if found is None or found.decode("utf-8", "replace") != queue:
            return False
        await self._transport.command("HSETNX", self._key, f"q:{queue}", str(number))
        return True

    async def _number(self, queue: str) -> int:
        found = await self._transport.command("HGET", self._key, f"q:{queue}")
        if found is None:
            number, is_new = 0, False
            while not is_new:  # numbers of restored queues may be ahead of `next`
                number = int(await self._transport.command("HINCRBY", self._key, "next", "1"))
                if number >= MAX_QUEUES:
                    raise CommandError(f"queue {wire_name(queue)!r} is one too many: at most {MAX_QUEUES - 1:,}")
                is_new = bool(await self._transport.command("HSETNX", self._key, f"n:{number}", queue))
            if not await self._transport.command("HSETNX", self._key, f"q:{queue}", str(number)):
                # Another gateway was first; this number was not used.
                await self._transport.command("HDEL", self._key, f"n:{number}")
            found = await self._transport.command("HGET", self._key, f"q:{queue}")
        number = int(found)
        self._remember(queue, number)
        return number

    async def _name(self, number: int) -> str | None:
        name = self._names.get(number)
        if name is None:
            found = await self._transport.command("HGET", self._key, f"n:{number}")
            if found is None:
                return None
            name = found.decode("utf-8", "replace")
            self._remember(name, number)
        return name

    def _remember(self, queue: str, number: int) -> None:
        self._numbers[queue], self._names[number] = number, queue
        if len(self._numbers) > _KEPT:
            self._names.pop(self._numbers.popitem(last=False)[1], None)


def _in_its_queue(job_id: str) -> tuple[str, str] | None:
    """Return queue and id of an id such as `q:17`."""
    wire_queue, colon, own_id = job_id.rpartition(":")
    if not colon:
        return None
    try:
        return engine_name(wire_queue), validate_existing_id(own_id)
    except (QueueNameError, GlideMQValidationError):
        return None
