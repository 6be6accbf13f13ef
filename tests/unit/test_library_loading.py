"""Loading the function library: once per client, and over a connection that is closed meanwhile."""

import asyncio
from typing import Any

import pytest
from glide_shared.exceptions import ClosingError, RequestError

from glidemq_py.errors import ClosedError
from tests.inside import AsyncTransport, glide, reading


class ClosingClient:
    """A client without the library that is closed while the library is loaded."""

    def __init__(self):
        self.loading = asyncio.Event()
        self.closed = asyncio.Event()

    async def exec(self, *_: object, **__: object) -> list[Any]:
        return [RequestError("Function not found")]

    async def custom_command(self, *_: object):
        self.loading.set()
        await self.closed.wait()
        raise ClosingError("closed")


@pytest.mark.parametrize("cancelled", [False, True])
async def test_connection_closed_while_the_library_is_loaded(cancelled: bool):
    """The caller gets ClosedError; if it was cancelled, nothing is logged about an exception nobody retrieved."""
    unhandled: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    client: Any = ClosingClient()
    config = glide.GlideClientConfiguration([glide.NodeAddress("host", 1)])
    transport = AsyncTransport(client, config, owned=False)
    call = asyncio.create_task(transport.call(reading.version("glide:{q}:meta")))
    await client.loading.wait()
    loading = transport._loads.under_way
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
    assert transport._loads.under_way is None
    assert unhandled == []


class EmptiedClient:
    """A client whose server has lost the library; it keeps the calls that missed it until it is told."""

    def __init__(self):
        self.is_loaded = False
        self.loads = 0
        self.release: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.late = 0

    async def exec(self, *_: object, **__: object) -> list[Any]:
        if self.is_loaded:
            return [b"1"]
        self.late += 1
        if self.late == 3:
            await self.release  # its error arrives after the load by others
        return [RequestError("Function not found")]

    async def custom_command(self, *_: object):
        self.loads += 1
        self.is_loaded = True


async def test_transports_of_one_client_load_the_library_once():
    """Also for a call whose error arrives when the library is loaded again."""
    client: Any = EmptiedClient()
    config = glide.GlideClientConfiguration([glide.NodeAddress("host", 1)])
    transport = AsyncTransport(client, config, owned=False)
    others = transport.shared(), transport.shared()
    calls = [asyncio.create_task(each.call(reading.version("glide:{q}:meta"))) for each in (transport, *others)]
    await asyncio.gather(*calls[:2])
    client.release.set_result(None)
    await calls[2]
    assert client.loads == 1
