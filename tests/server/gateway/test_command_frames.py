"""Each command by raw frames that are generated from the table: good, missing, ill-typed, extreme."""

import random
from typing import Any

import pytest

from glidemq_py.gateway.commands import COMMANDS, PROTOCOL
from tests.server.gateway.command_frames import EXTREMES, bad_frames, good_fields, named_in
from tests.server.gateway.wire import Wire, good, packed

COMMAND_NAMES = [name for group in PROTOCOL.values() for name in group]


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
        pulled = await good(wire, "PULL", queue=queue, owner="w")
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


async def test_good_frames_are_executed(wire: Wire, queue_name: str) -> None:
    failures: list[Any] = []
    for number, name in enumerate(COMMAND_NAMES):
        if name == "Auth":  # there are no tokens
            continue
        values = await prepared(wire, f"{queue_name}-{number}")
        answer = await wire.call(name, **good_fields(COMMANDS[name], values))
        while answer.get("type") == "event":
            answer = await wire.receive()
        if answer["ok"] is not True or answer["reqId"] != "1":
            failures.append((name, answer))
        await wire.call("UnsubscribeEvents")
        await tidied(wire, values)
    assert failures == []


async def tidied(wire: Wire, values: dict[str, Any]) -> None:
    await wire.call("RemoveWebhook", webhookId=values["webhook"])
    await good(wire, "Obliterate", queue=values["queue"])


async def test_bad_frames_name_the_field_and_change_nothing(wire: Wire, other: Wire, queue_name: str) -> None:
    values = await prepared(wire, queue_name)
    before = await state_of_queue(other, values)
    wrong: list[tuple[str, str, Any]] = []
    count = 0
    for name in COMMAND_NAMES:
        for description, fields, field in bad_frames(
            COMMANDS[name], good_fields(COMMANDS[name], values) if name != "Auth" else {}
        ):
            count += 1
            answer = await wire.call(name, **fields)
            if answer["ok"] is not False or not named_in(answer["error"], field):
                wrong.append((name, description, answer))
    assert wrong == []
    assert count > 1_500
    assert await state_of_queue(other, values) == before
    await tidied(wire, values)


async def state_of_queue(wire: Wire, values: dict[str, Any]) -> Any:
    jobs = await good(wire, "GetJobs", queue=values["queue"], limit=1_000)
    config = await good(wire, "GetDlqConfig", queue=values["queue"])
    limits = await good(wire, "GetQueueLimits", queue=values["queue"])
    crons = await good(wire, "CronList")
    return [(job["id"], job["state"], job["data"], job["priority"]) for job in jobs["jobs"]], config, limits, crons


async def test_extreme_values_are_answered(wire: Wire, queue_name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A field may accept them; no answer is an internal error."""
    values = await prepared(wire, queue_name)
    frames = [
        {"cmd": name, **good_fields(COMMANDS[name], values), field.name: value}
        for name in COMMAND_NAMES if name not in ("Auth", "SubscribeEvents")
        for field in COMMANDS[name].fields if field.name != "timeout"
        for value in EXTREMES
    ]  # fmt: skip
    random.Random(3).shuffle(frames)
    for start in range(0, len(frames), 40):
        some = frames[start : start + 40]
        for number, frame in enumerate(some):
            wire.send(packed({**frame, "reqId": number}))
        for _ in some:
            answer = await wire.receive()
            assert answer["ok"] in (True, False)
            assert answer.get("error") != "Internal error", some[answer["reqId"]]
    assert "Traceback" not in caplog.text
    for hook in (await good(wire, "ListWebhooks"))["data"]["webhooks"]:
        await good(wire, "RemoveWebhook", webhookId=hook["id"] if "id" in hook else hook["webhookId"])
