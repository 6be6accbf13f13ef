"""`Session`: the connection of one client as commands have it; and `Command`, the declaration of a command.

Dispatch, validation, the table in the documentation and the fuzzer of the tests are derived from the declarations.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from glidemq_py._api.job_queue import Queue
from glidemq_py._web.clients import address_of
from glidemq_py.gateway.addresses import FrameLimit
from glidemq_py.gateway.slices import VALUE_PARTS, Parts
from glidemq_py.gateway.state import GatewayState
from glidemq_py.gateway.table import QUEUE, Answer, CommandError, Field, Given, check_all, check_field


class Way(enum.Enum):
    """How a job is added. Jobs that take the same way arrive in their order, except those that go alone."""

    TOGETHER = "together with others"
    DURABLE = "together with other durable ones"
    ALONE = "in calls of its own"


class _Passing:
    """The jobs of a queue that pass by one way: their number, and what waits until they have passed."""

    __slots__ = ("count", "passed", "way")

    def __init__(self, way: Way) -> None:
        self.way, self.count = way, 0
        self.passed: asyncio.Future[None] | None = None


class PushOrder:
    """The jobs that have got their places among those of a connection, and are not added yet.

    Those of one queue take the same way. Use it within a lock: `enter` for one command at a time.
    """

    def __init__(self) -> None:
        self._passing: dict[str, _Passing] = {}

    async def enter(self, queue: str, way: Way) -> Callable[[], None]:
        """Wait for the earlier jobs of a queue that take another way.

        Returns:
            Lets later jobs follow: call it when the jobs were added, or will not be. Idempotent.
        """
        passing = self._passing.get(queue)
        if passing is not None and (passing.way is not way or way is Way.ALONE):
            passing.passed = asyncio.get_running_loop().create_future()
            await passing.passed
            passing = None
        if passing is None:
            passing = self._passing[queue] = _Passing(way)
        passing.count += 1
        has_left = False

        def leave() -> None:
            nonlocal has_left
            if has_left:
                return
            has_left = True
            passing.count -= 1
            if not passing.count:
                del self._passing[queue]
                if passing.passed is not None and not passing.passed.done():
                    passing.passed.set_result(None)

        return leave


T = TypeVar("T")


class Session:
    """What commands use of the connection of their client.

    Args:
        state: The gateway.
    """

    parts: Parts = VALUE_PARTS
    """Encodes large answers."""

    def __init__(self, state: GatewayState) -> None:
        self.state = state
        self.is_authenticated = not state.digests
        self._transport: asyncio.Transport | None = None
        self._running: set[asyncio.Future[Any]] = set()
        """The running commands."""
        self._polls: set[asyncio.Future[Any]] = set()
        """Those that may wait for a job."""
        self._is_ending = False
        self._limit: FrameLimit | None = None
        if state.options.rate_limit is not None:
            self._limit = FrameLimit(state.options.rate_limit, state.options.rate_limit_window / 1_000)
        self._large = asyncio.Lock()
        self._room_changed = asyncio.Event()
        """Set while the client reads its answers, and when the session ends."""
        self._room_changed.set()
        self.pushing = asyncio.Lock()
        """Held while a PUSH gets its place, so that those of a connection keep their order."""
        self.push_order = PushOrder()
        """The jobs that have got their place, and are not added yet."""
        self.has_noted_policies = False
        """Whether it was logged that options of the jobs of this connection have no effect."""
        self.workers: set[str] = set()
        """Ids of the workers that this connection has registered."""

    async def queue(self, given: Given) -> Queue:
        """Return the queue that a command names."""
        return await self.state.queue(given["queue"])

    @property
    def peer(self) -> str:
        """Address of the client."""
        return address_of(self._transport)

    async def polled(self, fetching: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of a fetch that may wait; None if the gateway closes meanwhile."""
        task = cast("asyncio.Future[Any]", asyncio.current_task())
        self._polls.add(task)
        try:
            return await fetching
        except asyncio.CancelledError:
            if not self._is_drained or self.state.deadlines.has_ended(task):
                raise
            return None  # draining: the client is answered that there is no job
        finally:
            self._polls.discard(task)

    @property
    def _is_drained(self) -> bool:
        """Whether a cancelled fetch is answered that there is no job: the gateway closes."""
        return not self.is_lost

    def end_polls(self) -> None:
        """Answer fetches that wait: the session ends."""
        self._is_ending = True
        self._room_changed.set()
        for task in self._polls:
            task.cancel()

    @property
    def is_lost(self) -> bool:
        """Whether the connection is closed, or is being closed."""
        return self._transport is None or self._transport.is_closing()

    @contextlib.asynccontextmanager
    async def room(self) -> AsyncGenerator[None]:
        """Wait until a large answer may be built: one at a time, and only while the client reads its answers.

        So the memory of the answers of a connection is bounded, however many commands it sends.

        Raises:
            CommandError: If the gateway closes meanwhile.
        """
        async with self._large:
            await self._until_read()
            yield

    async def _until_read(self) -> None:
        await self._room_changed.wait()
        if self._is_ending:
            raise CommandError("The gateway is closing")

    def authenticate(self, token: str) -> bool:
        """Accept a token; return False if it is invalid."""
        if not self.state.accepts(token):
            self.state.warnings.warn("token", f"gateway: rejected an invalid token of {self.peer}")
            return False
        self.is_authenticated = True
        return True

    def notify(self, frames: bytes) -> None:
        """Send frames at once, such as events."""
        raise NotImplementedError

    def release(self) -> None:
        """Release what the client has: it has left, or its answer was not sent."""
        self.state.unsubscribe(self.notify)
        self.state.release_of(self, self.workers, tuple(self._running))


Handler = Callable[[Session, Given], Awaitable[Answer | None]]
"""Returns the answer of a command; None = `DONE`."""

H = TypeVar("H", bound=Handler)
OnQueue = Callable[[Queue, Given], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Command:
    """One command of the protocol.

    Attributes:
        name: Value of ``cmd``.
        group: Section of the documentation.
        handler: Returns the answer, or raises `CommandError`.
        summary: Effect of the command, for the documentation.
        fields: Fields besides ``cmd`` and ``reqId``.
        is_public: True if the command is accepted before `Auth`.
        checks_job: True if only the first field is checked before the handler runs. It gets this field, and as ``job``
            the whole command, whose other fields it checks itself.
        http: Method and path of its route in the HTTP API, or "".
        route: Other attributes of the route; see `Route`.
    """

    name: str
    group: str
    handler: Handler
    summary: str
    fields: tuple[Field, ...] = ()
    is_public: bool = False
    checks_job: bool = False
    http: str = ""
    route: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Commands(dict[str, Command]):
    """The commands of a module by name."""

    def __call__(
        self, name: str, group: str, http: str, *fields: Field, summary: str = "", is_public: bool = False,
        checks_job: bool = False, **route: Any,
    ) -> Callable[[H], H]:  # fmt: skip
        """Declare the command that the decorated handler executes; see `Command`.

        Its summary is that of the handler's docstring, unless it is given.
        """

        def declare(handler: H) -> H:
            text = summary or handler.__doc__ or ""
            self[name] = Command(
                name, group, handler, " ".join(text.split()), fields, is_public, checks_job, http, route
            )  # fmt: skip
            return handler

        return declare

    def on_queue(
        self, name: str, group: str, http: str, *fields: Field, answer: str = "", **more: Any
    ) -> Callable[[OnQueue], OnQueue]:  # fmt: skip
        """Declare a command that is executed with its queue, which is its first field.

        The result is the answer, or its member ``answer``.
        """

        def declare(execute: OnQueue) -> OnQueue:
            async def handle(session: Session, given: Given) -> Answer | None:
                found = await execute(await session.queue(given), given)
                return {answer: found} if answer else found

            handle.__doc__ = execute.__doc__
            self(name, group, http, QUEUE, *fields, **more)(handle)
            return execute

        return declare


def check_fields(command: Command, given: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the values of a command's fields; see `check_all`."""
    if command.checks_job:
        first = command.fields[0]
        return {first.name: check_field(first, given.get(first.name)), "job": given}
    return check_all(command.fields, given)
