"""A duty that any worker does: finishing flows whose producer died while it added them.

A flow that takes several calls is written down in the queue of its root before the first of them
(``docs/reference/functions.md``, "flow_stage"). Doing a step twice changes nothing, so two who finish one do no harm.
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
    """Looks at the start and every ten seconds, give or take a tenth."""

    def __init__(self, *, link: QueueLink, age: int = _AGE_MS) -> None:
        super().__init__("flows", queue=link.keys.name, what="finishing flows", every=_LOOK_S)
        self._link = link
        self._age = age

    async def look(self) -> int:
        """Finish what was left; how many flows. Raises GlideMQError: one was not finished; the others were."""
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
            _log.warning("queue %r: completed the addition of a flow whose producer stopped half-way", keys.name)
        if failure is not None:
            raise failure
        return finished
