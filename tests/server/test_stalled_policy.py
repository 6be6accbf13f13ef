"""Test the stalled-job policy of a queue against the options of workers."""

from datetime import timedelta
from typing import Any

import pytest

from glidemq_py import GlideMQValidationError, JobFailedError, Maintenance, Queue, StalledPolicy
from glidemq_py.testing import RespClient
from tests.server.faults_support import worker_process
from tests.server.worker_support import Gate, WorkerFor

pytestmark = pytest.mark.usefixtures("clean_check")

SOON: Any = {"lock_duration": 1_000, "stalled_interval": 1_000}


def open_gate() -> Gate:
    gate = Gate()
    gate.open()
    return gate


async def test_policy_is_set_read_and_removed(queue: Queue):
    assert await queue.settings.get_stalled_policy() == StalledPolicy()
    await queue.settings.set_stalled_policy(stalled_interval=timedelta(seconds=5), max_stalled_count=0)
    assert await queue.settings.get_stalled_policy() == StalledPolicy(5_000, 0, None)
    await queue.settings.set_stalled_policy(stalled_interval=False, stalled_grace=7)
    assert await queue.settings.get_stalled_policy() == StalledPolicy(None, 0, 7)
    await queue.settings.remove_stalled_policy()
    assert await queue.settings.get_stalled_policy() == StalledPolicy()


@pytest.mark.parametrize(
    "options",
    [
        {}, {"stalled_interval": 999}, {"stalled_interval": True}, {"max_stalled_count": -1},
        {"max_stalled_count": 1.5}, {"stalled_grace": -1}, {"stalled_grace": 86_400_001},
    ],
)  # fmt: skip
async def test_invalid_policy_is_rejected(queue: Queue, options: Any):
    with pytest.raises(GlideMQValidationError, match=next(iter(options), "at least one of")):
        await queue.settings.set_stalled_policy(**options)
    assert await queue.settings.get_stalled_policy() == StalledPolicy()


@pytest.mark.slow
@pytest.mark.parametrize("by", ["worker", "maintenance"])
async def test_queue_decides_for_a_worker_without_the_option(
    worker_for: WorkerFor, url: str, queue: Queue, queue_name: str, by: str
):
    async with worker_process("wait", url, queue_name, **SOON) as child:
        await queue.settings.set_stalled_policy(max_stalled_count=0, stalled_interval=1_000)
        job = await queue.add("n", attempts=5)
        await child.line("began")
        await child.kill()
        maintenance = Maintenance([queue], lock_duration=1_000, max_stalled_count=9)
        async with worker_for(Gate(), **SOON) if by == "worker" else maintenance:
            with pytest.raises(JobFailedError, match="stalled"):
                await job.wait_until_finished()


@pytest.mark.slow
async def test_option_of_the_dead_worker_wins_over_queue_and_recovering_process(
    worker_for: WorkerFor, url: str, resp: RespClient, queue: Queue, queue_name: str
):
    async with (
        worker_process("wait", url, queue_name, max_stalled_count=5, **SOON) as child,
    ):
        await queue.settings.set_stalled_policy(max_stalled_count=0)
        job = await queue.add("n")
        await child.line("began")
        await child.kill()
        resp.execute("DEL", f"glide:{{{queue_name}}}:w:{await only_consumer(resp, queue_name)}")
        async with worker_for(open_gate(), max_stalled_count=0, **SOON):
            await job.wait_until_finished()
        stalled = await queue.get_job(job.id)
    assert stalled is not None
    assert stalled.stalled_count == 1


async def only_consumer(resp: RespClient, queue_name: str) -> str:
    (name,) = resp.execute("HKEYS", f"glide:{{{queue_name}}}:stalled-policies")
    return name.decode() if isinstance(name, bytes) else str(name)


async def test_worker_with_options_leaves_nothing_behind(worker_for: WorkerFor, resp: RespClient, queue_name: str):
    key = f"glide:{{{queue_name}}}:stalled-policies"
    async with worker_for(open_gate(), stalled_grace=5):
        assert [value.partition("|")[2].partition("|")[0] for value in texts(resp.execute("HVALS", key))] == ["5"]
    assert not resp.execute("EXISTS", key)
    async with worker_for(open_gate()):
        assert not resp.execute("EXISTS", key)


def texts(values: Any) -> list[str]:
    return [value.decode() if isinstance(value, bytes) else value for value in values]
