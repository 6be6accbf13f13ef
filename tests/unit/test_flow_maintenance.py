"""Maintenance of flows over several queues: a queue that fails does not delay the others."""

from types import SimpleNamespace
from typing import Any, cast

from glidemq_py import GlideMQConnectionError
from glidemq_py._core.calls import Call
from glidemq_py._core.keys import QueueKeys
from glidemq_py._job.link import QueueLink
from glidemq_py._maintenance.flows import RemoteFlows, WaitingParentsTask


class FakeTransport:
    """Replies with prepared values by function name and key; an exception is raised."""

    def __init__(self, **replies: Any) -> None:
        self.replies = replies
        self.calls: list[tuple[str, str]] = []

    async def call(self, call: Call[Any]) -> Any:
        self.calls.append((call.function, call.key))
        reply = self.replies[call.function]
        if callable(reply):
            reply = reply(call.key)
        if isinstance(reply, Exception):
            raise reply
        return reply


def link(transport: FakeTransport) -> QueueLink:
    fake = cast("Any", None)
    return QueueLink(transport=cast("Any", transport), keys=QueueKeys("glide", "q"), waiter=fake, serializer=fake)


async def test_invalid_prefix_in_the_index_of_remote_children_is_removed():
    transport = FakeTransport(
        remote_children=["no queue at all:", "glide:{a{b}:", "glide:{other}:"],
        notify_remote_parents=SimpleNamespace(notified=0, cursor="", left=1),
    )
    task = RemoteFlows(link=link(transport), outbox_pending=lambda: None)
    await task.run_once()
    assert [key for _, key in transport.calls] == ["glide:{q}:meta", "glide:{q}:meta", "glide:{other}:meta"]
    assert task._empty == ["no queue at all:", "glide:{a{b}:"]


async def test_children_in_a_queue_that_fails_do_not_delay_those_of_other_queues():
    def outcomes(key: str) -> Any:
        if key == "glide:{down}:meta":
            return GlideMQConnectionError("the shard is down")
        return SimpleNamespace(outbox_pending=False, rows=[("completed", "1", "")])

    watched = SimpleNamespace(rows=[("7", ["glide:{down}:1", "glide:{up}:2"])], more=0, peers=0)
    transport = FakeTransport(
        sweep_parents=False, watch_children=watched, child_outcomes=outcomes,
        children_ended=0,
    )  # fmt: skip
    await WaitingParentsTask(link=link(transport), outbox_pending=lambda: None).run_once()
    assert transport.calls[-1][0] == "children_ended"
