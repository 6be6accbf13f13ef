"""Numbers of queues, which ids of jobs contain, and the ids of jobs on the wire.

The hash `<prefix>:gateway:queues` has the fields `n:<number>` (the name of a queue) and `q:<name>` (its number). A
number is never given to another queue, and `n:` is written before `q:`, so every number in use leads to a name. Several
numbers may lead to one queue.

The server may lose entries, in a failover or when it starts without its last writes. So a number is a hash of the name
if it is free, and each gateway writes the numbers that it knows again.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

from glidemq_py._api.job_queue import Queue
from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import pieces
from glidemq_py._core.keys import (
    CHECK_BITS,
    COUNTER_BITS,
    RANDOM_BITS,
    QueueKeys,
    check_bits,
    queue_numbers_key,
    validate_existing_id,
)
from glidemq_py._core.keys import queue_number as queue_number
from glidemq_py._partitions.layout import split_partition_id
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.gateway.chosen_ids import ChosenIds, OpenQueue, chosen_of, engine_id, keep
from glidemq_py.gateway.names import MARK, QueueNameError, engine_name, queue_of_part, wire_name
from glidemq_py.gateway.table import CommandError

_DIGITS: Final = 8
_NUMBERS_TRIED: Final = 100
_NUMBERS_PER_CALL: Final = 250


class JobIds:
    """Makes and reads the ids of jobs on the wire.

    A job that a gateway added has a UUIDv7 with the number of its queue, or the id that the client chose. The job 17 of
    the queue q, which another program added, is `q:17`.

    Each partition of a queue has a number of its own. The job 17 of partition 3 of the queue q is `q:3||17`.

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
        self.chosen = ChosenIds(transport, prefix, self.part)
        self._key = queue_numbers_key(prefix)
        self._maker = IdMaker()
        self._numbers: OrderedDict[str, int] = OrderedDict()
        self._names: OrderedDict[int, str] = OrderedDict()
        self._met: OrderedDict[int, str] = OrderedDict()
        """Names of queues by their usual numbers, which the server may have lost."""

    async def _call(self, command: str, *rest: str) -> Any:
        """Return the reply to a command about the hash."""
        return await self._transport.command(command, self._key, *rest)

    def met(self, queue: str) -> None:
        """Remember a queue or partition that exists, or may exist."""
        keep(self._met, usual_number(queue), queue)

    async def part(self, name: str) -> Queue:
        """Return the queue, or the partition of one, whose keys have this name."""
        home = queue_of_part(name)
        queue = await self.open_queue(home)
        if queue._partitions is None and home == name:
            return queue
        await queue._plain_link()
        each: Queue
        for each in queue._parts:
            if each.name == name:
                self.met(name)
                return each
        return await self.open_queue(name)  # a queue whose name looks like that of one

    async def make(self, queue: str) -> str:
        """Return the id of a new job of a queue or partition.

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
                return (queue, job_id) if queue_of_part(queue) == queue else await self._placed(queue, job_id)
        chosen_for = await self.chosen.queue_of(job_id) if job_id else None
        if chosen_for is not None:
            own = engine_id(job_id)
            return (chosen_for, own) if queue_of_part(chosen_for) == chosen_for else await self._placed(chosen_for, own)
        return _in_its_queue(job_id)

    async def _placed(self, name: str, own: str) -> tuple[str, str]:
        """Return the names of the queue and the job in it of a job of a partition."""
        part = (await self.part(name))._partition
        return (name, own) if part is None else (part.queue_name, part.id_of(own))

    async def claim(
        self, queue: str, chosen: Iterable[str], mine: dict[str, str] | None = None,
        opened: Queue | None = None,
    ) -> set[str]:  # fmt: skip
        """Claim ids that a client has chosen for jobs of a queue or partition; return those of unfinished jobs.

        Args:
            queue: Name of the queue or partition.
            chosen: The ids.
            mine: The entries of a former call for the same jobs, which may name another partition. They are updated.
            opened: The queue, if its partitions are chosen by the ids; else the queue or partition of this name.

        Raises:
            CommandError: If one of the ids cannot be used.
            GlideMQConnectionError: If the server cannot be reached.
        """
        ids = list(dict.fromkeys(chosen))
        for each in ids:
            number = queue_number(each)
            if number is not None and await self._name(number) is not None:
                raise CommandError(f"jobId {each} is an id that the gateway makes; choose another one")
            if await self._is_of_another_program(each):
                raise CommandError(f"jobId {each} is the id of a job that another program added; choose another one")
        return await self.chosen.claim(queue, ids, {} if mine is None else mine, opened or await self.part(queue))

    async def _is_of_another_program(self, chosen: str) -> bool:
        found = _in_its_queue(chosen)
        if found is None:
            return False
        if MARK in found[1]:
            return await (await self.open_queue(found[0])).get_job(found[1], exclude_data=True) is not None
        return bool(await self._transport.command("EXISTS", QueueKeys(self._prefix, found[0]).job(found[1])))

    def known_queue(self, job_id: str) -> str | None:
        """Return the queue or partition of a job if this process knows it without a call."""
        number = queue_number(job_id)
        if number is not None:
            return self._names.get(number)
        found = _in_its_queue(job_id)
        return self.chosen.known_queue(job_id) or (None if found is None else found[0])

    def known_number(self, queue: str) -> int | None:
        """Return the number of a queue or partition if this process knows it."""
        return self._numbers.get(queue)

    async def on_wire(self, queue: str, job_id: str) -> str:
        """Return the id on the wire of a job of a queue, or of a partition.

        Raises:
            GlideMQConnectionError: If the server cannot be reached.
        """
        number = queue_number(job_id)
        if number is not None:
            self.met(queue)
            if self._numbers.get(queue) == number or await self._name(number) == queue:
                return job_id
        home = queue_of_part(queue)
        if home != queue:
            part = (await self.part(queue))._partition
            if part is not None:
                return await self.on_wire(part.queue_name, part.id_of(job_id))
        own = split_partition_id(job_id)[1] if MARK in job_id else job_id
        if own != job_id:
            number = queue_number(own)
            name = None if number is None else await self._name(number)
            if name is not None and queue_of_part(name) == queue:
                return own
        chosen = chosen_of(own)
        if chosen is not None:
            known = self.chosen.known_queue(chosen)
            if known is None or queue_of_part(known) != home:
                known = await self.chosen.queue_of(chosen)
            if known is not None and queue_of_part(known) == home:
                return chosen
        return f"{wire_name(queue)}:{job_id}"

    async def restore_number(self, number: int, queue: str) -> bool:
        """Give a number to a queue whose restored jobs have it in their ids; return False if another queue has it.

        Raises:
            GlideMQConnectionError: If the server cannot be reached.
        """
        if not await self._holds(number, queue):
            return False
        await self._call("HSETNX", f"q:{queue}", str(number))
        return True

    async def repair(self) -> int:
        """Write the numbers that this process knows again if the server has lost them; return how many.

        Numbers that are those of other queues by now are forgotten, so the next jobs get another one.

        Raises:
            GlideMQConnectionError: If the server cannot be reached.
        """
        written = 0
        known = list(self._names.items())
        for page in pieces(known, _NUMBERS_PER_CALL):
            fields = [field for number, name in page for field in (f"n:{number}", f"q:{name}")]
            found = await self._call("HMGET", *fields)
            for (number, name), named, numbered in zip(page, found[::2], found[1::2], strict=True):
                if named is None:
                    written += await self.restore_number(number, name)
                elif named.decode("utf-8", "replace") != name:
                    self._forget(number, name)
                elif numbered is None:
                    await self._call("HSETNX", f"q:{name}", str(number))
        return written

    async def _number(self, queue: str) -> int:
        text = await self._call("HGET", f"q:{queue}")
        stored, usual = _valid_number(text), usual_number(queue)
        following = ((usual + at - 1) % (MAX_QUEUES - 1) + 1 for at in range(_NUMBERS_TRIED))
        for number in following if stored is None else (stored, *following):
            if await self._holds(number, queue):
                break
        else:
            raise CommandError(f"queue {wire_name(queue)!r} is one too many: no number is free for it")
        if number != stored:
            await self._call("HSETNX" if text is None else "HSET", f"q:{queue}", str(number))
        self._remember(queue, number)
        self._numbers[queue] = number
        return number

    async def _holds(self, number: int, queue: str) -> bool:
        """Give a number to a queue unless it has it; return False if another queue has it."""
        if await self._call("HSETNX", f"n:{number}", queue):
            return True
        found = await self._call("HGET", f"n:{number}")
        return found is not None and bool(found.decode("utf-8", "replace") == queue)

    async def _name(self, number: int) -> str | None:
        name = self._names.get(number)
        if name is not None:
            return name
        found = await self._call("HGET", f"n:{number}")
        if found is not None:
            name = found.decode("utf-8", "replace")
            if not _is_name(self._prefix, name):
                return None
        else:  # none has got it, or the server has lost it
            name = self._met.get(number)
            if name is None or not await self.restore_number(number, name):
                return None
        self._remember(name, number)
        return name

    def _remember(self, queue: str, number: int) -> None:
        keep(self._numbers, queue, self._numbers.get(queue, number))
        keep(self._names, number, queue)

    def _forget(self, number: int, queue: str) -> None:
        self._names.pop(number, None)
        if self._numbers.get(queue) == number:
            del self._numbers[queue]


def _valid_number(text: bytes | None) -> int | None:
    """Return a stored number; None if it is missing or invalid."""
    if text is None or len(text) > _DIGITS or not text.isdigit():
        return None
    return int(text) if 0 < int(text) < MAX_QUEUES else None


def _is_name(prefix: str, name: str) -> bool:
    try:
        QueueKeys(prefix, name)
    except GlideMQValidationError:
        return False
    return True


def _in_its_queue(job_id: str) -> tuple[str, str] | None:
    """Return queue and id of an id such as `q:17`."""
    wire_queue, colon, own_id = job_id.rpartition(":")
    if not colon:
        return None
    try:
        return engine_name(wire_queue), validate_existing_id(own_id)
    except (QueueNameError, GlideMQValidationError):
        return None


MAX_QUEUES: Final = 2**24
"""Queue numbers are below this."""

_RANDOM_KEPT: Final = 1_024
"""Random numbers that are got at a time."""


@lru_cache(maxsize=16_384)
def usual_number(queue: str) -> int:
    """Return the number that a queue or partition has, unless another one has it already.

    It is a hash of the name, so that a number which the server has lost becomes that of the same queue again.
    """
    digest = hashlib.blake2b(queue.encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return int.from_bytes(digest, "big") % (MAX_QUEUES - 1) + 1


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class IdMaker:
    """Makes ids that ascend, also if the clock is set back.

    Args:
        now: Returns the time, epoch ms.
    """

    __slots__ = ("_last", "_now", "_random")

    def __init__(self, now: Callable[[], int] = _now_ms) -> None:
        self._now = now
        self._last = 0
        self._random: list[int] = []

    def make(self, queue: int) -> str:
        """Return a new id of a job of the queue with this number."""
        # Time and counter in one number: a counter that overflows moves on to the next millisecond.
        self._last = moment = max(self._now() << COUNTER_BITS, self._last + 1)
        if not self._random:
            self._random = list(struct.unpack(f"{_RANDOM_KEPT}I", secrets.token_bytes(4 * _RANDOM_KEPT)))
        rest = queue << RANDOM_BITS | self._random.pop() & (2**RANDOM_BITS - 1)
        content = moment << 54 | rest
        low = 1 << 63 | rest << CHECK_BITS | check_bits(content)
        ms, counter = moment >> COUNTER_BITS, 0x7000 | moment & (2**COUNTER_BITS - 1)
        parts = ms >> 16, ms & 0xFFFF, counter, low >> 48, low & 0xFFFF_FFFF_FFFF
        return "%08x-%04x-%04x-%04x-%012x" % parts  # noqa: UP031 -- faster than an f-string
