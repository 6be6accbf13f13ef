"""What tests of flows begin with: a producer, and a queue for its jobs."""

from collections.abc import AsyncIterator

import pytest

from glidemq_py import FlowProducer, Queue


@pytest.fixture
async def flows(url: str) -> AsyncIterator[FlowProducer]:
    async with FlowProducer(url) as producer:
        yield producer


@pytest.fixture
async def queue(url: str, queue_name: str) -> AsyncIterator[Queue]:
    async with Queue(queue_name, url) as queue:
        yield queue
