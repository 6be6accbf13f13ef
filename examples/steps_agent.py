"""Durable steps: the loop of an agent. Each call of the model and of a tool is a step, and a person may be asked."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import TypedDict

from glidemq_py import Job, Queue, Worker
from glidemq_py.errors import SignalTimeout

worker = Worker("agents")
calls = 0


class Reply(TypedDict):
    """An answer of the model: the tool to use, and its argument."""

    tool: str
    text: str


def model(messages: list[str]) -> Reply:
    """Stand for a language model: it searches first, then asks a person."""
    global calls
    calls += 1
    print("the model answers", flush=True)
    return {"tool": "search", "text": "weather in Rome"} if len(messages) == 1 else {"tool": "ask", "text": "Is it so?"}


def search(text: str) -> str:
    print(f"search: {text}", flush=True)
    return "sunny"


TOOLS: dict[str, Callable[[str], str]] = {"search": search}


@worker.task(attempts=3)
async def agent(job: Job, /, question: str) -> str:
    messages = [question]
    while True:
        reply = await job.run("model", model, messages, attempts=3, backoff=100)
        if reply["tool"] == "ask":
            print("asked a person", flush=True)
            try:
                answer = await job.wait_for_signal("answer", timeout=timedelta(hours=8))
            except SignalTimeout:
                return f"{messages[-1]}, says nobody"
            return f"{messages[-1]}, as {answer.data} says"
        messages.append(await job.run(reply["tool"], TOOLS[reply["tool"]], reply["text"]))


async def main() -> None:
    waits = asyncio.Event()
    worker.on("suspended", lambda job, signal: waits.set())
    async with worker, Queue("agents") as queue:
        job = await agent.add("How is the weather in Rome?")
        await waits.wait()
        await queue.signal(job.id, "answer", "Ada")
        print("answer:", await job.wait_until_finished())
        print("calls of the model:", calls)


if __name__ == "__main__":
    asyncio.run(main())
