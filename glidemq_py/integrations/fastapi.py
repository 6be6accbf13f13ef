"""FastAPI and Starlette: queues and workers that open and close with the application."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Any, TypeVar

try:
    from starlette.requests import HTTPConnection
except ImportError as error:
    raise ImportError("glidemq_py.integrations.fastapi requires FastAPI or Starlette: pip install fastapi") from error

from glidemq_py._api.job_queue import Queue
from glidemq_py._worker.tasks import Task
from glidemq_py._worker.worker import Worker
from glidemq_py.errors import ClosedError, GlideMQValidationError

__all__ = ["AppQueues"]

QueueT = TypeVar("QueueT", bound=Queue)


class AppQueues:
    """The queues and workers of an application: opened by its lifespan, and given to its endpoints.

    ::

        emails = Queue("emails")
        queues = AppQueues([emails], workers=[Worker("reports", make_report)])
        app = FastAPI(lifespan=queues.lifespan)


        @app.post("/welcome")
        async def welcome(emails: Annotated[Queue, Depends(queues.get("emails"))]):
            job = await emails.add("welcome", {"to": "a@example.org"})
            return {"job": job.id}

    In Starlette, ``request.state.queues["emails"]`` is the queue. The pytest fixture `glidemq_endpoints` replaces the
    queues by in-memory ones. The application may start again after its end, in another event loop too.

    Args:
        queues: The queues, not yet connected, or tasks, for the queues to which they add. The lifespan connects them,
            so a wrong URL ends the start of the application, and disconnects them.
        workers: Workers that run in the process of the application. Larger ones run them in processes of their own.

    Raises:
        GlideMQValidationError: Two queues have the same name.
    """

    def __init__(self, queues: Sequence[Queue | Task[..., Any, ..., Any]], *, workers: Sequence[Worker] = ()) -> None:
        named = [(each.queue_names[0] if isinstance(each, Task) else each.name, each) for each in queues]
        self._given: Mapping[str, Queue | Task[..., Any, ..., Any]] = dict(named)
        if len(self._given) != len({each._owner if isinstance(each, Task) else each for each in queues}):
            raise GlideMQValidationError("queues", [name for name, _ in named], "must have different names")
        self._workers = tuple(workers)
        self._getters: dict[str, Callable[[HTTPConnection], Queue]] = {}
        self._is_open = False

    @asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncGenerator[dict[str, Any]]:
        """Open the queues and workers while the application runs; yield its state, with ``queues`` by name."""
        async with AsyncExitStack() as stack:
            for worker in self._workers:
                if worker._life.is_closing:
                    worker._renew()
            queues = {name: self._queue(name) for name in self._given}
            for queue in queues.values():
                stack.push_async_callback(queue._disconnect)
                await queue.connect()
            for worker in self._workers:
                await stack.enter_async_context(worker)
            self._is_open = True
            try:
                yield {"queues": queues}
            finally:
                self._is_open = False

    def _queue(self, name: str) -> Queue:
        given = self._given[name]
        return given.queue if isinstance(given, Task) else given

    @contextmanager
    def replaced(self, make: Callable[[Queue], QueueT]) -> Generator[dict[str, QueueT]]:
        """Replace the queues in a block of a test, also for tasks; no worker starts in it. Yield the new ones by name.

        Args:
            make: Returns the queue that replaces one.
        """
        before = self._given, self._workers
        made = {name: make(self._queue(name)) for name in self._given}
        self._given, self._workers = made, ()
        with ExitStack() as stack:
            stack.callback(self.__dict__.update, _given=before[0], _workers=before[1])
            for name, given in before[0].items():
                if isinstance(given, Task):
                    stack.enter_context(given._owner._adding_to(made[name]))
            yield made

    def get(self, name: str) -> Callable[[HTTPConnection], Queue]:
        """Return the dependency for a queue: ``Depends(queues.get("emails"))``. Always the same function for a name.

        Raises:
            GlideMQValidationError: There is no such queue.
        """
        if name not in self._given:
            raise GlideMQValidationError("name", name, f"must be one of {', '.join(self._given)}")
        if name not in self._getters:

            def queue(connection: HTTPConnection) -> Queue:
                if not self._is_open:
                    raise ClosedError(
                        "the lifespan of AppQueues has not started: pass it as FastAPI(lifespan=...), and test "
                        "it with `with TestClient(app) as client`"
                    )
                return self._queue(name)

            self._getters[name] = queue
        return self._getters[name]
