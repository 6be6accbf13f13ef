"""Create clients of valkey-glide without blocking the event loop.

GLIDE connects in a synchronous call, even in its asynchronous ``create``. If a server accepts the connection and then
does not reply (it is frozen or overloaded), that call blocks the event loop for seconds. Here it runs in a thread. Then
the client is given its event loop and registered there for the replies, as GLIDE itself does for clients with a
credential provider.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any, Final

from glidemq_py._client.connect import GlideClient
from glidemq_py._client.connect_errors import GlideConfig
from glidemq_py._client.threads import in_thread, may_start_threads, own_loops
from glidemq_py._core.forks import new_lock

_REGISTER: Final = "_setup_pipe_after_creation"
"""The last step of GLIDE's ``create``, which must run in the client's event loop."""
_REGISTRY: Final = "_client_registry"
"""GLIDE's clients by id, in the module of their class."""


async def create_in_thread(kind: type[Any], config: GlideConfig) -> GlideClient:
    """Return a client connected for the running event loop, which stays free meanwhile.

    If the caller is cancelled, the client is closed once it is connected.

    Args:
        kind: GLIDE's class.
        config: the configuration.

    Raises:
        GlideError: as ``kind.create``.
        OSError: as ``kind.create``.
    """
    connecting = _connecting(kind)
    is_here = asyncio.get_running_loop() in own_loops and not may_start_threads()
    if connecting is None or is_here or _has_provider(config):
        client: GlideClient = await kind.create(config)
        return client
    attempt = _Attempt(connecting, config)
    try:
        await in_thread(attempt.run)
    except asyncio.CancelledError:
        attempt.abandon()
        raise
    connected = attempt.client
    connected._loop = asyncio.get_running_loop()
    connected.__class__ = kind
    getattr(connected, _REGISTER)(False)
    return connected  # type: ignore[no-any-return]


class _Attempt:
    """Connects a client that is registered nowhere yet; its event loop is that of the call."""

    def __init__(self, connecting: type[Any], config: GlideConfig) -> None:
        self.client: Any = None
        self._connecting = connecting
        self._config = config
        self._is_abandoned = False
        self._ending = new_lock()

    def run(self) -> None:
        """Connect. Raises GlideError or OSError."""
        client = asyncio.run(self._connecting.create(self._config))
        with self._ending:
            self.client = client
            if self._is_abandoned:
                self._close()

    def abandon(self) -> None:
        """Close the client now, or as soon as it is connected."""
        with self._ending:
            self._is_abandoned = True
            if self.client is not None:
                self._close()

    def _close(self) -> None:
        with contextlib.suppress(StopIteration):
            self.client.close().send(None)  # does not suspend


def _has_provider(config: GlideConfig) -> bool:
    """Return whether the credentials come from a function: GLIDE connects such clients in a thread itself."""
    iam = None if config.credentials is None else config.credentials.iam_config
    return getattr(iam, "credential_provider", None) is not None


def _connecting(kind: type[Any]) -> type[Any] | None:
    """Return a subclass whose ``create`` omits the registration; None if this version of GLIDE has other steps."""
    registry = getattr(sys.modules[kind.__module__], _REGISTRY, None)
    if registry is None or not hasattr(kind, _REGISTER):
        return None

    def register_later(client: Any, _: bool) -> None:
        if getattr(client.config, "pubsub_subscriptions", None) is not None:
            registry[client._pipe_client_id] = client  # messages may come before the loop continues

    return type(kind.__name__, (kind,), {_REGISTER: register_later})
