"""Two gateway processes serve one client. The one that it is connected to is killed; it continues through the other."""

import asyncio
import os
import secrets
import signal
import sys
from typing import Any

import msgpack

from glidemq_py import Queue
from glidemq_py.testing import ServerProcess, server_binary

PREFIX = f"takeover-{secrets.token_hex(4)}"
JOBS = 6


async def start_gateway(url: str) -> tuple[asyncio.subprocess.Process, int]:
    """Start a gateway on any port; return its process and its port."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "glidemq_py.gateway", "--url", url, "--prefix", PREFIX, "--port", "0",
        stderr=asyncio.subprocess.PIPE, env={**os.environ, "AUTH_TOKENS": ""},
    )  # fmt: skip
    assert process.stderr is not None
    while b"listening on" not in (line := await process.stderr.readline()):
        if not line:
            raise RuntimeError("the gateway did not start")
    return process, int(line.rpartition(b":")[2])


class Client:
    """Sends a command to the first gateway that answers, as bunqueue's client does after it has connected again."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports

    async def call(self, cmd: str, **fields: Any) -> dict[str, Any]:
        """Send a command; return its answer."""
        for port in self.ports:
            try:
                return await self._call(port, {"cmd": cmd, **fields})
            except (OSError, EOFError):
                print("a gateway is gone")
                self.ports = [each for each in self.ports if each != port]
        raise ConnectionError("no gateway answers")

    async def _call(self, port: int, command: dict[str, Any]) -> dict[str, Any]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        payload: bytes = msgpack.packb(command)
        writer.write(len(payload).to_bytes(4, "big") + payload)
        size = int.from_bytes(await reader.readexactly(4), "big")
        answer: dict[str, Any] = msgpack.unpackb(await reader.readexactly(size))
        writer.close()
        return answer


async def main(url: str) -> None:
    async with Queue("sums", url, prefix=PREFIX) as queue:
        (first, first_port), (second, second_port) = await start_gateway(url), await start_gateway(url)
        client = Client([first_port, second_port])
        ids = [(await client.call("PUSH", queue="sums", data=[n, n]))["id"] for n in range(JOBS)]
        # `detach`: the job stays locked although each command has a connection of its own.
        pulled = await client.call("PULL", queue="sums", owner="me", detach=True)
        first.send_signal(signal.SIGKILL)
        await first.wait()
        done = 0
        while pulled["job"] is not None:
            result = sum(pulled["job"]["data"])
            answer = await client.call("ACK", id=pulled["job"]["id"], token=pulled["token"], result=result)
            done += answer["ok"]
            pulled = await client.call("PULL", queue="sums", owner="me", detach=True)
        print("completed:", done)
        print("results:", [(await client.call("GetResult", id=job_id))["result"] for job_id in ids])
        print("findings:", len((await queue.check(recheck_after=0)).findings))
        second.terminate()
        await second.wait()


if __name__ == "__main__":
    with ServerProcess(server_binary("valkey-9.1")) as server:
        asyncio.run(main(server.url))
