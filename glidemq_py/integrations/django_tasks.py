"""A backend of Django's tasks framework (`django.tasks`, Django 6): tasks are jobs, and a `Worker` runs them."""

# Django has no annotations, and the checker's Python may be too old for Django 6.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast

try:
    from django.core.exceptions import ImproperlyConfigured
    from django.tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskError
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.crypto import get_random_string
    from django.utils.json import normalize_json
    from django.utils.module_loading import import_string
except ImportError as error:
    raise ImportError(
        "glidemq_py.integrations.django_tasks requires Django 6 and Python 3.12: pip install 'django>=6'"
    ) from error

from glidemq_py._core.record import JobState
from glidemq_py._features.failed_attempts import last_start
from glidemq_py._job.job import Job
from glidemq_py._job.job_twin import BlockingJob
from glidemq_py._worker.worker import Worker
from glidemq_py.errors import GlideMQValidationError, JobSignal, UnrecoverableError
from glidemq_py.integrations.django import DjangoMiddleware
from glidemq_py.sync import Queue
from glidemq_py.sync.pool import OpenQueues

__all__ = ["GlideMQBackend", "make_worker"]

_OPTIONS: Final = ("connection", "prefix", "job_options")
_STATUS: Final = {
    JobState.ACTIVE: TaskResultStatus.RUNNING,
    JobState.COMPLETED: TaskResultStatus.SUCCESSFUL,
    JobState.FAILED: TaskResultStatus.FAILED,
}
_LAST_LINE: Final = re.compile(r"^(?P<path>[A-Za-z_][\w.]*)(?::|$)", re.MULTILINE)


class GlideMQBackend(BaseTaskBackend):  # type: ignore[misc, unused-ignore]
    """Store tasks as jobs: ``TASKS = {"default": {"BACKEND": "glidemq_py.integrations.django_tasks.GlideMQBackend"}}``.

    ``QUEUES`` lists the queues; an empty list allows any. ``OPTIONS`` may have ``connection`` (as for `Queue`),
    ``prefix``, and ``job_options``, the options of every job, such as ``{"attempts": 3, "backoff": 1_000}``.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self._options: dict[str, Any] = dict(self.options)
        for name in self._options:
            if name not in _OPTIONS:
                raise ImproperlyConfigured(
                    f"TASKS[{alias!r}]['OPTIONS'][{name!r}]: unknown; must be one of {', '.join(_OPTIONS)}"
                )
        self._opened = OpenQueues(self._make)

    @property
    def connection(self) -> Any:
        """Connection of the queues; see `Queue`."""
        return self._options.get("connection")

    @property
    def queue_options(self) -> dict[str, Any]:
        """Options of the queues and workers."""
        prefix = self._options.get("prefix")
        return {} if prefix is None else {"prefix": prefix}

    def queue(self, name: str) -> Queue:
        """Return the blocking queue of this name.

        Raises:
            ImproperlyConfigured: An option is invalid.
        """
        return self._opened.get(name)

    def _make(self, name: str) -> Queue:
        defaults = self._options.get("job_options")
        try:
            return Queue(name, self.connection, default_job_options=defaults, **self.queue_options)
        except GlideMQValidationError as error:
            raise ImproperlyConfigured(f"TASKS[{self.alias!r}]: queue {name!r}: {error}") from error

    def close(self) -> None:
        """Close the queues, for tests. A later use opens them again."""
        self._opened.close()

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Add the job of a task; it is stored when this returns.

        Within a transaction, use ``transaction.on_commit(partial(task.enqueue, ...))``.

        Raises:
            InvalidTask: The backend does not allow the task.
            TypeError: An argument has no JSON form.
        """
        self.validate_task(task)
        data = {"args": normalize_json(list(args)), "kwargs": normalize_json(dict(kwargs))}
        options: dict[str, Any] = {"job_id": get_random_string(24)}
        if task.priority:
            options["rank"] = task.priority
        if task.run_after is not None:
            due = task.run_after if task.run_after.tzinfo is not None else task.run_after.astimezone()
            options["delay"] = max(0, round((due - datetime.now(UTC)).total_seconds() * 1_000))
        job = self.queue(task.queue_name).add(task.module_path, data, **options)
        result = _result(task, self.alias, job, TaskResultStatus.READY)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the result of a task that was enqueued by any process.

        Raises:
            TaskResultDoesNotExist: There is no such job; finished ones may have been removed by their retention.
        """
        name, _, job_id = result_id.rpartition(":")
        if not name or (self.queues and name not in self.queues):
            raise TaskResultDoesNotExist(result_id)
        try:
            job = self.queue(name).get_job(job_id)
        except (GlideMQValidationError, ImproperlyConfigured):
            job = None
        if job is None:
            raise TaskResultDoesNotExist(result_id)
        try:
            task = _task_of(job.name, name, self.alias)
        except InvalidTask as error:
            raise TaskResultDoesNotExist(result_id) from error
        state = job.state
        result = _result(task, self.alias, job, _STATUS.get(cast("JobState", state), TaskResultStatus.READY))
        attempts = self.queue(name).failures.get_attempts(job_id)
        for attempt in attempts:
            path = _path_of(attempt.error_type, attempt.traceback)
            result.errors.append(TaskError(exception_class_path=path, traceback=attempt.traceback or attempt.error))
            result.worker_ids.append(attempt.worker)
        if state in (JobState.ACTIVE, JobState.COMPLETED):
            result.worker_ids.append("")  # the record does not name the worker of an attempt that did not fail
        if attempts:  # `processed_on` of a failed attempt is its end
            object.__setattr__(result, "last_attempted_at", _time(last_start(job, attempts)))
        if attempts and attempts[0].started_at is not None:
            object.__setattr__(result, "started_at", _time(attempts[0].started_at))
        if state is JobState.COMPLETED:
            object.__setattr__(result, "_return_value", job.returnvalue)
        return result


def make_worker(alias: str = "default", *, queues: Any = None, **options: Any) -> Worker:
    """Return a worker that runs the tasks of a backend, for ``glidemq worker mysite.worker:worker``.

    ``mysite/worker.py``::

        import django

        django.setup()
        worker = make_worker(concurrency=8)

    Each task runs in a thread of its own, a coroutine function in an event loop there.

    Args:
        alias: Alias of the backend in ``TASKS``.
        queues: Queue or queues, as for `Worker`; None means all queues of the backend, in strict order by name.
        **options: Options of `Worker`. `DjangoMiddleware` is the innermost middleware.

    Raises:
        ImproperlyConfigured: The backend is another one, or lists no queues and ``queues`` is None.
        GlideMQValidationError: An option is invalid.
    """
    backend: Any = task_backends[alias]
    if not isinstance(backend, GlideMQBackend):
        raise ImproperlyConfigured(f"TASKS[{alias!r}]: the backend must be GlideMQBackend")
    chosen = queues if queues is not None else sorted(backend.queues)
    if not chosen:
        raise ImproperlyConfigured(f"TASKS[{alias!r}]['QUEUES'] is empty: pass queues= to make_worker")
    if isinstance(chosen, list) and len(cast("list[str]", chosen)) == 1:
        chosen = cast("list[str]", chosen)[0]

    def run(job: Job) -> Any:
        return _run(backend, job)

    middleware = [*(options.pop("middleware", None) or ()), DjangoMiddleware()]
    given = {**backend.queue_options, **options}
    return Worker(chosen, run, given.pop("connection", backend.connection), middleware=middleware, **given)


def _run(backend: GlideMQBackend, job: Job) -> Any:
    try:
        task = _task_of(job.name, job.queue_name, backend.alias)
    except InvalidTask as error:
        raise UnrecoverableError(str(error)) from error
    data = job.data
    result = _result(task, backend.alias, job, TaskResultStatus.RUNNING)
    result.worker_ids.extend([""] * (job.attempts_made + 1))
    task_started.send(type(backend), task_result=result)
    context = [TaskContext(task_result=result)] if task.takes_context else []
    try:
        returned = normalize_json(task.call(*context, *data["args"], **data["kwargs"]))
    except JobSignal:
        raise
    except Exception as error:
        if isinstance(error, UnrecoverableError) or job.attempts_made + 1 >= int(job.opts.get("attempts") or 1):
            object.__setattr__(result, "status", TaskResultStatus.FAILED)
            object.__setattr__(result, "finished_at", datetime.now(UTC))
            task_finished.send(type(backend), task_result=result)
        raise
    object.__setattr__(result, "status", TaskResultStatus.SUCCESSFUL)
    object.__setattr__(result, "finished_at", datetime.now(UTC))
    object.__setattr__(result, "_return_value", returned)
    task_finished.send(type(backend), task_result=result)
    return returned


def _task_of(path: str, queue: str, alias: str) -> Any:
    """Return the task that a job names. Raises InvalidTask: a job must not make a worker call any other function."""
    try:
        found: Any = import_string(path)
    except ImportError as error:
        raise InvalidTask(f"no task {path!r}: {error}") from error
    if not isinstance(found, Task):
        raise InvalidTask(f"{path!r} is not a task: decorate the function with django.tasks.task")
    return found.using(queue_name=queue, backend=alias)


def _result(task: Any, alias: str, job: BlockingJob[Any, Any] | Job, status: Any) -> Any:
    data = job.data
    return TaskResult(
        task=task, id=f"{job.queue_name}:{job.id}", status=status, enqueued_at=_time(job.timestamp),
        started_at=_time(job.processed_on), last_attempted_at=_time(job.processed_on),
        finished_at=_time(job.finished_on), args=data["args"], kwargs=data["kwargs"], backend=alias,
        errors=[], worker_ids=[],
    )  # fmt: skip


def _time(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1_000, UTC)


def _path_of(name: str, traceback: str) -> str:
    """Return the import path of an exception, which the last lines of its traceback begin with."""
    last = name.rpartition(".")[2] or "Exception"
    for found in reversed(_LAST_LINE.findall(traceback)):
        if found.rpartition(".")[2] == last:
            return found if "." in found else f"builtins.{found}"
    return f"builtins.{last}"
