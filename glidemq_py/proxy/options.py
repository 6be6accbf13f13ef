"""Options of the proxy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import Request

from glidemq_py._core.checks import check_bool, check_callable, check_int, check_iterable
from glidemq_py._core.names import validate_queue_name
from glidemq_py._core.queue_options import DEFAULT_PREFIX, Compression, QueueOptions
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.errors.base import SECRET

__all__ = ["LOOPBACK_HOSTS", "OnError", "ProxyOptions"]

OnError = Callable[[Exception, Request], object]

LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")

_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")
_SHORTEST_TOKEN: Final = 16
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class ProxyOptions:
    """Options of `create_proxy_app`.

    Args:
        prefix: first part of every key.
        queues: names of the queues that clients may use; None = all.
        compression: "gzip" stores job data compressed.
        events: False leaves out the `added` events.
        tokens: accepted bearer tokens; every request except ``GET /health`` needs one. None = no authentication.
        max_body: maximum size of a request body, bytes.
        keep_alive: interval of the comments on an idle stream, ms or timedelta.
        on_error: called with each internal error (status 500, code ``internal``) and its request; it is also logged.
        hosts: accepted names in the header Host, without port; "*" accepts any. Default: the names of this machine
            (localhost, 127.0.0.1, [::1]).
        body_timeout: maximum time to receive a request body, ms or timedelta.
        max_response: maximum size of a page of a listing, bytes; a single job is returned whole.

    Raises:
        GlideMQValidationError: if an option is invalid. The message never contains a token.
    """

    prefix: str
    queues: frozenset[str] | None
    compression: Compression
    events: bool
    tokens: tuple[str, ...] | None = field(repr=False)
    max_body: int
    keep_alive: int
    on_error: OnError | None
    hosts: tuple[str, ...]
    body_timeout: int
    max_response: int

    def __init__(
        self,
        *,
        prefix: str = DEFAULT_PREFIX,
        queues: Iterable[str] | None = None,
        compression: Compression = "none",
        events: bool = True,
        tokens: Iterable[str] | None = None,
        max_body: int = 1_048_576,
        keep_alive: Milliseconds = 5_000,
        on_error: OnError | None = None,
        hosts: Iterable[str] = LOOPBACK_HOSTS,
        body_timeout: Milliseconds = 30_000,
        max_response: int = 4_194_304,
    ) -> None:
        keep = object.__setattr__
        checked = QueueOptions(prefix=prefix, compression=compression, events=check_bool("events", events))
        keep(self, "prefix", checked.prefix)
        keep(self, "compression", checked.compression)
        keep(self, "events", checked.events)
        if isinstance(queues, str):
            raise GlideMQValidationError("queues", queues, "must be an iterable of names, such as a list")
        names = None if queues is None else frozenset(validate_queue_name(name, "queues") for name in queues)
        keep(self, "queues", names)
        keep(self, "tokens", _tokens(tokens))
        keep(self, "max_body", check_int("max_body", max_body, 1, 2**30))
        keep(self, "keep_alive", to_ms("keep_alive", keep_alive, minimum=100, maximum=_DAY_MS))
        keep(self, "on_error", None if on_error is None else check_callable("on_error", on_error, "error", "request"))
        keep(self, "hosts", _hosts(hosts))
        keep(self, "body_timeout", to_ms("body_timeout", body_timeout, minimum=100, maximum=3_600_000))
        keep(self, "max_response", check_int("max_response", max_response, 1, 2**30))


def _hosts(given: Iterable[object]) -> tuple[str, ...]:
    names = tuple(check_iterable("hosts", given, "names"))
    if not names:
        raise GlideMQValidationError("hosts", (), "must not be empty")
    for name in names:
        if not isinstance(name, str) or not (name == "*" or _HOST.fullmatch(name)):
            raise GlideMQValidationError("hosts", name, "must be host names without port, IPv6 in brackets, or '*'")
    return tuple(str(name).lower() for name in names)


def _tokens(given: Iterable[str] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    if isinstance(given, str):
        raise GlideMQValidationError("tokens", SECRET, "must be an iterable of tokens, such as a list")
    tokens = tuple(given)
    if not tokens:
        raise GlideMQValidationError("tokens", (), "must not be empty; None disables authentication")
    for token in tokens:
        if len(token) < _SHORTEST_TOKEN or not token.isascii() or token.split() != [token]:
            problem = f"must be ASCII strings of at least {_SHORTEST_TOKEN} characters without spaces"
            raise GlideMQValidationError("tokens", SECRET, problem)
    return tokens
