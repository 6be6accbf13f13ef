"""Broadcasts with other worker features: dead letters, batches, sandboxes, token limits."""

from glidemq_py import (
    Broadcast,
    BroadcastWorker,
)
from tests.contract.test_broadcast import Seen, working
from tests.contract.test_broadcast_extras import fail
from tests.operating import Operator, ReplayDeadLetters, iter_dead_letters, perform


async def test_operator_replays_entries_only_to_their_subscription(core_url: str, queue_name: str):
    seen = Seen()
    async with Broadcast(queue_name, core_url, max_messages=1, dead_letter_queue=f"{queue_name}-dead") as broadcast:
        failing = BroadcastWorker(queue_name, fail, core_url, subscription="s")
        other = BroadcastWorker(queue_name, seen, core_url, subscription="other")
        async with working(failing) as log, working(other) as other_log, Operator(core_url) as operator:
            for number in (1, 2):
                await broadcast.publish("x", number)  # deletes the message before
                await log.wait("failed", number)
                await other_log.wait("completed", number)
            first, second = [each.id async for each in iter_dead_letters(operator, queue_name)]
            result = await perform(operator, ReplayDeadLetters(queue=queue_name))
            assert (result.ids, [each.id for each in result.problems]) == ((second,), [first])
            await log.wait("failed", 3)
            assert len(seen.ids) == 2
            assert len(await broadcast.get_dead_letter_jobs()) == 2
