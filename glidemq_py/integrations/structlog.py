"""structlog: every line that a handler logs names its job."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

try:
    from structlog import contextvars
except ImportError as error:
    raise ImportError("glidemq_py.integrations.structlog requires structlog: pip install structlog") from error

from glidemq_py._job.job import Job
from glidemq_py._job.middleware import Middleware, NewJob
from glidemq_py.errors import GlideMQValidationError

__all__ = ["StructlogMiddleware"]


class StructlogMiddleware(Middleware):
    """Bind the job to structlog's context while its handler runs, and carry values of the context to it.

    A line then has ``queue``, ``job_id``, ``job_name`` and ``attempt``. structlog must merge the context:
    ``structlog.contextvars.merge_contextvars`` is one of its default processors.

    Args:
        carry: Names of values of the context, such as ``("request_id", "tenant")``, that an add stores as headers of
            the job, and the run binds again. Their values become texts. They need this middleware at the queue as well.

    Raises:
        GlideMQValidationError: ``carry`` is not a list of names.
    """

    def __init__(self, *, carry: Collection[str] = ()) -> None:
        given: Any = carry
        if isinstance(given, str) or not all(isinstance(name, str) and name for name in given):
            raise GlideMQValidationError("carry", carry, "must be a list of names")
        self._carried = tuple(carry)

    def add(self, job: NewJob) -> None:
        """Store the carried values as headers."""
        bound = cast("Mapping[str, Any]", contextvars.get_contextvars())
        for name in self._carried:
            if bound.get(name) is not None:
                job.headers.setdefault(name, str(bound[name]))

    @contextmanager
    def run(self, job: Job) -> Generator[None]:
        """Bind the job and the carried values; values that the handler binds are unbound when it ends."""
        before = dict(cast("Mapping[str, Any]", contextvars.get_contextvars()))
        carried = {name: job.headers[name] for name in self._carried if name in job.headers}
        contextvars.clear_contextvars()
        contextvars.bind_contextvars(
            queue=job.queue_name, job_id=job.id, job_name=job.name, attempt=job.attempts_made + 1, **carried
        )
        try:
            yield
        finally:
            contextvars.clear_contextvars()
            contextvars.bind_contextvars(**before)
