"""Back up a queue, lose it, restore it, and run its jobs; then back it up at an interval."""

import asyncio
import tempfile

from glidemq_py import BackupSchedule, Job, Queue, Worker


async def main() -> None:
    done: list[int] = []
    all_done = asyncio.Event()

    async def ship(job: Job) -> None:
        done.append(job.data["order"])
        if len(done) == 10:
            all_done.set()

    with tempfile.TemporaryDirectory() as folder:
        async with Queue("orders") as queue:
            await queue.add_bulk([("ship", {"order": n}, {"delay": 3_600_000}) for n in range(500)])
            await queue.add_bulk([("ship", {"order": 500 + n}) for n in range(10)])
            info = await queue.backups.create(folder)
            print("backup:", info.jobs, "jobs")
            await queue.obliterate(force=True)
            print("lost:", (await queue.get_job_counts()).delayed, "delayed")
            report = await queue.backups.restore(folder)
            print("restored:", report.jobs, "jobs")
            async with Worker("orders", ship):
                await all_done.wait()
            counts = await queue.get_job_counts()
            print(counts.completed, "completed,", counts.delayed, "delayed, in order:", done == sorted(done))

        with tempfile.TemporaryDirectory() as other:
            # In a service: `async with BackupSchedule(...)`. In a cron job, `run_due` creates the backups that are due.
            async with Queue("orders") as orders, Queue("invoices") as invoices:
                schedule = BackupSchedule([orders, invoices], other, every=6 * 3_600_000, keep=7)
                print("created:", [(info.queue, info.jobs) for info in await schedule.run_due()])
                print("due again:", len(await schedule.run_due()))
                print("intact:", (await orders.backups.verify(other)).jobs, "jobs")


if __name__ == "__main__":
    asyncio.run(main())
