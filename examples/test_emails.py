"""Tests of jobs on a real Valkey: `pytest examples/test_emails.py`.

The fixtures come with the package; the server runs once per test session.
"""

import asyncio

import pytest

from glidemq_py import Job, JobFailedError, Queue, Worker


async def send(job: Job) -> str:
    if "@" not in job.data["to"]:
        raise ValueError(f"{job.data['to']} is no address")
    return f"sent to {job.data['to']}"


def test_an_email_is_sent(glidemq_url: str, glidemq_queue_name: str) -> None:
    async def scenario() -> str:
        name, url = glidemq_queue_name, glidemq_url
        async with Queue(name, url) as queue, Worker(name, send, url):
            return str(await queue.add_and_wait("welcome", {"to": "a@b.c"}))

    assert asyncio.run(scenario()) == "sent to a@b.c"


def test_a_bad_address_fails_for_good(glidemq_url: str, glidemq_queue_name: str) -> None:
    async def scenario() -> None:
        name, url = glidemq_queue_name, glidemq_url
        async with Queue(name, url) as queue, Worker(name, send, url, no_retry_on=ValueError):
            await queue.add_and_wait("welcome", {"to": "nobody"}, attempts=5)

    with pytest.raises(JobFailedError, match="nobody is no address"):
        asyncio.run(scenario())
