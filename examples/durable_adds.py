"""Durable adds: payments that survive the death of the server, which is killed here and started again."""

import asyncio

from glidemq_py import Durability, Queue
from glidemq_py.errors import DurabilityError
from glidemq_py.testing import ServerProcess, server_binary


async def main() -> None:
    config = {"appendonly": "yes", "appendfsync": "everysec"}
    with ServerProcess(server_binary("valkey-9.1"), config=config) as server:
        async with Queue("payments", server.url, durable=True) as queue:
            jobs = await asyncio.gather(*(queue.add("charge", {"order": n}, job_id=f"charge-{n}") for n in range(100)))
            print(f"{len(jobs)} jobs are on the disk")

            server.restart(kill=True)
            print(f"after a crash: {(await queue.get_job_counts()).waiting} jobs wait")

            try:
                await queue.add("charge", job_id="charge-100", durable=Durability(disk=False, replicas=1, timeout=200))
            except DurabilityError as error:
                print(error.reason)
            again = await queue.add("charge", job_id="charge-100")
            print(f"{again.id}: {again.outcome}")


if __name__ == "__main__":
    asyncio.run(main())
