"""Checks that precede every endpoint: origin of the request, token, content type, size and duration of the body."""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glidemq_py._web.checks import UnauthorizedError, check_site, digest, is_authorized
from glidemq_py.errors.base import show_value
from glidemq_py.proxy.responses import BodyTimeoutError, BodyTooLargeError, MediaTypeError, refusal
from glidemq_py.proxy.state import ProxyOptions

__all__ = ["IS_HEAD", "Guard"]

IS_HEAD: Final = "glidemq.is_head"
"""Key of the scope: a HEAD request, which endpoints serve as GET; servers omit the body of the response."""

_WITHOUT_TOKEN: Final = "/health"


class Guard:
    """ASGI middleware that rejects foreign, unauthorized, oversized and half-sent requests, and reads their bodies.

    Args:
        app: the application behind it.
        options: the proxy's options.
    """

    def __init__(self, app: ASGIApp, options: ProxyOptions) -> None:
        self._app = app
        self._options = options
        self._tokens = None if options.tokens is None else [digest(token.encode()) for token in options.tokens]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            check_site(headers, self._options.hosts)
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            if self._tokens is not None and path != _WITHOUT_TOKEN and not is_authorized(headers, self._tokens):
                raise UnauthorizedError("a valid bearer token is required")
            check_media_type(scope["method"], headers)
            body = await self._body(headers, receive)
        except _ClientGoneError:
            return
        except Exception as error:
            await refusal(error)(scope, receive, send)
            return
        unread = [body]

        async def receive_read() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            return await receive()

        raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        # Still encoded, so that a slash in an id separates nothing; ProxyRoute decodes its parts.
        scope = {**scope, "path": raw.decode(errors="replace").partition("?")[0]}
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET", IS_HEAD: True}
        await self._app(scope, receive_read, send)

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        most, seconds = self._options.max_body, self._options.body_timeout / 1_000
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > most:
            raise BodyTooLargeError(f"request body of {length} bytes: must be at most {most}")
        content = bytearray()
        try:
            async with asyncio.timeout(seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _ClientGoneError
                    content += message.get("body", b"")
                    if len(content) > most:
                        raise BodyTooLargeError(f"request body too long: must be at most {most} bytes")
                    if not message.get("more_body", False):
                        return bytes(content)
        except TimeoutError:
            raise BodyTimeoutError(f"request body incomplete after {seconds:g} s") from None


class _ClientGoneError(Exception):
    """The client disconnected before its request was complete."""


def check_media_type(method: str, headers: Headers) -> None:
    """Reject bodies that are not JSON; a page of another site can send only other types without a preflight.

    Raises:
        MediaTypeError: if the content type is not application/json, or missing although there is a body.
    """
    given = headers.get("content-type")
    if given is None:
        if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
            return
    elif method in ("GET", "HEAD") or given.partition(";")[0].strip().lower() == "application/json":
        return
    raise MediaTypeError(f"header Content-Type = {show_value(given)}: must be 'application/json'")
