"""A gateway backs up its queues. They are restored on another server, whose gateway continues with the same jobs."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import msgpack

from glidemq_py import Queue
from glidemq_py.gateway import Gateway, restore_ids
from glidemq_py.testing import ServerProcess, server_binary

PREFIX = "shop"


async def call(gateway: Gateway, cmd: str, **fields: Any) -> dict[str, Any]:
    """Send a command over a connection of its own; return its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    payload: bytes = msgpack.packb({"cmd": cmd, **fields})
    writer.write(len(payload).to_bytes(4, "big") + payload)
    size = int.from_bytes(await reader.readexactly(4), "big")
    answer: dict[str, Any] = msgpack.unpackb(await reader.readexactly(size))
    writer.close()
    return answer


async def backed_up(queue: Queue, folder: Path) -> None:
    """Wait until the gateway has written a backup of the queue."""
    while not await queue.backups.get_all(folder):  # noqa: ASYNC110
        await asyncio.sleep(0.1)


async def main(old: str, new: str, folder: Path) -> None:
    async with Gateway(old, port=0, prefix=PREFIX) as gateway, Queue("orders", old, prefix=PREFIX) as queue:
        done = await call(gateway, "PUSH", queue="orders", data={"item": "book"})
        # `detach`: the job stays locked although each command has a connection of its own.
        fetched = await call(gateway, "PULL", queue="orders", owner="me", detach=True)
        await call(gateway, "ACK", id=done["id"], token=fetched["token"], result="shipped")
        waiting = await call(gateway, "PUSH", queue="orders", data={"item": "lamp"}, jobId="order-2")
        # In production, this gateway has the option from its start: it backs up every six hours.
        async with Gateway(old, port=0, prefix=PREFIX, backup=str(folder), backup_keep=7):
            await backed_up(queue, folder)
    print("backed up")
    async with Queue("orders", new, prefix=PREFIX) as queue:
        report = await queue.backups.restore(folder)
        print("restored:", report.jobs)
        # On the command line: python -m glidemq_py.gateway --restore-ids
        (ids,) = await restore_ids(new, prefix=PREFIX)
        print("found by their ids:", ids.made + ids.chosen)
        async with Gateway(new, port=0, prefix=PREFIX) as gateway:
            print("result:", (await call(gateway, "GetResult", id=done["id"]))["result"])
            fetched = await call(gateway, "PULL", queue="orders", owner="me", detach=True)
            print("continues with:", fetched["job"]["id"] == waiting["id"], fetched["job"]["data"])
            await call(gateway, "ACK", id=fetched["job"]["id"], token=fetched["token"])
            print("findings:", len((await queue.check(recheck_after=0)).findings))


if __name__ == "__main__":
    binary = server_binary("valkey-9.1")
    with ServerProcess(binary) as old, ServerProcess(binary) as new, tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(old.url, new.url, Path(folder)))
