"""Tasks of Django for the tests; imported when the settings are there."""

from __future__ import annotations

import asyncio
from typing import Any

from django.tasks import task

__all__ = ["add", "add_later", "attempt_of", "fail", "not_a_task"]


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task
async def add_later(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


@task(takes_context=True)
def attempt_of(context: Any, until: int) -> list[Any]:
    if context.attempt < until:
        raise LookupError(f"attempt {context.attempt}")
    return [context.attempt, context.task_result.id]


@task
def fail(message: str):
    raise asyncio.InvalidStateError(message)


def not_a_task() -> str:
    raise AssertionError("a job must not call it")
