"""SQLAlchemy: a job exists when its transaction is committed, and only then."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from glidemq_py import Worker
from glidemq_py.sync import Queue

sqlalchemy = pytest.importorskip("sqlalchemy")
from sqlalchemy.orm import Session  # noqa: E402

from glidemq_py.integrations.sqlalchemy import add_after_commit  # noqa: E402


@pytest.fixture
def queue(url: str, queue_name: str) -> Iterator[Queue]:
    with Queue(queue_name, url) as queue:
        yield queue


@pytest.fixture
def session() -> Iterator[Session]:
    with Session(sqlalchemy.create_engine("sqlite://")) as session:
        yield session


def names(queue: Queue) -> list[str]:
    return sorted(job.name for job in queue.iter_jobs("waiting"))


def test_jobs_are_added_after_the_commit(queue: Queue, session: Session):
    session.execute(sqlalchemy.text("SELECT 1"))
    add_after_commit(session, queue, "first", {"n": 1}, attempts=2)
    assert names(queue) == []
    session.commit()
    (job,) = queue.iter_jobs("waiting")
    assert (job.name, job.data, job.opts["attempts"]) == ("first", {"n": 1}, 2)
    session.commit()
    assert names(queue) == ["first"]


def test_a_rollback_forgets_them(queue: Queue, session: Session):
    session.begin()
    add_after_commit(session, queue, "never")
    session.rollback()
    with session.begin():
        add_after_commit(session, queue, "kept")
    assert names(queue) == ["kept"]


def test_a_savepoint_forgets_its_own(queue: Queue, session: Session):
    with session.begin():
        add_after_commit(session, queue, "outer")
        nested = session.begin_nested()
        add_after_commit(session, queue, "inner")
        nested.rollback()
        with session.begin_nested():
            add_after_commit(session, queue, "released")
        add_after_commit(session, queue, "later")
    assert names(queue) == ["later", "outer", "released"]


def test_an_add_that_fails_is_logged_and_the_commit_holds(
    queue: Queue, session: Session, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.ERROR), session.begin():
        add_after_commit(session, queue, "wrong", attempts=-1)
        add_after_commit(session, queue, "right")
    assert names(queue) == ["right"]
    assert "job 'wrong' of queue" in caplog.text
    assert "attempts" in caplog.text


def test_call_of_a_task_is_added_with_its_options(queue: Queue, url: str, session: Session):
    worker = Worker(queue.name, connection=url)

    @worker.task(attempts=4)
    async def welcome(user: int) -> None: ...

    session.begin()
    add_after_commit(session, welcome.call(6))
    session.rollback()
    with session.begin():
        add_after_commit(session, welcome.options(priority=2).call(user=7))
        assert names(queue) == []
    (job,) = queue.iter_jobs("prioritized")
    assert (job.name, job.data, job.opts) == ("welcome", {"user": 7}, {"attempts": 4, "priority": 2})
