"""SQLAlchemy: jobs that are added after the transaction has been committed, and never if it is rolled back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast, overload

try:
    from sqlalchemy import event
    from sqlalchemy.orm import Session, SessionTransaction
except ImportError as error:
    raise ImportError("glidemq_py.integrations.sqlalchemy requires SQLAlchemy: pip install sqlalchemy") from error

from glidemq_py._core.queue_options import TaskCall
from glidemq_py.sync import Queue
from glidemq_py.sync.pool import LaterAdd

__all__ = ["add_after_commit"]

_KEY: Final = "glidemq_py.after_commit"


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A job that waits for the end of a transaction."""

    transaction: SessionTransaction | None
    job: LaterAdd


@overload
def add_after_commit(session: Session, job: TaskCall, /) -> None: ...
@overload
def add_after_commit(session: Session, queue: Queue, name: str, data: Any = None, **options: Any) -> None: ...
def add_after_commit(
    session: Session, queue: TaskCall | Queue, name: str = "", data: Any = None, **options: Any
) -> None:
    """Add a job once the session's transaction is committed; a rollback forgets it.

    A job that is added within the transaction may start before the commit, and find nothing. The job is added right
    after the commit, by the thread that commits: of an `AsyncSession`, pass ``session.sync_session``.

    The commit cannot be undone if the add then fails, for example because the server cannot be reached: the error is
    logged with the job's name, and the commit succeeds. If such a job must not be lost, store it in a table by the same
    transaction, and let a schedule add the jobs with that row's key as ``job_id``.

    Args:
        session: The session; jobs of a nested transaction (savepoint) are forgotten if that one is rolled back.
        queue: A call of a task, ``add_after_commit(session, welcome.call(user.id))``, which is added over the
            connection of the task's worker; or a blocking queue (`glidemq_py.sync.Queue`).
        name: Name of the job.
        data: Its data, which is read after the commit: do not pass objects of the session.
        options: Options of `Queue.add`.
    """
    held = cast("dict[Any, list[_Waiting]]", session.info)
    if _KEY not in held:
        held[_KEY] = []
        event.listen(session, "after_commit", _add_all)
        event.listen(session, "after_soft_rollback", _forget)
    transaction = session.get_nested_transaction() or session.get_transaction()
    held[_KEY].append(_Waiting(transaction, LaterAdd(queue, name, data, options)))


def _add_all(session: Session) -> None:
    waiting: list[_Waiting] = session.info[_KEY]
    session.info[_KEY] = []
    for each in waiting:
        each.job.add_after_commit()


def _forget(session: Session, ended: SessionTransaction) -> None:
    """Forget the jobs of a transaction that was rolled back, and of those nested in it."""
    kept: list[_Waiting] = []
    for job in session.info[_KEY]:
        each = job.transaction
        while each is not None and each is not ended:
            each = each.parent
        if each is None:
            kept.append(job)
    session.info[_KEY] = kept
