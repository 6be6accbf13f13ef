"""Runs bunqueue itself, to compare it with a gateway."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from tests.bench.bunqueue import BunqueuePackages


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def bunqueue(packages: BunqueuePackages, folder: Path) -> AsyncIterator[tuple[int, int]]:
    """Run bunqueue in memory; yield its TCP and HTTP ports."""
    ports = free_port(), free_port()
    environment = {"TCP_PORT": str(ports[0]), "HTTP_PORT": str(ports[1]), "HOST": "127.0.0.1"}
    process = await asyncio.create_subprocess_exec(
        packages.bun, packages.server, "start", cwd=folder, env={**os.environ, **environment},
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            for port in ports:
                while True:
                    with contextlib.suppress(OSError):
                        _, writer = await asyncio.open_connection("127.0.0.1", port)
                        writer.close()
                        break
                    await asyncio.sleep(0.05)
        yield ports
    finally:
        process.kill()
        await process.wait()
