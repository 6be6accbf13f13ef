"""The partitions of a queue: their names, the partition of a routing key, the ids of their jobs, shares in limits.

Partition 0 is the plain queue itself. The slots of the cluster are divided into as many equal cells as there are
partitions; every other partition lies in the middle of a cell, so contiguous ranges of slots get equal shares.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from bisect import bisect_right
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise, product
from typing import Final, NamedTuple

from glidemq_py._core.checks import check_int
from glidemq_py._core.forks import new_lock
from glidemq_py._core.keys import (
    NAME_LENGTH,
    PARTITION,
    PARTITION_LENGTH,
    PARTITION_MARK,
    SLOTS,
    hash_slot,
    validate_queue_name,
)
from glidemq_py.errors import GlideMQValidationError

JUMP_MULTIPLIER: Final = 2_862_933_555_777_941_757
"""Of the jump hash; `glidemq_py.spark.placing` computes the same for columns of keys."""
MAX_PARTITIONS: Final = 256
_SALT_LENGTH: Final = 4
_search = product(b"0123456789abcdefghijklmnopqrstuvwxyz", repeat=_SALT_LENGTH)
_salts: dict[int, str] = {}
"""First salts by their slots, as far as the search has come."""
_searching = new_lock()
_WITHOUT_JOB: Final = frozenset(("drained", "cleaned", "trimmed"))
"""Events whose job id is a number of jobs."""
_PREFIX: Final = re.compile(r"(0|[1-9][0-9]{0,2})~")
_PARTITIONED_ID: Final = re.compile(r"(0|[1-9][0-9]{0,2})\|\|(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePartitions:
    """The partitions of a queue.

    Attributes:
        count: number of partitions; 1 = the queue is not partitioned.
        names: names of the partitions, as queues.
    """

    count: int
    names: tuple[str, ...]


def partition_names(name: str, partitions: int) -> tuple[str, ...]:
    """Return the queue names of all partitions; the first is the name itself.

    The result depends on the arguments only. The first of a process searches up to some 100,000 names, so it belongs to
    the creation of a queue; each program that opens the queue reads the stored names.

    Raises:
        GlideMQValidationError: the name is invalid, reserved or too long, or `partitions` is not 1 to 256.
    """
    validate_queue_name(name)
    count = check_int("partitions", partitions, minimum=1, maximum=MAX_PARTITIONS)
    if count == 1:
        return (name,)
    if PARTITION.search(name):
        raise GlideMQValidationError("name", name, "is reserved for the partitions of another queue")
    if len(name.encode("utf-16-le")) // 2 > NAME_LENGTH - PARTITION_LENGTH:
        raise GlideMQValidationError(
            "name", name, f"must have at most {NAME_LENGTH - PARTITION_LENGTH} characters if the queue is partitioned"
        )
    # The checksum of a text is that of zeros behind its beginning, XOR that of its end alone.
    state = crc_hqx(bytes(_SALT_LENGTH), crc_hqx(f"{name}{PARTITION_MARK}".encode(), 0))
    slots = partition_slots(hash_slot(name), count)[1:]
    return (name, *(f"{name}{PARTITION_MARK}{_salt((slot ^ state) % SLOTS)}" for slot in slots))


def _salt(slot: int) -> str:
    """Return the first salt with this slot. All that a search finds on its way are kept: there are 16,384."""
    with _searching:
        while slot not in _salts:
            salt = bytes(next(_search))
            _salts.setdefault(crc_hqx(salt, 0) % SLOTS, salt.decode())
    return _salts[slot]


def partition_slots(first: int, partitions: int) -> tuple[int, ...]:
    """Return the slots of all partitions, given that of partition 0.

    Cells begin where `valkey-cli --cluster create` lets the ranges of as many primaries begin. With other borders, a
    partition 0 beside one would leave a primary without its share.
    """
    borders = [round(cell * SLOTS / partitions) for cell in range(partitions + 1)]
    own = bisect_right(borders, first) - 1
    return (first, *((low + high) // 2 for cell, (low, high) in enumerate(pairwise(borders)) if cell != own))


def key_digest(key: bytes) -> bytes:
    """Return the hash of a routing key's UTF-8 text, 8 bytes, from which its partition follows."""
    return blake2b(key, digest_size=8).digest()


def partition_of_key(key: str, partitions: int) -> int:
    """Return the partition of a routing key (Lamping and Veach's jump hash)."""
    state = int.from_bytes(key_digest(key.encode("utf-8", "surrogatepass")), "big")
    chosen, following = -1, 0
    while following < partitions:
        chosen = following
        state = (state * JUMP_MULTIPLIER + 1) & 0xFFFF_FFFF_FFFF_FFFF
        following = int((chosen + 1) * ((1 << 31) / ((state >> 33) + 1)))
    return chosen


def part_of_key(key: str, parts: int) -> int:
    """Return the number of the part for a routing key; a plain queue has one."""
    return partition_of_key(key, parts) if parts > 1 else 0


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


class Layout(NamedTuple):
    """The partitions of a queue, which it keeps until it is obliterated.

    Attributes:
        number: The id of the layout: larger than that of any layout before, as it is the server's time in epoch ms;
            0 = a queue without partitions.
        names: Queue names of the partitions.
    """

    number: int
    names: tuple[str, ...]

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return len(self.names)


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
