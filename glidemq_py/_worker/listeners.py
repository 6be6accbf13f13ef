"""Worker events: listeners in the same process, by event name."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, Literal

from glidemq_py._client.runtime import call_apart
from glidemq_py._core.checks import check_callable, check_choice
from glidemq_py._core.logs import ForeignFailures, get_logger
from glidemq_py.errors import GlideMQValidationError

_log = get_logger(__name__)

WorkerEvent = Literal[
    "active", "completed", "failed", "retrying", "delayed", "suspended", "waiting-children", "stalled", "drained",
    "budget_exceeded", "error", "closing", "closed",
]  # fmt: skip
"""Events of a worker, for its listeners."""
WORKER_EVENTS: Final[Mapping[WorkerEvent, tuple[str, ...]]] = {
    "active": ("job",), "completed": ("job", "result"), "failed": ("job", "error"), "retrying": ("job", "error"),
    "delayed": ("job", "signal"), "suspended": ("job", "signal"), "waiting-children": ("job",),
    "stalled": ("job_id",), "drained": (), "budget_exceeded": ("job",), "error": ("error",), "closing": (),
    "closed": (),
}  # fmt: skip
"""Names of the listeners' arguments by event."""
_OF_QUEUE: Final = frozenset({"stalled", "drained"})
"""Events without a job. A listener that requires one more argument gets the name of the queue."""

Listener = Callable[..., Any]


class Listeners:
    """Calls plain and async listeners, and logs their errors.

    Args:
        owner: The object with the listeners; the log names it.
        per_minute: See `ForeignFailures`.
    """

    def __init__(self, owner: object, per_minute: int = 5) -> None:
        self._owner = owner
        self._failures = ForeignFailures(_log, per_minute)
        self._by_event: dict[str, list[tuple[Listener, bool]]] = {}
        """The listeners, each with True if it gets the name of the queue."""
        self.wanted: Callable[[str], bool] = self._by_event.__contains__
        """Return True if the event has listeners."""
        self._running: set[asyncio.Future[Any]] = set()

    def on(self, event: WorkerEvent, listener: Listener) -> None:
        """Add a listener.

        Raises:
            GlideMQValidationError: If the event does not exist or the listener cannot be called with its arguments.
        """
        check_choice("event", event, WORKER_EVENTS)
        arguments = WORKER_EVENTS[event]
        with_queue = (
            event in _OF_QUEUE and not _accepts(listener, *arguments) and _accepts(listener, *arguments, "queue")
        )
        if not with_queue:
            check_callable("listener", listener, *arguments)
        self._by_event.setdefault(event, []).append((listener, with_queue))

    def off(self, event: WorkerEvent, listener: Listener) -> None:
        """Remove a listener. Does nothing if it is not registered."""
        listeners = self._by_event.get(event, [])
        for each in listeners:
            if each[0] == listener:
                listeners.remove(each)
                break
        if not listeners:
            self._by_event.pop(event, None)

    def emit(self, event: str, *args: Any, queue: str | None = None) -> None:
        """Call the listeners of an event; async listeners run in tasks of their own.

        Args:
            event: Name of the event.
            *args: Arguments of the listeners.
            queue: Name of the queue, for events without a job.
        """
        for listener, with_queue in self._by_event.get(event, ()):
            # In a context of its own: the jobs that start next must not inherit its context variables.
            contextvars.copy_context().run(self._call, event, listener, (*args, queue) if with_queue else args)

    def _call(self, event: str, listener: Listener, args: tuple[Any, ...]) -> None:
        try:
            answer = call_apart(listener, *args)
            if not inspect.isawaitable(answer):
                return
            waiting = asyncio.ensure_future(self._await(event, answer))
            # A task that the listener returned may wait for the end of the others.
            future = answer if asyncio.isfuture(answer) else waiting
            self._running.add(future)
            future.add_done_callback(self._running.discard)
        except BaseException as error:
            self._failures.log(event, error, "%r: listener of event %r failed", self._owner, event)

    async def _await(self, event: str, answer: Awaitable[Any]) -> None:
        try:
            await answer
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # SystemExit would end the event loop
            self._failures.log(event, error, "%r: async listener of event %r failed", self._owner, event)

    async def wait_until_done(self, without: AbstractSet[asyncio.Future[Any]] = frozenset()) -> None:
        """Wait until the running async listeners have ended, except those in ``without`` (they wait for the caller)."""
        while waited_for := self._running - without:
            await asyncio.wait(waited_for)


def _accepts(listener: Listener, *arguments: str) -> bool:
    try:
        check_callable("listener", listener, *arguments)
    except GlideMQValidationError:
        return False
    return True
