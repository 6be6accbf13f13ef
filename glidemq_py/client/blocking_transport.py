"""The transport of a thread, over valkey-glide-sync: heartbeats, and the blocking twins."""

from __future__ import annotations

from typing import Any, TypeVar

import glide_sync
from glide_shared.exceptions import GlideError, RequestError

from glidemq_py.client.connect import GlideConfig, create_blocking
from glidemq_py.client.failures import is_function_missing, translate, was_lost
from glidemq_py.client.loader import load_arguments, loading_failed
from glidemq_py.wire.calls import Call
from glidemq_py.wire.library import Library, assemble

__all__ = ["ThreadTransport"]

T = TypeVar("T")


class ThreadTransport:
    """A `BlockingTransport` over one GLIDE client of its own. Not for use from an event loop."""

    def __init__(self, config: GlideConfig, library: Library | None = None) -> None:
        self._client: Any = create_blocking(config)
        self._library = library or assemble()

    def call(self, call: Call[T]) -> T:
        """See `BlockingTransport.call`."""
        name, args = self._library.function(call.function), list(call.args)
        try:
            return call.decode(self._client.fcall(name, [call.key], args))
        except GlideError as error:
            if isinstance(error, RequestError) and is_function_missing(error):
                self._load()
            elif not (call.repeatable and was_lost(error)):
                raise translate(error, self._library) from error
        try:
            return call.decode(self._client.fcall(name, [call.key], args))
        except GlideError as again:
            raise translate(again, self._library) from again

    def _load(self) -> None:
        cluster = isinstance(self._client, glide_sync.GlideClusterClient)
        args, route = load_arguments(self._library, cluster)
        try:
            if route is None:
                self._client.custom_command(list(args))
            else:
                self._client.custom_command(list(args), route)
        except GlideError as error:
            failure = loading_failed(error, self._library)
            if failure is not None:
                raise failure from error

    def command(self, *args: str | bytes) -> Any:
        """See `BlockingTransport.command`."""
        try:
            return self._client.custom_command(list(args))
        except GlideError as error:
            raise translate(error, self._library) from error

    def close(self) -> None:
        """See `BlockingTransport.close`."""
        self._client.close()
