"""What tests of flows begin with: a producer, and a queue for its jobs."""

from collections.abc import AsyncIterator

import pytest

from glidemq_py import FlowProducer


@pytest.fixture
async def flows(url: str) -> AsyncIterator[FlowProducer]:
    async with FlowProducer(url) as producer:
        yield producer
