"""Operate on many jobs: find them by tags, start delayed ones, repeat completed ones, and clean up."""

import asyncio

from glidemq_py import Job, JobStateError, Queue, Worker, list_queues


async def handle(job: Job) -> str:
    return f"sent to {job.data['user']}"


async def main() -> None:
    async with Queue("letters") as queue, Queue("invoices") as invoices:
        await invoices.add("invoice", {"user": "ada"})
        for user, tenant in (("ada", "acme"), ("bob", "acme"), ("cy", "globex")):
            await queue.add("welcome", {"user": user}, tags=[f"tenant:{tenant}"])
            await queue.add("survey", {"user": user}, tags=[f"tenant:{tenant}"], delay=86_400_000)
        print("queues:", await list_queues())
        acme = await queue.search_jobs(state="waiting", tags=["tenant:acme"])
        print("acme waits for:", [job.data["user"] for job in acme])

        # The survey goes out today. Other delayed jobs would stay delayed.
        print("promoted:", await queue.jobs.promote_delayed(name="survey"))

        # The user has left: cancel the job only if it has not started.
        print("cancelled:", await acme[1].revoke(states=("waiting", "delayed")))

        async with Worker("letters", handle, concurrency=5) as worker:
            await worker.drain()
        # The mail server has lost what it got: send everything again, oldest first.
        print("sent again:", await queue.jobs.requeue_completed())
        async with Worker("letters", handle, concurrency=5) as worker:
            await worker.drain()
        try:
            await queue.remove(acme[0].id, states="failed")
        except JobStateError as error:
            print("kept:", error.state)
        print("deleted:", len(await queue.clean(0, state="completed")), "completed,",
              len(await queue.clean(0, state="failed")), "failed")  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main())
