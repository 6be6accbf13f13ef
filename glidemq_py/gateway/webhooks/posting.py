"""One POST request to an address that was checked."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from glidemq_py.errors import GlideMQError
from glidemq_py.gateway.addresses import Network, Target, problem_of, target_of
from glidemq_py.gateway.table import CommandError

__all__ = ["WebhookError", "post"]

_HEAD_BYTES: Final = 65_536
_BODY_BYTES: Final = 65_536
_DRAIN_S: Final = 1.0
_MOST_INTERIM: Final = 10
_MOST_LINES: Final = 200


class WebhookError(GlideMQError):
    """A webhook was not delivered."""


async def post(url: str, headers: Mapping[str, str], body: bytes, allowed: Sequence[Network], timeout_s: float) -> int:
    """Post a body, and return the status, which is 200 to 299.

    The name of the host is resolved, and the request goes to the address that was checked. Redirects are not followed.

    Args:
        url: The URL.
        headers: Headers besides those of HTTP itself.
        body: The body, JSON.
        allowed: Networks besides the public ones to which it may be sent.
        timeout_s: Maximum time, s.

    Raises:
        WebhookError: If the URL is invalid, or the receiver cannot be reached, is in a network that is not allowed, or
            answers with another status.
    """
    try:
        target = target_of(url)
    except CommandError as error:
        raise WebhookError(str(error)) from None
    try:
        async with asyncio.timeout(timeout_s):
            status = await _exchange(target, headers, body, allowed)
    except TimeoutError:
        raise WebhookError(f"{target.authority} did not answer within {timeout_s:g} s") from None
    except (OSError, UnicodeError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise WebhookError(f"{target.authority}: {type(error).__name__}: {error}") from None
    if 300 <= status < 400:
        raise WebhookError(f"{target.authority} answered {status}: redirects are not followed")
    if not 200 <= status < 300:
        raise WebhookError(f"{target.authority} answered {status}")
    return status


async def _checked_addresses(target: Target, allowed: Sequence[Network]) -> list[str]:
    """Return the addresses of the host.

    Raises:
        OSError: If the name cannot be resolved.
        WebhookError: If one of them is in a network that is not allowed.
    """
    addresses = await _resolved(target.host, target.port)
    for each in addresses:
        problem = problem_of(ipaddress.ip_address(each), allowed)
        if problem is not None:
            raise WebhookError(f"{target.host} leads to {each}, and webhooks cannot point to {problem}")
    return addresses


async def _resolved(host: str, port: int) -> list[str]:
    """Return the addresses of a host."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


async def _exchange(target: Target, headers: Mapping[str, str], body: bytes, allowed: Sequence[Network]) -> int:
    reader, writer = await _connect(target, await _checked_addresses(target, allowed))
    try:
        lines = [f"POST {target.path} HTTP/1.1", f"Host: {target.authority}", "Content-Type: application/json",
                 f"Content-Length: {len(body)}", "Connection: close", "User-Agent: glidemq_py-gateway",
                 *(f"{name}: {value}" for name, value in headers.items()), "", ""]  # fmt: skip
        writer.write("\r\n".join(lines).encode("latin-1") + body)
        status = await _status(reader)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_DRAIN_S):  # a receiver that is still writing should not see a reset
                await _drain(reader)
        return status
    finally:
        writer.transport.abort()


async def _connect(target: Target, addresses: Sequence[str]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    problem: OSError = OSError(f"{target.host} has no address")
    for address in addresses:
        try:
            return await asyncio.open_connection(
                address, target.port, limit=_HEAD_BYTES, ssl=_context() if target.is_tls else None,
                server_hostname=target.host if target.is_tls else None,
            )  # fmt: skip
        except OSError as error:
            problem = error
    raise problem


@cache
def _context() -> ssl.SSLContext:
    return ssl.create_default_context()


async def _status(reader: asyncio.StreamReader) -> int:
    """Return the status of the final answer, and read its head."""
    for _ in range(_MOST_INTERIM):
        first = (await reader.readuntil(b"\n")).split(b" ", 2)
        if len(first) < 2 or not first[0].startswith(b"HTTP/1.") or not first[1].strip().isdigit():
            raise WebhookError("the answer is not HTTP/1.1")
        for _ in range(_MOST_LINES):
            if (await reader.readuntil(b"\n")).strip() == b"":
                break
        else:
            raise WebhookError(f"the answer has more than {_MOST_LINES} headers")
        status = int(first[1][:9])
        if status >= 200:
            return status
    raise WebhookError(f"the receiver sent more than {_MOST_INTERIM} interim answers")


async def _drain(reader: asyncio.StreamReader) -> None:
    left = _BODY_BYTES
    while left > 0:
        data = await reader.read(left)
        if not data:
            return
        left -= len(data)
