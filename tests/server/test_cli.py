"""`glidemq`: what a person types, and what is printed; in this process, because starting one costs half a second."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import Job, Queue, Worker
from tests.inside import AsyncTransport, Call, without_direct_connections
from tests.operating import ROLES, lists
from tests.server.cli_support import Done, Shell

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("typer", reason="needs the extra `cli`")


@pytest.fixture
def shell(url: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(url, capfd, monkeypatch)


def filled(
    url: str, name: str, rows: list[Any], partitions: int | None = None, handler: Callable[[Job], Any] | None = None
):
    """Add jobs, and run them if there is a handler."""

    async def run():
        async with Queue(name, url, partitions=partitions) as queue:
            await queue.add_bulk(rows)
        if handler is not None:
            async with Worker(name, handler, url, log_failures=False) as worker:
                await worker.drain()

    asyncio.run(run())


def test_data_that_is_not_text_is_rejected(shell: Shell, queue_name: str):
    command = [sys.executable, "-m", "glidemq_py.cli", "job", "add", queue_name, "hello", "-"]
    done = subprocess.run(command, input=b"\xff", capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().splitlines() == ["glidemq: stdin is not utf-8 text: invalid start byte"]


def test_jobs_that_match_are_changed_a_hundred_per_call(
    shell: Shell, url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    filled(url, queue_name, [(name, None, {"delay": 3_600_000}) for name in ("even", "odd") * 120])
    made: Counter[str] = Counter()
    without_direct_connections(monkeypatch)
    call = AsyncTransport.call

    async def counted(transport: AsyncTransport, each: Call[Any]) -> Any:
        made[each.function] += 1
        return await call(transport, each)

    monkeypatch.setattr(AsyncTransport, "call", counted)
    cancelled = shell("job", "cancel", queue_name, "--name", "even", "--yes")
    assert cancelled.out == f"cancelled 120 jobs of queue '{queue_name}'\n"
    failed = shell("job", "ls", queue_name, "--state", "failed", "--limit", "200", "--json").json()["jobs"]
    assert {(each["name"], each["error"]) for each in failed} == {("even", "revoked")}
    assert len(failed) == 120
    done = shell("job", "rm", queue_name, "--name", "odd", "--yes", "--json").json()
    assert (done["done"], len(done["ids"])) == (120, 120)
    assert (made["revoke_jobs"], made["clean_jobs"], made["revoke"], made["remove"]) == (2, 2, 0, 0)


@pytest.mark.parametrize("partitions", [1, 3])
def test_newest_jobs_and_failures_are_listed_first(
    shell: Shell, url: str, queue_name: str, partitions: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lists, "ROWS_A_CALL", 2)

    async def fail_some(job: Job):
        await asyncio.sleep(0.002)  # each ends at a time of its own
        if job.data["n"] % 4 < 2:
            raise ValueError("is wrong")

    filled(url, queue_name, [(("even", "odd")[n % 2], {"n": n}) for n in range(12)], partitions, fail_some)
    for state in ("completed", "failed"):
        found = shell("job", "ls", queue_name, "--state", state, "--newest", "--json").json()["jobs"]
        assert len(found) == 6
        assert [each["finished_at"] for each in found] == sorted((each["finished_at"] for each in found), reverse=True)
        page = shell("job", "ls", queue_name, "--state", state, "--newest", "-n", "4", "--json").json()
        assert ([each["id"] for each in page["jobs"]], page["more"]) == ([each["id"] for each in found[:4]], True)
        odd = shell("job", "ls", queue_name, "--state", state, "--newest", "--name", "odd", "--json").json()["jobs"]
        assert [each["id"] for each in odd] == [each["id"] for each in found if each["name"] == "odd"]
    failures = shell("failures", "ls", queue_name, "--newest", "--json").json()["failures"]
    assert [each["job_id"] for each in failures] == [each["id"] for each in found]
    since = ["--since", datetime.fromtimestamp(failures[2]["failed_at"] / 1_000, UTC).isoformat()]
    some = shell("failures", "ls", queue_name, "--newest", "--name", "even", *since, "--json").json()["failures"]
    assert some == [each for each in failures[:3] if each["name"] == "even"]


@pytest.mark.slow
def test_workers_are_inspected_quieted_and_resized(shell: Shell, url: str, queue_name: str):
    async def run():
        started, finish = asyncio.Event(), asyncio.Event()

        async def wait(_: Job):
            started.set()
            await finish.wait()

        def shell_of(*argv: str) -> Done:
            return shell("worker", argv[0], queue_name, *argv[1:], "--timeout", "60s")

        async with Queue(queue_name, url) as queue:
            await queue.add("long", {})
            async with Worker(queue_name, wait, url, concurrency=2, lock_duration=1_000) as worker:
                try:
                    await started.wait()
                    assert (await asyncio.to_thread(shell_of, "ping")).lines == [worker.consumer]
                    found = (await asyncio.to_thread(shell_of, "inspect", worker.consumer, "--json")).json()
                    assert [(each["concurrency"], each["jobs"][0]["name"]) for each in found] == [(2, "long")]
                    assert "1 of 2" in (await asyncio.to_thread(shell_of, "inspect")).out
                    quieted = await asyncio.to_thread(shell_of, "quiet")
                    assert (quieted.code, quieted.out, worker.is_paused) == (0, f"quieted {worker.consumer}\n", True)
                    await asyncio.to_thread(shell_of, "resume", worker.consumer)
                    await asyncio.to_thread(shell_of, "resize", "5")
                    assert (worker.is_paused, worker.concurrency) == (False, 5)
                    assert (await asyncio.to_thread(shell_of, "quiet", "none")).code == 4
                finally:
                    finish.set()

    asyncio.run(run())


@pytest.mark.slow
def test_doctor_finds_node_workers_beside_steps(shell: Shell, queue_name: str, resp: Any):
    base = f"glide:{{{queue_name}}}"
    resp.execute("HSET", f"{base}:meta", "features", "steps:0.2.0")
    resp.execute("XGROUP", "CREATE", f"{base}:stream", "workers", "0", "MKSTREAM")
    resp.execute("XGROUP", "CREATECONSUMER", f"{base}:stream", "workers", "worker-1-a")
    assert "steps" not in {each["check"] for each in shell("doctor", queue_name, "--json").json()}
    resp.execute("SET", f"{base}:w:worker-1-a", "{}")
    (found,) = (each for each in shell("doctor", queue_name, "--json").json() if each["check"] == "steps")
    assert (found["severity"], found["subject"]) == ("error", queue_name)
    assert "would run them from their start" in found["problem"]


def test_doctor_examines_the_permissions_of_a_user(shell: Shell, queue_name: str, resp: Any):
    def finding(*argv: str) -> tuple[str, str]:
        each = next(
            each for each in shell("doctor", queue_name, *argv, "--json").json() if each["check"] == "permissions"
        )
        return each["severity"], each["problem"]

    page = (ROOT / "docs" / "operate" / "permissions.md").read_text(encoding="utf-8")
    rules = dict(re.findall(r"ACL SETUSER (\w+) on >SECRET ([^`]+)```", page))
    assert {name: set(each) for name, each in ROLES.items()} == {
        name: {word[1:] for word in rule.split() if word.startswith("+")} for name, rule in rules.items()
    }
    assert shell("job", "add", queue_name, "a").code == 0
    user = f"user-{queue_name}"
    every = "probe, observer, producer, worker, operator, app"
    assert finding() == ("ok", f"user 'default' has the permissions of the roles {every}")
    try:
        for role, rule in rules.items():
            resp.execute("ACL", "SETUSER", user, "reset", *rule.split())
            expected = ("ok", f"user {user!r} has the permissions of the role {role}")
            assert finding("--user", user, "--role", role) == expected
        resp.execute("ACL", "SETUSER", user, "reset", *rules["worker"].split(), "-xadd", "-xgroup|create")
        severity, problem = finding("--user", user, "--role", "worker")
        assert (severity, set(problem.rpartition(": ")[2].split())) == ("warning", {"+xadd", "+xgroup|create"})
        resp.execute("ACL", "SETUSER", user, "reset", *rules["worker"].replace("~glide:*", "~other:*").split())
        assert "+fcall" in finding("--user", user, "--role", "worker")[1]
    finally:
        resp.execute("ACL", "DELUSER", user)
    assert shell("doctor", queue_name, "--user", "nobody").code == 2
    assert shell("doctor", queue_name, "--role", "king").code == 2


@pytest.mark.slow
def test_an_observer_may_look_at_everything_and_change_nothing(
    shell: Shell, url: str, queue_name: str, resp: Any, monkeypatch: pytest.MonkeyPatch
):
    async def fail(_: Job):
        raise ValueError("is wrong")

    filled(url, queue_name, [("a", None), ("b", None)], handler=fail)
    page = (ROOT / "docs" / "operate" / "permissions.md").read_text(encoding="utf-8")
    (rules,) = re.findall(r"ACL SETUSER observer on >SECRET ([^`]+)```", page)
    user = f"observer-{queue_name}"
    resp.execute("ACL", "SETUSER", user, "on", ">hunter2", *rules.split())
    try:
        monkeypatch.setenv("GLIDEMQ_URL", re.sub("://(.*@)?", f"://{user}:hunter2@", url))
        for look in ("queue ls", "queue show", "queue limits", "job ls", "job show 2", "job logs 1", "failures ls",
                     "failures ls --newest", "job ls --state failed --newest", "failures stats",
                     "cron ls", "flow show 1", "worker ls", "group ls"):  # fmt: skip
            noun, verb, *rest = look.split()
            done = shell(noun, verb, queue_name, *rest)
            assert done.code == 0, f"{look}: {done.err}"
        found = {each["check"]: each for each in shell("doctor", queue_name, "--json").json()}
        assert found["library"]["severity"] == "warning"
        assert "FUNCTION LIST" in found["library"]["remedy"]
        denied = shell("job", "rm", queue_name, "1", "--yes")
        assert denied.code == 1
        assert denied.err.startswith("glidemq: ")
        assert "hunter2" not in denied.err
    finally:
        resp.execute("ACL", "DELUSER", user)


def test_settings_come_from_pyproject(
    shell: Shell, url: str, queue_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("GLIDEMQ_URL")
    none = shell("queue", "ls", "a")
    problem = "no server given; use --url, GLIDEMQ_URL, url in [tool.glidemq], or glidemq dev"
    assert (none.code, none.err) == (2, f"glidemq: {problem}\n")
    settings = tmp_path / "pyproject.toml"
    settings.write_text(f'[tool.glidemq]\nurl = "{url}"\nprefix = "other"\nqueues = ["{queue_name}"]\n')
    assert shell("job", "add", queue_name, "hello").code == 0
    assert shell("queue", "ls", "--json").json()[0]["waiting"] == 1
    assert shell("--prefix", "glide", "--json", "queue", "ls").json()[0]["waiting"] == 0
    monkeypatch.setenv("GLIDEMQ_PREFIX", "glide")
    assert shell("queue", "ls", "--json").json()[0]["waiting"] == 0
    with monkeypatch.context() as other_user:
        if os.geteuid() == 0:
            os.chown(settings, 12345, 12345)
        else:
            other_user.setattr(os, "geteuid", lambda: 12345)
        assert "no server given" in shell("queue", "ls").err
    settings.write_text("[tool.glidemq]\nserver = 1\n")
    os.chown(settings, os.geteuid(), os.getegid())
    wrong = shell("queue", "ls", "--url", url)
    assert wrong.code == 2
    assert "option 'tool.glidemq.server' = 1: unknown; must be one of url, prefix, queues" in wrong.err


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["PYTHONIOENCODING=ascii", "LC_ALL=C", "PYTHONIOENCODING=utf-8"])
def test_terminals_that_are_not_utf_8(url: str, queue_name: str, encoding: str):
    name, value = encoding.split("=")
    env = {**os.environ, "GLIDEMQ_URL": url, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", name: value}

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "glidemq_py.cli", *arguments]
        done = subprocess.run(command, env=env, capture_output=True, encoding="utf-8", check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    filled(url, f"{queue_name}é", [("n👍", {"a": "☂"}, {"job_id": "ü1"})])
    shown = "ü1" if encoding.endswith("utf-8") else r"\u00fc1"
    assert shown in run("job", "ls", f"{queue_name}é")
    assert json.loads(run("job", "show", f"{queue_name}é", "ü1", "--json"))["job"]["name"] == "n👍"


def test_settings_of_a_project_reach_commands_of_their_own(
    shell: Shell, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.delenv("GLIDEMQ_URL")
    (tmp_path / "pyproject.toml").write_text(f'[tool.glidemq]\nurl = "{url}"\n')
    done = shell("library", "check")
    assert (done.code, done.err) == (0, "")
    (tmp_path / "pyproject.toml").write_text("[tool.glidemq]\nurl = 17\n")
    done = shell("gateway")
    assert done.code == 2
    assert done.err.startswith("glidemq gateway: option 'tool.glidemq.url' = 17: must be a string")
