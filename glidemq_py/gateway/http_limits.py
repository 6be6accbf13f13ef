"""Limits the requests of each client address; the address of a client behind trusted proxies is the one they report."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from glidemq_py.gateway.rate import FrameLimit
from glidemq_py.gateway.webhooks.addresses import Address, Network

__all__ = ["AddressLimits", "client_address"]

_MOST_ADDRESSES: Final = 10_000
"""Addresses that are counted; the one that sent no request for the longest time is forgotten first."""
_MOST_HOPS: Final = 50


class AddressLimits:
    """Counts requests by address; an IPv6 client has its /64.

    Args:
        most: Number of requests.
        window: Length of the window, s.
    """

    def __init__(self, most: int, window: float) -> None:
        self._most, self._window = most, window
        self._limits: OrderedDict[str, FrameLimit] = OrderedDict()

    def count(self, address: Address | None) -> bool:
        """Count a request; return False if it is one too many. Those without an address count as one client."""
        key = _key(address)
        limit = self._limits.get(key)
        if limit is None:
            limit = self._limits[key] = FrameLimit(self._most, self._window)
            if len(self._limits) > _MOST_ADDRESSES:
                self._limits.popitem(last=False)
        self._limits.move_to_end(key)
        return limit.allows()


def client_address(peer: str | None, forwarded: str, trusted: Sequence[Network]) -> Address | None:
    """Return the address of the client, or None if it is unknown.

    Args:
        peer: Address of the connection.
        forwarded: Header ``X-Forwarded-For``; each proxy has appended the address of its peer.
        trusted: Networks of the proxies. What an address outside of them reports about others does not count.
    """
    address = _parsed(peer or "")
    for text in reversed(forwarded.split(",")[-_MOST_HOPS:]):
        if address is None or not _is_in(address, trusted):
            break
        further = _parsed(text.strip())
        if further is None:
            break
        address = further
    return address


def _is_in(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)


def _parsed(text: str) -> Address | None:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found


def _key(address: Address | None) -> str:
    if isinstance(address, ipaddress.IPv6Address):
        return str(int(address) >> 64)
    return str(address)
