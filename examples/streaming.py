"""Streaming: a job writes a text word by word; a reader prints it as it arrives."""

import asyncio

from glidemq_py import Job, Queue, Worker

TEXT = "Jobs tell what they make while they make it."


async def write(job: Job) -> int:
    words = TEXT.split()
    for word in words:
        await job.stream({"type": "token", "content": word})
    await job.stream({"type": "summary", "tokens": len(words), "cost": 0.0002})
    return len(words)


async def main() -> None:
    async with Queue("texts") as queue, Worker("texts", write):
        job = await queue.add("write")
        shown: list[str] = []
        kinds: list[str | None] = []
        async for chunk in queue.jobs.iter_stream(job.id):  # ends when the job does
            kinds.append(chunk.type)
            if chunk.type == "token":
                shown.append(chunk.content or "")
        print(" ".join(shown))
        print(f"{len(kinds)} chunks: {kinds.count('token')} tokens and a {kinds[-1]}")

        # Chunks are kept as long as the job: a late reader reads them all or resumes.
        first, *rest = await queue.read_stream(job.id)
        assert await queue.read_stream(job.id, last_id=first.id) == rest
        print(f"completed with {await job.wait_until_finished()} tokens")


if __name__ == "__main__":
    asyncio.run(main())
