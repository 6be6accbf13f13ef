"""The job that the running code belongs to, as a context variable, and its id in log records."""

from __future__ import annotations

import logging
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glidemq_py._job.job import Job

__all__ = ["current_job", "current_job_id", "label_log_records", "running_job"]

running_job: ContextVar[Job[Any, Any] | None] = ContextVar("glidemq_running_job", default=None)


def current_job() -> Job[Any, Any] | None:
    """The job whose handler is running here, in its task or thread; None outside a handler."""
    return running_job.get()


def current_job_id() -> str | None:
    """Id of `current_job()`."""
    job = running_job.get()
    return None if job is None else job.id


_lock = threading.Lock()
_labelling = False


def label_log_records() -> None:
    """Give every log record ``job_id`` and ``job_name`` ('' outside a handler), so that a formatter may use
    ``%(job_id)s``. Wraps the record factory in force, once a process; workers do it when they start.
    """
    global _labelling
    with _lock:
        if _labelling:
            return
        _labelling = True
        make = logging.getLogRecordFactory()

        def labelled(*args: Any, **kwargs: Any) -> logging.LogRecord:
            record = make(*args, **kwargs)
            job = running_job.get()
            record.job_id = "" if job is None else job.id
            record.job_name = "" if job is None else job.name
            return record

        logging.setLogRecordFactory(labelled)
