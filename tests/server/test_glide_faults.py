"""The faults that `glidemq_py._client.glide_faults` mends, on GLIDE alone: a test that fails names a mend that can go.

Each program runs twice in a process of its own: nothing is mended there until `create_async` creates a client, as it
does the second time.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from importlib.metadata import version

import pytest

from tests.chaos.fault_proxy import FaultProxy
from tests.server.test_demoted_primary import Pair, pair
from tests.server.worker_support import StartServer

__all__ = ["pair"]  # a fixture

PRELUDE = """
import asyncio, contextlib, os, sys, threading, time
from glide import GlideClient
from glidemq_py import ConnectionOptions

URL, MENDED = sys.argv[1], sys.argv[2] == "mended"

async def create():
    from glidemq_py._client.async_client import config_of  # which mends what is mended once
    config = config_of(ConnectionOptions.from_url(URL + "?request_timeout=500"))
    if MENDED:
        from glidemq_py._client.async_client import create_async
        return await create_async(config)
    return await GlideClient.create(config)

async def outcome(call, seconds):
    \"\"\"Return what a call returns or raises, or that it does neither.\"\"\"
    done, _ = await asyncio.wait([asyncio.ensure_future(call)], timeout=seconds)
    return "waits" if not done else "failed" if done.pop().exception() else "ended"
"""


def both(program: str, url: str) -> tuple[str, ...]:
    """Return the last line that a program prints on GLIDE alone, and with what mends it."""
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(program), url]
    printed = [subprocess.check_output([*command, side], text=True) for side in ("alone", "mended")]
    return tuple(each.splitlines()[-1] for each in printed)  # GLIDE logs to stdout, too


def test_version():
    """With another version, the faults are to be looked for again: the headings of the module name this one."""
    assert version("valkey-glide") == "2.6.0"


def test_a_loop_gets_no_replies_if_that_of_the_first_client_stands_still(url: str):
    program = """
    first = asyncio.new_event_loop()
    client = first.run_until_complete(create())

    async def ping():
        other = await create()
        return await outcome(other.ping(), 5)

    print(asyncio.run(ping()))
    """
    assert both(program, url) == ("waits", "ended")


def test_a_reply_for_a_closed_loop_ends_the_reading(url: str):
    """The replies behind it in the pipe are lost, too."""
    program = """
    def use_and_close():
        async def wait():
            client = await create()
            asyncio.ensure_future(client.custom_command(["BLPOP", "no list", "0.4"]))
            await asyncio.sleep(0.2)
            return client

        loop = asyncio.new_event_loop()
        kept.append(loop.run_until_complete(wait()))
        loop.close()

    async def main():
        raised = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context.get("exception")))
        kept.append(await create())
        threading.Thread(target=use_and_close).start()
        await asyncio.sleep(2)
        print(next((type(each).__name__ for each in raised), None))

    kept = []
    asyncio.run(main())
    """
    assert both(program, url) == ("RuntimeError", "None")


def test_a_new_client_discards_replies_after_the_reading_loop_was_closed(url: str):
    program = """
    def use():
        async def wait():
            client = await create()
            call = client.custom_command(["BLPOP", "no list", "0.4"])
            begun.set()
            print(await outcome(call, 6))

        asyncio.run(wait())

    begun = threading.Event()
    first = asyncio.new_event_loop()
    client = first.run_until_complete(create())
    other = threading.Thread(target=use)
    other.start()
    begun.wait()
    first.close()
    time.sleep(1)
    last = asyncio.run(create())
    other.join()
    """
    assert both(program, url) == ("waits", "ended")


def test_connecting_blocks_the_event_loop(private_server: StartServer):
    program = """
    async def main():
        longest, last = 0.0, time.monotonic()
        connecting = asyncio.ensure_future(create())
        while not connecting.done():
            await asyncio.sleep(0.01)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        connecting.exception()
        print(longest > 1)

    asyncio.run(main())
    """
    server = private_server()
    server.pause()
    try:
        assert both(program, server.url) == ("True", "False")
    finally:
        server.resume()


def test_close_fails_after_the_end_of_the_event_loop(url: str):
    program = """
    async def wait():
        client = await create()
        call = asyncio.ensure_future(client.custom_command(["BLPOP", "no list", "5"]))
        await asyncio.sleep(0.1)
        return client, call

    loop = asyncio.new_event_loop()
    client, call = loop.run_until_complete(wait())
    loop.close()
    try:
        if MENDED:
            from glidemq_py._client.glide_faults import abandon_client
            abandon_client(client, loop)
        else:
            with contextlib.suppress(StopIteration):
                client.close().send(None)
        print("closed")
    except RuntimeError as error:
        print(error)
    call._log_destroy_pending = False
    """
    assert both(program, url) == ("Event loop is closed", "closed")


def test_looking_at_all_modules_warns(url: str):
    program = """
    import warnings
    if MENDED:
        import glidemq_py._client.async_client
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for module in list(sys.modules.values()):
            getattr(module, "__file__", None)
    names = {each.category.__name__ for each in warned if "Importing from 'glide." in str(each.message)}
    print(names.pop() if names else "none")
    """
    assert both(program, url) == ("DeprecationWarning", "none")


async def alone(program: str, url: str, between: Callable[[], Awaitable[object]]) -> str:
    """Return the last line that a program prints on GLIDE alone; ``between`` runs when it has printed "connected"."""
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(program), url, "alone"]
    piped = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=piped, stdout=piped)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(120):
            while await process.stdout.readline() not in (b"connected\n", b""):
                pass  # GLIDE logs to stdout, too
            await between()
            printed, _ = await process.communicate(b"\n")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return printed.decode().splitlines()[-1]


@pytest.mark.slow
async def test_a_half_open_connection_is_kept(url: str):
    """`test_half_open.py` shows that it is replaced."""
    program = """
    async def main():
        client = await create()
        await client.ping()
        print("connected", flush=True)
        sys.stdin.readline()
        failed = []
        for _ in range(8):
            failed.append(await outcome(client.ping(), 5))
        print(await outcome(create(), 5), "ended" in failed, flush=True)
        os._exit(0)

    asyncio.run(main())
    """
    with FaultProxy(url, seed=1) as proxy:

        async def half_open():
            proxy.half_open()

        assert await alone(program, proxy.url, half_open) == "ended False"


@pytest.mark.slow
async def test_the_connection_to_a_demoted_primary_is_kept(pair: Pair):
    """`test_demoted_primary.py` shows that it is replaced."""
    program = """
    async def main():
        client = await create()
        await client.set("key", "before")
        print("connected", flush=True)
        sys.stdin.readline()
        refused = 0
        for _ in range(25):
            try:
                await asyncio.wait_for(client.set("key", "value"), 5)
            except Exception as error:
                refused += "readonly" in str(error).lower().replace(" ", "")
            await asyncio.sleep(0.2)
        print(refused, flush=True)
        os._exit(0)

    asyncio.run(main())
    """
    assert await alone(program, pair.url, pair.fail_over) == "25"
