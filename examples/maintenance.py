"""A queue without workers: devices lease jobs, and `Maintenance` recovers those of devices that have gone."""

import asyncio

from glidemq_py import Maintenance, Queue, QueueEvents


async def main() -> None:
    async with Queue("scans") as queue:
        # A job that three devices have lost fails; the leases are checked once a second.
        await queue.settings.set_stalled_policy(max_stalled_count=2, stalled_interval=1_000)
        async with Maintenance([queue]) as maintenance, QueueEvents("scans") as events:
            lost = asyncio.Queue[str]()
            events.on("stalled", lambda event: lost.put_nowait(event.job_id))
            await events.wait_until_ready()
            await queue.add_bulk([("scan", {"page": page}, {"attempts": 2}) for page in range(6)])

            # Device A reports several jobs in one call, and gets the next ones.
            leases = await queue.fetch(3, owner="device-a")
            report = await queue.leases.complete([(leases[0], "ok")], fetch_next=1)
            print("completed:", [outcome.applied for outcome in report.outcomes])
            failed = await queue.leases.fail([(lease, "paper jam") for lease in leases[1:]])
            print("failed, to be retried:", [outcome.applied for outcome in failed.outcomes])

            # Device A disconnects: what it holds is ready again at once.
            print("released:", await queue.leases.release_owner("device-a"))

            # Device B gets a job and loses its power. Maintenance recovers the job when the lease expires.
            (lease,) = await queue.fetch(1, owner="device-b", lock_duration=1_000)
            maintenance.wake()
            print("stalled:", await lost.get() == lease.id)

        counts = await queue.get_job_counts()
        print(f"{counts.completed} completed, {counts.waiting} waiting")


if __name__ == "__main__":
    asyncio.run(main())
