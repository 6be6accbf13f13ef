"""FastAPI and Starlette: queues and workers that open and close with the application."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, TypeVar

try:
    from starlette.requests import HTTPConnection
except ImportError as error:
    raise ImportError("glidemq_py.integrations.fastapi requires FastAPI or Starlette: pip install fastapi") from error

from glidemq_py._api.job_queue import Queue
from glidemq_py._worker.worker import Worker
from glidemq_py.errors import ClosedError, GlideMQValidationError

__all__ = ["AppQueues"]

QueueT = TypeVar("QueueT", bound=Queue[Any, Any])


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
        queues: The queues, not yet connected. The lifespan connects them, so a wrong URL ends the start of the
            application, and disconnects them.
        workers: Workers that run in the process of the application. Larger ones run them in processes of their own.

    Raises:
        GlideMQValidationError: Two queues have the same name.
    """

    def __init__(self, queues: Sequence[Queue[Any, Any]], *, workers: Sequence[Worker[Any]] = ()) -> None:
        self._queues: Mapping[str, Queue[Any, Any]] = {queue.name: queue for queue in queues}
        if len(self._queues) != len(queues):
            names = [queue.name for queue in queues]
            raise GlideMQValidationError("queues", names, "must have different names")
        self._workers = tuple(workers)
        self._getters: dict[str, Callable[[HTTPConnection], Queue[Any, Any]]] = {}
        self._is_open = False

    @asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncGenerator[dict[str, Any]]:
        """Open the queues and workers while the application runs; yield its state, with ``queues`` by name."""
        async with AsyncExitStack() as stack:
            for queue in self._queues.values():
                stack.push_async_callback(queue._disconnect)
                await queue.connect()
            for worker in self._workers:
                if worker._life.is_closing:
                    worker._renew()
                await stack.enter_async_context(worker)
            self._is_open = True
            try:
                yield {"queues": self._queues}
            finally:
                self._is_open = False

    @contextmanager
    def replaced(self, make: Callable[[Queue[Any, Any]], QueueT]) -> Generator[dict[str, QueueT]]:
        """Replace the queues in a block of a test; no worker starts in it. Yield the new queues by name.

        Args:
            make: Returns the queue that replaces one.
        """
        before = self._queues, self._workers
        made = {name: make(queue) for name, queue in self._queues.items()}
        self._queues, self._workers = made, ()
        try:
            yield made
        finally:
            self._queues, self._workers = before

    def get(self, name: str) -> Callable[[HTTPConnection], Queue[Any, Any]]:
        """Return the dependency for a queue: ``Depends(queues.get("emails"))``. Always the same function for a name.

        Raises:
            GlideMQValidationError: There is no such queue.
        """
        if name not in self._queues:
            raise GlideMQValidationError("name", name, f"must be one of {', '.join(self._queues)}")
        if name not in self._getters:

            def queue(connection: HTTPConnection) -> Queue[Any, Any]:
                if not self._is_open:
                    raise ClosedError(
                        "the lifespan of AppQueues has not started: pass it as FastAPI(lifespan=...), and test "
                        "it with `with TestClient(app) as client`"
                    )
                return self._queues[name]

            self._getters[name] = queue
        return self._getters[name]
