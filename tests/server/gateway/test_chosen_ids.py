"""Ids that clients choose for their jobs, with raw frames."""

import asyncio
from typing import Any

import pytest

from glidemq_py import Queue
from glidemq_py.gateway import Gateway, chosen_ids
from glidemq_py.gateway.chosen_ids import chosen_of, engine_id
from glidemq_py.gateway.table import CommandError
from tests.server.gateway.wire import Wire, failure, good, state_of


async def push(wire: Wire, queue: str, job_id: str, **fields: Any) -> str:
    found: str = (await good(wire, "PUSH", queue=queue, **{"data": 1, "jobId": job_id, **fields}))["id"]
    return found


@pytest.mark.parametrize("chosen", ["order-1", "17", "007", "a:b", "100%", "%#5", "{x}", "a||b", "é \t x", "%3A"])
async def test_any_id_can_be_chosen(wire: Wire, other: Wire, queue: Queue, chosen: str) -> None:
    job_id = f"{chosen}{queue.name}" if not chosen.isdecimal() else chosen
    assert await push(wire, queue.name, job_id) == job_id
    assert (await good(other, "GetJobByCustomId", customId=job_id))["job"]["customId"] == job_id
    pulled = await good(other, "PULL", queue=queue.name, owner="w")
    assert pulled["job"]["id"] == job_id
    await good(wire, "ACK", id=job_id, token=pulled["token"], result="done")
    assert (await good(other, "GetResult", id=job_id))["result"] == "done"
    assert [job.id for job in await queue.get_jobs("completed")] == [engine_id(job_id)]
    await good(wire, "Obliterate", queue=queue.name)


@pytest.mark.parametrize("own", ["a%41b", "%3a", "%", "%zz", "%#a", "%#", "%C3%A9", "17", "", "%" * 300])
def test_id_that_no_gateway_stores(own: str) -> None:
    assert chosen_of(own) is None


def test_stored_ids_are_reversible() -> None:
    assert engine_id("order-1") == "order-1"
    for chosen in ("17", "%#17", "%", "%25", "a:b", "%3A", "|", "||", "{}", "\x7f"):
        own = engine_id(chosen)
        assert not own.isdecimal()
        assert not set(own) & set("{}:|")
        assert chosen_of(own) == chosen
    with pytest.raises(CommandError, match="jobId must have 1 to 256 characters"):
        engine_id(":" * 86)


async def test_id_of_an_unfinished_job_adds_nothing_to_any_queue(wire: Wire, other: Wire, queue: Queue) -> None:
    job_id, second = f"{queue.name}-id", f"{queue.name}-2"
    await push(wire, queue.name, job_id, data="first")
    assert await push(other, queue.name, job_id, data="second") == job_id
    assert await push(other, second, job_id, data="third") == job_id
    assert (await good(wire, "GetJob", id=job_id))["job"]["data"] == "first"
    assert (await good(wire, "Count", queue=second))["count"] == 0
    assert (await good(wire, "Count", queue=queue.name))["count"] == 1


async def test_id_of_a_finished_job_names_a_new_job(wire: Wire, other: Wire, queue: Queue) -> None:
    job_id, second = f"{queue.name}-id", f"{queue.name}-2"
    await push(wire, queue.name, job_id)
    token = (await good(wire, "PULL", queue=queue.name, owner="w"))["token"]
    await good(wire, "ACK", id=job_id, token=token)
    assert await push(other, second, job_id, data="new") == job_id
    job = (await good(wire, "GetJob", id=job_id))["job"]
    assert (job["queue"], job["data"], job["state"]) == (second, "new", "waiting")
    assert await queue.get_jobs("completed") == []


async def test_two_gateways_add_one_job(wire: Wire, other: Wire, queue: Queue) -> None:
    for number in range(10):
        job_id = f"{queue.name}-{number}"
        await asyncio.gather(push(wire, queue.name, job_id), push(other, queue.name, job_id))
    assert (await queue.get_job_counts()).waiting == 10


async def test_claim_without_a_job_leaves_the_id_usable(
    gateways: tuple[Gateway, Gateway], wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = f"{queue.name}-id"
    await gateways[1].ids.claim(queue.name, [job_id])  # and the gateway died
    assert await state_of(wire, job_id) == "unknown"
    monkeypatch.setattr(chosen_ids, "_PATIENCE_S", 0)
    error = await failure(wire, "PUSH", queue=f"{queue.name}-2", data=1, jobId=job_id)
    assert error == f"a job with the id {job_id} is being added to another queue"
    monkeypatch.setattr(chosen_ids, "_BEING_ADDED_S", 0)
    assert await push(wire, f"{queue.name}-2", job_id) == job_id
    assert (await good(wire, "GetJob", id=job_id))["job"]["queue"] == f"{queue.name}-2"


async def test_job_of_another_program_keeps_its_id(wire: Wire, queue: Queue) -> None:
    job = await queue.add("x", 1, job_id="python")
    assert await state_of(wire, "python") == "unknown"
    assert await state_of(wire, f"{queue.name}:python") == "waiting"
    pulled = await good(wire, "PULL", queue=queue.name, owner="w")
    assert (pulled["job"]["id"], pulled["job"]["customId"]) == (f"{queue.name}:{job.id}", None)
    error = await failure(wire, "PUSH", queue=queue.name, data=1, jobId=f"{queue.name}:python")
    assert "another program" in error


async def finish_job(queue: Queue, job_id: str) -> None:
    """Add a job as another program does, and complete it."""
    await queue.add("x", "old", job_id=job_id)
    (lease,) = await queue.fetch()
    await lease.complete("done")


@pytest.mark.parametrize("cmd", ["PUSH", "PUSHB", "PUSHB of many", "PUSHF", "durable"])
async def test_id_of_a_finished_job_of_another_program_names_a_new_job(
    wire: Wire, other: Wire, queue: Queue, cmd: str
) -> None:
    x = f"{queue.name}-x"
    await finish_job(queue, x)
    if cmd == "PUSH":
        await push(wire, queue.name, x, data="new")
    elif cmd == "durable":  # needs several calls, as a durable job does
        first = await push(wire, queue.name, f"{queue.name}-1", data="first", priority=2)
        await push(wire, queue.name, x, data="new", dependsOn=[first])
        token = (await good(other, "PULL", queue=queue.name, owner="w"))["token"]
        await good(wire, "ACK", id=first, token=token)
    elif cmd == "PUSHF":
        await good(wire, "PUSHF", jobs=[{"id": x, "queue": queue.name, "input": {"data": {"a": "new"}}}])
    else:
        jobs = [{"data": "new", "customId": x, "priority": 1}]
        jobs += [{"data": number} for number in range(1 if cmd == "PUSHB" else 300)]
        assert (await good(wire, "PUSHB", queue=queue.name, jobs=jobs))["ids"][0] == x
    assert await state_of(other, x) in ("waiting", "prioritized")
    pulled = (await good(other, "PULL", queue=queue.name, owner="w"))["job"]
    assert (pulled["id"], pulled["data"]) == (x, {"a": "new"} if cmd == "PUSHF" else "new")


async def test_id_of_an_unfinished_job_of_another_program_adds_nothing(wire: Wire, other: Wire, queue: Queue) -> None:
    x = f"{queue.name}-x"
    await queue.add("x", "old", job_id=x)
    assert await push(wire, queue.name, x, data="new") == x
    jobs = [{"data": "new", "customId": x}, {"data": "second"}]
    assert (await good(other, "PUSHB", queue=queue.name, jobs=jobs))["ids"][0] == x
    assert (await good(other, "GetJob", id=x))["job"]["data"] == "old"
    assert (await queue.get_job_counts()).waiting == 2


async def test_finished_job_of_another_program_in_a_partition(
    wire: Wire, other: Wire, url: str, queue_name: str
) -> None:
    async with Queue(queue_name, url, partitions=3) as queue:
        x, y, z = (f"{queue_name}-{letter}" for letter in "xyz")
        nodes = [{"id": f"{queue_name}-f{n}", "queue": queue_name, "input": {"data": {"n": n}}} for n in range(5)]
        for name in (x, y, z, *(node["id"] for node in nodes)):
            await finish_job(queue, str(name))
        await push(wire, queue_name, x, data="new")
        jobs = [{"data": "new", "customId": y}, {"data": "new", "customId": z}]
        await good(other, "PUSHB", queue=queue_name, jobs=jobs)
        assert [await state_of(wire, name) for name in (x, y, z)] == ["waiting"] * 3
        await good(other, "PUSHF", jobs=nodes)
        assert [await state_of(wire, str(node["id"])) for node in nodes] == ["waiting"] * 5
        await queue.add("n", 1, job_id=f"{queue_name}-own")
        node = {"id": f"{queue_name}-own", "queue": queue_name, "input": {"data": {}}}
        assert await failure(wire, "PUSHF", jobs=[node]) == f"flow job already exists: {queue_name}-own"
        await good(wire, "Obliterate", queue=queue_name)


async def added_and_gone(wire: Wire, queue: str, job_id: str, how: str) -> None:
    """Add a job with an id that a client chooses, and remove it in some way."""
    if how == "PUSHF":
        await good(wire, "PUSHF", jobs=[{"id": job_id, "queue": queue, "input": {"data": {}}}])
    elif how == "PUSHB":
        await good(wire, "PUSHB", queue=queue, jobs=[{"data": 1, "customId": job_id}, {"data": 2}])
    elif how == "PUSHB of many":
        jobs = [{"data": 1, "customId": job_id}, *({"data": 2} for _ in range(300))]
        await good(wire, "PUSHB", queue=queue, jobs=jobs)
    else:
        await push(wire, queue, job_id, removeOnComplete=True)
    if how == "completed":
        token = (await good(wire, "PULL", queue=queue, owner="w"))["token"]
        await good(wire, "ACK", id=job_id, token=token)
    elif how == "Obliterate":
        await good(wire, "Obliterate", queue=queue)
    else:
        await good(wire, "Cancel", id=job_id)


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("how", ["Cancel", "completed", "Obliterate", "PUSHB", "PUSHB of many", "PUSHF"])
async def test_id_of_a_job_that_was_deleted_is_free_at_once(
    gateways: tuple[Gateway, Gateway], wire: Wire, other: Wire, url: str, queue_name: str, how: str, partitions: int
) -> None:
    async with Queue(queue_name, url, partitions=partitions):
        job_id, second = f"{queue_name}-id", f"{queue_name}-2"
        await added_and_gone(wire, queue_name, job_id, how)
        assert await push(other, second, job_id, data="new") == job_id
        job = (await good(wire, "GetJob", id=job_id))["job"]
        assert (job["queue"], job["data"]) == (second, "new")
        assert await push(wire, queue_name, job_id, data="third") == job_id
        assert (await good(other, "GetJob", id=job_id))["job"]["data"] == "new"
        for name in (queue_name, second):
            await good(wire, "Obliterate", queue=name)


async def test_claim_is_awaited_for_a_moment(gateways: tuple[Gateway, Gateway], wire: Wire, queue: Queue) -> None:
    """Another gateway has claimed the id, and adds its job now."""
    job_id = f"{queue.name}-id"
    claimed: dict[str, str] = {}
    await gateways[1].ids.claim(queue.name, [job_id], claimed)
    pushing = asyncio.create_task(push(wire, f"{queue.name}-2", job_id))
    await queue.add("x", "first", job_id=engine_id(job_id))
    assert await pushing == job_id
    assert (await good(wire, "GetJob", id=job_id))["job"]["data"] == "first"
    assert (await good(wire, "Count", queue=f"{queue.name}-2"))["count"] == 0


async def test_ids_that_would_look_the_same(wire: Wire, other: Wire, queue: Queue) -> None:
    """A job of another program whose id is none that a gateway stores keeps the form with its queue."""
    client = f"{queue.name}-aAb"
    python = client.replace("A", "%41")
    await queue.add("x", "python", job_id=python)
    await push(wire, queue.name, client, data="client")
    pulled = [(await good(other, "PULL", queue=queue.name, owner="w")) for _ in range(2)]
    found = {each["job"]["id"]: each["job"]["data"] for each in pulled}
    assert found == {client: "client", f"{queue.name}:{python}": "python"}
    for each in pulled:
        await good(wire, "ACK", id=each["job"]["id"], token=each["token"], result=each["job"]["data"])
    assert [(await good(wire, "GetResult", id=job_id))["result"] for job_id in found] == list(found.values())


async def test_bulk(wire: Wire, other: Wire, queue: Queue) -> None:
    names = [f"{queue.name}-{letter}" for letter in "abc"]
    await push(wire, queue.name, names[0], data="old")
    jobs = [
        {"data": 1, "customId": names[0]}, {"data": 2, "customId": names[1], "dependsOn": [names[2]]},
        {"data": 3, "customId": names[2]}, {"data": 4, "customId": names[2]}, {"data": 5},
    ]  # fmt: skip
    ids = (await good(other, "PUSHB", queue=queue.name, jobs=jobs))["ids"]
    assert ids[:4] == [names[0], names[1], names[2], names[2]]
    assert [await state_of(wire, job_id) for job_id in ids] == ["waiting", "waiting-children"] + ["waiting"] * 3
    assert (await good(wire, "GetJob", id=names[2]))["job"]["data"] == 3
    assert (await good(wire, "GetJob", id=names[0]))["job"]["data"] == "old"


async def test_refused_bulk_keeps_the_finished_job_of_its_id(wire: Wire, queue: Queue) -> None:
    job_id = f"{queue.name}-a"
    await push(wire, queue.name, job_id)
    token = (await good(wire, "PULL", queue=queue.name, owner="w"))["token"]
    await good(wire, "ACK", id=job_id, token=token)
    for jobs, error in (
        ([{"customId": job_id}, {"priority": "x"}], "jobs[1]: priority must be a number"),
        ([{"customId": job_id, "dependsOn": [job_id]}], f"jobs[0]: Job cannot depend on itself: {job_id}"),
        ([{"customId": job_id, "dependsOn": ["gone"]}], "jobs[0]: Dependency job not found: gone"),
        ([{"customId": job_id, "jobId": "b"}], "jobs[0]: jobId and customId must be equal"),
        ([{"customId": ""}], "jobs[0]: customId must be a non-empty string"),
    ):
        assert await failure(wire, "PUSHB", queue=queue.name, jobs=jobs) == error
    assert await state_of(wire, job_id) == "completed"


async def test_unused_entries_are_swept(
    gateways: tuple[Gateway, Gateway], wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, gone = f"{queue.name}-kept", f"{queue.name}-gone"
    await push(wire, queue.name, kept)
    ids = gateways[0].ids
    await ids.claim(queue.name, [gone])
    for _ in range(chosen_ids.SHARDS):
        await ids.chosen.sweep()
    assert await ids.chosen.queue_of(gone) == queue.name  # its job may still be added
    monkeypatch.setattr(chosen_ids, "UNUSED_S", -1)
    assert sum([await ids.chosen.sweep() for _ in range(chosen_ids.SHARDS)]) >= 1
    assert await ids.chosen.queue_of(gone) is None
    assert await state_of(wire, kept) == "waiting"
