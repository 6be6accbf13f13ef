"""Django: queues from the settings, jobs that are added after the commit, and connections that jobs do not leak."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, cast, overload

try:
    from asgiref.sync import sync_to_async
    from django import db
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.db import transaction
except ImportError as error:
    raise ImportError("glidemq_py.integrations.django requires Django: pip install django") from error

from glidemq_py._core.queue_options import TaskCall
from glidemq_py._job.job import Job
from glidemq_py._job.middleware import Middleware
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.sync import Queue
from glidemq_py.sync.pool import LaterAdd, OpenQueues

__all__ = ["DjangoMiddleware", "add_on_commit", "close_queues", "get_queue"]

_SETTINGS = ("CONNECTION", "PREFIX", "QUEUES")


def get_queue(name: str = "default") -> Queue:
    """Return the queue: one object per name and process, which all threads share.

    The setting ``GLIDEMQ`` is a dict with ``CONNECTION`` (as for `Queue`; without it the environment variable),
    ``PREFIX`` (first part of every key) and ``QUEUES`` (options of queues by name), all optional.

    Raises:
        ImproperlyConfigured: The setting or an option of the queue is invalid.
    """
    return _queues.get(name)


def close_queues() -> None:
    """Close the queues of this process, for tests that change the settings. A later `get_queue` opens new ones."""
    _queues.close()


def _make(name: str) -> Queue:
    found: Any = getattr(cast("Any", settings), "GLIDEMQ", {})
    if not isinstance(found, dict):
        raise ImproperlyConfigured("GLIDEMQ: must be a dict with CONNECTION, PREFIX and QUEUES")
    given = cast("dict[str, Any]", found)
    for key in given:
        if key not in _SETTINGS:
            raise ImproperlyConfigured(f"GLIDEMQ[{key!r}]: unknown; must be one of {', '.join(_SETTINGS)}")
    listed: Any = given.get("QUEUES") or {}
    if not isinstance(listed, dict) or not isinstance(cast("Any", listed).get(name, {}), dict):
        raise ImproperlyConfigured("GLIDEMQ['QUEUES']: must be a dict of the queues' options, dicts, by name")
    options = dict(cast("dict[str, dict[str, Any]]", listed).get(name, {}))
    if given.get("PREFIX") is not None:
        options.setdefault("prefix", given["PREFIX"])
    try:
        return Queue(name, given.get("CONNECTION"), **options)
    except (GlideMQValidationError, TypeError) as error:  # TypeError: an unknown option
        raise ImproperlyConfigured(f"GLIDEMQ: queue {name!r}: {error}") from error


_queues = OpenQueues(_make)


@overload
def add_on_commit(job: TaskCall, /, *, using: str | None = None) -> None: ...
@overload
def add_on_commit(
    queue: Queue | str, name: str, data: Any = None, *, using: str | None = None, **options: Any
) -> None: ...
def add_on_commit(
    queue: TaskCall | Queue | str, name: str = "", data: Any = None, *, using: str | None = None,
    **options: Any,
) -> None:  # fmt: skip
    """Add a job after the transaction commits. A rollback, also one to a savepoint, discards it.

    Without a transaction the job is added at once. After a commit, an add that fails is logged with the job's name and
    does not raise, since the commit cannot be undone.

    Args:
        queue: A call of a task, ``add_on_commit(welcome.call(user.pk))``, which is added over the connection of the
            task's worker; or a blocking queue, or the name of one for `get_queue`.
        name: Name of the job.
        data: Its data, which is read after the commit: pass keys, not model instances.
        using: Alias of the database; None is the default one.
        **options: Options of `Queue.add`.
    """
    job = LaterAdd(get_queue(queue) if isinstance(queue, str) else queue, name, data, options)
    if cast("Any", transaction).get_connection(using).in_atomic_block:
        cast("Any", transaction).on_commit(job.add_after_commit, using=using)
    else:
        job.add()


class DjangoMiddleware(Middleware):
    """Close database connections that are broken or too old before and after each job, as Django does per request.

    Without it, a worker keeps a connection that the database has closed, and every later job of the thread fails with
    "connection already closed". ``CONN_MAX_AGE`` applies. Give it to the worker::

        worker = Worker("emails", send, middleware=[DjangoMiddleware()])
    """

    def run(self, job: Job) -> AbstractContextManager[None] | AbstractAsyncContextManager[None]:
        """Clean up in the thread that runs the handler; of a coroutine, in that of Django's asynchronous ORM."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return _clean_thread()
        return _clean_async()


@contextmanager
def _clean_thread() -> Generator[None]:
    _clean()
    try:
        yield
    finally:
        _clean()


@asynccontextmanager
async def _clean_async() -> AsyncGenerator[None]:
    clean: Any = sync_to_async(_clean, thread_sensitive=True)
    await clean()
    try:
        yield
    finally:
        await clean()


def _clean() -> None:
    found: Any = db
    found.reset_queries()
    found.close_old_connections()
