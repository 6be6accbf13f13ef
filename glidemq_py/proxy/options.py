"""Options of the proxy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import Request

from glidemq_py._core.callables import check_callable
from glidemq_py._core.checks import check_bool, check_int
from glidemq_py._core.names import validate_queue_name
from glidemq_py._core.queue_options import DEFAULT_PREFIX, Compression, QueueOptions
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.errors.base import SECRET

__all__ = ["OnError", "ProxyOptions"]

OnError = Callable[[Exception, Request], object]

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
