"""Which requests a server of ours accepts: from pages of its own site only, and with a bearer token if it has tokens.

A page of another site can send requests to a server on the user's machine. The browser reveals it by the headers Origin
and Sec-Fetch-Site, or, if the page has rebound its own name to this address, by Host.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from glidemq_py.errors import GlideMQError
from glidemq_py.errors.base import show_value

_OWN_SITE: Final = ("same-origin", "none")
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")


class NotAllowedError(GlideMQError):
    """Raised when a request comes from another site, or asks for something its sender may not use."""


class UnauthorizedError(GlideMQError):
    """Raised when a request has no valid token."""


def check_site(headers: Headers, hosts: Sequence[str], remedy: str = " (option 'hosts')") -> None:
    """Reject requests from pages of other sites.

    Args:
        headers: those of the request.
        hosts: accepted names in the header Host; "*" accepts any.
        remedy: end of the error: how to accept other names.

    Raises:
        NotAllowedError: if Host, Origin or Sec-Fetch-Site is foreign.
    """
    host = headers.get("host", "").lower()
    if "*" not in hosts and _name_of(host) not in hosts:
        allowed = ", ".join(hosts)
        raise NotAllowedError(f"header Host = {show_value(host)}: must be one of {allowed}{remedy}")
    for origin in headers.getlist("origin"):
        if not _is_origin_of(host, origin):
            raise NotAllowedError(f"header Origin = {show_value(origin)}: requests from other sites are not accepted")
    for site in headers.getlist("sec-fetch-site"):
        if site not in _OWN_SITE:
            raise NotAllowedError(f"header Sec-Fetch-Site = {show_value(site)}: must be one of {', '.join(_OWN_SITE)}")


def _name_of(host: str) -> str:
    """Return a host without its port; an IPv6 address keeps its brackets."""
    name, _, port = host.rpartition(":")
    return name if name and port.isdigit() else host.removesuffix(":")


def _is_origin_of(host: str, origin: str) -> bool:
    try:
        parts = urlsplit(origin.lower())
    except ValueError:
        return False
    port = _DEFAULT_PORTS.get(parts.scheme)
    return port is not None and parts.netloc.removesuffix(port) == host.removesuffix(port)


def digest(token: bytes) -> bytes:
    """Return the digest of a token, for `is_authorized`."""
    # Digests have equal lengths, so comparing them does not reveal the length of a token.
    return hashlib.sha256(token).digest()


def is_authorized(headers: Headers, allowed: Sequence[bytes]) -> bool:
    """Return True if the request has a bearer token with one of the digests."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    given = digest(token.strip().encode("latin-1", "replace"))
    # All digests are compared, so that the time does not reveal which one matches.
    fits = [hmac.compare_digest(given, each) for each in allowed]
    return scheme.lower() == "bearer" and any(fits)
