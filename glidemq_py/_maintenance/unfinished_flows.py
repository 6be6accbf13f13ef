"""A maintenance task: completes flows whose producer died while adding them.

A flow that needs several calls is recorded in the queue of its root before the first call
(``docs/reference/functions.md``, "flow_stage"). The steps are idempotent, so two workers may complete the same flow.
"""

from __future__ import annotations

from typing import Final

from glidemq_py._client.background import PeriodicTask
from glidemq_py._core.logs import get_logger
from glidemq_py._features.flows.adding import finish_flow
from glidemq_py._features.flows.calls import flows_due
from glidemq_py._job.link import QueueLink
from glidemq_py.errors import GlideMQError

__all__ = ["UnfinishedFlowsTask"]

_log = get_logger(__name__)

_LOOK_S: Final = 10.0
_AGE_MS: Final = 15_000
_AT_A_TIME: Final = 10


class UnfinishedFlowsTask(PeriodicTask):
    """Runs at the start and every ten seconds (±10%).

    Args:
        link: The queue.
        age: Time after which a flow counts as unfinished, in ms.
    """

    def __init__(self, *, link: QueueLink, age: int = _AGE_MS) -> None:
        super().__init__("flows", queue=link.keys.name, what="finishing flows", every=_LOOK_S)
        self._link = link
        self._age = age

    async def look(self) -> int:
        """Complete unfinished flows, and return their number.

        Raises:
            GlideMQError: If a flow could not be completed. The other flows are.
        """
        keys, transport = self._link.keys, self._link.transport
        failure: GlideMQError | None = None
        finished = 0
        for token in await transport.call(flows_due(keys.meta, self._age, _AT_A_TIME)):
            try:
                await finish_flow(transport, keys, token)
            except GlideMQError as error:
                failure = error
                continue
            finished += 1
            _log.warning("queue %r: completed a flow whose producer stopped while adding it", keys.name)
        if failure is not None:
            raise failure
        return finished
