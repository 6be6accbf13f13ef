"""The options of a `Dashboard`, and who may see and change what."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from inspect import isawaitable
from typing import Any, Final

from starlette.requests import HTTPConnection

from glidemq_py._core.checks import check_bool
from glidemq_py._core.keys import validate_prefix
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._operate.access import FULL_ACCESS, READ_ONLY, Access
from glidemq_py._web.clients import LOOPBACK_HOSTS, NotAllowedError, UnauthorizedError
from glidemq_py.errors import GlideMQValidationError

Authorize = Callable[[HTTPConnection], Access | Awaitable[Access | None] | None]
"""Returns the access of the sender of a request; None rejects the request."""

COOKIE: Final = "glidemq_dashboard"
SORT_COOKIE: Final = "glidemq_sort"
_FREE: Final = 10
_WINDOW_S: Final = 60.0
_GAP_S: Final = 0.5
"""Time between two comparisons once there were too many wrong tokens, seconds."""
_LONGEST_S: Final = 5.0
_SESSION: Final = b"glidemq_py dashboard session 1"


def session_of(token: str) -> str:
    """Return the cookie of a browser that has given the token; the token cannot be derived from it."""
    return hmac.new(token.encode(), _SESSION, hashlib.sha256).hexdigest()


def tokens_of(given: Mapping[str, str] | Collection[str] | None) -> dict[str, str]:
    """Return tokens by the name of their user.

    Raises:
        GlideMQValidationError: a token is empty or too short.
    """
    if given is None:
        return {}
    if isinstance(given, str):
        raise GlideMQValidationError("tokens", "***", "must be a mapping of names to tokens, or a list of tokens")
    named: dict[str, Any] = (
        {**given} if isinstance(given, Mapping) else {f"token {at}": each for at, each in enumerate(given, 1)}
    )
    for name, token in named.items():
        if not isinstance(token, str) or len(token) < 8:
            raise GlideMQValidationError("tokens", "***", f"the token of {name!r} must have at least 8 characters")
    return named


@dataclass(frozen=True, slots=True)
class DashboardOptions:
    """Options of a `Dashboard`, checked. See there; ``sessions``: those of its tokens, by the name of their user."""

    prefix: str
    title: str
    allow_changes: bool
    sessions: Mapping[str, str]
    authorize: Authorize | None
    hosts: tuple[str, ...]
    redact: tuple[str, ...]
    refresh_interval: int
    guesses: Guesses

    @classmethod
    def checked(
        cls, prefix: str, title: str, allow_changes: bool, tokens: Mapping[str, str] | Collection[str] | None,
        authorize: Authorize | None, hosts: Iterable[str] | None, redact: Iterable[str],
        refresh_interval: Milliseconds,
    ) -> DashboardOptions:  # fmt: skip
        """Return the options.

        Raises:
            GlideMQValidationError: an option is invalid.
        """
        named = tokens_of(tokens)
        if authorize is not None and not callable(authorize):
            raise GlideMQValidationError("authorize", authorize, "must be a function of the request")
        if named and authorize is not None:
            raise GlideMQValidationError("tokens", "***", "must not be given together with 'authorize'")
        if hosts is None:
            hosts = ("*",) if authorize is not None else LOOPBACK_HOSTS
        if isinstance(hosts, str) or isinstance(redact, str):
            raise GlideMQValidationError("hosts" if isinstance(hosts, str) else "redact", "a str", "must be a list")
        accepted = tuple(name.lower() for name in hosts)
        public = [name for name in accepted if name not in LOOPBACK_HOSTS]
        if public and not named and authorize is None:
            raise GlideMQValidationError(
                "hosts", public[0], "is not a local name: give 'tokens' or 'authorize' as well"
            )
        return cls(
            prefix=validate_prefix(prefix),
            title=str(title),
            allow_changes=check_bool("allow_changes", allow_changes),
            sessions={name: session_of(token) for name, token in named.items()},
            authorize=authorize,
            hosts=accepted,
            redact=tuple(name.lower() for name in redact),
            refresh_interval=to_ms("refresh_interval", refresh_interval, minimum=250, maximum=3_600_000),
            guesses=Guesses(),
        )

    async def access_of(self, request: HTTPConnection) -> Access:
        """Return the access of the sender of a request.

        Raises:
            NotAllowedError: `authorize` rejects the request.
            UnauthorizedError: there are tokens, and the request has none of them.
        """
        if self.authorize is not None:
            found = self.authorize(request)
            access = await found if isawaitable(found) else found
            if access is None:
                raise NotAllowedError("you have no access to these pages")
            if not self.allow_changes:
                return replace(access, role="observer")
            return access
        default = FULL_ACCESS if self.allow_changes else READ_ONLY
        if not self.sessions:
            return default
        user = await self.user_of(request)
        if user is None:
            raise UnauthorizedError("a valid token is required")
        return replace(default, user=user)

    async def user_of(self, request: HTTPConnection) -> str | None:
        """Return whose token the request has, in the header Authorization or as a session; None without one."""
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        given = session_of(bearer.strip()) if scheme.lower() == "bearer" else request.cookies.get(COOKIE, "")
        return await self.user_with(given) if given else None

    async def user_with(self, session: str) -> str | None:
        """Return the user of this session; None if it has none.

        Raises:
            NotAllowedError: Too many wrong tokens were given.
        """
        await self.guesses.wait()
        # All are compared, so that the time does not reveal which one matches.
        given = session.encode("utf-8", "replace")
        found = [name for name, each in self.sessions.items() if hmac.compare_digest(given, each.encode())]
        if not found:
            self.guesses.count_wrong(session)
        return found[0] if found else None


class Guesses:
    """Slows down those who try tokens: after `_FREE` different wrong ones in a minute, it spaces the comparisons."""

    def __init__(self) -> None:
        self._wrong: deque[tuple[float, str]] = deque(maxlen=_FREE)
        self._next = 0.0

    def count_wrong(self, session: str) -> None:
        """Count a wrong session, but not that of an old page which the browser sends again and again."""
        if all(session != each for _, each in self._wrong):
            self._wrong.append((time.monotonic(), session))

    async def wait(self) -> None:
        """Wait for the turn of a token. Raises NotAllowedError if too many wait."""
        now = time.monotonic()
        if len(self._wrong) < _FREE or self._wrong[0][0] < now - _WINDOW_S:
            return
        pause = max(0.0, self._next - now)
        if pause > _LONGEST_S:
            raise NotAllowedError("too many wrong tokens were given; try again in a minute")
        self._next = now + pause + _GAP_S
        await asyncio.sleep(pause)
