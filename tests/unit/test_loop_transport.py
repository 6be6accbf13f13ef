"""A transport with a connection per event loop, over connections that only count."""

import asyncio
from typing import Any, cast

import pytest

from glidemq_py.errors import ClosedError
from tests.inside import LoopConnection, LoopTransport
from tests.inside import transport_Transport as Transport


class Opened:
    """A connection."""

    is_closed = False

    async def close(self):
        self.is_closed = True


class Opener:
    """Opens connections when they may be."""

    def __init__(self):
        self.opened: list[Opened] = []
        self.is_opening, self.may_open = asyncio.Event(), asyncio.Event()

    async def __call__(self, connection: LoopConnection):
        self.is_opening.set()
        await self.may_open.wait()
        self.opened.append(Opened())
        connection.transport = cast("Transport", self.opened[-1])


async def test_a_disconnected_transport_connects_again():
    opener = Opener()
    opener.may_open.set()
    transport = LoopTransport("queue 'a'", opener)
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
    transport = LoopTransport("queue 'a'", opener)
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
    """Connections of other loops, here of one that has not started yet, are closed by the next call."""
    opener, other_loop = Opener(), asyncio.new_event_loop()
    opener.may_open.set()
    transport = LoopTransport("queue 'a'", opener)
    here: Any = await transport.here()
    other = LoopConnection(other_loop)
    other.transport = cast("Transport", Opened())
    # Taken last first: this loop's connection is closed before that of the other loop.
    transport._connections = {other_loop: other, **transport._connections}
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
    assert list(transport._connections) == [other_loop]
    other.abandon = transport._connections.clear  # type: ignore[method-assign]
    await transport.close()
    assert not transport._connections
    other_loop.close()
