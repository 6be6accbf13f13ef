"""Serverless function: a pool keeps its producer open between invocations."""

import asyncio

from glidemq_py import serverless_pool


async def on_event(event: dict[str, str]) -> str:
    # The same arguments return the same producer; only the first invocation connects.
    producer = serverless_pool.get_producer("uploads", default_job_options={"attempts": 5})
    # A platform may deliver an event twice: the job id deduplicates it.
    job_id = await producer.add("resize", {"file": event["file"]}, deduplication={"id": event["id"]})
    return f"added {job_id}" if job_id else "there already"


async def main() -> None:
    events = [{"id": "e1", "file": "a.png"}, {"id": "e2", "file": "b.png"}, {"id": "e1", "file": "a.png"}]
    for number, event in enumerate(events, 1):
        print(f"event {number}: {await on_event(event)}")
    print(f"{len(serverless_pool)} producer open")
    await serverless_pool.close_all()


if __name__ == "__main__":
    asyncio.run(main())
