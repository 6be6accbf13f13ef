"""A balancer in front of several gateways: the connections of a client go to each of them in turn."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence

from glidemq_py.gateway import Gateway


@contextlib.asynccontextmanager
async def balanced(gateways: Sequence[Gateway], taken: list[int] | None = None) -> AsyncIterator[int]:
    """Forward connections to gateways in turn; yield the port. `taken` gets the number of the gateway of each."""
    numbers = itertools.cycle(range(len(gateways)))
    open_writers: set[asyncio.StreamWriter] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        number = next(numbers)
        if taken is not None:
            taken.append(number)
        there, back = await asyncio.open_connection("127.0.0.1", gateways[number].port)
        open_writers.update((writer, back))
        await asyncio.gather(copy(reader, back), copy(there, writer))

    server = await asyncio.start_server(forward, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in open_writers:
            writer.close()
