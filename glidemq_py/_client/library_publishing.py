"""List, load and delete function libraries on all primaries.

For the administrator's command and for the removal of old libraries; ordinary calls load a missing library themselves
(library_source.py). No function here replaces a library: an existing one is left unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glide_shared.exceptions import GlideError
from glide_shared.routes import AllPrimaries, ByAddressRoute

from glidemq_py._client.async_transport import AsyncTransport
from glidemq_py._client.call_retry import load_arguments, loading_failed, translate
from glidemq_py._client.library_source import Library


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedLibrary:
    """A library as listed by a server. ``code`` is None unless it was requested."""

    name: str
    functions: frozenset[str]
    code: str | None = None


async def published(
    transport: AsyncTransport, pattern: str, *, with_code: bool = False
) -> dict[str, list[PublishedLibrary]]:
    """Return the libraries whose names match a glob pattern, per primary ("host:port").

    Raises:
        LibraryError: if this user has no permission to list them.
    """
    wanted = ["FUNCTION", "LIST", "LIBRARYNAME", pattern, *(["WITHCODE"] if with_code else [])]
    replies = await on_primaries(transport, wanted)
    return {node: [_described(entry) for entry in reply] for node, reply in replies.items()}


async def load_everywhere(transport: AsyncTransport, library: Library) -> dict[str, bool]:
    """Load a library on every primary that does not have it. Return, per node, whether it was loaded now.

    Raises:
        LibraryError: if a node rejects it (NOPERM, or a compile error). Nodes that accepted it keep it.
        ServerOutOfMemoryError: if a node is at its maxmemory.
    """
    before = await published(transport, library.name)
    args, route = load_arguments(library, transport.is_cluster)
    try:
        await _run(transport, list(args), route)
    except GlideError as error:
        failure = loading_failed(error, library)
        if failure is not None:
            raise failure from error
    return {node: not found for node, found in before.items()}


async def delete_everywhere(transport: AsyncTransport, name: str) -> None:
    """Delete a library from every primary. A primary without it is not an error. Raises LibraryError."""
    try:
        await _run(transport, ["FUNCTION", "DELETE", name], AllPrimaries() if transport.is_cluster else None)
    except GlideError as error:
        # The command ran on every primary; this is the error of one that did not have the library.
        if "Library not found" not in str(error):
            raise translate(error) from error


async def version_at(transport: AsyncTransport, node: str, prefix: str) -> str:
    """Return the result of the library's function ``<prefix>version`` on one node of `published`."""
    host, _, port = node.rpartition(":")
    try:
        reply = await _run(
            transport,
            ["FCALL", f"{prefix}version", "0"],
            ByAddressRoute(host, int(port)) if transport.is_cluster else None,
        )
    except GlideError as error:
        raise translate(error) from error
    return _text(reply)


async def on_primaries(transport: AsyncTransport, args: list[str]) -> Mapping[str, Any]:
    """Run a command on every primary and return the replies by node. Raises the error of a node, translated."""
    route = AllPrimaries() if transport.is_cluster else None
    try:
        reply = await _run(transport, args, route)
    except GlideError as error:
        raise translate(error) from error
    if route is None:
        address = transport.config.addresses[0]
        return {f"{address.host}:{address.port}": reply}
    return {_text(node): each for node, each in reply.items()}


async def _run(transport: AsyncTransport, args: list[str], route: Any) -> Any:
    client: Any = transport.client
    return await client.custom_command(args, *(() if route is None else (route,)))


def _described(entry: Any) -> PublishedLibrary:
    fields = {_text(key): value for key, value in entry.items()}
    functions = frozenset(_text(function[b"name"]) for function in fields["functions"])
    code = fields.get("library_code")
    return PublishedLibrary(
        name=_text(fields["library_name"]), functions=functions, code=None if code is None else _text(code)
    )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
