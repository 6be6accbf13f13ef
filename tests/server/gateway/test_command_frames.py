"""Each command by raw frames that are generated from the table: good, missing, ill-typed, extreme."""

import random
from typing import Any

import pytest

from glidemq_py import Queue
from glidemq_py.gateway.commands import COMMANDS, PROTOCOL
from tests.server.gateway.command_frames import EXTREMES, bad_frames, good_fields, named_in
from tests.server.gateway.states import prepared
from tests.server.gateway.wire import Wire, good, packed

COMMAND_NAMES = [name for group in PROTOCOL.values() for name in group]


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [None, 3])
async def test_good_frames_are_executed(wire: Wire, url: str, queue_name: str, partitions: int | None):
    failures: list[Any] = []
    for number, name in enumerate(COMMAND_NAMES):
        if name == "Auth":  # there are no tokens
            continue
        async with Queue(f"{queue_name}-{number}", url, partitions=partitions) as queue:
            values = await prepared(wire, queue.name)
        answer = await wire.call(name, **good_fields(COMMANDS[name], values))
        while answer.get("type") == "event":
            answer = await wire.receive()
        if answer["ok"] is not True or answer["reqId"] != "1":
            failures.append((name, answer))
        await wire.call("UnsubscribeEvents")
        await tidied(wire, values)
    assert failures == []


async def tidied(wire: Wire, values: dict[str, Any]):
    await wire.call("RemoveWebhook", webhookId=values["webhook"])
    await good(wire, "Obliterate", queue=values["queue"])


async def test_bad_frames_name_the_field_and_change_nothing(wire: Wire, other: Wire, queue_name: str):
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


@pytest.mark.slow
async def test_extreme_values_are_answered(wire: Wire, queue_name: str, caplog: pytest.LogCaptureFixture):
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
