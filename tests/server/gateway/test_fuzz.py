"""The short form of the fuzzer; docs/operate/gateway.md has the figures of a run of 20,000 frames."""

import pytest

from tests.server.gateway.fuzz import fuzz

FRAMES = 4_000


@pytest.mark.slow
async def test_every_fuzzed_frame_is_answered(url: str):
    found = await fuzz(url, FRAMES, seed=20_26)
    assert found.wrong == []
    assert found.frames == FRAMES
    assert len(found.errors) > 50
