"""Suspend and signals: one expense is approved, another one times out."""

import asyncio

from glidemq_py import Job, Queue, Worker
from glidemq_py.errors import SignalTimeout, SuspendError


async def expense(job: Job) -> str:
    """Wait for two signals; the handler restarts after each one, and received signals return at once."""
    try:
        approval = await job.wait_for_signal("approval", timeout=job.data["patience"])
    except SignalTimeout as error:
        return str(error)
    payment = await job.wait_for_signal("payment", timeout=60_000)
    return f"{job.data['amount']} approved by {approval.data}, paid by {payment.data}"


async def main() -> None:
    suspended = asyncio.Event()
    worker = Worker("expenses", expense, concurrency=5)

    def announce(job: Job, suspension: SuspendError) -> None:
        print(f"{job.name} waits: {suspension.reason}")
        suspended.set()

    worker.on("suspended", announce)
    async with Queue("expenses") as queue, worker:
        hotel = await queue.add("hotel", {"amount": 120, "patience": 60_000})
        await suspended.wait()
        info = await queue.jobs.get_suspend_info(hotel.id)
        print("suspended with", info.reason if info else None)

        # The second signal arrives early and is kept.
        print("sent:", await queue.signal(hotel.id, "payment", "bank transfer"))
        print("sent:", await queue.signal(hotel.id, "approval", "eve"))
        print(await hotel.wait_until_finished())

        taxi = await queue.add("taxi", {"amount": 30, "patience": 100})
        print("taxi:", await taxi.wait_until_finished())
        print("too late:", await queue.signal(taxi.id, "approval", "eve"))


if __name__ == "__main__":
    asyncio.run(main())
