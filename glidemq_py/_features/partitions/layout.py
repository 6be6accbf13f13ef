"""The partitions of a queue: their names, the partition of a routing key, the ids of their jobs, shares in limits.

Partition 0 is the plain queue itself. The slots of the cluster are divided into as many equal cells as there are
partitions; every other partition lies in the middle of a cell, so contiguous ranges of slots get equal shares.
"""

from __future__ import annotations

import re
import time
from binascii import crc_hqx
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise, product
from typing import Final, NamedTuple

from glidemq_py._core.checks import check_int
from glidemq_py._core.names import NAME_LENGTH, validate_queue_name
from glidemq_py.errors import GlideMQValidationError

__all__ = [
    "JUMP_MULTIPLIER",
    "MAX_PARTITIONS",
    "Layout",
    "Partition",
    "further_names",
    "hash_slot",
    "key_digest",
    "number_after",
    "partition_home",
    "partition_id",
    "partition_names",
    "partition_of_key",
    "partition_slots",
    "shares",
    "split_partition_id",
]

SLOTS: Final = 16_384
JUMP_MULTIPLIER: Final = 2_862_933_555_777_941_757
"""Of the jump hash; `glidemq_py.spark.placing` computes the same for columns of keys."""
MAX_PARTITIONS: Final = 256
_MARK: Final = "~p~"
_SALT: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"
_SALT_LENGTH: Final = 4
_SUFFIX_LENGTH: Final = len(_MARK) + _SALT_LENGTH
_WITHOUT_JOB: Final = frozenset(("drained", "cleaned", "trimmed"))
"""Events whose job id is a number of jobs."""
_RESERVED: Final = re.compile(r"~p~[0-9a-z]{4}\Z")
_PREFIX: Final = re.compile(r"(0|[1-9][0-9]{0,2})~")
_PARTITIONED_ID: Final = re.compile(r"(0|[1-9][0-9]{0,2})\|\|(.+)", re.DOTALL)


def hash_slot(tag: str) -> int:
    """Return the cluster slot, 0 to 16,383, of keys with this hash tag."""
    return crc_hqx(tag.encode(), 0) % SLOTS


def partition_names(name: str, partitions: int) -> tuple[str, ...]:
    """Return the queue names of all partitions; the first is the name itself.

    The result depends on the arguments only. It searches up to some 100,000 names, so it belongs to the creation of
    a queue; each program that opens the queue reads the stored names.

    Raises:
        GlideMQValidationError: the name is invalid, reserved or too long, or `partitions` is not 1 to 256.
    """
    validate_queue_name(name)
    count = check_int("partitions", partitions, minimum=1, maximum=MAX_PARTITIONS)
    return further_names((name,), count)


def further_names(names: tuple[str, ...], partitions: int) -> tuple[str, ...]:
    """Return the names of a queue's partitions if it is to have at least so many: the present names, then others.

    A further partition lies in a cell that has none yet. Where two present ones share a cell, the cell that is left
    over is near them.

    Raises:
        GlideMQValidationError: The name of the queue is reserved or too long.
    """
    if partitions <= len(names):
        return names
    name = names[0]
    if _RESERVED.search(name) is not None:
        raise GlideMQValidationError("name", name, "is reserved for the partitions of another queue")
    if len(name.encode("utf-16-le")) // 2 > NAME_LENGTH - _SUFFIX_LENGTH:
        problem = f"must have at most {NAME_LENGTH - _SUFFIX_LENGTH} characters if the queue is partitioned"
        raise GlideMQValidationError("name", name, problem)
    slots = _free_slots([hash_slot(each) for each in names], partitions)
    wanted = {slot: position for position, slot in enumerate(slots)}
    state = crc_hqx(f"{name}{_MARK}".encode(), 0)
    found: dict[int, str] = {}
    for letters in product(_SALT, repeat=_SALT_LENGTH):
        salt = bytes(letters)
        position = wanted.pop(crc_hqx(salt, state) % SLOTS, None)
        if position is not None:
            found[position] = f"{name}{_MARK}{salt.decode()}"
            if not wanted:
                break
    return (*names, *(found[position] for position in sorted(found)))


def partition_home(name: str) -> str | None:
    """Return the name of the partitioned queue that may have a partition with this name; None if it is none."""
    return name[:-_SUFFIX_LENGTH] or None if _RESERVED.search(name) is not None else None


def partition_slots(first: int, partitions: int) -> tuple[int, ...]:
    """Return the slots of all partitions, given that of partition 0."""
    return (first, *_free_slots([first], partitions))


def _free_slots(taken: Sequence[int], partitions: int) -> list[int]:
    """Return the slots of further partitions, given those of the present ones.

    Cells begin where `valkey-cli --cluster create` lets the ranges of as many primaries begin. With other borders, a
    partition 0 beside one would leave a primary without its share.
    """
    borders = [round(cell * SLOTS / partitions) for cell in range(partitions + 1)]
    cells = Counter(bisect_right(borders, slot) - 1 for slot in taken)
    empty = [cell for cell in range(partitions) if cell not in cells]
    for cell, count in sorted(cells.items()):
        for _ in range(count - 1):
            empty.remove(min(empty, key=lambda each: abs(each - cell)))
    middles = [(low + high) // 2 for low, high in pairwise(borders)]
    return [middles[cell] for cell in empty]


def key_digest(key: bytes) -> bytes:
    """Return the hash of a routing key's UTF-8 text, 8 bytes, from which its partition follows."""
    return blake2b(key, digest_size=8).digest()


def partition_of_key(key: str, partitions: int) -> int:
    """Return the partition of a routing key (Lamping and Veach's jump hash: growing by one moves 1/n of the keys)."""
    state = int.from_bytes(key_digest(key.encode("utf-8", "surrogatepass")), "big")
    chosen, following = -1, 0
    while following < partitions:
        chosen = following
        state = (state * JUMP_MULTIPLIER + 1) & 0xFFFF_FFFF_FFFF_FFFF
        following = int((chosen + 1) * ((1 << 31) / ((state >> 33) + 1)))
    return chosen


def partition_id(partition: int, job_id: str) -> str:
    """Return the id of a partition's job in the logical queue, such as `3||17`.

    Ids of partition 0 stay as they are, so that Node peers use the same ones. New ids never contain `||`
    (`validate_job_id`), but a peer's may: one that would name a partition gets the prefix `0||`.
    """
    if partition == 0 and _PARTITIONED_ID.fullmatch(job_id) is None:
        return job_id
    return f"{partition}||{job_id}"


def split_partition_id(job_id: str) -> tuple[int, str]:
    """Return the partition and the partition's own id of an id of the logical queue: inverse of `partition_id`."""
    match = _PARTITIONED_ID.fullmatch(job_id)
    return (0, job_id) if match is None else (int(match[1]), match[2])


def shares(option: str, total: int, partitions: int) -> list[int]:
    """Return the share of each partition in a limit; 0, which is no limit, is 0 for all.

    Raises:
        GlideMQValidationError: The limit is smaller than the number of partitions: a share of 0 would be no limit.
    """
    if total and total < partitions:
        raise GlideMQValidationError(option, total, f"must be at least the number of partitions, {partitions}")
    return [total // partitions + (number < total % partitions) for number in range(partitions)]


def number_after(number: int) -> int:
    """Return the number of the next layout: larger, and never that of a layout which was lost or deleted.

    It is the time in epoch ms. If a failover has lost the layout of some partitions' clients, the next one replaces it.
    """
    return max(number + 1, int(time.time() * 1000))


class Layout(NamedTuple):
    """The partitions of a queue.

    Attributes:
        number: number of the layout, from `number_after`; 0 = a queue without partitions.
        counts: how many partitions the hash of a key chose from, in the layouts from which jobs may still be; the last
            is that of this layout.
        names: queue names of the partitions; those that no layout in `counts` has may be used again.
    """

    number: int
    counts: tuple[int, ...]
    names: tuple[str, ...]

    @classmethod
    def plain(cls, name: str) -> Layout:
        """Return the layout of a queue without partitions."""
        return cls(0, (1,), (name,))

    @property
    def partitions(self) -> int:
        """Number of partitions that get new jobs."""
        return self.counts[-1]

    @property
    def served(self) -> tuple[str, ...]:
        """Names of the partitions that may have jobs."""
        return self.names[: max(self.counts)]

    def homes(self, key: str) -> list[int]:
        """Return the partitions that may have jobs with this routing key; the last is the one for new jobs."""
        last = partition_of_key(key, self.partitions)
        former = dict.fromkeys(partition_of_key(key, count) for count in self.counts[:-1])
        return [*(number for number in former if number != last), last]

    def changed(self, partitions: int) -> Layout:
        """Return the layout with another number of partitions. Raises the errors of `further_names`."""
        names = further_names(self.names, partitions)
        return Layout(number_after(self.number), (*self.counts, partitions), names)

    def including(self, lost: Layout) -> Layout:
        """Return the layout that follows a lost one, of which some partitions may have jobs, after this one was used.

        Keys are looked for in the partitions of both. If their names contradict each other, this one remains.
        """
        number, shared = number_after(max(self.number, lost.number)), min(len(self.names), len(lost.names))
        if self.names[:shared] != lost.names[:shared]:
            return self._replace(number=number)
        former = dict.fromkeys(each for each in (*self.counts, *lost.counts) if each != lost.partitions)
        return Layout(number, (*former, lost.partitions), max(self.names, lost.names, key=len))

    def settled(self) -> Layout:
        """Return the layout without the former ones."""
        return Layout(number_after(self.number), self.counts[-1:], self.names)


class Partition(NamedTuple):
    """One part of a partitioned queue.

    Attributes:
        number: number of the partition, from 0.
        queue_name: name of the partitioned queue.
    """

    number: int
    queue_name: str

    def id_of(self, job_id: str) -> str:
        """Return the id in the partitioned queue of a job of this partition."""
        return partition_id(self.number, job_id)

    def id_prefix_of(self, job_id: str) -> str:
        """Return a text that names the job and that ids of other jobs may contain, such as `3~17`.

        Jobs of partition 0 have their id, which they also had before the queue was partitioned, unless it looks like
        the text of another job.
        """
        if self.number == 0 and _PREFIX.match(job_id) is None:
            return job_id
        return f"{self.number}~{job_id}"

    def id_in_event(self, event: str, job_id: str) -> str:
        """Return the job id of an event as that of the whole queue. Some events have none, or a number of jobs."""
        return job_id if job_id in ("", "0") or event in _WITHOUT_JOB else self.id_of(job_id)
