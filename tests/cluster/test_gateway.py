"""Jobs through a gateway on each supported server."""

from glidemq_py import Queue
from glidemq_py.gateway import Gateway
from tests.server.gateway.wire import Wire


async def test_push_pull_ack(core_url: str, queue_name: str):
    names = [f"{queue_name}:{number}" for number in range(5)]
    async with Gateway(core_url, port=0) as gateway, Wire(gateway) as wire:
        ids = [(await wire.call("PUSH", queue=name, data=name))["id"] for name in names]
        first = await wire.call("PUSH", queue=names[0], dependsOn=[ids[1]])
        assert first["ok"] is True, first
        for name, job_id in zip(names, ids, strict=True):
            pulled = await wire.call("PULL", queue=name, owner="w")
            assert (pulled["job"]["id"], pulled["job"]["data"]) == (job_id, name)
            acknowledged = await wire.call("ACK", id=job_id, token=pulled["token"], result=name)
            assert acknowledged["ok"] is True, acknowledged
            assert (await wire.call("GetResult", id=job_id))["result"] == name


async def test_partitioned_queue(core_url: str, queue_name: str):
    async with (
        Queue(queue_name, core_url, partitions=6) as queue, Gateway(core_url, port=0) as gateway, Wire(gateway) as wire
    ):  # fmt: skip
        ids = {(await wire.call("PUSH", queue=queue_name, data=number))["id"] for number in range(6)}
        jobs = [{"data": number, "jobId": f"{queue_name}-{number}"} for number in range(300)]
        bulk = await wire.call("PUSHB", queue=queue_name, jobs=jobs)
        assert bulk["ok"] is True, bulk
        ids |= set(bulk["ids"])
        last = await wire.call("PUSH", queue=queue_name, dependsOn=sorted(ids)[:20])
        assert last["ok"] is True, last
        done: set[str] = set()
        while len(done) < 307:
            pulled = await wire.call("PULLB", queue=queue_name, owner="w", count=100, timeout=30_000)
            found = [job["id"] for job in pulled["jobs"]]
            acknowledged = await wire.call("ACKB", ids=found, tokens=pulled["tokens"])
            assert acknowledged["ok"] is True, acknowledged
            done.update(found)
        assert done == ids | {last["id"]}
        assert (await queue.get_job_counts()).completed == 307
