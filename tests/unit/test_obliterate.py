"""Obliteration of a queue, with replies that a correct server never sends."""

import pytest

from glidemq_py._api.administration import obliterate_queue
from glidemq_py.errors import GlideMQError
from tests.inside import Call, administration, link_over


async def test_obliterate_ends_if_a_step_deletes_nothing():
    """A server that always replies "more" must not keep a client busy forever."""
    calls: list[str] = []

    class Transport:
        async def command(self, *_: object) -> int:
            return 0

        async def call(self, call: Call[administration.Obliterated]) -> administration.Obliterated:
            calls.append(call.function)
            assert len(calls) < 10
            return administration.Obliterated("more", 3 if len(calls) == 1 else 0, "", 0)

    link = link_over(Transport())
    with pytest.raises(
        GlideMQError, match="queue 'q': obliterate stopped after 3 deleted jobs: a step deleted nothing"
    ):
        await obliterate_queue(link, force=True, scan=False)
    assert len(calls) == 2
