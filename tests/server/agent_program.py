"""A task for `steps_program`: an agent of Pydantic AI, whose model requests and tool calls are the steps."""

import json
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.test import TestModel

from glidemq_py import Job
from glidemq_py.integrations.pydantic_ai import durable
from tests.server.steps_program import began, effect


class NotedModel(TestModel):
    """Notes each request as an effect."""

    async def request(self, *given: Any, **options: Any) -> ModelResponse:
        response = await super().request(*given, **options)
        kind = "answer" if isinstance(response.parts[0], TextPart) else "plan"
        response.provider_response_id = effect(kind)
        return response


def search(topic: str) -> str:
    return effect("search")


async def book(place: str) -> dict[str, str]:
    return {"booked": effect("book")}


assistant = Agent(NotedModel(), tools=[search, book])


async def agent(job: Job, /) -> list[str]:
    began.set()
    result = await durable(assistant, job).run("Plan a journey.")
    found = json.loads(result.output)
    plan, answer = (str(each.provider_response_id) for each in result.all_messages() if isinstance(each, ModelResponse))
    return [plan, found["search"], found["book"]["booked"], answer]
