"""A client of gateways in a chaos run: `python -m tests.chaos.gateway_client produce|work`, with their ports in
GATEWAY_PORTS.

A producer chooses an id per try, since an id names a new job once its job has finished: a push whose answer was lost
is repeated with another id, and the first job may exist too. A worker repeats a report through another gateway until
one has answered. SIGTERM ends both after their current work.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from typing import Any, Final

import msgpack

from tests.chaos.ledger import Scribe
from tests.chaos.settings import PartySettings

PORTS: Final = [int(each) for each in os.environ["GATEWAY_PORTS"].split(",")]
LOCK_MS: Final = 2_000
CALL_S: Final = 20.0
BULK: Final = 5
CONCURRENT: Final = 4
KINDS: Final = ("plain", "priority", "delay", "retried", "failing", "bulk", "flow", "generated", "group")
RETRIED: Final = {"maxAttempts": 1_000, "backoff": 10}
"""An attempt whose lock expires counts."""
GONE: Final = ("not found", "Invalid or expired lock token", "not in processing state")
"""Parts of the answers that a report is too late."""


class CallError(Exception):
    """The gateway has rejected a command."""


class Client:
    """One connection at a time to any gateway; it is opened again after it was lost."""

    def __init__(self, pick: random.Random):
        self._pick = pick
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, cmd: str, **fields: Any) -> dict[str, Any]:
        """Send a command and return its answer.

        Raises:
            CallError: If it was rejected.
            OSError: If there is no answer: the command may have been executed.
        """
        try:
            async with asyncio.timeout(CALL_S):
                if self._streams is None:
                    self._streams = await asyncio.open_connection("127.0.0.1", self._pick.choice(PORTS))
                reader, writer = self._streams
                payload: bytes = msgpack.packb({"cmd": cmd, **fields})
                writer.write(len(payload).to_bytes(4, "big") + payload)
                size = int.from_bytes(await reader.readexactly(4), "big")
                answer: dict[str, Any] = msgpack.unpackb(await reader.readexactly(size))
        except (OSError, EOFError, TimeoutError) as error:
            self.close()
            raise ConnectionError(repr(error)) from None
        if not answer["ok"]:
            raise CallError(answer["error"])
        return answer

    def close(self):
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Party:
    """What producers and workers share."""

    def __init__(self):
        self.settings = PartySettings.read()
        self.scribe = Scribe(self.settings.pipe, self.settings.party)
        self.random = random.Random(f"{self.settings.seed} {self.settings.party}")
        self.stop = asyncio.Event()
        self.number = 0

    async def run(self, what: str):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stop.set)
        self.scribe.write("ready")
        await asyncio.gather(*(getattr(self, what)(Client(self.random)) for _ in range(CONCURRENT)))
        self.scribe.write("done")

    async def pause(self, seconds: float = 0.05):
        await asyncio.sleep(seconds * (0.5 + self.random.random()))

    # -- producing ---------------------------------------------------------------------------------------------

    async def produce(self, client: Client):
        while not self.stop.is_set():
            kind = self.random.choice(KINDS)
            while True:
                self.number += 1
                try:
                    await self._add(client, kind, f"{self.settings.party}-{self.number}")
                    break
                except CallError as error:
                    self.scribe.write("rejected", detail=str(error))
                except OSError:
                    self.scribe.write("unsure", detail="no answer")
                await self.pause()
            await self.pause(CONCURRENT / max(self.settings.rate, 1))

    async def _add(self, client: Client, kind: str, first: str):
        name = self.settings.queue
        if kind == "generated":  # it is in the ledger when a worker starts it, if the answer is lost
            made = await client.call("PUSH", queue=name, name=kind, data={}, **RETRIED)
            self._attempted([made["id"]], kind)
            self._acknowledged([made["id"]])
            return
        if kind == "bulk":
            ids = [f"{first}-{each}" for each in range(BULK)]
            self._attempted(ids, kind)
            jobs = [{"name": kind, "data": {}, "customId": each, **RETRIED} for each in ids]
            await client.call("PUSHB", queue=name, jobs=jobs)
        elif kind == "flow":
            ids = [first, f"{first}-a", f"{first}-b"]
            self._attempted(ids, kind)
            parent = {"name": kind, "data": {}, "childrenIds": ids[1:], "dependsOn": ids[1:], **RETRIED}
            child = {"name": kind, "data": {}, "parentId": first, **RETRIED}
            inputs = zip(ids, (parent, child, child), strict=True)
            jobs = [{"id": each, "queue": name, "input": given} for each, given in inputs]
            await client.call("PUSHF", jobs=jobs)
        else:
            ids = [first]
            self._attempted(ids, kind)
            options: dict[str, dict[str, Any]] = {
                "priority": {"priority": self.random.randint(-5, 5)}, "delay": {"delay": self.random.randint(1, 300)},
                "failing": {"maxAttempts": 1}, "group": {"groupId": f"g{self.random.randint(1, 3)}"},
            }  # fmt: skip
            fields = {"name": kind, "data": {}, "jobId": first, **RETRIED, **options.get(kind, {})}
            await client.call("PUSH", queue=name, **fields)
        self._acknowledged(ids)

    def _attempted(self, ids: list[str], kind: str):
        for each in ids:
            self.scribe.write("attempted", each, kind)

    def _acknowledged(self, ids: list[str]):
        for each in ids:
            self.scribe.write("acknowledged", each)

    # -- working -----------------------------------------------------------------------------------------------

    async def work(self, client: Client):
        while not self.stop.is_set():
            try:
                answer = await client.call(
                    "PULL", queue=self.settings.queue, owner=self.settings.party, lockTtl=LOCK_MS, timeout=200
                )
            except (OSError, CallError):
                await self.pause()
                continue
            if answer["job"] is not None:
                await self._work_on(client, answer["job"], answer["token"])

    async def _work_on(self, client: Client, job: dict[str, Any], token: str):
        job_id, kind = job["id"], job["name"]
        if kind == "generated":
            self._attempted([job_id], kind)
        self.scribe.write("started", job_id, job["attempts"])
        await asyncio.sleep(self.random.random() * self.settings.work_ms / 1_000)
        self.scribe.write("ended", job_id)
        fails = kind == "failing" or (kind == "retried" and not job["attempts"])
        while True:
            try:
                if fails:
                    await client.call("FAIL", id=job_id, token=token, error="on purpose")
                elif self.random.random() < 0.5:
                    await client.call("ACK", id=job_id, token=token, result=job_id)
                else:
                    await client.call("ACKB", ids=[job_id], tokens=[token], results=[job_id])
                if not fails:
                    self.scribe.write("completed", job_id)
                return
            except CallError as error:
                if any(part in str(error) for part in GONE):
                    self.scribe.write("stale", job_id)
                    return
            except OSError:
                pass
            await self.pause()


if __name__ == "__main__":
    asyncio.run(Party().run(sys.argv[1]))
