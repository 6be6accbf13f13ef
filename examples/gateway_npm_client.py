"""JavaScript and Python work on the same queues: the npm client of bunqueue through a gateway, Python directly.

The npm client needs bun: `npm install bunqueue@2.9.5 bun` in this folder. The environment variables `BUN` and
`BUNQUEUE_CLIENT` name a program and a module elsewhere.
"""

import asyncio
import os
import secrets
import shutil
from pathlib import Path

from glidemq_py import Job, Queue, Worker
from glidemq_py.gateway import Gateway
from glidemq_py.testing import ServerProcess, server_binary

HERE = Path(__file__).parent
PREFIX = f"npm-{secrets.token_hex(4)}"


async def send(job: Job) -> str:
    print("Python worker runs:", job.name)
    return f"sent to {job.data['to']}"


async def run_client(bun: str, port: int) -> None:
    client = await asyncio.create_subprocess_exec(bun, str(HERE / "gateway_npm_client.mjs"), str(port))
    try:
        async with asyncio.timeout(60):
            await client.wait()
    finally:
        if client.returncode is None:
            client.kill()


async def main(url: str, bun: str) -> None:
    async with (
        Gateway(url, prefix=PREFIX, port=0) as gateway,
        Worker("mails", send, url, prefix=PREFIX),
        Queue("reports", url, prefix=PREFIX) as reports,
    ):
        report = await reports.add("yearly", {"year": 2026})
        await run_client(bun, gateway.port)
        print("Python got:", await report.wait_until_finished(30_000))


if __name__ == "__main__":
    folders = os.pathsep.join((str(HERE / "node_modules/.bin"), os.environ["PATH"]))
    found = os.environ.get("BUN") or shutil.which("bun", path=folders)
    if found is None:
        raise SystemExit("bun was not found: npm install bunqueue@2.9.5 bun")
    with ServerProcess(server_binary("valkey-9.1")) as server:
        asyncio.run(main(server.url, found))
