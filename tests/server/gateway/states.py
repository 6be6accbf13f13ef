"""A queue with a job of each state, for generated frames."""

from typing import Any

from tests.server.gateway.wire import Wire, good


async def prepared(wire: Wire, queue: str) -> dict[str, Any]:
    """Return a queue with a job of each state, and what else frames name."""
    flow = [
        {
            "id": f"{queue}-parent",
            "queue": queue,
            "input": {"data": {}, "childrenIds": [f"{queue}-child"], "dependsOn": [f"{queue}-child"]},
        },
        {"id": f"{queue}-child", "queue": queue, "input": {"data": {}, "parentId": f"{queue}-parent", "delay": 60_000}},
    ]
    values: dict[str, Any] = {
        "queue": queue,
        "groupId": "g",
        "worker": f"{queue}-w",
        "new": f"{queue}-new",
        "cron": f"{queue}-c",
    }

    async def add(**options: Any) -> str:
        made: str = (await good(wire, "PUSH", queue=queue, data={"a": 1}, **options))["id"]
        return made

    async def start() -> tuple[str, str]:
        pulled = await good(wire, "PULL", queue=queue, owner="w", timeout=60_000)
        return pulled["job"]["id"], pulled["token"]

    await add(maxAttempts=1)
    values["completed"], token = await start()
    await good(wire, "ACK", id=values["completed"], token=token, result=1)
    await add(maxAttempts=1)
    values["failed"], token = await start()
    await good(wire, "FAIL", id=values["failed"], token=token, error="on purpose")
    await add()
    values["active"], values["token"] = await start()
    values["chosen"] = await add(jobId=f"{queue}-chosen")
    values["delayed"] = await add(delay=60_000)
    values["waiting"] = await add(uniqueKey="d", dedup={"ttl": 60_000})
    await add(groupId="g")
    await good(wire, "PUSHF", jobs=flow)
    values["parent"], values["child"] = f"{queue}-parent", f"{queue}-child"
    await good(wire, "Cron", name=values["cron"], queue=queue, repeatEvery=3_600_000)
    await good(wire, "RegisterWorker", name="w", queues=[queue], workerId=values["worker"])
    hook = await good(wire, "AddWebhook", url="https://hooks.invalid/a", events=["job.failed"], queue=queue)
    values["webhook"] = hook["data"]["webhookId"]
    return values
