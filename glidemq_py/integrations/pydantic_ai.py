"""Pydantic AI: agents whose model requests and tool calls are durable steps of a job.

If the worker dies, another one runs the agent from its start, and each request and call that has a stored result
returns it: nothing is asked, paid or done twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, NamedTuple, TypedDict, TypeVar, cast

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from glidemq_py._core.option_values import BackoffInput
from glidemq_py._core.times import Milliseconds
from glidemq_py._job.job import Job
from glidemq_py._job.steps import running_step
from glidemq_py.errors import GlideMQError, GlideMQValidationError

try:
    from pydantic_ai import ModelMessagesTypeAdapter, ModelRetry, ToolReturn, ToolsetTool
    from pydantic_ai.agent import AbstractAgent, WrapperAgent
    from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailed
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model
    from pydantic_ai.models.wrapper import WrapperModel
    from pydantic_ai.toolsets import AbstractToolset, WrapperToolset
except ImportError as error:
    raise ImportError('this module requires Pydantic AI: pip install "pydantic-ai-slim"') from error

__all__ = ["StepOptionsDict", "durable"]

DepsT = TypeVar("DepsT")
OutputT = TypeVar("OutputT")

_RAISED: Final = {each.__name__: each for each in (ModelRetry, ToolFailed, CallDeferred, ApprovalRequired)}
"""What a tool raises to answer the agent; it is the result of the step."""
_TOOL_RETURN: Final = TypeAdapter(ToolReturn)
_running: Final = set[tuple[int, str]]()
"""The jobs (``id``) and names of the steps of the agents that run in this process."""


class StepOptionsDict(TypedDict, total=False):
    """Options of steps, as for [`Job.run`](../learn/steps.md).

    Attributes:
        attempts: number of attempts; 1 by default.
        backoff: pause between attempts, a duration or a `Backoff`. From one second on, the job is delayed.
        timeout: maximum duration of an attempt, ms or timedelta.
    """

    attempts: int
    backoff: BackoffInput
    timeout: Milliseconds | None


def durable(
    agent: AbstractAgent[DepsT, OutputT], job: Job, *, model: StepOptionsDict | None = None,
    tools: StepOptionsDict | None = None, name: str = "",
) -> WrapperAgent[DepsT, OutputT]:  # fmt: skip
    """Return an agent whose model requests and tool calls are steps of a running job.

    Everything else runs again with the handler: the prompt, dependencies and dynamic instructions must be the same
    in each run. Results of tools are stored as JSON, and the model gets them so. The model's answers are not streamed.

    A tool may itself run a durable agent of the same job.

    Args:
        agent: the agent.
        job: the running job, in a coroutine handler.
        model: options of the steps ``model <name>`` that ask the model.
        tools: options of the steps ``tool <tool> <id of the call> <name>`` that call tools.
        name: name of the agent in its steps. Agents that run at the same time in a job need different ones.

    Returns:
        The durable agent; use its ``run``.

    Raises:
        StepError: by ``run``, if a request or a tool has failed; its cause is the error.
        GlideMQError: by ``run``, with an event_stream_handler, which needs streams; or an agent of the same name runs
            in the job.
        GlideMQValidationError: by ``run``, the agent has no model.
    """
    return _DurableAgent(agent, job, model or {}, tools or {}, name)


class _DurableAgent(WrapperAgent[DepsT, OutputT]):
    def __init__(
        self, wrapped: AbstractAgent[DepsT, OutputT], job: Job, model: StepOptionsDict, tools: StepOptionsDict,
        name: str,
    ) -> None:  # fmt: skip
        super().__init__(wrapped)
        self._job, self._of_model, self._of_tools, self._label = job, model, tools, name

    @asynccontextmanager
    async def iter(self, user_prompt: Any = None, **options: Any) -> AsyncGenerator[Any]:
        """See `AbstractAgent.iter`."""
        chosen, more = options.pop("model", None) or self.wrapped.model, options.pop("toolsets", None) or ()
        if chosen is None:
            raise GlideMQValidationError("model", None, "the agent has no model: set one, or pass it to run")
        # In the tool of another agent, the names begin with that step: it is not run again, and neither is this agent.
        within = running_step.get()
        steps = _Steps(self._job, " ".join(filter(None, (self._label, within and f"of {within[0]} {within[1]}"))))
        toolsets = [_StepToolset(each, steps, self._of_tools) for each in (*self.wrapped.toolsets, *more)]
        with (
            steps.running(),
            self.wrapped.override(model=_StepModel(chosen, steps, self._of_model), toolsets=toolsets, tools=[]),
        ):
            async with self.wrapped.iter(user_prompt, **options) as run:
                yield run


class _Steps(NamedTuple):
    """The steps of one agent: their job, and the end of their names."""

    job: Job
    name: str

    @contextmanager
    def running(self) -> Generator[None]:
        """Reject another agent with these names meanwhile: each could get the answers of the other."""
        key = id(self.job), self.name
        if key in _running:
            problem = f"job {self.job.id!r} already runs an agent with the name {self.name!r}"
            raise GlideMQError(f"{problem}: give each agent a name of its own, durable(..., name=...)")
        _running.add(key)
        try:
            yield
        finally:
            _running.discard(key)

    async def run(self, what: str, function: Callable[[], Awaitable[Any]], options: StepOptionsDict) -> Any:
        """Run a step."""
        return await self.job.run(f"{what} {self.name}".rstrip(), function, **options)


class _StepModel(WrapperModel):
    def __init__(self, wrapped: Model | str, steps: _Steps, options: StepOptionsDict) -> None:
        super().__init__(wrapped)
        self._steps, self._options = steps, options

    async def request(self, messages: Any, model_settings: Any, model_request_parameters: Any) -> ModelResponse:
        async def ask() -> Any:
            response = await self.wrapped.request(messages, model_settings, model_request_parameters)
            return ModelMessagesTypeAdapter.dump_python([response], mode="json")

        stored = await self._steps.run("model", ask, self._options)
        return cast("ModelResponse", ModelMessagesTypeAdapter.validate_python(stored)[0])

    def request_stream(self, *_: Any, **options: Any) -> Any:
        raise GlideMQError("a durable agent does not stream: each answer of its model is stored when it is complete")


class _StepToolset(WrapperToolset[Any]):
    def __init__(self, wrapped: AbstractToolset[Any], steps: _Steps, options: StepOptionsDict) -> None:
        super().__init__(wrapped)
        self._steps, self._options = steps, options

    async def for_run(self, ctx: Any) -> AbstractToolset[Any]:
        return self._over(await self.wrapped.for_run(ctx))

    async def for_run_step(self, ctx: Any) -> AbstractToolset[Any]:
        return self._over(await self.wrapped.for_run_step(ctx))

    def visit_and_replace(self, visitor: Callable[[Any], Any]) -> AbstractToolset[Any]:
        return self._over(self.wrapped.visit_and_replace(visitor))

    def _over(self, wrapped: AbstractToolset[Any]) -> AbstractToolset[Any]:
        return self if wrapped is self.wrapped else _StepToolset(wrapped, self._steps, self._options)

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: Any, tool: ToolsetTool[Any]) -> Any:
        async def call() -> Any:
            return await _outcome(self.wrapped.call_tool(name, tool_args, ctx, tool))

        kind, value = await self._steps.run(f"tool {name} {ctx.tool_call_id}", call, self._options)
        if kind == ToolReturn.__name__:
            return _TOOL_RETURN.validate_python(value)
        if kind:
            raise _RAISED[kind](value)
        return value


async def _outcome(call: Awaitable[Any]) -> list[Any]:
    """Return the result of a tool, behind the name of its class if it is of Pydantic AI, or raised as an answer."""
    try:
        found: Any = await call
    except (ModelRetry, ToolFailed) as raised:
        return [type(raised).__name__, raised.message]
    except (CallDeferred, ApprovalRequired) as raised:
        return [type(raised).__name__, to_jsonable_python(raised.metadata)]
    if type(found) is ToolReturn:
        return [ToolReturn.__name__, _TOOL_RETURN.dump_python(cast("Any", found), mode="json")]
    return ["", to_jsonable_python(found, bytes_mode="base64")]
