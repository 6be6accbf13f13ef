"""Loading the function library over a connection that is closed meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from glide_shared.exceptions import ClosingError, RequestError

from glidemq_py._client.async_client import glide
from glidemq_py._client.async_transport import AsyncTransport
from glidemq_py._core.calls import reading
from glidemq_py.errors import ClosedError


class ClosingClient:
    """A client without the library that is closed while the library is loaded."""

    def __init__(self) -> None:
        self.loading = asyncio.Event()
        self.closed = asyncio.Event()

    async def exec(self, *_: object, **__: object) -> list[Any]:
        return [RequestError("Function not found")]

    async def custom_command(self, *_: object) -> None:
        self.loading.set()
        await self.closed.wait()
        raise ClosingError("closed")


@pytest.mark.parametrize("cancelled", [False, True])
async def test_connection_closed_while_the_library_is_loaded(cancelled: bool) -> None:
    """The caller gets ClosedError; if it was cancelled, nothing is logged about an exception nobody retrieved."""
    unhandled: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    client: Any = ClosingClient()
    config = glide.GlideClientConfiguration([glide.NodeAddress("host", 1)])
    transport = AsyncTransport(client, config, owned=False)
    call = asyncio.create_task(transport.call(reading.version("glide:{q}:meta")))
    await client.loading.wait()
    loading = transport._loading
    assert loading is not None
    if cancelled:
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    client.closed.set()
    if not cancelled:
        with pytest.raises(ClosedError):
            await call
    await asyncio.wait({loading})
    await asyncio.sleep(0)  # runs the callbacks of the task
    del loading, call
    assert transport._loading is None
    assert unhandled == []
