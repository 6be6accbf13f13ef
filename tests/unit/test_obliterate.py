"""Obliteration of a queue, with replies that a correct server never sends."""

from typing import Any, cast

import pytest

from glidemq_py._api.administration import obliterate_queue
from glidemq_py._core.calls import Call
from glidemq_py._core.calls.administration import Obliterated
from glidemq_py._core.keys import QueueKeys
from glidemq_py._job.link import QueueLink
from glidemq_py.errors import GlideMQError


async def test_obliterate_ends_if_a_step_deletes_nothing() -> None:
    """A server that always replies "more" must not keep a client busy forever."""
    calls: list[str] = []

    class Transport:
        async def command(self, *_: object) -> int:
            return 0

        async def call(self, call: Call[Obliterated]) -> Obliterated:
            calls.append(call.function)
            assert len(calls) < 10
            return Obliterated("more", 3 if len(calls) == 1 else 0, "", 0)

    link = QueueLink(transport=cast("Any", Transport()), keys=QueueKeys("glide", "q"), waiter=cast("Any", None))
    with pytest.raises(
        GlideMQError, match="queue 'q': obliterate stopped after 3 deleted jobs: a step deleted nothing"
    ):
        await obliterate_queue(link, force=True, scan=False)
    assert len(calls) == 2
