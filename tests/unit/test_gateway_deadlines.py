"""Commands that wait for a server that does not reply."""

import asyncio
import gc
import time
from types import SimpleNamespace
from typing import Any

import pytest

from glidemq_py._client.reachability import Reachability
from glidemq_py.gateway import deadlines as module
from glidemq_py.gateway.deadlines import Deadlines
from glidemq_py.gateway.table import CommandError

LIMIT_S = 0.05


@pytest.fixture
def server() -> Reachability:
    return Reachability("db:6379")


@pytest.fixture
async def deadlines(server: Reachability, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "_TICK_S", 0.005)
    monkeypatch.setattr("glidemq_py._client.reachability._PROBLEM_AFTER_S", 0.0)
    config = SimpleNamespace(request_timeout=LIMIT_S * 1_000)
    transport: Any = SimpleNamespace(interruptions=SimpleNamespace(server=server), config=config)
    found = Deadlines()
    watching = asyncio.create_task(found.watch(transport))
    yield found
    watching.cancel()
    await asyncio.wait((watching,))


async def command(deadlines: Deadlines, ran_s: float, work: Any) -> Any:
    """Execute a command that has run for some time."""
    task = asyncio.current_task()
    deadlines.running[task] = time.perf_counter() - ran_s, "Obliterate", {}
    try:
        return await work
    except asyncio.CancelledError:
        error = deadlines.error_of("Obliterate", changes_nothing=False)
        if error is None:
            raise
        raise error from None
    finally:
        deadlines.running.pop(task, None)


async def test_long_command_survives_a_short_outage() -> None:
    deadlines, done = Deadlines(), asyncio.Event()
    running = asyncio.create_task(command(deadlines, 60.0, done.wait()))
    await asyncio.sleep(0)
    deadlines._end_overdue(30.0, 0.3)
    assert not deadlines.has_ended(running)
    done.set()
    assert await running is True


async def test_command_ends_when_the_server_was_silent_for_the_request_timeout(
    deadlines: Deadlines, server: Reachability
) -> None:
    running = asyncio.create_task(command(deadlines, 0.0, asyncio.Event().wait()))
    server.failed(0.0, LIMIT_S, lambda: None)
    async with asyncio.timeout(60):
        with pytest.raises(CommandError, match="server db:6379 does not reply; Obliterate may have been executed"):
            await running


async def test_command_that_ends_although_it_was_cancelled_is_forgotten(
    deadlines: Deadlines, server: Reachability
) -> None:
    async def ends() -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.Event().wait()

    server.failed(LIMIT_S, LIMIT_S, lambda: None)
    running = asyncio.create_task(command(deadlines, LIMIT_S, ends()))
    async with asyncio.timeout(60):
        await running
    assert deadlines.has_ended(running)
    del running
    await asyncio.sleep(0)  # the event loop still refers to it
    gc.collect()
    assert not deadlines._ended
