"""Send a newsletter as a batch: jobs join while it runs, and others run when all have ended, or all have completed."""

import asyncio

from glidemq_py import Job, Queue, Worker


async def main() -> None:
    async with Queue("letters") as queue:
        sent: list[str] = []
        ended: set[str] = set()
        done = asyncio.Event()

        async def handle(job: Job) -> None:
            if job.name == "list":
                ref = await job.get_batch_ref()
                assert ref is not None
                batch = await queue.job_batches.get(ref)
                await batch.add_bulk(("send", {"to": f"{job.data}{n}@example.org"}) for n in range(3))
            elif job.name == "send":
                sent.append(job.data["to"])
            else:
                print(job.name, len(sent))
                ended.add(job.name)
                if len(ended) == 2:
                    done.set()

        # "archive" runs when all jobs have ended, also if some failed; "report" only if all have completed.
        async with await queue.job_batches.create(on_complete=("archive",), on_success=("report",)) as batch:
            await batch.add_bulk([("list", "reader"), ("list", "editor")])
        async with Worker("letters", handle, concurrency=4):
            await done.wait()
        status = await batch.get_status()
        print(f"{status.completed} of {status.total} completed, {status.failed} failed")
        await queue.obliterate(force=True)


asyncio.run(main())
