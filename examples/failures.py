"""Failures: why jobs failed, statistics, a requeue by hand, and automatic requeues by the queue's policy."""

import asyncio

from glidemq_py import FailureReason, Job, JobFailedError, Queue, UnrecoverableError, Worker

repaired = asyncio.Event()
sent: asyncio.Queue[str] = asyncio.Queue()


async def send(job: Job) -> None:
    if job.data["to"] == "":
        raise UnrecoverableError("no address")
    if not repaired.is_set():
        raise ConnectionError("mail server is down")
    await sent.put(f"sent to {job.data['to']}")


async def main() -> None:
    async with Queue("mails") as queue:
        async with Worker("mails", send):
            jobs = await queue.add_bulk(
                [("welcome", {"to": name}, {"attempts": 2}) for name in ("ada", "bob", "")],
            )
            for job in jobs:
                try:
                    await job.wait_until_finished()
                except JobFailedError as error:
                    print(f"job {error.job_id} failed: {error.failed_reason}")
        for attempt in await queue.failures.get_attempts(jobs[0].id):
            print(f"attempt {attempt.number}: {attempt.reason}, {attempt.error_type}, {attempt.worker != ''}")
        stats = await queue.failures.get_stats()
        print("by reason:", {str(reason): stats.by_reason[reason] for reason in sorted(stats.by_reason)})
        print("deleted:", await queue.failures.purge(reason=FailureReason.EXPLICIT_FAIL))

        repaired.set()
        await queue.failures.set_policy(retry_interval=1_000, max_auto_retries=2)
        async with Worker("mails", send, lock_duration=1_000, stalled_interval=1_000):
            print(await sent.get())
            print(await sent.get())
        print("attempts kept after the requeue:", len(await queue.failures.get_attempts(jobs[0].id)))


if __name__ == "__main__":
    asyncio.run(main())
