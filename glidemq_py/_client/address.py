"""Parse and validate server addresses. This module resolves no names and opens no connections."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from glidemq_py._core.checks import check_int, check_text
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.errors.base import SECRET

DEFAULT_PORT: Final = 6379
_HOST: Final = re.compile(r"[^\s/?#@,\[\]\x00-\x1f]+")
_FORMS: Final = 'must be an Address, "host:port" or (host, port)'


@dataclass(frozen=True, slots=True)
class Address:
    """One server: host name or IP address (IPv6 without brackets), and port."""

    host: str
    port: int = DEFAULT_PORT

    def __post_init__(self) -> None:
        if "@" in str(self.host):
            # This is a URL, which may contain a password.
            raise GlideMQValidationError("addresses.host", SECRET, "must be a host, not a URL")
        check_text("addresses.host", self.host, maximum=255)
        if _HOST.fullmatch(self.host) is None:
            raise GlideMQValidationError("addresses.host", _shown(self.host), "must be a host name or an IP address")
        check_int("addresses.port", self.port, 1, 65_535)

    @classmethod
    def parse(cls, value: object) -> Address:
        """Return an `Address` for an `Address`, `(host, port)`, "host", "host:port" or "[ipv6]:port".

        Raises:
            GlideMQValidationError: if the value has none of these forms.
        """
        if isinstance(value, Address):
            return value
        if isinstance(value, tuple):
            return cls._from_parts(cast("tuple[object, ...]", value))
        if not isinstance(value, str):
            raise GlideMQValidationError("addresses", SECRET, f"{_FORMS}, not {type(value).__name__}")
        if "@" in value:
            raise GlideMQValidationError("addresses", SECRET, "must be host:port, not a URL")
        host, port = _split_port(value)
        if port is not None and not (port.isascii() and port.isdigit() and len(port) <= 5):
            raise GlideMQValidationError("addresses", _shown(value), "port must be a number from 1 to 65535")
        return cls(host, DEFAULT_PORT if port is None else int(port))

    @classmethod
    def _from_parts(cls, parts: tuple[object, ...]) -> Address:
        if len(parts) != 2:
            raise GlideMQValidationError("addresses", SECRET, f"{_FORMS}, not a tuple of {len(parts)}")
        host, port = parts
        return cls(cast("str", host), cast("int", port))  # checked by __post_init__

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(given: object) -> tuple[Address, ...]:
    """Return at least one address, from a value that `Address.parse` accepts or an iterable of such values."""
    if isinstance(given, (str, Address)):
        return (Address.parse(given),)
    if isinstance(given, (bytes, Mapping)) or not isinstance(given, Iterable):
        raise GlideMQValidationError("addresses", SECRET, f"must be a list; each {_FORMS}")
    addresses = tuple(Address.parse(each) for each in cast("Iterable[object]", given))
    if not addresses:
        raise GlideMQValidationError("addresses", cast("object", given), "must name at least one server")
    return addresses


def _shown(text: str) -> object:
    """Return the text for an error message, or `SECRET` if it may be user:password."""
    return SECRET if ":" in text.strip("[]") else text


def _split_port(text: str) -> tuple[str, str | None]:
    """Split "host:port", "[ipv6]:port", "host" or a bare IPv6 address into host and port."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise GlideMQValidationError("addresses", _shown(text), "must be a host name or an IP address")
        return host, rest[1:] if rest else None
    if text.count(":") > 1:
        return text, None
    host, colon, port = text.partition(":")
    return host, port if colon else None
