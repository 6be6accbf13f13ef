"""Agents of Pydantic AI on durable steps. A worker is killed at each call of one in `test_steps_killed`."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterable
from typing import Any

import pytest
from pydantic_ai import Agent, BinaryContent, ModelRetry, RunContext, ToolReturn
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import ModelResponse, ToolReturnPart, UserPromptPart
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset

from glidemq_py import GlideMQError, GlideMQValidationError, Job, JobFailedError, Queue
from glidemq_py.integrations.pydantic_ai import durable
from tests.server.worker_support import WorkerFor

COUNT: Counter[str] = Counter()


class CountedModel(TestModel):
    """Counts its requests."""

    async def request(self, *given: Any, **options: Any) -> ModelResponse:
        COUNT["model"] += 1
        return await super().request(*given, **options)


@pytest.fixture(autouse=True)
def empty():
    COUNT.clear()


async def test_a_later_run_asks_nothing_again(queue: Queue, worker_for: WorkerFor):
    agent = Agent(CountedModel(), deps_type=int)

    @agent.tool
    async def doubled(context: RunContext[int], of: int) -> int:
        COUNT["doubled"] += 1
        if COUNT["doubled"] == 1:
            raise ModelRetry("not yet")
        return context.deps * 2

    def more(topic: str) -> set[str]:
        COUNT["more"] += 1
        return {topic}

    async def handle(job: Job) -> str:
        result = await durable(agent, job).run("go", deps=21, toolsets=[FunctionToolset([more])])
        if not job.attempts_made:
            raise RuntimeError("again")
        assert result.usage.requests == 3
        return result.output

    async with worker_for(handle):
        job = await queue.add("n", attempts=2)
        assert await job.wait_until_finished() == '{"doubled":42,"more":["a"]}'
    assert COUNT == {"model": 3, "doubled": 2, "more": 1}
    kinds = [step.name.split()[0] for step in await job.get_steps()]
    assert kinds == ["model", "tool", "tool", "model", "tool", "model"]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_tool_may_run_another_agent(queue: Queue, worker_for: WorkerFor, fails: bool):
    inner = Agent(CountedModel(custom_output_text="inner"))
    outer = Agent(CountedModel(), deps_type=Job)

    @outer.tool
    async def ask(context: RunContext[Job]) -> str:
        return (await durable(inner, context.deps).run("go")).output

    async def handle(job: Job) -> str:
        result = await durable(outer, job).run("go", deps=job)
        if fails and not job.attempts_made:
            raise RuntimeError("again")
        return result.output

    async with worker_for(handle):
        job = await queue.add("n", attempts=2)
        assert await job.wait_until_finished() == '{"ask":"inner"}'
    assert COUNT["model"] == 3


async def test_agents_at_the_same_time_need_names(queue: Queue, worker_for: WorkerFor):
    agents = {name: Agent(CountedModel(custom_output_text=name)) for name in ("ada", "bob")}

    async def handle(job: Job) -> list[str]:
        with pytest.raises(GlideMQError, match="job '1' already runs an agent with the name '': give each"):
            await asyncio.gather(*(durable(each, job).run("go") for each in agents.values()))
        runs = [durable(each, job, name=name).run("go") for name, each in agents.items()]
        found = await asyncio.gather(*(runs if job.attempts_made else runs[::-1]))
        if not job.attempts_made:
            raise RuntimeError("again")
        return [each.output for each in found]

    async with worker_for(handle):
        assert await (await queue.add("n", attempts=2)).wait_until_finished() == ["ada", "bob"]


async def test_answers_of_tools_keep_their_kind(queue: Queue, worker_for: WorkerFor):
    agent = Agent(CountedModel())

    @agent.tool_plain
    async def pays() -> str:
        raise ToolFailed("card declined")

    @agent.tool_plain
    async def photo() -> Any:
        return ToolReturn("seen", content=["look", BinaryContent(b"\xff", media_type="image/png")], metadata={"k": 1})

    async def handle(job: Job) -> list[Any]:
        messages = (await durable(agent, job).run("go")).all_messages()
        if not job.attempts_made:
            raise RuntimeError("again")
        parts = [part for each in messages for part in each.parts]
        returned = {part.tool_name: part for part in parts if isinstance(part, ToolReturnPart)}
        (prompt,) = [part.content for part in parts[1:] if isinstance(part, UserPromptPart)]
        assert isinstance(prompt[1], BinaryContent)
        return [returned["pays"].content, returned["photo"].content, returned["photo"].metadata, prompt[0]]

    async with worker_for(handle):
        job = await queue.add("n", attempts=2)
        assert await job.wait_until_finished() == ["card declined", "seen", {"k": 1}, "look"]


async def test_a_tool_that_fails_has_attempts_and_fails_the_job(queue: Queue, worker_for: WorkerFor):
    agent = Agent(CountedModel())

    @agent.tool_plain
    async def broken() -> str:
        COUNT["broken"] += 1
        raise OSError("no route")

    async def handle(job: Job) -> str:
        return (await durable(agent, job, tools={"attempts": 2}).run("go")).output

    async with worker_for(handle):
        job = await queue.add("n", attempts=5)
        with pytest.raises(JobFailedError, match="no route") as failed:
            await job.wait_until_finished()
    assert failed.value.failed_type == "StepError"
    assert COUNT == {"model": 1, "broken": 2}


async def read_all(_: Any, events: AsyncIterable[Any]):
    async for _event in events:
        pass


@pytest.mark.parametrize(
    ("agent", "options", "error", "text"),
    [
        (Agent(), {}, GlideMQValidationError, "option 'model' = None: the agent has no model"),
        (Agent(TestModel()), {"event_stream_handler": read_all}, GlideMQError, "does not stream"),
    ],
)
async def test_what_cannot_be_durable(
    queue: Queue, worker_for: WorkerFor, agent: Agent, options: dict[str, Any], error: type[Exception], text: str
):
    async def handle(job: Job):
        with pytest.raises(error, match=text):
            await durable(agent, job).run("go", **options)

    async with worker_for(handle):
        await (await queue.add("n")).wait_until_finished()
