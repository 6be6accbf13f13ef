"""The continuations of suspended jobs that a worker keeps."""

from types import SimpleNamespace
from typing import Any

from glidemq_py import (
    Job,
    SuspendError,
)
from glidemq_py._worker.suspension import Continuations


class _Run:
    def __init__(self, job_id: str):
        link: Any = SimpleNamespace(partition=None)
        self.job: Job = Job(link, job_id, "n")
        self.job._signals_text = '[{"name":"go","data":"","receivedAt":1}]'
        self.attempt = type("A", (), {"fence": 1})()


def test_continuations_are_bounded():
    """W26: the original's map grows with every job that resumes elsewhere."""
    kept = Continuations()
    run: Any = _Run
    for number in range(5_000):
        kept.keep(run(str(number)), SuspendError(None, None, print))
    assert len(kept.kept) == 1_000
    assert kept.route(run("4999")) is None  # the fencing token is that of the suspended attempt itself
    assert len(kept.kept) == 999
    kept.keep(_Run("n"), SuspendError())  # type: ignore[arg-type]
    assert len(kept.kept) == 999
