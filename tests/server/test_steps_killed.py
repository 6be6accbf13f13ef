"""A worker is killed at each call of a handler with steps, before it is made and before its reply arrives."""

import asyncio
import multiprocessing
from collections import Counter
from pathlib import Path

import pytest

from glidemq_py import Queue
from glidemq_py.records import StepState
from tests.server.agent_program import agent
from tests.server.steps_program import order, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

TOGETHER = 6
MOST_CALLS = 60
KILLED = -9


TASKS = {"order": order, "agent": agent}
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload([agent.__module__])


async def run(url: str, name: str, effects: Path, call: int, when: str, task: str) -> int | None:
    """Run the program; return its exit code."""
    process = processes.Process(target=start, args=(url, name, effects, call, when, TASKS[task]))
    process.start()
    # In this thread, as `start` also asks which processes have ended.
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(process.sentinel, ended.set)
    await ended.wait()
    loop.remove_reader(process.sentinel)
    process.join()
    return process.exitcode


STEPS = {
    "order": {
        "charge": StepState.DONE, "cooling off": StepState.SLEEPING, "signal never": StepState.EXPIRED,
        "gather": StepState.GATHERING, "mail": StepState.DONE,
    },
    "agent": dict.fromkeys(("model", "tool search", "tool book"), StepState.DONE),
}  # fmt: skip
"""Steps of each task; of those of tools, without the ids of the calls."""


async def killed_at(url: str, name: str, effects: Path, call: int, when: str, task: str) -> bool:
    """Kill a worker at a call, let another one continue, and check the job; return False if there is no such call."""
    async with Queue(name, url) as queue:
        job = await queue.add(task, {}, job_id=task, attempts=2)
        await queue.signal(job.id, "approval", "yes")
        code = await run(url, name, effects, call, when, task)
        assert code in (0, KILLED), code
        if code == KILLED:
            assert await run(url, name, effects, 0, when, task) == 0
        result = await job.wait_until_finished(10_000)
        if task == "order":
            assert result.pop(1) == "yes alone"
        noted = [line.split("=") for line in (await asyncio.to_thread(effects.read_text)).splitlines()]
        made, last = Counter(each[0] for each in noted), {each[0]: each[-1] for each in noted}
        # The last effect of each kind has the stored result: none ran again after it.
        for text in result:
            kind, _, value = text.partition("=")
            assert last[kind] == value
            assert made[kind] <= 2
        assert sum(made.values()) <= len(made) + 1 + 2  # one kill repeats one effect, or those that run together
        steps = await job.get_steps()
        assert {" ".join(step.name.split()[:2]): step.state for step in steps} == STEPS[task]
        assert (await queue.check(recheck_after=50)).ok
        return code == KILLED


@pytest.mark.parametrize(("task", "least"), [("order", 15), ("agent", 5)])
@pytest.mark.parametrize("odd", ["before", pytest.param("after", marks=pytest.mark.nightly)])
async def test_a_job_continues_behind_its_stored_steps(
    url: str, queue_name: str, tmp_path: Path, odd: str, task: str, least: int
):
    """Odd calls are cut in one way, even calls in the other."""
    turns = asyncio.Semaphore(TOGETHER)
    ended: dict[tuple[int, str], bool] = {}

    async def one(call: int):
        when = "before" if (odd == "before") is bool(call % 2) else "after"
        async with turns:
            if not any(known < call for (known, _), was_killed in ended.items() if not was_killed):
                name = f"{queue_name}-{call}-{when}"
                ended[call, when] = await killed_at(url, name, tmp_path / name, call, when, task)

    await asyncio.gather(*map(one, range(1, MOST_CALLS)))
    assert sum(ended.values()) >= least
    assert not all(ended.values())
