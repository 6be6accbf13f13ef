"""Test the stalled-job policy of a queue against the options of workers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from glidemq_py import GlideMQValidationError, JobFailedError, Maintenance, Queue, StalledPolicy, Worker
from glidemq_py.testing import RespClient
from tests.server.faults_support import worker_process
from tests.server.worker_support import Gate

pytestmark = pytest.mark.usefixtures("clean_check")

SOON: dict[str, Any] = {"lock_duration": 1_000, "stalled_interval": 1_000}


def open_gate() -> Gate:
    gate = Gate()
    gate.open()
    return gate


async def test_policy_is_set_read_and_removed(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        assert await queue.get_stalled_policy() == StalledPolicy()
        await queue.set_stalled_policy(stalled_interval=timedelta(seconds=5), max_stalled_count=0)
        assert await queue.get_stalled_policy() == StalledPolicy(5_000, 0, None)
        await queue.set_stalled_policy(stalled_interval=False, stalled_grace=7)
        assert await queue.get_stalled_policy() == StalledPolicy(None, 0, 7)
        await queue.remove_stalled_policy()
        assert await queue.get_stalled_policy() == StalledPolicy()


@pytest.mark.parametrize(
    "options",
    [
        {}, {"stalled_interval": 999}, {"stalled_interval": True}, {"max_stalled_count": -1},
        {"max_stalled_count": 1.5}, {"stalled_grace": -1}, {"stalled_grace": 86_400_001},
    ],
)  # fmt: skip
async def test_invalid_policy_is_rejected(url: str, queue_name: str, options: dict[str, Any]) -> None:
    async with Queue(queue_name, url) as queue:
        with pytest.raises(GlideMQValidationError, match=next(iter(options), "at least one of")):
            await queue.set_stalled_policy(**options)
        assert await queue.get_stalled_policy() == StalledPolicy()


@pytest.mark.slow
async def test_queue_decides_for_a_worker_without_the_option(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue, worker_process("wait", url, queue_name, **SOON) as child:
        await queue.set_stalled_policy(max_stalled_count=0)
        job = await queue.add("n", attempts=5)
        await child.line("began")
        await child.kill()
        async with Worker(queue_name, Gate(), url, **SOON):
            with pytest.raises(JobFailedError, match="stalled"):
                await job.wait_until_finished()


@pytest.mark.slow
async def test_option_of_the_dead_worker_wins_over_queue_and_recovering_process(
    url: str, resp: RespClient, queue_name: str
) -> None:
    async with (
        Queue(queue_name, url) as queue,
        worker_process("wait", url, queue_name, max_stalled_count=5, **SOON) as child,
    ):
        await queue.set_stalled_policy(max_stalled_count=0)
        job = await queue.add("n")
        await child.line("began")
        await child.kill()
        resp.execute("DEL", f"glide:{{{queue_name}}}:w:{await only_consumer(resp, queue_name)}")
        async with Worker(queue_name, open_gate(), url, max_stalled_count=0, **SOON):
            await job.wait_until_finished()
        stalled = await queue.get_job(job.id)
    assert stalled is not None
    assert stalled.stalled_count == 1


async def only_consumer(resp: RespClient, queue_name: str) -> str:
    (name,) = resp.execute("HKEYS", f"glide:{{{queue_name}}}:stalled-policies")
    return name.decode() if isinstance(name, bytes) else str(name)


@pytest.mark.slow
async def test_maintenance_uses_the_policy_of_the_queue(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue, worker_process("wait", url, queue_name, **SOON) as child:
        await queue.set_stalled_policy(max_stalled_count=0, stalled_interval=1_000)
        job = await queue.add("n")
        await child.line("began")
        await child.kill()
        async with Maintenance([queue], lock_duration=1_000, max_stalled_count=9):
            with pytest.raises(JobFailedError, match="stalled"):
                await job.wait_until_finished()


async def test_worker_with_options_leaves_nothing_behind(url: str, resp: RespClient, queue_name: str) -> None:
    key = f"glide:{{{queue_name}}}:stalled-policies"
    async with Worker(queue_name, open_gate(), url, stalled_grace=5):
        assert [value.partition("|")[2].partition("|")[0] for value in texts(resp.execute("HVALS", key))] == ["5"]
    assert not resp.execute("EXISTS", key)
    async with Worker(queue_name, open_gate(), url):
        assert not resp.execute("EXISTS", key)


def texts(values: list[Any]) -> list[str]:
    return [value.decode() if isinstance(value, bytes) else value for value in values]
