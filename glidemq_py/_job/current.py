"""The job or message of the running handler, as a context variable, and its id in log records."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from glidemq_py._core.forks import new_lock

if TYPE_CHECKING:
    from glidemq_py._job.contents import JobContents

running_job: ContextVar[JobContents | None] = ContextVar("glidemq_running_job", default=None)
_lock = new_lock()
_installed = False


def label_log_records() -> None:
    """Add ``job_id`` and ``job_name`` to every log record, for formats such as ``%(job_id)s``.

    Both are '' outside a handler. Wraps the current record factory, once per process. Workers call this when they
    start.
    """
    global _installed
    with _lock:
        if _installed:
            return
        _installed = True
        make = logging.getLogRecordFactory()

        def labelled(*args: Any, **kwargs: Any) -> logging.LogRecord:
            record = make(*args, **kwargs)
            job = running_job.get()
            record.job_id = "" if job is None else job.id
            record.job_name = "" if job is None else job.name
            return record

        logging.setLogRecordFactory(labelled)
