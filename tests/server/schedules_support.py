"""A queue whose clock the test sets, with the real duty and the real queue methods on top of it."""

from typing import Any, cast

from glidemq_py import Queue
from glidemq_py.testing import RespClient
from tests.inside import Call, QueueKeys, QueueLink, Transport, firing, set_link
from tests.lua.own_support import OwnQueue


class _Direct:
    """A transport that runs each call at once, by the library with the clock of tests."""

    def __init__(self, own: OwnQueue):
        self.own = own

    async def call(self, call: Call[Any]):
        return self.own.run(call)


class Clockwork:
    """One queue: `queue` for its methods, `duty` for the maintenance task of a worker, `own` for its clock and keys."""

    def __init__(self, resp: RespClient, name: str, **options: Any):
        self.own = OwnQueue(resp, name)
        self.queue = self.another_queue(**options)
        self.duty = self.another_duty()

    def another_queue(self, **options: Any) -> Queue:
        queue: Queue = Queue(self.own.base.partition("{")[2].rstrip("}"), **options)
        set_link(queue, self.link(**{key: queue.options.compression for key in options if key == "compression"}))
        return queue

    def link(self, **options: Any) -> QueueLink:
        name = self.own.base.partition("{")[2].rstrip("}")
        transport = cast("Transport", _Direct(self.own))
        keys = QueueKeys("glide", name)
        return QueueLink(transport=transport, keys=keys, waiter=cast("Any", None), is_listed=True, **options)

    def another_duty(self, **options: Any) -> firing.SchedulerTask:
        return firing.SchedulerTask(link=self.link(**options))

    async def fire(self, duty: firing.SchedulerTask | None = None) -> int:
        """Everything that is due now; ms until the next."""
        while not (wait := await (duty or self.duty).fire()):
            pass
        return wait

    @property
    def now(self) -> int:
        return self.own.now

    async def until(self, at: int):
        """Advance the clock and fire each scheduler that becomes due."""
        while True:
            wait = await self.fire()
            if self.now + wait > at:
                break
            self.own.advance(wait)
        self.own.set_time(at)
        await self.fire()

    def jobs(self) -> list[dict[str, str]]:
        """All jobs, in the order of their ids."""
        ids = {key.rpartition(":")[2] for key in self.own.key_names() if key.startswith("job:")}
        return [self.own.job(each) for each in sorted(ids, key=lambda text: (len(text), text))]

    def instants(self) -> list[int]:
        return [int(job["scheduledFor"]) for job in self.jobs()]
