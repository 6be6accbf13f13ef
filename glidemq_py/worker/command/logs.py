"""Log output of the command. An application that sets up logging itself keeps its own."""

from __future__ import annotations

import logging

from glidemq_py.job.current import label_log_records

__all__ = ["set_up_logs"]

_FORMAT = "%(asctime)s %(levelname)-7s [%(process)d] %(name)s: %(job)s%(message)s"


class _Formatter(logging.Formatter):
    """Says which job a record belongs to, where it belongs to one."""

    def format(self, record: logging.LogRecord) -> str:
        job_id, name = getattr(record, "job_id", ""), getattr(record, "job_name", "")
        record.job = f"[job {job_id} {name}] " if job_id else ""
        return super().format(record)


def set_up_logs(level: int | None) -> None:
    """Log to stderr at ``level`` (default INFO), unless there are handlers already: then only a given level counts."""
    label_log_records()
    root = logging.getLogger()
    if root.handlers:
        if level is not None:
            root.setLevel(level)
        return
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter(_FORMAT))
    root.addHandler(handler)
    root.setLevel(logging.INFO if level is None else level)
