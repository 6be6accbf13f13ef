"""Features of a partitioned queue: schedulers, limits, leases, dead letters, metrics, checks and remote control."""

import pytest

from glidemq_py import (
    GlideMQValidationError,
    Queue,
    QueueEvent,
    QueueEvents,
)
from tests.operating import Operator, get_newest_dead_letters
from tests.server.test_partitions import id_in
from tests.server.worker_support import with_timeout

# -- schedulers -----------------------------------------------------------------------------------------------


@pytest.fixture
def partitions() -> int:
    return 3


async def test_templates_of_schedulers_choose_no_partition(queue: Queue):
    with pytest.raises(GlideMQValidationError) as raised:
        await queue.schedulers.upsert("s", every=1_000, template={"options": {"fair_key": "a"}})
    assert raised.value.option == "template.fair_key"


# -- limits ---------------------------------------------------------------------------------------------------


# -- dead letters ---------------------------------------------------------------------------------------------


async def test_operators_see_the_newest_dead_letters_of_all_partitions(url: str, queue_name: str):
    dead = f"{queue_name}-dead"
    async with Queue(queue_name, url, partitions=3, dead_letter_queue=dead) as queue, Queue(dead, url) as dead_queue:
        await queue.add_bulk([("n", at, {"job_id": id_in(at, 3)}) for at in range(3)])
        for lease in await queue.fetch(3):
            await lease.fail("no")
        entries = await queue.dead_letters.get_all()
        assert {entry.data["originalQueue"] for entry in entries} == {queue_name}
        async with Operator(url) as operator:
            by_age = [job.id for job in reversed(await dead_queue.get_jobs("waiting"))]
            newest, is_cut = await get_newest_dead_letters(operator, queue_name, 1)
            assert ([each.id for each in newest], is_cut) == (by_age[:1], True)
            newest, is_cut = await get_newest_dead_letters(operator, queue_name, 100)
            assert ([each.id for each in newest], is_cut) == (by_age, False)
            assert {each.queue for each in newest} == {queue_name}


# -- events ---------------------------------------------------------------------------------------------------


async def _first(events: QueueEvents, count: int) -> list[QueueEvent]:
    found: list[QueueEvent] = []
    async for event in events:
        found.append(event)
        if len(found) == count:
            break
    return found


async def test_events_continue_after_those_that_were_returned(queue: Queue, url: str, queue_name: str):
    events = QueueEvents(queue_name, url)
    assert events.last_event_id is None
    await events.wait_until_ready()
    start = events.last_event_id
    assert start is not None
    jobs = await queue.add_bulk([("n", at, {"job_id": id_in(at % 3, 3) + str(at)}) for at in range(12)])
    found = await with_timeout(_first(events, 5))
    assert events.last_event_id not in (None, start)
    rest = await with_timeout(_first(QueueEvents(queue_name, url, last_event_id=events.last_event_id), 7))
    assert sorted(event.job_id for event in (*found, *rest)) == sorted(job.id for job in jobs)
    for after in (start, "0"):
        again = await with_timeout(_first(QueueEvents(queue_name, url, last_event_id=after), 12))
        assert {event.id for event in again} == {event.id for event in (*found, *rest)}
    with pytest.raises(GlideMQValidationError, match=r"'2\|\|.*use `QueueEvents.last_event_id` instead"):
        QueueEvents(queue_name, url, last_event_id=next(each.id for each in again if each.id.startswith("2||")))
