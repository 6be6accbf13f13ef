"""Flask: queues from the application's configuration, and its application context around every job."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, cast

try:
    from flask import Flask, current_app
except ImportError as error:
    raise ImportError("glidemq_py.integrations.flask requires Flask: pip install flask") from error

from glidemq_py._job.job import Job
from glidemq_py._job.middleware import Middleware
from glidemq_py._worker.worker import Worker
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.sync import Queue
from glidemq_py.sync.pool import OpenQueues

__all__ = ["AppContextMiddleware", "GlideMQ"]

_EXTENSION: Final = "glidemq"


class GlideMQ:
    """Create the queues of a Flask application from its configuration; they connect at first use.

    ::

        mq = GlideMQ()


        def create_app():
            app = Flask(__name__)
            app.config["GLIDEMQ_URL"] = "valkey://localhost:6379"
            app.config["GLIDEMQ_QUEUES"] = {"emails": {"default_job_options": {"attempts": 5}}}
            mq.init_app(app)
            return app


        mq.queue("emails").add("welcome", {"to": "ada@example.org"})

    Configuration: ``GLIDEMQ_URL`` is the connection (as for `Queue`; None or missing means the environment variable),
    ``GLIDEMQ_PREFIX`` the first part of every key, ``GLIDEMQ_QUEUES`` the options of queues by name. A queue that it
    does not list has the default options.

    Args:
        app: The application; None if `init_app` follows.
        workers: Workers whose tasks views add: ``welcome.blocking.add(...)``. `init_app` gives them the connection and
            the prefix of the application.
    """

    def __init__(self, app: Flask | None = None, *, workers: Sequence[Worker] = ()) -> None:
        self._workers = tuple(workers)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Register the queues with the application.

        Raises:
            GlideMQValidationError: ``GLIDEMQ_QUEUES`` is invalid.
            GlideMQError: A worker runs already, or its tasks have added jobs: `close` comes first.
        """
        for worker in self._workers:
            worker.override(connection=_configured(app, "GLIDEMQ_URL"), prefix=_configured(app, "GLIDEMQ_PREFIX"))
        app.extensions[_EXTENSION] = opened = OpenQueues(partial(_make, app))
        for name in _listed(app):
            opened.get(name)  # reports an invalid option at the start

    def queue(self, name: str) -> Queue:
        """Return the queue of the current application: one object per name, which all threads share.

        Raises:
            GlideMQValidationError: The name or an option of the queue is invalid, or `init_app` was not called.
            RuntimeError: There is no application context.
        """
        app: Flask = cast("Any", current_app)._get_current_object()
        opened = _queues_of(app)
        if opened is None:
            raise GlideMQValidationError("app", app.name, "has no queues; call GlideMQ.init_app(app) first")
        return opened.get(name)

    def close(self, app: Flask) -> None:
        """Close the queues of the application and its tasks, for tests and scripts. A later use opens them again."""
        if (opened := _queues_of(app)) is not None:
            opened.close()
        for worker in self._workers:
            worker._close_blocking_queue()


def _queues_of(app: Flask) -> OpenQueues | None:
    return app.extensions.get(_EXTENSION)


def _configured(app: Flask, name: str) -> Any:
    return cast("dict[str, Any]", app.config).get(name)


def _listed(app: Flask) -> dict[str, dict[str, Any]]:
    """Return the options of the listed queues by name."""
    given: object = _configured(app, "GLIDEMQ_QUEUES") or {}
    values: list[Any] = list(cast("dict[str, Any]", given).values()) if isinstance(given, dict) else [None]
    if not all(isinstance(each, dict) for each in values):
        raise GlideMQValidationError(
            "GLIDEMQ_QUEUES", cast("Any", given), "must be a dict of the queues' options, dicts, by name"
        )
    return cast("dict[str, dict[str, Any]]", given)


def _make(app: Flask, name: str) -> Queue:
    options = dict(_listed(app).get(name, {}))
    prefix = _configured(app, "GLIDEMQ_PREFIX")
    if prefix is not None:
        options.setdefault("prefix", prefix)
    return Queue(name, _configured(app, "GLIDEMQ_URL"), **options)


class AppContextMiddleware(Middleware):
    """Run each job of a worker within the application context, so that handlers use ``current_app`` and ``g``.

    Give it to the worker: ``Worker("emails", send, middleware=[AppContextMiddleware(create_app())])``. The functions
    registered with ``teardown_appcontext`` are called after each attempt, with its error, as after a request.

    Args:
        app: The application.
    """

    def __init__(self, app: Flask) -> None:
        self._app = app

    @contextmanager
    def run(self, job: Job) -> Generator[None]:
        """Run within a context of its own."""
        with self._app.app_context():
            yield
