"""A transport with a connection per event loop, over connections that only count."""

import asyncio
import contextlib
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from glide_shared.exceptions import ClosingError, RequestError

from glidemq_py.errors import ClosedError
from tests.inside import AsyncTransport, Transport, administration, glide, glide_faults, loop_transport


class Opened:
    """A connection."""

    is_closed = False

    async def close(self):
        self.abandon()

    def abandon(self):
        self.is_closed = True


class Opener:
    """Opens connections when they may be."""

    def __init__(self):
        self.opened: list[Opened] = []
        self.is_opening, self.may_open = asyncio.Event(), asyncio.Event()

    async def __call__(self, connection: loop_transport.LoopConnection):
        self.is_opening.set()
        await self.may_open.wait()
        self.opened.append(Opened())
        connection.transport = cast("Transport", self.opened[-1])


async def test_a_disconnected_transport_connects_again():
    opener = Opener()
    opener.may_open.set()
    transport = loop_transport.LoopTransport("queue 'a'", opener)
    first = await transport.here()
    await transport.disconnect()
    await transport.disconnect()
    second: Any = await transport.here()
    assert second is not first
    assert [each.is_closed for each in opener.opened] == [True, False]
    await transport.close()
    assert second.is_closed
    with pytest.raises(ClosedError, match="queue 'a' is closed"):
        await transport.here()


@pytest.mark.parametrize("is_final", [False, True])
async def test_a_connection_that_opens_too_late_is_closed(is_final: bool):
    opener = Opener()
    transport = loop_transport.LoopTransport("queue 'a'", opener)
    connecting = [asyncio.create_task(transport.here()) for _ in range(2)]
    await opener.is_opening.wait()
    await (transport.close() if is_final else transport.disconnect())
    opener.may_open.set()
    found: Any = await asyncio.gather(*connecting, return_exceptions=True)
    if is_final:
        assert [type(each) for each in found] == [ClosedError, ClosedError]
        assert [each.is_closed for each in opener.opened] == [True]
    else:
        assert found == [opener.opened[-1]] * 2
        assert [each.is_closed for each in opener.opened] == [True, False]
        await transport.close()


async def test_a_cancelled_close_leaves_the_others_to_the_next_one():
    """Connections of other loops, here of one that does not run, are closed by the next call."""
    opener, other_loop = Opener(), asyncio.new_event_loop()
    opener.may_open.set()
    transport = loop_transport.LoopTransport("queue 'a'", opener)
    there: Any = await asyncio.to_thread(other_loop.run_until_complete, transport.here())
    here: Any = await transport.here()  # the last one is closed first
    started, never = asyncio.Event(), asyncio.Event()

    async def close():
        started.set()
        await never.wait()

    here.close = close
    closing = asyncio.create_task(transport.close())
    await started.wait()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not there.is_closed
    await transport.close()
    assert there.is_closed
    other_loop.close()


# -- loading the function library ------------------------------------------------------------------


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
    call = asyncio.create_task(transport.call(administration.version("glide:{q}:meta")))
    await client.loading.wait()
    loading = transport.loads.under_way
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
    assert transport.loads.under_way is None
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
    calls = [asyncio.create_task(each.call(administration.version("glide:{q}:meta"))) for each in (transport, *others)]
    await asyncio.gather(*calls[:2])
    client.release.set_result(None)
    await calls[2]
    assert client.loads == 1


# -- replies of GLIDE reach every event loop, also if several threads connect for the first --------


def test_first_use_by_two_threads_installs_once(monkeypatch: pytest.MonkeyPatch):
    """A second replacement would wrap the first and hold its lock: no reply would be read, and all loops would spin."""
    reads: list[int] = []
    needed = glide_faults._NEEDED
    glide = SimpleNamespace(**dict.fromkeys(needed))
    glide._on_async_pipe_readable = lambda: reads.append(1)
    both = threading.Barrier(2)

    def has(found: Any, name: str) -> bool:
        if name == needed[-1]:  # checked last: without a lock, both threads arrive here
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.5)
        return hasattr(found, name)

    monkeypatch.setattr(glide_faults, "_glide", glide)
    monkeypatch.setattr(glide_faults, "_installed", False)
    monkeypatch.setattr(glide_faults, "hasattr", has, raising=False)
    threads = [threading.Thread(target=glide_faults._install) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    glide._on_async_pipe_readable()
    assert reads == [1]
