"""Django's tasks framework over queues. Needs Django 6, which needs Python 3.12: `python3 noxfile.py django`."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("django.tasks", reason="Django 6 needs Python 3.12: run `python3 noxfile.py django`")
from django.core.exceptions import ImproperlyConfigured
from django.tasks import TaskResultStatus, task_backends
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.test.utils import override_settings

from glidemq_py import Queue
from glidemq_py.integrations.django_tasks import make_worker

BACKEND = "glidemq_py.integrations.django_tasks.GlideMQBackend"


@pytest.fixture
def functions(django_project: Path, url: str) -> Iterator[Any]:
    """The tasks, of a backend on the server of the test."""
    options = {"connection": url, "job_options": {"attempts": 2}}
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": options}}):
        from tests.server.integrations import django_functions

        yield django_functions
        task_backends["default"].close()


async def test_a_worker_runs_tasks(functions: Any, queue_name: str):
    seen: list[tuple[str, Any]] = []

    def note(name: str) -> Any:
        def receive(sender: Any, task_result: Any, **_: Any):
            seen.append((name, task_result.status.value))

        return receive

    receivers = {signal: note(name) for signal, name in
                 ((task_enqueued, "enqueued"), (task_started, "started"), (task_finished, "finished"))}  # fmt: skip
    for signal, receiver in receivers.items():
        signal.connect(receiver)
    try:
        result = await functions.add.using(queue_name=queue_name).aenqueue(1, b=2)
        later = await functions.add_later.using(queue_name=queue_name).aenqueue(3, 4)
        assert (result.status, result.args, result.kwargs) == (TaskResultStatus.READY, [1], {"b": 2})
        with pytest.raises(ValueError, match="not finished"):
            _ = result.return_value
        async with make_worker(queues=queue_name) as worker:
            await worker.drain()
    finally:
        for signal, receiver in receivers.items():
            signal.disconnect(receiver)
    await result.arefresh()
    await later.arefresh()
    assert [result.return_value, later.return_value] == [3, 7]
    assert (result.status, result.attempts, result.errors) == (TaskResultStatus.SUCCESSFUL, 1, [])
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert [each for each in seen if each[0] == "enqueued"] == [("enqueued", "READY")] * 2
    assert [each for each in seen if each[0] != "enqueued"] == [("started", "RUNNING"), ("finished", "SUCCESSFUL")] * 2


async def test_failed_attempts_are_errors_of_the_result(functions: Any, queue_name: str):
    retried = await functions.attempt_of.using(queue_name=queue_name).aenqueue(2)
    failed = await functions.fail.using(queue_name=queue_name).aenqueue("no printer")
    async with make_worker(queues=queue_name, log_failures=False) as worker:
        await worker.drain()
    await retried.arefresh()
    assert retried.return_value == [2, retried.id]
    assert [error.exception_class for error in retried.errors] == [LookupError]
    assert retried.attempts == 2
    await failed.arefresh()
    assert failed.status is TaskResultStatus.FAILED
    assert [error.exception_class for error in failed.errors] == [asyncio.InvalidStateError] * 2
    assert "no printer" in failed.errors[0].traceback
    with pytest.raises(ValueError, match="failed"):
        _ = failed.return_value


async def test_priority_and_time_of_a_task(functions: Any, queue_name: str, url: str):
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    for priority in (-5, 0, 7):
        await functions.add.using(queue_name=queue_name, priority=priority).aenqueue(priority)
    delayed = await functions.add.using(queue_name=queue_name, run_after=later).aenqueue(9)
    async with Queue(queue_name, url) as queue:
        (job,) = [job async for job in queue.iter_jobs("delayed")]
        assert delayed.id == f"{queue_name}:{job.id}"
        assert 3_500_000 < job.delay <= 3_600_000
        await job.remove()
    ran: list[int] = []
    worker = make_worker(queues=queue_name)
    worker.on("completed", lambda job, result: ran.append(result))
    async with worker:
        await worker.drain()
    assert ran == [7, 0, -5]


async def test_results_of_others_do_not_exist(functions: Any, queue_name: str):
    add = functions.add.using(queue_name=queue_name)
    for unknown in ("17", f"{queue_name}:17", ":", "a b:c d"):
        with pytest.raises(TaskResultDoesNotExist):
            await add.aget_result(unknown)
    result = await functions.fail.using(queue_name=queue_name).aenqueue("x")
    with pytest.raises(TaskResultMismatch):
        await add.aget_result(result.id)


async def test_jobs_call_tasks_only(functions: Any, queue: Queue, queue_name: str):
    data: dict[str, Any] = {"args": [], "kwargs": {}}
    paths = [f"{functions.__name__}.not_a_task", "os.getcwd", "nowhere.at_all", "nothing"]
    jobs = await queue.add_bulk([(path, data, {"attempts": 3}) for path in paths])
    async with make_worker(queues=queue_name, log_failures=False) as worker:
        await worker.drain()
    for job in jobs:
        await job.reload()
        assert (job.state, job.attempts_made) == ("failed", 1)
        assert job.failed_reason is not None
        assert job.name in job.failed_reason


def test_mistakes_are_reported(functions: Any, url: str):
    with pytest.raises(ImproperlyConfigured, match="pass queues="):
        make_worker()
    with pytest.raises(TypeError):
        functions.add.enqueue(object())
    tasks: dict[str, Any] = {"default": {"BACKEND": BACKEND, "OPTIONS": {"url": url}}}
    with override_settings(TASKS=tasks), pytest.raises(ImproperlyConfigured, match=r"'url'.*unknown; must be one of"):
        make_worker()
    tasks["default"] = {"BACKEND": BACKEND, "QUEUES": ["a"], "OPTIONS": {"job_options": {"attempts": -1}}}
    with override_settings(TASKS=tasks):
        assert make_worker().queue_name == "a"
        with pytest.raises(InvalidTask):
            functions.add.enqueue(1)
        with pytest.raises(ImproperlyConfigured, match="attempts"):
            functions.add.using(queue_name="a").enqueue(1)
    tasks["default"] = {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"}
    with override_settings(TASKS=tasks), pytest.raises(ImproperlyConfigured, match="must be GlideMQBackend"):
        make_worker()
