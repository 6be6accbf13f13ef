"""Which node of a cluster owns the hash slot of a key."""

from __future__ import annotations

import binascii
import bisect
from collections.abc import Sequence
from typing import Any

from glidemq_py._client.connection_url import Address
from glidemq_py._core.keys import hash_tag


class Slots:
    """The ranges of slots of a cluster and their primaries. While none are known, the only node is None."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._owners: list[Address] = []
        """The first slot of each range, and the node that owns it."""

    def node_of(self, key: str) -> Address | None:
        """Return the node that owns the key; None if the ranges are unknown, or there is a single server."""
        if not self._owners:
            return None
        tag = hash_tag(key) or key
        slot = binascii.crc_hqx(tag.encode("utf-8", "surrogateescape"), 0) & 16_383
        return self._owners[bisect.bisect_right(self._starts, slot) - 1]

    def learn(self, reply: Sequence[Any], asked: Address) -> None:
        """Use the reply of ``asked`` to CLUSTER SLOTS. Raises ValueError as `ranges_of`."""
        self._starts, self._owners = ranges_of(reply, asked)

    def forget(self) -> None:
        """Forget the ranges, which may have changed."""
        self._starts, self._owners = [], []


def ranges_of(reply: Sequence[Any], asked: Address) -> tuple[list[int], list[Address]]:
    """Return the first slots of the ranges of CLUSTER SLOTS and their primaries, ascending.

    Raises:
        ValueError: if the reply is malformed, slots are not served, or a node does not know its own address.
    """
    found: list[tuple[int, Address]] = []
    expected = 0
    try:
        for first, last, primary, *_ in sorted(reply, key=lambda each: each[0]):
            host = (primary[0] or b"").decode()
            if first != expected or host == "?":
                raise ValueError("the cluster does not serve all slots, or hides its addresses")
            found.append((first, Address(host or asked.host, primary[1])))
            expected = last + 1
    except (TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"malformed reply to CLUSTER SLOTS: {error}") from None
    if expected != 16_384:
        raise ValueError("the cluster does not serve all slots")
    return [first for first, _ in found], [node for _, node in found]
