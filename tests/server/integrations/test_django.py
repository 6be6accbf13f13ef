"""Django: queues of the settings, jobs of committed transactions, connections of jobs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import Job, JobFailedError, Queue, Worker
from glidemq_py import sync as blocking

pytest.importorskip("django")
from asgiref.sync import sync_to_async
from django import db
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.test.utils import override_settings

from glidemq_py.integrations.django import DjangoMiddleware, add_on_commit, close_queues, get_queue


@pytest.fixture
def queue(django_project: Path, url: str, queue_name: str) -> Iterator[blocking.Queue]:
    options = {"default_job_options": {"attempts": 4}}
    with override_settings(GLIDEMQ={"CONNECTION": url, "QUEUES": {queue_name: options}}):
        yield get_queue(queue_name)
        close_queues()


def names(queue: blocking.Queue) -> list[str]:
    return sorted(job.name for job in queue.iter_jobs("waiting"))


def add_and_roll_back(queue: blocking.Queue, name: str):
    with transaction.atomic():
        add_on_commit(queue, name)
        transaction.set_rollback(True)


def test_jobs_are_added_after_the_commit(queue: blocking.Queue):
    with transaction.atomic():
        add_on_commit(queue, "first", {"n": 1}, delay=0)
        add_on_commit(queue.name, "second")
        add_and_roll_back(queue, "of a savepoint")
        assert names(queue) == []
    assert names(queue) == ["first", "second"]
    assert {job.opts["attempts"] for job in queue.iter_jobs("waiting")} == {4}
    add_and_roll_back(queue, "of a transaction")
    add_on_commit(queue, "without a transaction")
    assert names(queue) == ["first", "second", "without a transaction"]


def test_an_add_that_fails_after_the_commit_is_logged(queue: blocking.Queue, caplog: pytest.LogCaptureFixture):
    unreachable: blocking.Queue = blocking.Queue("emails", "valkey://127.0.0.1:1")
    with caplog.at_level(logging.ERROR), transaction.atomic():
        add_on_commit(unreachable, "lost")
        add_on_commit(queue, "kept")
    assert "job 'lost' of queue 'emails' could not be added after the commit" in caplog.text
    assert names(queue) == ["kept"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ([], r"GLIDEMQ: must be a dict"),
        ({"URL": "valkey://h"}, r"GLIDEMQ\['URL'\]: unknown; must be one of CONNECTION, PREFIX, QUEUES"),
        ({"QUEUES": ["emails"]}, r"GLIDEMQ\['QUEUES'\]: must be a dict"),
        ({"QUEUES": {"emails": "options"}}, r"GLIDEMQ\['QUEUES'\]: must be a dict"),
        ({"QUEUES": {"emails": {"compression": "zip"}}}, r"queue 'emails': option 'compression'"),
        ({"QUEUES": {"emails": {"colour": "red"}}}, r"queue 'emails': .*'colour'"),
    ],
)
def test_invalid_settings(django_project: Path, setting: Any, message: str):
    with override_settings(GLIDEMQ=setting), pytest.raises(ImproperlyConfigured, match=message):
        get_queue("emails")


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_jobs_leave_no_connection_open(django_project: Path, url: str, queue_name: str, kind: str):
    # CONN_MAX_AGE is 0: a connection is closed at the end of a request, and of a job.
    found: list[bool] = []

    def look(job: Job):
        found.append(db.connection.connection is not None)
        with db.connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        found.append(db.connection.connection is not None)

    async def look_async(job: Job):
        await sync_to_async(look)(job)

    async with Queue(queue_name, url) as queue:
        handler: Any = look if kind == "thread" else look_async
        async with Worker(queue_name, handler, url, middleware=[DjangoMiddleware()]):
            for _ in range(2):
                await queue.add_and_wait("look", timeout=100_000)
    assert found == [False, True] * 2


async def test_view_adds_a_task_on_commit_with_its_retries(django_project: Path, url: str, queue_name: str):
    worker = Worker(queue_name, connection=url, middleware=[DjangoMiddleware()])

    @worker.task(attempts=3, backoff=10)
    def welcome(job: Job, /, user: int) -> str:
        if job.attempts_made < 2:
            raise ConnectionError("no route to host")
        return f"user {user} at attempt {job.attempts_made + 1}"

    @transaction.atomic
    def sign_up(request: HttpRequest) -> HttpResponse:
        add_on_commit(welcome.call(int(request.POST["user"])))
        add_on_commit(welcome.options(attempts=1).call(user=8))
        if "fails" in request.POST:
            raise ValueError("rolled back")
        with blocking.Queue(queue_name, url) as queue:
            return HttpResponse(str(queue.count()))

    requests = RequestFactory()

    def browse() -> bytes:
        with pytest.raises(ValueError, match="rolled back"):
            sign_up(requests.post("/sign-up", {"user": 6, "fails": 1}))
        return sign_up(requests.post("/sign-up", {"user": 7})).content

    assert await sync_to_async(browse)() == b"0"
    jobs = {job.data["user"]: job async for job in worker.queue.iter_jobs("waiting")}
    assert {user: job.opts["attempts"] for user, job in jobs.items()} == {7: 3, 8: 1}
    async with worker:
        assert await jobs[7].wait_until_finished() == "user 7 at attempt 3"
        with pytest.raises(JobFailedError, match="no route to host"):
            await jobs[8].wait_until_finished()


def test_call_without_a_transaction_is_added_at_once(
    django_project: Path, url: str, queue_name: str, caplog: pytest.LogCaptureFixture
):
    worker = Worker(queue_name, connection=url)
    lost = Worker("emails", connection="valkey://127.0.0.1:1")

    @worker.task
    def welcome() -> None: ...

    with blocking.Queue(queue_name, url) as queue:
        add_on_commit(worker.task("first")(welcome).call())
        assert names(queue) == ["first"]
        with caplog.at_level(logging.ERROR), transaction.atomic():
            add_on_commit(welcome.call())
            add_on_commit(lost.task("second")(welcome).call())
        assert names(queue) == ["first", "welcome"]
    assert "job 'second' of queue 'emails' could not be added after the commit" in caplog.text
