"""Jobs through a gateway on each supported server."""

from glidemq_py.gateway import Gateway
from tests.server.gateway.wire import Wire


async def test_push_pull_ack(core_url: str, queue_name: str) -> None:
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
