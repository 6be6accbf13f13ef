"""Parse server addresses and connection URLs. Resolves no names; no error of this module contains credentials."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import parse_qsl, unquote

from glidemq_py._core.checks import check_int, check_text, nearest_option
from glidemq_py.errors import GlideMQValidationError, UnknownOptionError
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


_SCHEMES: Final = {
    f"{name}{kind}": (name in ("valkeys", "rediss"), bool(kind))
    for name in ("valkey", "valkeys", "redis", "rediss")
    for kind in ("", "+cluster")
}
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_EXAMPLE: Final = "valkey://127.0.0.1:6379"
# An IP address, localhost, or a dotted name with a usual port. "redis:6379" may also be user:password.
_CLEARLY_ADDRESS: Final = re.compile(
    r"(?:\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-f:.]+\]|localhost)(?::\d{1,5})?"
    r"|[a-z0-9-]+(?:\.[a-z0-9-]+)+:(?:63[789]\d|70\d\d)",
    re.IGNORECASE,
)
_CLEARLY_HOST: Final = re.compile(
    rf"{_CLEARLY_ADDRESS.pattern}|[a-z0-9.-]+:(?:63[789]\d|70\d\d)|[a-z0-9-]+(?:\.[a-z0-9-]+)+", re.IGNORECASE
)
_PARAMETER: Final = re.compile(r"[A-Za-z_-]{1,40}")
_CLEARLY_PATH: Final = re.compile(r"(?:~?/|\.\.?/|[A-Za-z]:\\)[^@]*|[\w./-]+\.(?:pem|crt|cer|key)", re.IGNORECASE)
_OTHER_SCHEMES: Final = frozenset((
    "http", "https", "tcp", "tls", "ssl", "unix", "ws", "wss", "file", "amqp", "amqps", "nats", "kafka", "mqtt", "sqs",
    "postgres", "postgresql", "mysql", "mongodb", "sqlite", "memcached", "memory", "mem", "redis-cluster",
    "valkey-cluster", "redis-sentinel", "redis+sentinel", "sentinel", "redis+socket", "redis+unix", "valkey+unix",
))  # fmt: skip
_ELSEWHERE: Final = {
    "addresses": "is the host part of the URL",
    "cluster": "is part of the scheme: valkey+cluster://",
    "tls": "is part of the scheme: valkeys://",
    "username": "belongs before the host: valkey://user:password@host",
    "password": "belongs before the host: valkey://user:password@host",
    "database_id": "is the path of the URL: valkey://host/1",
    "iam": "cannot be given in a URL: use ConnectionOptions",
}


def redact(url: str) -> str:
    """Return the scheme of the URL and `***`: in a malformed URL any other part may be the password."""
    scheme, mark, _ = url.partition("://")
    return f"{scheme}://***" if mark and scheme.lower() in _SCHEMES else "***"


def parse_url(url: object) -> dict[str, Any]:
    """Return the keyword options of `ConnectionOptions` for a URL. Raises `GlideMQValidationError`."""
    if not isinstance(url, str):
        problem = f"must be a URL such as {_EXAMPLE}, not {type(url).__name__}"
        raise GlideMQValidationError("connection", SECRET, problem)
    if not url:
        raise GlideMQValidationError("connection", url, f"must be a URL such as {_EXAMPLE}")
    if url != url.strip("'\" \t\r\n"):
        problem = "must have no quotes, white space or line end around it, as some files with settings leave them"
        raise GlideMQValidationError("connection", SECRET, problem)
    scheme, mark, rest = url.partition("://")
    if not mark:
        raise _without_scheme(url)
    if scheme.lower() not in _SCHEMES:
        raise _wrong_scheme(scheme)
    tls, cluster = _SCHEMES[scheme.lower()]
    options: dict[str, Any] = {"tls": tls, "cluster": cluster}
    rest, hash_mark, _ = rest.partition("#")
    if hash_mark:
        raise _refusal(url, "must have no fragment; write # in a password as %23")
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    if "@" in path or "@" in query:
        raise _refusal(url, "has an @ after the host; write / and ? in a password as %2F and %3F, and @ as %40")
    credentials, at, hosts = authority.rpartition("@")
    if at:
        options.update(_credentials(url, credentials))
    options["addresses"] = _addresses(url, hosts, with_user=bool(at))
    if slash and path:
        options["database_id"] = _database(url, path, cluster=cluster)
    clear = all(_CLEARLY_HOST.fullmatch(host) for host in hosts.split(","))
    options.update(_query(url, query, clear=clear))
    return options


def _refusal(url: str, problem: str) -> GlideMQValidationError:
    return GlideMQValidationError("connection", redact(url), problem)


def _without_scheme(text: str) -> GlideMQValidationError:
    """Return the error for a text without a scheme; show the text only if it is clearly an address, not a password."""
    if _CLEARLY_ADDRESS.fullmatch(text):
        return GlideMQValidationError("connection", text, f"has no scheme; did you mean valkey://{text}?")
    problem = f"has no scheme; write valkey://HOST:PORT, such as {_EXAMPLE}"
    return GlideMQValidationError("connection", SECRET, problem)


def is_clearly_path(value: object) -> bool:
    """Return whether the value of a query parameter is the path of a file, and not part of a mangled password."""
    return isinstance(value, str) and _CLEARLY_PATH.fullmatch(value) is not None


def _wrong_scheme(scheme: str) -> GlideMQValidationError:
    """Return the error for a scheme that is not ours. It is shown if it is well known: any other may be a password."""
    lowered = scheme.lower()
    value: object = f"{lowered}://***" if lowered in _OTHER_SCHEMES else SECRET
    near = nearest_option(lowered, list(_SCHEMES))
    hint = "" if near is None else f"; did you mean {near}://?"
    return GlideMQValidationError("connection", value, f"must start with one of {_listed(_SCHEMES)}{hint}")


def _listed(schemes: dict[str, tuple[bool, bool]]) -> str:
    return ", ".join(f"{scheme}://" for scheme in schemes)


def _credentials(url: str, text: str) -> dict[str, str]:
    if _BAD_ESCAPE.search(text) is not None:
        raise _refusal(url, "has an invalid percent escape in its user or password; write % as %25")
    user, _, password = text.partition(":")
    try:
        parts = {
            "username": unquote(user, errors="strict"),
            "password": unquote(password, errors="strict"),
        }
    except UnicodeDecodeError:
        raise _refusal(url, "has a user or password that is not percent-encoded UTF-8") from None
    return {name: value for name, value in parts.items() if value}


def _addresses(url: str, hosts: str, *, with_user: bool) -> tuple[Address, ...]:
    found: list[Address] = []
    for host in hosts.split(","):
        try:
            found.append(Address.parse(host))
        except GlideMQValidationError:
            # The text may be part of a password: do not repeat it.
            problem = f"host {len(found) + 1} must be host or host:port, with a port from 1 to 65535"
            if ":" in host and not with_user:
                problem = f"{problem}; if it is user:password, @host is missing after it"
            raise _refusal(url, problem) from None
    return tuple(found)


def _database(url: str, path: str, *, cluster: bool) -> int:
    if not (path.isascii() and path.isdigit() and len(path) <= 9):
        raise _refusal(url, "has a path that is not a database number")
    if cluster and int(path):
        raise _refusal(url, "selects a database, and a cluster has database 0 only")
    return int(path)


def _query(url: str, query: str, *, clear: bool) -> dict[str, Any]:
    if not query:
        return {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, errors="strict")
    except (ValueError, UnicodeDecodeError):
        raise _refusal(url, "has a query that is not name=value&name=value") from None
    options: dict[str, Any] = {}
    for name, text in pairs:
        if name in _ELSEWHERE:
            raise _refusal(url, f"has the query parameter {name!r}, which {_ELSEWHERE[name]}")
        if name not in _READERS:
            raise _unknown(url, name, clear=clear)
        if name in options:
            raise GlideMQValidationError(name, SECRET, "is given twice in the URL")
        options[name] = _READERS[name](name, text)
    return options


def _unknown(url: str, name: str, *, clear: bool) -> UnknownOptionError:
    """Return the error for an unknown parameter.

    The name is shown only if the hosts before it are clearly hosts: else it may be part of a password.
    """
    suggestion = nearest_option(name, list(_READERS))
    shown = (
        f"the unknown query parameter {name!r}"
        if clear and _PARAMETER.fullmatch(name)
        else "an unknown query parameter"
    )
    hint = f"known: {', '.join(_READERS)}" if suggestion is None else f"did you mean {suggestion!r}?"
    return UnknownOptionError("connection", redact(url), f"has {shown}; {hint}", suggestion)


def _integer(option: str, text: str) -> int:
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 18):
        raise GlideMQValidationError(option, SECRET, "must be a whole number")
    return int(text)


def _boolean(option: str, text: str) -> bool:
    if text.lower() in ("true", "1"):
        return True
    if text.lower() in ("false", "0"):
        return False
    raise GlideMQValidationError(option, SECRET, "must be true or false")


def _plain(_option: str, text: str) -> str:
    return text


_READERS: Final[dict[str, Callable[[str, str], Any]]] = {
    "read_from": _plain,
    "client_az": _plain,
    "request_timeout": _integer,
    "connection_timeout": _integer,
    "inflight_requests_limit": _integer,
    "tls_insecure": _boolean,
    "tls_ca": _plain,
    "tls_cert": _plain,
    "tls_key": _plain,
    "client_name": _plain,
    "busy_poll": _boolean,
    "direct": _boolean,
    "share_clients": _boolean,
    "allow_eviction": _boolean,
    "allow_no_aof": _boolean,
}
