"""Addresses: those that webhooks may be sent to, and those of clients, whose requests are limited.

Webhooks may be sent to no address that leads into the network of the gateway (SSRF). The address of a client behind
trusted proxies is the one that they report.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from glidemq_py._core.checks import check_iterable
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.gateway.table import CommandError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_MOST_CHARS: Final = 2_048
_PORTS: Final = {"http": 80, "https": 443}
_ILL_FORMED: Final = re.compile(r"[^\x21-\x7e]|\\")
_LOCAL_NAMES: Final = ("localhost", "local")
_METADATA: Final = (
    ipaddress.ip_address("169.254.169.254"), ipaddress.ip_address("100.100.100.200"),
    ipaddress.ip_address("168.63.129.16"), ipaddress.ip_address("192.0.0.192"),
    ipaddress.ip_address("fd00:ec2::254"),
)  # fmt: skip
"""Addresses at which clouds serve their metadata."""
_EMBEDDING: Final = ((ipaddress.IPv6Network("64:ff9b::/96"), 0), (ipaddress.IPv6Network("2002::/16"), 80))
"""IPv6 networks whose addresses lead to an IPv4 address, and the place of its lowest bit."""


class Target(NamedTuple):
    """The parts of a URL that a request needs."""

    is_tls: bool
    host: str
    port: int
    authority: str
    """Value of the header `Host`."""
    path: str
    """With the query."""


def parse_networks(option: str, given: Iterable[str]) -> tuple[Network, ...]:
    """Return networks such as ``10.0.0.0/8``.

    Raises:
        GlideMQValidationError: If one is invalid.
    """
    found: list[Network] = []
    for each in check_iterable(option, given, "networks"):
        try:
            found.append(ipaddress.ip_network(each))
        except ValueError as error:
            raise GlideMQValidationError(option, each, f"must be networks such as '10.0.0.0/8': {error}") from None
    return tuple(found)


def problem_of(address: Address, allowed: Iterable[Network]) -> str | None:
    """Return what an address is that webhooks must not be sent to; None if it may be used.

    Args:
        address: The address.
        allowed: Networks to which they may be sent nevertheless.
    """
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if any(address.version == network.version and address in network for network in allowed):
        return None
    if address in _METADATA:
        return "cloud metadata endpoints"
    if isinstance(address, ipaddress.IPv6Address):
        for network, shift in _EMBEDDING:
            if address in network:
                return problem_of(ipaddress.IPv4Address(int(address) >> shift & 0xFFFFFFFF), allowed)
    if address.is_loopback or address.is_unspecified:
        return "localhost"
    if address.is_link_local:
        return "link-local IP"
    if address.is_multicast:
        return "multicast IP"
    if address.is_private or getattr(address, "is_site_local", False):
        return "private IP"
    return None if address.is_global and not address.is_reserved else "reserved IP"


def target_of(url: str) -> Target:
    """Return the parts of a URL.

    Raises:
        CommandError: If it is not a URL for webhooks.
    """
    if not url:
        raise CommandError("Webhook URL is required")
    if len(url) > _MOST_CHARS:
        raise CommandError(f"Webhook URL too long (max {_MOST_CHARS} characters)")
    if _ILL_FORMED.search(url) is not None:
        raise CommandError("Invalid URL format")
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError:
        raise CommandError("Invalid URL format") from None
    if not parts.scheme:
        raise CommandError("Invalid URL format")
    if parts.scheme not in _PORTS:
        raise CommandError("Webhook URL must use http or https protocol")
    if not host or port == 0:
        raise CommandError("Invalid URL format")
    if parts.username is not None or parts.password is not None:
        raise CommandError("Webhook URL must not contain a user name")
    authority = f"[{host}]" if ":" in host else host
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(
        is_tls=parts.scheme == "https", host=host, port=port or _PORTS[parts.scheme],
        authority=authority if port is None else f"{authority}:{port}", path=path,
    )  # fmt: skip


def check_url(url: str, allowed: Iterable[Network]) -> None:
    """Check the text of a URL. The addresses to which its name leads are checked at each request.

    Raises:
        CommandError: If webhooks must not be sent there.
    """
    name = target_of(url).host
    try:
        name.encode("idna")
    except UnicodeError:
        raise CommandError("Invalid URL format") from None
    host = name.rstrip(".")
    address = _written_address(host)
    problem = None
    if address is not None:
        problem = problem_of(address, allowed)
    elif host.endswith(".internal"):
        problem = "cloud metadata endpoints"
    elif host in _LOCAL_NAMES or host.endswith(".localhost"):
        problem = problem_of(ipaddress.IPv4Address("127.0.0.1"), allowed)
    if problem is not None:
        raise CommandError(f"Webhook URL cannot point to {problem}")


def _written_address(host: str) -> Address | None:
    """Return the address that a host is, also one of unusual form such as ``0x7f.1``."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        return None


class FrameLimit:
    """At most a number of frames per window, which slides: frames of the window before count by its remaining part.

    Args:
        most: Number of frames.
        window: Length of the window, s.
        now: Returns the time, s.
    """

    __slots__ = ("_before", "_count", "_most", "_now", "_start", "_window")

    def __init__(self, most: int, window: float, now: Callable[[], float] = time.monotonic) -> None:
        self._most, self._window, self._now = most, window, now
        self._start, self._count, self._before = now(), 0, 0

    def allows(self) -> bool:
        """Count a frame; return False if it is one too many."""
        passed = self._now() - self._start
        if passed >= self._window:
            self._before = self._count if passed < 2 * self._window else 0
            self._start += passed // self._window * self._window
            self._count, passed = 0, passed % self._window
        if self._before * (1 - passed / self._window) + self._count >= self._most:
            return False
        self._count += 1
        return True


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
