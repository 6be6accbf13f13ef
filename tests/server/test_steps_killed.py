"""A worker is killed at each call of a handler with steps, before it is made and before its reply arrives."""

import asyncio
import sys
from collections import Counter
from pathlib import Path

import pytest

from glidemq_py import Queue
from glidemq_py.records import StepState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

TOGETHER = 6
MOST_CALLS = 60
KILLED = -9


async def run(url: str, name: str, effects: Path, call: int, when: str) -> int:
    """Run the program; return its exit code."""
    words = ("-m", "tests.server.steps_program", url, name, str(effects), str(call), when)
    process = await asyncio.create_subprocess_exec(sys.executable, *words)
    return await process.wait()


async def killed_at(url: str, name: str, effects: Path, call: int, when: str) -> bool:
    """Kill a worker at a call, let another one continue, and check the job; return False if there is no such call."""
    async with Queue(name, url) as queue:
        job = await queue.add("order", {}, job_id="order", attempts=2)
        await queue.signal(job.id, "approval", "yes")
        code = await run(url, name, effects, call, when)
        if code == KILLED:
            assert await run(url, name, effects, 0, when) == 0
        charged, approved, first, second, mailed = await job.wait_until_finished(10_000)
        assert approved == "yes alone"
        noted = [line.split("=") for line in (await asyncio.to_thread(effects.read_text)).splitlines()]
        made, last = Counter(each[0] for each in noted), {each[0]: each[-1] for each in noted}
        # The last effect of each kind has the stored result: none ran again after it.
        for text in (charged, first, second, mailed):
            kind, _, value = text.partition("=")
            assert last[kind] == value
            assert made[kind] <= 2
        assert sum(made.values()) <= 8  # one kill repeats one effect, or those of both children
        steps = await job.get_steps()
        assert {step.name: step.state for step in steps} == {
            "charge": StepState.DONE, "cooling off": StepState.SLEEPING, "signal never": StepState.EXPIRED,
            "gather": StepState.GATHERING, "mail": StepState.DONE,
        }  # fmt: skip
        assert (await queue.check(recheck_after=50)).ok
        return code == KILLED


@pytest.mark.parametrize("odd", ["before", pytest.param("after", marks=pytest.mark.nightly)])
async def test_a_job_continues_behind_its_stored_steps(url: str, queue_name: str, tmp_path: Path, odd: str):
    """Odd calls are cut in one way, even calls in the other."""
    turns = asyncio.Semaphore(TOGETHER)
    ended: dict[tuple[int, str], bool] = {}

    async def one(call: int):
        when = "before" if (odd == "before") is bool(call % 2) else "after"
        async with turns:
            if not any(known < call for (known, _), was_killed in ended.items() if not was_killed):
                name = f"{queue_name}-{call}-{when}"
                ended[call, when] = await killed_at(url, name, tmp_path / name, call, when)

    await asyncio.gather(*map(one, range(1, MOST_CALLS)))
    assert sum(ended.values()) >= 15
    assert not all(ended.values())
