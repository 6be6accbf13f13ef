"""Turn the `connection` option of a user into a connected client of valkey-glide, for event loops."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import cast

import glide
from glide_shared.config import GlideClusterClientConfiguration
from glide_shared.exceptions import GlideError

from glidemq_py._client.connect import GlideClient, ServerConnection, resolve
from glidemq_py._client.connect_errors import GlideConfig, connection_timeout_s, explain, unreachable
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.glide_config import config_of, limit_logs
from glidemq_py._client.glide_faults import create_in_thread, loop_of, read_replies_in
from glidemq_py._client.server_check import check_server
from glidemq_py._client.threads import in_thread, own_loops, to_first_address
from glidemq_py.errors import GlideMQConnectionError

__all__ = ["Connected", "create_async", "glide", "resolve_async"]


async def _reach(config: GlideConfig) -> None:
    """Wait until one of the servers accepts a TCP connection. Raises GlideMQConnectionError.

    GLIDE's own attempts would last seconds if the servers are unreachable, and report less.
    """
    failure: GlideMQConnectionError | None = None
    for address in config.addresses:
        try:
            async with asyncio.timeout(connection_timeout_s(config)):
                _, writer = await to_first_address(
                    address.host, address.port, partial(asyncio.open_connection, port=address.port)
                )
            writer.close()
            return
        except OSError as error:  # TimeoutError is one
            failure = unreachable(config, address, error)
    if failure is not None:
        raise failure


async def create_async(config: GlideConfig) -> GlideClient:
    """Return a client connected in the running event loop.

    Raises:
        GlideMQConnectionError: if the server cannot be reached now.
        ConnectionRejectedError: if the server can be reached, but not with this configuration; the subclass names the
            cause.
    """
    limit_logs()
    await _reach(config)
    try:
        cluster = isinstance(config, GlideClusterClientConfiguration)
        client = await create_in_thread(glide.GlideClusterClient if cluster else glide.GlideClient, config)
    except (GlideError, OSError) as error:
        failure = await in_thread(explain, config, error)
        raise failure from error
    loop = asyncio.get_running_loop()
    read_replies_in(loop, client if loop in own_loops else None)
    return client


@dataclass(frozen=True, slots=True)
class Connected:
    """A client of an event loop, with the settings of the transport over it."""

    config: GlideConfig
    client: GlideClient
    owned: bool
    """Whether the transport closes the client."""
    options: ConnectionOptions | None = None
    """None if the user gave a client."""


async def resolve_async(connection: ServerConnection, *, check: bool = True) -> Connected:
    """Return a connected client for a `connection` value.

    Args:
        connection: a URL, options, a client or None.
        check: also check the server's configuration.

    Raises:
        GlideMQConnectionError: see `create_async`.
        ConnectionRejectedError: see `check_server`.
    """
    found = connection if not (connection is None or isinstance(connection, str)) else None
    if found is None:
        # Starting the embedded server blocks, so it runs in a thread.
        found = await in_thread(resolve, connection)
    else:
        found = resolve(found)
    if isinstance(found, ConnectionOptions):
        config = config_of(found)
        client = await create_async(config)
        try:
            if check:
                await check_server(client, config, found)
        except BaseException:
            await client.close()
            raise
        return Connected(config, client, owned=True, options=found)
    config = cast("GlideConfig", found.config)
    running = asyncio.get_running_loop()
    if loop_of(found) is running:  # else the transport reports the wrong loop
        read_replies_in(running)
    if check:
        await check_server(found, config)
    return Connected(config, found, owned=False)
