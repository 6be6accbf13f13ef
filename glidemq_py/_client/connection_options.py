"""Connection options: addresses, credentials, TLS, timeouts; and their URLs. No client and no I/O.

A password never appears in a repr, a str or an error of this module.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Self, cast
from urllib.parse import parse_qsl, unquote

from glidemq_py._core.checks import (
    Converted,
    OptionValue,
    check_bool,
    check_choice,
    check_int,
    check_text,
    nearest_option,
    option,
    reject_unknown,
)
from glidemq_py._core.times import DAY_MS, Milliseconds, to_ms
from glidemq_py.errors import SECRET, GlideMQValidationError, UnknownOptionError

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


DEFAULT_REQUEST_TIMEOUT_MS: Final = 30_000
"""Long enough for a bulk call of a thousand jobs on a busy server."""
DEFAULT_CONNECTION_TIMEOUT_MS: Final = 5_000

ReadFrom = Literal["primary", "prefer_replica", "az_affinity", "az_affinity_replicas_and_primary"]
_NEEDS_AZ: Final = ("az_affinity", "az_affinity_replicas_and_primary")
IamService = Literal["elasticache", "memorydb"]

_TOKEN: Final = re.compile(r"[!-~]+")  # allowed by CLIENT SETNAME: printable ASCII without spaces
_TEXT_LENGTH: Final = 4_096
_MAX_INFLIGHT: Final = 1_000_000
_MAX_DATABASE: Final = 2**31 - 1
_MAX_IAM_REFRESH_S: Final = 12 * 3_600


_text = partial(check_text, maximum=_TEXT_LENGTH)


class IamCredentials(OptionValue, prefix="iam", kw_only=True):
    """Sign in to AWS with IAM instead of a password.

    Args:
        username: the IAM user.
        cluster_name: name of the ElastiCache or MemoryDB cluster.
        region: AWS region.
        service: "elasticache" or "memorydb".
        refresh_interval_seconds: interval between token refreshes, seconds, 1..43_200.
    """

    username: str = option(_text)
    cluster_name: str = option(_text)
    region: str = option(_text)
    service: IamService = option(check_choice, default="elasticache", choices=IamService)
    refresh_interval_seconds: int = option(
        check_int, default=300, minimum=1, maximum=_MAX_IAM_REFRESH_S, unit=" (seconds)"
    )


PemSource = str | os.PathLike[str] | bytes
"""The path of a PEM file, or the bytes of one."""


_FILES: Final = ("tls_ca", "tls_cert", "tls_key")


def _check_pem(option: str, value: object) -> str | bytes:
    """Validate the path (as text) or the bytes of a PEM file. Files are read when a connection is made."""
    if isinstance(value, os.PathLike):
        value = os.fspath(cast("os.PathLike[str]", value))
    if isinstance(value, str):
        if "-----BEGIN" in value:
            raise GlideMQValidationError(option, SECRET, "must be the path of a PEM file, or its text as bytes")
        return check_text(option, value, maximum=_TEXT_LENGTH)
    if not isinstance(value, bytes):
        problem = f"must be the path of a PEM file, or its bytes, not {type(value).__name__}"
        raise GlideMQValidationError(option, SECRET, problem)
    if b"-----BEGIN" not in value:
        raise GlideMQValidationError(option, SECRET, "must be the bytes of a PEM file")
    return value


def _shown_pem(value: str | bytes) -> object:
    return value if isinstance(value, str) else SECRET


def _check_password(_: str, value: object) -> str:
    if not isinstance(value, str):
        raise GlideMQValidationError("password", SECRET, f"must be a str, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise GlideMQValidationError("password", SECRET, "must be text that UTF-8 can encode") from None
    if not value or len(value) > _TEXT_LENGTH:
        raise GlideMQValidationError("password", SECRET, f"must have 1 to {_TEXT_LENGTH} characters")
    return value


def _check_iam(option: str, value: object) -> IamCredentials:
    if not isinstance(value, IamCredentials):
        raise GlideMQValidationError(option, SECRET, "must be IamCredentials")
    return value


def _addresses(_: str, value: Any) -> tuple[Address, ...]:
    return parse_addresses(value)


_check_timeout = partial(to_ms, minimum=1, maximum=DAY_MS)


_BEFORE_HOST: Final = "belongs before the host: valkey://user:password@host"


class ConnectionOptions(OptionValue):
    """How to reach the server. Durations are stored in milliseconds.

    Args:
        addresses: one or more servers (nodes of a cluster, replicas): `Address`, "host:port" or (host, port).
        cluster: the server is a cluster.
        tls: use TLS.
        username: ACL user; requires a password.
        password: never shown in a repr or an error.
        iam: AWS IAM instead of user and password; requires `tls`.
        read_from: which nodes may serve reads.
        client_az: availability zone of this process; required by, and only allowed with, the az_ modes.
        request_timeout: longest wait for a reply, milliseconds or a timedelta.
        connection_timeout: longest wait for a connection, milliseconds or a timedelta.
        inflight_requests_limit: most concurrent requests; None uses the client's default.
        database_id: number of the database; 0 in a cluster.
        tls_insecure: do not check the server's certificate.
        tls_ca: certificates (PEM) of the authorities to trust instead of the system's: a path, or the file's bytes.
        tls_cert: certificate (PEM) of this client, for a server that requires one: a path or bytes, like `tls_key`.
            Files are read again at a reconnect (valkey-glide 2.6), so certificates can be rotated.
        tls_key: private key (PEM, without a passphrase) of `tls_cert`.
        client_name: name shown by CLIENT LIST; printable ASCII without spaces.
        busy_poll: an otherwise idle event loop spins for the reply of a single short call, 0.4 ms at most, while that
            makes such calls faster, and not in a process that may use less than two processors (affinity, quota of a
            container); set False if processor time is scarce.
        direct: calls of this library go over a connection of the event loop, or of the blocking queue, itself to the
            node that owns the queue, if hiredis is installed (extra `speed`): up to several times as fast as through
            GLIDE, which does everything else and takes over while there is no such connection. Not used with `iam`,
            `inflight_requests_limit` or a `tls_cert` of bytes.
        share_clients: queues, workers and flow producers with equal options share one client per event loop; False
            gives each its own.
        allow_eviction: connect to a server whose `maxmemory-policy` is `allkeys-*`, which deletes jobs when it is full.
        allow_no_aof: do not warn if the server has no append-only file.

    Raises:
        GlideMQValidationError: if an option is invalid; names the option and the value.
    """

    addresses: Converted[tuple[Address, ...], Iterable[Address | str | tuple[str, int]]] = option(
        _addresses, default=(Address("127.0.0.1"),), url="is the host part of the URL"
    )
    cluster: bool = option(check_bool, default=False, kw_only=True, url="is part of the scheme: valkey+cluster://")
    tls: bool = option(check_bool, default=False, kw_only=True, url="is part of the scheme: valkeys://")
    username: str | None = option(_text, default=None, kw_only=True, url=_BEFORE_HOST)
    password: str | None = option(_check_password, default=None, kw_only=True, repr=False, url=_BEFORE_HOST)
    iam: IamCredentials | None = option(
        _check_iam, default=None, kw_only=True, url="cannot be given in a URL: use ConnectionOptions"
    )
    read_from: ReadFrom = option(check_choice, default="primary", kw_only=True, choices=ReadFrom)
    client_az: str | None = option(_text, default=None, kw_only=True)
    request_timeout: Converted[int, Milliseconds] = option(
        _check_timeout, default=DEFAULT_REQUEST_TIMEOUT_MS, kw_only=True
    )
    connection_timeout: Converted[int, Milliseconds] = option(
        _check_timeout, default=DEFAULT_CONNECTION_TIMEOUT_MS, kw_only=True
    )
    inflight_requests_limit: int | None = option(
        check_int, default=None, kw_only=True, minimum=1, maximum=_MAX_INFLIGHT
    )
    database_id: int = option(
        check_int, default=0, kw_only=True,
        url="is the path of the URL: valkey://host/1", minimum=0, maximum=_MAX_DATABASE)  # fmt: skip
    tls_insecure: bool = option(check_bool, default=False, kw_only=True)
    tls_ca: Converted[str | bytes | None, PemSource | None] = option(_check_pem, default=None, kw_only=True, repr=False)
    tls_cert: Converted[str | bytes | None, PemSource | None] = option(
        _check_pem, default=None, kw_only=True, repr=False
    )
    tls_key: Converted[str | bytes | None, PemSource | None] = option(
        _check_pem, default=None, kw_only=True, repr=False
    )
    client_name: str | None = option(_text, default=None, kw_only=True)
    busy_poll: bool = option(check_bool, default=True, kw_only=True)
    direct: bool = option(check_bool, default=True, kw_only=True)
    share_clients: bool = option(check_bool, default=True, kw_only=True)
    allow_eviction: bool = option(check_bool, default=False, kw_only=True)
    allow_no_aof: bool = option(check_bool, default=False, kw_only=True)

    def _check_given(self) -> None:
        """Reject options that contradict each other or have no effect together."""
        self._check_credentials()
        if self.cluster and self.database_id:
            raise GlideMQValidationError("database_id", self.database_id, "a cluster has database 0 only")
        if self.read_from in _NEEDS_AZ and self.client_az is None:
            raise GlideMQValidationError("read_from", self.read_from, "requires 'client_az'")
        if self.read_from not in _NEEDS_AZ and self.client_az is not None:
            raise GlideMQValidationError(
                "client_az", self.client_az, f"has no effect with 'read_from' {self.read_from!r}"
            )
        self._check_tls()
        if self.client_name is not None and _TOKEN.fullmatch(self.client_name) is None:
            raise GlideMQValidationError("client_name", self.client_name, "must be printable ASCII without spaces")

    def _check_tls(self) -> None:
        if self.tls_insecure and not self.tls:
            raise GlideMQValidationError("tls_insecure", True, "requires 'tls' (in a URL, valkeys://)")
        for name in _FILES:
            value = getattr(self, name)
            if value is not None and not self.tls:
                raise GlideMQValidationError(name, _shown_pem(value), "requires 'tls' (in a URL, valkeys://)")
        if self.tls_ca is not None and self.tls_insecure:
            problem = "options 'tls_ca' and 'tls_insecure' are mutually exclusive"
            raise GlideMQValidationError("tls_ca", _shown_pem(self.tls_ca), problem)
        for name, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
            value = getattr(self, name)
            if value is not None and getattr(self, other) is None:
                raise GlideMQValidationError(name, _shown_pem(value), f"requires {other!r}")
        if isinstance(self.tls_cert, bytes) != isinstance(self.tls_key, bytes) and self.tls_key is not None:
            problem = "must have the type of 'tls_cert': both paths or both bytes"
            raise GlideMQValidationError("tls_key", _shown_pem(self.tls_key), problem)

    def _check_credentials(self) -> None:
        if self.iam is not None:
            if self.password is not None:
                raise GlideMQValidationError("password", SECRET, "options 'password' and 'iam' are mutually exclusive")
            if self.username is not None:
                raise GlideMQValidationError("username", self.username, "must be given in 'iam'")
            if not self.tls:
                raise GlideMQValidationError("iam", self.iam, "requires 'tls'")
        elif self.username is not None and self.password is None:
            raise GlideMQValidationError("username", self.username, "requires 'password'")

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Parse a URL such as `valkeys://user:secret@host:6379/0?request_timeout=1000`.

        Schemes: valkey, valkeys (TLS), valkey+cluster, valkeys+cluster; redis and rediss are synonyms. Several hosts
        are separated by commas. User and password are percent-decoded. A path of `/number` selects the database (not
        in a cluster). Query parameters have the names of the options; unknown ones are rejected.

        Raises:
            GlideMQValidationError: if the URL is invalid; shows the URL without its credentials.
        """
        options = parse_url(url)
        try:
            return cls(**options)
        except GlideMQValidationError as error:
            if isinstance(error.value, int) or (error.option in _FILES and is_clearly_path(error.value)):
                raise
            # The value is text of the URL: if the URL is malformed, it may be a part of the password.
            name, problem = error.option, error.problem
        raise GlideMQValidationError(name, SECRET, problem)

    @classmethod
    def parse(cls, value: str | ConnectionOptions | Mapping[str, Any]) -> ConnectionOptions:
        """Return options for a URL, a mapping of keyword options, or options themselves."""
        if isinstance(value, ConnectionOptions):
            return value
        if isinstance(value, str):
            return cls.from_url(value)
        if not isinstance(value, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GlideMQValidationError(
                "connection",
                SECRET,
                f"must be a URL, ConnectionOptions or a mapping, not {type(value).__name__}",
            )
        names = cls.__dataclass_fields__
        for name, each in value.items():
            if name not in names:
                reject_unknown(str(name), each, list(names))
        return cls(**value)

    def __str__(self) -> str:
        """Return the URL of these options for logs: without credentials and query."""
        scheme = ("valkeys" if self.tls else "valkey") + ("+cluster" if self.cluster else "")
        hosts = ",".join(str(address) for address in self.addresses)
        return f"{scheme}://{hosts}" + (f"/{self.database_id}" if self.database_id else "")


def sign_in_commands(options: ConnectionOptions) -> list[tuple[str, ...]]:
    """Return the first commands of a connection with these options: RESP3, user, name, database."""
    hello = ["HELLO", "3"]
    if options.password is not None:
        hello += ["AUTH", options.username or "default", options.password]
    if options.client_name is not None:
        hello += ["SETNAME", options.client_name]
    return [tuple(hello), *([("SELECT", str(options.database_id))] if options.database_id else [])]


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
    options["addresses"] = _hosts(url, hosts, with_user=bool(at))
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


def _hosts(url: str, hosts: str, *, with_user: bool) -> tuple[Address, ...]:
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
        found = ConnectionOptions.__dataclass_fields__.get(name)
        if found is None:
            raise _unknown(url, name, clear=clear)
        if elsewhere := found.metadata["places"].get("url"):
            raise _refusal(url, f"has the query parameter {name!r}, which {elsewhere}")
        if name in options:
            raise GlideMQValidationError(name, SECRET, "is given twice in the URL")
        kind = _KIND.search(str(found.type))
        options[name] = text if kind is None else _READERS[kind[0]](name, text)
    return options


def _unknown(url: str, name: str, *, clear: bool) -> UnknownOptionError:
    """Return the error for an unknown parameter.

    The name is shown only if the hosts before it are clearly hosts: else it may be part of a password.
    """
    fields = ConnectionOptions.__dataclass_fields__.items()
    known = [each for each, found in fields if "url" not in found.metadata["places"]]
    suggestion = nearest_option(name, known)
    shown = (
        f"the unknown query parameter {name!r}"
        if clear and _PARAMETER.fullmatch(name)
        else "an unknown query parameter"
    )
    hint = f"known: {', '.join(known)}" if suggestion is None else f"did you mean {suggestion!r}?"
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


_KIND: Final = re.compile(r"\b(int|bool)\b")
_READERS: Final[Mapping[str, Callable[[str, str], Any]]] = {"int": _integer, "bool": _boolean}
"""Functions that read the text of a query parameter, by the type of the option."""
