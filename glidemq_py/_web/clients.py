"""What a server of ours grants its clients: requests of its own site only, with a token if there are any.

A page of another site can send requests to a server on the user's machine. The browser reveals it by the headers Origin
and Sec-Fetch-Site, or, if the page has rebound its own name to this address, by Host.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import re
import time
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from glidemq_py.errors import SECRET, GlideMQError, GlideMQValidationError, show_value

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.types import Receive

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
    return scheme.lower() == "bearer" and is_known(token.strip().encode("latin-1", "replace"), allowed)


def is_known(token: bytes, allowed: Sequence[bytes]) -> bool:
    """Return True if the token has one of the digests."""
    given = digest(token)
    # All digests are compared, so that the time does not reveal which one matches.
    fits = [hmac.compare_digest(given, each) for each in allowed]
    return any(fits)


class ClientGoneError(Exception):
    """The client disconnected before its request was complete, or before its answer."""


class BodyTooLargeError(Exception):
    """The body of a request is too large.

    Attributes:
        size: Its size if the client has declared it, bytes.
    """

    def __init__(self, size: str | None = None) -> None:
        super().__init__(size)
        self.size = size


async def read_body(headers: Headers, receive: Receive, most: int, seconds: float) -> bytes:
    """Return the body of a request.

    Args:
        headers: Those of the request.
        receive: Returns its next message.
        most: Maximum size, bytes.
        seconds: Maximum time.

    Raises:
        BodyTooLargeError: If it is larger.
        TimeoutError: If it was not complete in time.
        ClientGoneError: If the client has left.
    """
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > most:  # h11 accepts at most 20 digits
        raise BodyTooLargeError(declared)
    content = bytearray()
    async with asyncio.timeout(seconds):
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            content += message.get("body", b"")
            if len(content) > most:
                raise BodyTooLargeError
            if not message.get("more_body", False):
                return bytes(content)


_ANY_TOKEN: Final = re.compile(r"(?s).+")


def check_tokens(
    option: str, given: Iterable[str], form: re.Pattern[str] = _ANY_TOKEN, allowed: str = "strings that are not empty"
) -> tuple[str, ...]:
    """Return the tokens of an option, each of this form; ``allowed`` describes it.

    Raises:
        GlideMQValidationError: If there is none, or one is invalid. The message contains no token.
    """
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise GlideMQValidationError(option, SECRET, "must be an iterable of tokens, such as a list")
    tokens = tuple(given)
    if not tokens:
        raise GlideMQValidationError(option, (), "must not be empty; None disables authentication")
    if not all(type(token) is str and form.fullmatch(token) for token in tokens):
        raise GlideMQValidationError(option, SECRET, f"must be {allowed}")
    return tokens


def public_name(names: Iterable[str]) -> str | None:
    """Return the address to listen on, or name in the header Host, that is not of this machine; None if all are.

    The names alone protect nothing: any client can send ``Host: localhost``.
    """
    return next((name for name in names if name not in (*LOOPBACK_HOSTS, "::1")), None)


def require_tokens(options: Any, names: Iterable[str]) -> None:
    """Raise GlideMQValidationError if other machines reach a server whose options have no tokens."""
    public = public_name(names)
    if public is not None and options.tokens is None and not options.allow_anonymous:
        problem = f"is required with host {public!r}; allow_anonymous=True disables authentication"
        raise GlideMQValidationError("tokens", None, problem)


_INTERVAL_S: Final = 60.0


class RepeatedWarnings:
    """Logs the first warning of a kind at once, and then at most one line per minute with the number of the others.

    Args:
        logger: Logs them.
        interval: Time between two lines of a kind, s.
    """

    def __init__(self, logger: logging.Logger, interval: float = _INTERVAL_S) -> None:
        self._logger, self._interval = logger, interval
        self._kinds: dict[str, _Kind] = {}

    def warn(self, kind: str, message: str) -> None:
        """Log a warning, or count it.

        Args:
            kind: Its kind. Each is remembered until `forget` is called.
            message: Its text.
        """
        state = self._kinds.setdefault(kind, _Kind())
        now = time.monotonic()
        if state.logged_at is not None and now - state.logged_at < self._interval:
            state.count, state.last = state.count + 1, message
            if state.timer is None or state.loop_is_closed():
                state.call_later(self._interval - (now - state.logged_at), self._summarize)
            return
        state.count += 1
        self._log(state, message)

    def forget(self, known: Container[str]) -> None:
        """Forget all kinds but these, after logging their counts."""
        for kind in [kind for kind in self._kinds if kind not in known]:
            self._summarize(self._kinds.pop(kind))

    def close(self) -> None:
        """Log the counts."""
        for state in self._kinds.values():
            self._summarize(state)

    def _summarize(self, state: _Kind) -> None:
        if state.count:
            self._log(state, state.last)

    def _log(self, state: _Kind, message: str) -> None:
        """Log a message, and how many others were counted."""
        state.stop()
        count, state.count, state.logged_at = state.count, 0, time.monotonic()
        if count > 1:
            self._logger.warning("%s (the last of %d in the last minute)", message, count)
        else:
            self._logger.warning("%s", message)


class _Kind:
    """One kind of warning.

    Attributes:
        logged_at: Time of its last line, by ``time.monotonic``; None without one.
        count: Number of warnings since.
        last: The last of them.
        timer: Logs the count.
    """

    __slots__ = ("_loop", "count", "last", "logged_at", "timer")

    def __init__(self) -> None:
        self.logged_at: float | None = None
        self.count = 0
        self.last = ""
        self.timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop_is_closed(self) -> bool:
        return self._loop is None or self._loop.is_closed()

    def call_later(self, seconds: float, callback: Any) -> None:
        self.stop()
        with contextlib.suppress(RuntimeError):  # no event loop runs
            self._loop = asyncio.get_running_loop()
            self.timer = self._loop.call_later(seconds, callback, self)

    def stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def address_of(transport: asyncio.BaseTransport | None) -> str:
    """Return the address of the peer for a log line."""
    peer = None if transport is None else transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else "an unknown address"  # pyright: ignore[reportUnknownArgumentType]
