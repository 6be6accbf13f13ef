"""Flow across three queues: pictures are resized in parallel, then their parent, an album, is drawn."""

import asyncio

from glidemq_py import FlowJob, FlowProducer, Job, Worker


async def shrink(job: Job[dict[str, int], int]) -> int:
    if job.data["bytes"] == 0:
        raise ValueError("an empty picture")
    await asyncio.sleep(0.005)
    return job.data["bytes"] // 10


async def album(job: Job) -> dict[str, int]:
    sizes = await job.get_children_values()
    broken = await job.get_children_failures()
    return {"pictures": len(sizes), "bytes": sum(sizes.values()), "left out": len(broken)}


async def tell(job: Job) -> str:
    (result,) = (await job.get_children_values()).values()
    return f"{job.data['to']}: {result['pictures']} pictures, {result['bytes']} bytes, {result['left out']} left out"


async def main() -> None:
    pictures = [
        FlowJob("shrink", "pictures", {"bytes": 1_000 * n}, {"on_failure": "ignore", "remove_on_complete": True})
        for n in range(4)
    ]
    flow = FlowJob("tell", "mails", {"to": "anna"}, children=[FlowJob("album", "albums", None, None, pictures)])
    async with FlowProducer() as flows:
        node = await flows.add(flow)
        async with Worker("pictures", shrink, concurrency=4), Worker("albums", album), Worker("mails", tell):
            print(await node.job.wait_until_finished())
        found = await flows.get_flow("mails", node.job.id)
        assert found is not None
        print(found.counts())


if __name__ == "__main__":
    asyncio.run(main())
