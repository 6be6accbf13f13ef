"""`Middleware`: code around every add and every run of a job.

A method returns a context manager, not a function that calls the next one: the same middleware then serves coroutines,
threads and the blocking API, and cannot forget to call the next.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Final, cast

from glidemq_py._core.job_options import JobOptions
from glidemq_py._features.middleware.headers import NO_HEADERS
from glidemq_py._job.job import Job
from glidemq_py.errors import GlideMQValidationError

Entered = AbstractContextManager[Any] | AbstractAsyncContextManager[Any] | None
"""Type of the values that methods of a middleware may return."""


class NewJob:
    """A job before it is added, as a `Middleware` gets it.

    Attributes:
        queue: name of the queue.
        name: name of the job.
        data: data of the job; may be replaced.
        headers: headers of the job; may be changed.
        options: all options of the job; read-only.
    """

    __slots__ = ("data", "headers", "name", "options", "queue")

    def __init__(self, queue: str, name: str, data: Any, options: JobOptions) -> None:
        self.queue = queue
        self.name = name
        self.data = data
        self.options = options
        self.headers: dict[str, str] = dict(options.headers or NO_HEADERS)

    def changed(self) -> tuple[str, Any, JobOptions]:
        """Return name, data, and options with the current headers. Raises GlideMQValidationError."""
        if self.headers == (self.options.headers or NO_HEADERS):
            return self.name, self.data, self.options
        return self.name, self.data, JobOptions.merge(self.options, JobOptions(headers=self.headers))

    def __repr__(self) -> str:
        return f"<NewJob {self.name!r} of queue {self.queue!r}>"


class Middleware:
    """Base class of code that runs around every add and every run of a job.

    A subclass overrides the methods it needs. Each method may return a context manager, which is entered before and
    left after the add or the run, so that it sees their errors; or None. `contextlib.contextmanager` makes one of a
    method with a ``yield``. An asynchronous context manager is entered only by coroutines: by the asyncio API, and for
    handlers that are ``async def``.

    Pass instances as ``middleware=[...]`` to `Queue`, `Producer`, `FlowProducer` or `Worker`. The first one is the
    outermost. An error raised before an add rejects the job; an error raised before a run fails the attempt.
    """

    def add(self, job: NewJob) -> Entered:
        """Return a context manager around the add of a job, or None. It may change ``job.data`` and ``job.headers``."""

    def run(self, job: Job[Any, Any, Any]) -> Entered:
        """Return a context manager around the run of a job by a worker or a block of `Queue.lease`, or None."""

    def add_bulk(self, jobs: Sequence[NewJob]) -> Entered | list[Entered]:
        """Return the context managers for adding several jobs or a flow; by default that of each job."""
        return [self.add(job) for job in jobs]

    def run_batch(self, jobs: Sequence[Job[Any, Any, Any]]) -> Entered | list[Entered]:
        """Return the context managers for running a batch; by default that of each job, in their order.

        A context variable then has the value of the last job of the batch.
        """
        return [self.run(job) for job in jobs]


class ContextHeaders(Middleware):
    """Carry context variables, such as a tenant or a request id, from the code that adds a job to its handler.

    An add stores the value of each variable as a header of the job; the run sets the variable to it, or to None if the
    job has no such header. Jobs that the handler adds get the same values. A header given with the job is kept, and a
    variable without a value, or with None, is not stored.

    Args:
        variables: context variables of texts, by the names of their headers.

    Raises:
        GlideMQValidationError: If it is not a mapping, a name is not a text, or a value is not a ContextVar.
    """

    def __init__(self, variables: Mapping[str, ContextVar[Any]]) -> None:
        if not isinstance(variables, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GlideMQValidationError("variables", variables, "must be a mapping of names to context variables")
        given = cast("dict[object, object]", dict(variables))
        for name, variable in given.items():
            if not isinstance(name, str) or not name:
                raise GlideMQValidationError("variables", name, "names must be non-empty strings")
            if not isinstance(variable, ContextVar):
                raise GlideMQValidationError(f"variables.{name}", variable, "must be a contextvars.ContextVar")
        self._variables = cast("dict[str, ContextVar[Any]]", given)

    def add(self, job: NewJob) -> None:
        """Store the variables as headers."""
        for name, variable in self._variables.items():
            value = variable.get(None)
            if value is not None:
                job.headers.setdefault(name, value)

    @contextmanager
    def run(self, job: Job[Any, Any, Any]) -> Generator[None]:
        """Set the variables to the headers while the handler runs."""
        headers = job.headers
        tokens = [(variable, variable.set(headers.get(name))) for name, variable in self._variables.items()]
        try:
            yield
        finally:
            for variable, token in reversed(tokens):
                variable.reset(token)


_METHODS: Final = ("add", "run", "add_bulk", "run_batch")


def parse_middleware(option: str, value: Any) -> tuple[Middleware, ...]:
    """Return the middleware of an option.

    Raises:
        GlideMQValidationError: it is not a sequence of `Middleware` instances.
    """
    if isinstance(value, Middleware):
        raise GlideMQValidationError(option, value, "must be a list: [...]")
    if not isinstance(value, (list, tuple)):
        raise GlideMQValidationError(option, value, "must be a list of Middleware instances")
    given: list[Middleware] = []
    for i, each in enumerate(cast("Sequence[object]", value)):
        if isinstance(each, Middleware):
            given.append(each)
            continue
        name = getattr(each, "__name__", "") if Middleware in getattr(each, "__mro__", ()) else ""
        problem = f"must be an instance: {name}()" if name else "must be an instance of a subclass of Middleware"
        raise GlideMQValidationError(f"{option}[{i}]", each, problem)
    return tuple(given)
