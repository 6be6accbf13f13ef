"""Leases: one process hands out jobs by token, another one reports them; neither has a worker."""

import asyncio

from glidemq_py import Lease, Queue
from glidemq_py.errors import LeaseLostError


async def hand_out(queue: Queue) -> dict[str, str] | None:
    """Answer GET /job: a job and its token, for a client in any language."""
    leases = await queue.fetch(1, lock_duration=60_000, wait=1_000)
    return {"token": leases[0].token, "file": leases[0].data["file"]} if leases else None


async def take_report(queue: Queue, token: str, result: dict[str, int] | None, error: str) -> str:
    """Answer POST /job/<token>: the client's result, or its error."""
    lease = Lease.from_token(queue, token)
    try:
        if result is None:
            await lease.fail(error)
        else:
            await lease.complete(result)
    except LeaseLostError:
        return "409 not applied"
    return "200 ok"


async def main() -> None:
    async with Queue("pictures") as queue:
        for name in ("a.png", "b.png"):
            await queue.add("resize", {"file": name}, attempts=2)
        first, second = await hand_out(queue), await hand_out(queue)
        assert first is not None
        assert second is not None
        print(first["file"], await take_report(queue, first["token"], {"width": 100}, ""))
        print(second["file"], await take_report(queue, second["token"], None, "no such file"))
        again = await hand_out(queue)
        assert again is not None
        print(again["file"], await take_report(queue, again["token"], {"width": 200}, ""))
        print(second["file"], await take_report(queue, second["token"], {"width": 1}, ""))
        print((await queue.get_job_counts()).completed, "completed")


if __name__ == "__main__":
    asyncio.run(main())
