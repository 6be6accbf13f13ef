"""Jobs that wait for jobs which exist already: in another queue, in the same bulk, failed ones, and removed ones."""

import asyncio
import contextlib

from glidemq_py import Job, JobFailedError, JobNotFoundError, Queue, Worker


async def make(job: Job) -> str:
    if job.name == "translate" and job.attempts_made == 0 and job.data != "again":
        raise ConnectionError("no translator")
    print("done:", job.name)
    return job.name


async def main() -> None:
    async with Queue("films") as films, Queue("mails") as mails, Worker("films", make, log_failures=False):
        video = await films.add("encode")
        mail = await mails.add("announce", depends_on=[video])
        async with Worker("mails", make):
            await mail.wait_until_finished()
            print("results of its dependencies:", list((await mail.get_children_values()).values()))

        jobs = await films.add_bulk(
            [
                ("publish", None, {"job_id": "publish", "depends_on": ["subtitles", "translate"]}),
                ("subtitles", None, {"job_id": "subtitles"}),
                ("translate", None, {"job_id": "translate"}),
            ]
        )
        with contextlib.suppress(JobFailedError):
            await jobs[2].wait_until_finished()
        for dependency in await jobs[0].get_dependencies("open"):
            print("publish waits for", dependency.id, "which is", dependency.state)
        await jobs[2].update_data("again")
        await jobs[2].retry()
        await jobs[0].wait_until_finished()

        try:
            await films.add("credits", depends_on=["404"])
        except JobNotFoundError as error:
            print("rejected:", error.job_id)


asyncio.run(main())
