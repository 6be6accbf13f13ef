"""Pages of Django's admin site, in a project with users, a database and the admin site of Django."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import Queue, Worker

pytest.importorskip("django")
from django.core.management import call_command
from django.test import Client
from django.test.utils import override_settings

from glidemq_py.integrations.django import close_queues

pytestmark = pytest.mark.slow  # all: they share a database

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def users(django_project: Path) -> dict[str, Any]:
    """Create the tables and users of a project: one who may do everything, a reader, one without permissions."""
    call_command("migrate", verbosity=0)
    from django.contrib.auth.models import Permission, User

    made: dict[str, Any] = {
        name: User.objects.create_user(name, password="secret", is_staff=True, is_superuser=name == "root")
        for name in ("root", "reader", "nobody")
    }
    made["reader"].user_permissions.add(Permission.objects.get(codename="view_queue"))
    return made


@pytest.fixture
def failed(users: dict[str, Any], url: str, queue_name: str) -> Iterator[str]:
    """Fail five jobs of a queue; return its name."""

    async def fill():
        async def fail(job: Any):
            raise LookupError(EVIL)

        ended = asyncio.Semaphore(0)
        async with Queue(queue_name, url) as queue:
            await queue.add_bulk([("mail", n, {"job_id": f"job{n}"}) for n in range(5)])
            worker = Worker(queue_name, fail, url, log_failures=False)
            worker.on("failed", lambda *_: ended.release())
            async with worker, asyncio.timeout(100):
                for _ in range(5):
                    await ended.acquire()
            await queue.add("later", delay=3_600_000)

    asyncio.run(fill())
    with override_settings(GLIDEMQ={"CONNECTION": url, "QUEUES": {queue_name: {}}}):
        yield queue_name
        close_queues()


def client_of(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def page(client: Client, name: str, query: str = "") -> str:
    response = client.get(f"/admin/glidemq/queue/{name}/failed/{query}")
    assert response.status_code == 200
    return str(response.content.decode())


def post(client: Client, name: str, **fields: Any) -> str:
    response = client.post(f"/admin/glidemq/queue/{name}/failed/", fields, follow=True)
    return str(response.content.decode())


async def states(url: str, name: str) -> tuple[int, int]:
    async with Queue(name, url) as queue:
        counts = await queue.get_job_counts()
        return counts.failed, counts.waiting


def test_queues_and_failed_jobs_are_listed(users: dict[str, Any], failed: str):
    client = client_of(users["root"])
    assert "/admin/glidemq/queue/" in client.get("/admin/").content.decode()
    text = client.get("/admin/glidemq/queue/").content.decode()
    assert f'<a href="/admin/glidemq/queue/{failed}/failed/">5 failed</a>' in text
    text = page(client, failed)
    assert text.count('name="id"') == 5
    assert "LookupError: &lt;img src=x" in text
    assert EVIL not in text
    assert 'href="?reason=max_attempts_exceeded"' in text
    assert "No failed jobs with this reason" in page(client, failed, "?reason=timeout")
    assert client.get("/admin/glidemq/queue/none/failed/").status_code == 404


def test_jobs_are_retried_and_deleted(users: dict[str, Any], failed: str, url: str):
    client = client_of(users["root"])
    assert "1 failed job to be retried." in post(client, failed, action="retry", id=["job0"])
    assert asyncio.run(states(url, failed)) == (4, 1)
    text = post(client, failed, action="delete", id=["job1", "job2", "job0", "gone"])
    assert "2 failed jobs deleted." in text
    assert "&#x27;job0&#x27;: it is waiting" in text
    assert "Job gone does not exist." in text
    assert asyncio.run(states(url, failed)) == (2, 1)
    assert "Select at least one job." in post(client, failed, action="retry")
    asked = post(client, failed, action="retry_all")
    assert "Retry all failed jobs of queue" in asked
    assert asyncio.run(states(url, failed)) == (2, 1)
    assert "2 failed jobs to be retried." in post(client, failed, action="retry_all", confirmed="1")
    assert asyncio.run(states(url, failed)) == (0, 3)
    from django.contrib.admin.models import LogEntry

    entries = LogEntry.objects.filter(object_id=failed).order_by("pk")
    assert [each.change_message for each in entries] == [
        "1 failed job to be retried", "2 failed jobs deleted", "2 failed jobs to be retried",
    ]  # fmt: skip
    assert "2 failed jobs to be retried" in entries.last().get_change_message()
    assert client.get("/admin/").status_code == 200  # it lists the changes


def test_permissions_of_django_apply(users: dict[str, Any], failed: str, url: str):
    reader = client_of(users["reader"])
    text = page(reader, failed)
    assert 'name="action"' not in text
    assert 'name="id"' not in text
    for action in ("retry", "delete", "retry_all", "delete_all"):
        sent = reader.post(f"/admin/glidemq/queue/{failed}/failed/", {"action": action, "id": "job1", "confirmed": "1"})
        assert sent.status_code == 403
    nobody = client_of(users["nobody"])
    assert nobody.get("/admin/glidemq/queue/").status_code == 403
    assert nobody.get(f"/admin/glidemq/queue/{failed}/failed/").status_code == 403
    assert Client().get("/admin/glidemq/queue/").status_code == 302
    careful = Client(enforce_csrf_checks=True)
    careful.force_login(users["root"])
    sent = careful.post(f"/admin/glidemq/queue/{failed}/failed/", {"action": "delete", "id": "job1"})
    assert sent.status_code == 403
    assert asyncio.run(states(url, failed)) == (5, 0)


def test_server_that_is_gone_is_reported(users: dict[str, Any], django_project: Path):
    client = client_of(users["root"])
    with override_settings(GLIDEMQ={"CONNECTION": "valkey://127.0.0.1:1?connection_timeout=200ms"}):
        text = client.get("/admin/glidemq/queue/").content.decode()
    assert 'class="errornote"' in text
    close_queues()


def test_no_table_is_created(users: dict[str, Any]):
    from django.db import connection

    assert "glidemq_queue" not in connection.introspection.table_names()
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)
    call_command("check", fail_level="WARNING")
