"""Which URLs and addresses webhooks may be sent to: none that lead into the network of the gateway (SSRF)."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from glidemq_py.errors import GlideMQValidationError
from glidemq_py.gateway.table import CommandError

__all__ = ["Address", "Network", "Target", "check_url", "parse_networks", "problem_of", "target_of"]

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
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise GlideMQValidationError(option, given, "must be an iterable of networks, such as a list")
    found: list[Network] = []
    for each in given:
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
