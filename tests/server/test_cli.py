"""`glidemq`: what a person types, and what is printed; in this process, because starting one costs half a second."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import Broadcast, FlowJob, FlowProducer, Job, Queue, Worker
from glidemq_py._client.async_transport import AsyncTransport
from glidemq_py._core.calls import Call
from glidemq_py._operate import newest
from glidemq_py._operate.roles import ROLES
from glidemq_py.testing import RespClient
from tests.server.cli_support import Done, Shell
from tests.server.worker_support import Raw

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("typer", reason="needs the extra `cli`")


@pytest.fixture
def shell(url: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(url, capfd, monkeypatch)


def filled(url: str, name: str, use: Callable[[Queue[Any, Any]], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        async with Queue[Any, Any](name, url) as queue:
            return await use(queue)

    return asyncio.run(run())


def worked(url: str, name: str, handler: Any, **options: Any) -> None:
    """Run the ready jobs of a queue with a worker."""

    async def run() -> None:
        async with Queue[Any, Any](name, url) as queue:
            ended = asyncio.Event()
            left = (await queue.get_job_counts()).waiting

            def count(*_: object) -> None:
                nonlocal left
                left -= 1
                if not left:
                    ended.set()

            worker = Worker(name, handler, url, log_failures=False, **options)
            worker.on("completed", count)
            worker.on("failed", count)
            async with worker:
                await asyncio.wait_for(ended.wait(), 100)

    asyncio.run(run())


async def _fail_odd(job: Job) -> dict[str, int]:
    await job.log(f"number {job.data['n']}")
    if job.data["n"] % 2:
        raise ValueError(f"number {job.data['n']} is odd\n\x1b[31mred")
    return {"twice": job.data["n"] * 2}


async def _four(queue: Queue[Any, Any]) -> None:
    await queue.add_bulk(
        [("even" if n % 2 == 0 else "odd", {"n": n, "tenant": "a" if n < 2 else "b"}) for n in range(4)]
    )


# -- queues -----------------------------------------------------------------------------------------------


def test_a_queue_is_listed_and_shown(shell: Shell, url: str, queue_name: str) -> None:
    filled(url, queue_name, _four)
    worked(url, queue_name, _fail_odd)
    listed = shell("queue", "ls", queue_name)
    assert listed.code == 0
    header, row = listed.lines
    assert header.split()[:3] == ["QUEUE", "READY", "ACTIVE"]
    assert row.split() == [queue_name, "0", "0", "0", "2", "2", "0"]
    (found,) = shell("queue", "ls", queue_name, "--json").json()
    assert found["name"] == queue_name
    assert (found["completed"], found["failed"], found["paused"]) == (2, 2, False)
    shown = shell("queue", "show", queue_name)
    assert "failures" in shown.out
    assert "max_attempts_exceeded 2" in shown.out
    details = shell("queue", "show", queue_name, "--json").json()
    assert details["failures"]["by_name"] == {"odd": 2}
    assert details["failures"]["counts"] == {"max_attempts_exceeded/odd": 2}
    assert details["limits"]["concurrency"] is None


def test_the_subscriptions_of_a_broadcast_are_shown(shell: Shell, url: str, queue_name: str) -> None:
    async def fill() -> None:
        async with Broadcast(queue_name, url) as broadcast:
            await broadcast.publish("news")
            await broadcast.subscribe("search", start_from="0-0")

    asyncio.run(fill())
    shown = shell("queue", "show", queue_name)
    assert shown.lines[-2].split()[:2] == ["SUBSCRIPTION", "UNREAD"]
    assert shown.lines[-1].split() == ["search", "1", "0", "0", "0", "none", "yet"]
    (found,) = shell("queue", "show", queue_name, "--json").json()["subscriptions"]
    assert (found["name"], found["waiting"], found["last_delivered"]) == ("search", 1, "0-0")


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ("backup {queue} {folder}", "glidemq backup {folder} {queue}"),
        ("backup {queue} other {folder}", "glidemq backup {folder} {queue} other"),
        ("backup {queue}", "glidemq backup DESTINATION {queue}"),
        ("restore {queue} {folder}", "glidemq restore {folder} {queue}"),
    ],
)
def test_a_backup_whose_arguments_are_in_the_wrong_order_names_the_right_one(
    shell: Shell, url: str, queue_name: str, tmp_path: Path, given: str, right: str
) -> None:
    filled(url, queue_name, _four)
    names = {"queue": queue_name, "folder": str(tmp_path / "kept")}
    found = shell(*given.format(**names).split())
    assert (found.code, found.out) == (2, "")
    assert found.err.endswith(f"; a directory or URL comes first: {right.format(**names)}\n")
    assert not (tmp_path / "kept").exists()


def test_no_queue_is_backed_up_if_one_does_not_exist(shell: Shell, url: str, queue_name: str, tmp_path: Path) -> None:
    filled(url, queue_name, _four)
    found = shell("backup", str(tmp_path / "kept"), queue_name, "nothing")
    assert (found.code, found.out) == (4, "")
    assert not (tmp_path / "kept").exists()


def test_schedules_of_all_queues_are_listed_in_pages(shell: Shell, url: str, queue_name: str) -> None:
    prefix = queue_name[-8:]

    async def schedule() -> None:
        for name in ("a", "b", "c"):
            async with Queue(name, url, prefix=prefix) as queue:
                await queue.upsert_job_scheduler("nightly", pattern="0 3 * * *", template={"name": "digest"})

    asyncio.run(schedule())
    listed = shell("cron", "ls", "--prefix", prefix)
    assert listed.lines[0].split()[:2] == ["QUEUE", "NAME"]
    assert [line.split()[:2] for line in listed.lines[1:]] == [[name, "nightly"] for name in "abc"]
    first = shell("cron", "ls", "--prefix", prefix, "--limit", "2")
    assert [line.split()[0] for line in first.lines[1:]] == ["a", "b"]
    assert first.err == "more queues were not read; continue with --after b\n"
    rest = shell("cron", "ls", "--prefix", prefix, "--after", "b")
    assert ([line.split()[0] for line in rest.lines[1:]], rest.err) == (["c"], "")
    assert shell("cron", "ls", "b", "--prefix", prefix).lines[0].split()[0] == "NAME"


@pytest.mark.slow
def test_all_queues_are_listed(shell: Shell, url: str, queue_name: str, resp: Any) -> None:
    names = [f"{queue_name}-{n}" for n in range(3)]
    for name in names:
        filled(url, name, _four)
    listed = [each["name"] for each in shell("queue", "ls", "--json").json()]
    assert set(names) <= set(listed)
    matched = shell("queue", "ls", "--match", f"{queue_name}-[01]", "--json").json()
    assert [each["name"] for each in matched] == names[:2]
    shell("queue", "drain", names[0], "--yes")
    busy = shell("queue", "ls", "--match", f"{queue_name}-*", "--busy", "--json").json()
    assert [each["name"] for each in busy] == names[1:]
    nothing = shell("queue", "ls", "--prefix", queue_name)
    assert (nothing.code, nothing.out, nothing.err) == (0, "", f"no queues (prefix '{queue_name}')\n")
    assert {each["subject"] for each in shell("doctor", "--json").json() if each["check"] == "queue"} >= set(names)
    for name in names:
        assert shell("queue", "obliterate", name, "--yes").code == 0
    assert not {each["name"] for each in shell("queue", "ls", "--json").json()} & set(names)


@pytest.mark.parametrize("command", ["show", "pause", "drain", "clean", "check", "obliterate", "limits"])
def test_a_queue_that_does_not_exist_is_reported(shell: Shell, queue_name: str, command: str) -> None:
    done = shell("queue", command, queue_name)
    assert done.code == 4
    assert done.err == f"glidemq: queue '{queue_name}' does not exist (prefix 'glide')\n"
    assert done.out == ""


def test_a_queue_is_paused_and_resumed(shell: Shell, url: str, queue_name: str) -> None:
    filled(url, queue_name, _four)
    assert shell("queue", "pause", queue_name).out == f"paused queue '{queue_name}'\n"
    assert shell("queue", "ls", queue_name, "--json").json()[0]["paused"] is True
    assert shell("queue", "ls", queue_name).lines[1].endswith("paused")
    assert shell("queue", "resume", queue_name).code == 0
    assert shell("queue", "ls", queue_name, "--json").json()[0]["paused"] is False


def test_limits_are_set_and_removed(shell: Shell, url: str, queue_name: str) -> None:
    filled(url, queue_name, _four)
    done = shell("queue", "limits", queue_name, "--concurrency", "3", "--rate", "100/1m", "--json")
    assert (done.json()["concurrency"], done.json()["rate_limit"]) == (3, {"max": 100, "duration": 60_000})
    done = shell("queue", "limits", queue_name, "--concurrency", "1", "--for", "1h")
    assert re.search(r"concurrency  1 \(for (1h|59m \d+s)\)", done.out)
    shown = shell("queue", "limits", queue_name).out
    assert "100 per 1m" in shown
    assert re.search(r"rate used +0 of 100\n", shown)
    assert shell("queue", "limits", queue_name, "--for", "1h").code == 2
    done = shell("queue", "limits", queue_name, "--concurrency", "0", "--rate", "off", "--json")
    assert (done.json()["concurrency"], done.json()["rate_limit"]) == (None, None)
    done = shell("queue", "limits", queue_name, "--rate", "many")
    assert (done.code, done.out) == (2, "")
    assert "option '--rate' = 'many': must be a number of jobs per window" in done.err


def test_what_destroys_is_counted_and_confirmed(shell: Shell, url: str, queue_name: str) -> None:
    filled(url, queue_name, _four)
    assert shell("queue", "drain", queue_name, "--dry-run").out.startswith("would delete 4 jobs ")
    assert shell("queue", "drain", queue_name, "--dry-run", "--json").json() == {"dry_run": True, "count": 4}
    refused = shell("queue", "drain", queue_name)
    assert refused.code == 2
    assert "confirm with --yes" in refused.err
    declined = shell("queue", "drain", queue_name, typed="n\n")
    assert declined.code == 1
    assert declined.err.startswith(f"Delete 4 jobs that have not started from queue '{queue_name}'? [y/N] ")
    assert declined.err.endswith("glidemq: nothing was changed\n")
    assert shell("queue", "ls", queue_name, "--json").json()[0]["waiting"] == 4
    agreed = shell("queue", "drain", queue_name, typed="y\n")
    assert (agreed.code, agreed.out) == (0, f"deleted 4 jobs that have not started from queue '{queue_name}'\n")
    assert shell("queue", "ls", queue_name, "--json").json()[0]["waiting"] == 0


def test_old_jobs_are_cleaned(shell: Shell, url: str, queue_name: str) -> None:
    filled(url, queue_name, _four)
    worked(url, queue_name, _fail_odd)
    assert shell("queue", "clean", queue_name, "--older-than", "1d", "--yes").out.startswith("deleted 0 completed jobs")
    assert shell("queue", "clean", queue_name, "--state", "failed", "-n", "1", "--yes", "--json").json()["done"] == 1
    assert shell("queue", "clean", queue_name, "--state", "failed", "--yes", "--json").json()["done"] == 1
    wrong = shell("queue", "clean", queue_name, "--state", "active", "--yes")
    assert wrong.code == 2


@pytest.mark.slow
def test_a_queue_is_checked_and_repaired(shell: Shell, url: str, queue_name: str, resp: Any) -> None:
    filled(url, queue_name, _four)
    assert "consistent (4 jobs" in shell("queue", "check", queue_name).out
    resp.execute("DEL", f"glide:{{{queue_name}}}:stream")
    broken = shell("queue", "check", queue_name)
    assert broken.code == 1
    assert f"to repair it: glidemq queue repair {queue_name}" in broken.err
    assert shell("queue", "repair", queue_name).code == 0
    assert shell("queue", "check", queue_name, "--json").json()["ok"] is True


def test_a_queue_is_obliterated(shell: Shell, url: str, queue_name: str) -> None:
    filled(url, queue_name, _four)
    assert shell("queue", "obliterate", queue_name, "--yes").out == f"deleted queue '{queue_name}' with 4 jobs\n"
    assert shell("queue", "show", queue_name).code == 4


# -- jobs -------------------------------------------------------------------------------------------------


def test_jobs_are_filtered(shell: Shell, url: str, queue_name: str) -> None:
    filled(url, queue_name, _four)
    worked(url, queue_name, _fail_odd)

    def ids(*criteria: str) -> list[str]:
        return sorted(job["id"] for job in shell("job", "ls", queue_name, "--json", *criteria).json()["jobs"])

    assert ids() == ["1", "2", "3", "4"]
    assert ids("--state", "failed") == ["2", "4"]
    assert ids("--name", "even") == ["1", "3"]
    assert ids("--data", "tenant=a") == ["1", "2"]
    assert ids("--data", "tenant=b", "--data", "n=3") == ["4"]
    assert ids("--since", "1h") == ["1", "2", "3", "4"]
    assert ids("--until", "1h") == []
    more = shell("job", "ls", queue_name, "-n", "3")
    assert len(more.lines) == 4
    assert "more than 3 jobs match" in more.err
    nothing = shell("job", "ls", queue_name, "--name", "nope")
    assert (nothing.code, nothing.out) == (0, "")
    assert nothing.err == f"no such jobs in queue '{queue_name}'\n"
    assert shell("job", "ls", queue_name, "--state", "sleeping").code == 2


def test_jobs_are_filtered_by_tags(shell: Shell, url: str, queue_name: str) -> None:
    async def add(queue: Queue[Any, Any]) -> None:
        await queue.add("a", {}, tags=["mail", "urgent"])
        await queue.add("b", {}, tags=["mail"])
        await queue.add("c", {})

    filled(url, queue_name, add)
    found = shell("job", "ls", queue_name, "--tag", "mail", "--json").json()["jobs"]
    assert [(job["id"], job["tags"]) for job in found] == [("1", ["mail", "urgent"]), ("2", ["mail"])]
    assert len(shell("job", "ls", queue_name, "--tag", "mail", "--tag", "urgent").lines) == 2
    assert shell("job", "rm", queue_name, "--tag", "urgent", "--yes", "--json").json()["ids"] == ["1"]


def test_failed_job_has_the_start_and_run_time_of_its_attempt(shell: Shell, url: str, queue_name: str) -> None:
    async def fail(job: Job) -> None:
        await asyncio.sleep(0.2)
        raise ValueError("x")

    filled(url, queue_name, lambda queue: queue.add("n", {}))
    worked(url, queue_name, fail)
    found = shell("job", "show", queue_name, "1", "--json").json()
    job, [attempt] = found["job"], found["attempts"]
    assert job["started_at"] == attempt["started_at"] < job["finished_at"]
    assert job["run_time"] == job["finished_at"] - job["started_at"] >= 190
    shown = shell("job", "show", queue_name, "1")
    assert re.search(r"run time +\d\d\dms", shown.out)
    assert "await queue.set_timeline(1.0)" in shown.err
    [listed] = shell("job", "ls", queue_name, "--json").json()["jobs"]
    assert (listed["started_at"], listed["run_time"]) == (None, None)


def test_run_time_of_a_failed_job_is_not_shown_without_attempt_history(shell: Shell, url: str, queue_name: str) -> None:
    async def add(queue: Queue[Any, Any]) -> None:
        await queue.set_attempt_history(max_attempts=0)
        await queue.add("odd", {"n": 1})

    filled(url, queue_name, add)
    worked(url, queue_name, _fail_odd)
    shown = shell("job", "show", queue_name, "1").out
    assert "finished" in shown
    assert "started" not in shown
    assert "run time" not in shown


def test_requeue_is_shown_between_failed_attempts(shell: Shell, url: str, queue_name: str) -> None:
    filled(url, queue_name, lambda queue: queue.add("odd", {"n": 1}))
    worked(url, queue_name, _fail_odd)
    assert "requeued by hand" not in shell("job", "show", queue_name, "1").out
    assert shell("failures", "retry", queue_name).code == 0
    assert shell("job", "show", queue_name, "1").out.count("requeued by hand") == 1
    worked(url, queue_name, _fail_odd)
    shown = shell("job", "show", queue_name, "1").out
    assert re.search(r"attempt 1: .*\n(?:.*\n)*?requeued by hand .*\nattempt 1: ", shown)
    assert shown.count("requeued by hand") == 1
    assert "1 failed since the last requeue; 2 failures recorded in all" in shown


def test_parent_that_did_not_run_has_no_attempt(shell: Shell, url: str, queue_name: str) -> None:
    async def add(_: Queue[Any, Any]) -> str:
        async with FlowProducer(url) as flows:
            children = [FlowJob("odd", queue_name, {"n": 1})]
            return (await flows.add(FlowJob("even", queue_name, {"n": 2}, children=children))).job.id

    parent = str(filled(url, queue_name, add))
    worked(url, queue_name, _fail_odd)
    shown = shell("job", "show", queue_name, parent).out
    assert re.search(r"^child_failed, ", shown, re.MULTILINE)
    assert "attempt 0" not in shown


def test_text_of_jobs_cannot_control_the_terminal(shell: Shell, url: str, queue_name: str) -> None:
    filled(url, queue_name, _four)
    worked(url, queue_name, _fail_odd)
    for done in (
        shell("job", "ls", queue_name),
        shell("failures", "ls", queue_name),
        shell("job", "show", queue_name, "2"),
    ):
        assert "number 1 is odd" in done.out
        assert "\x1b" not in done.out


def test_a_job_is_shown_with_its_attempts_and_log(shell: Shell, url: str, queue_name: str) -> None:
    async def add(queue: Queue[Any, Any]) -> None:
        await queue.set_timeline()
        await _four(queue)

    filled(url, queue_name, add)
    worked(url, queue_name, _fail_odd)
    shown = shell("job", "show", queue_name, "2").out
    assert "attempt 1: max_attempts_exceeded" in shown
    assert "Traceback (most recent call last):" in shown
    assert "  number 1" in shown
    found = shell("job", "show", queue_name, "1", "--json").json()
    assert found["job"]["state"] == "completed"
    assert found["result"] == {"twice": 0}
    assert found["data"] == {"n": 0, "tenant": "a"}
    assert found["logs"] == ["number 0"]
    assert [each["state"] for each in found["timeline"]] == ["waiting", "active", "completed"]
    assert re.search(r"  active by \S+\n", shown)
    assert shell("job", "logs", queue_name, "1").out == "number 0\n"
    missing = shell("job", "show", queue_name, "99")
    assert (missing.code, missing.err) == (4, f"glidemq: queue '{queue_name}' has no job '99'\n")


@pytest.mark.parametrize("name", ["self", "name", "data"])
def test_arguments_of_the_command_are_no_options_of_the_job(shell: Shell, queue_name: str, name: str) -> None:
    done = shell("job", "add", queue_name, "hello", "{}", "-o", f"{name}=x")
    assert (done.code, done.lines) == (2, [])
    assert f"'{name}': is an argument of the command" in done.err


def test_data_that_is_not_text_is_rejected(shell: Shell, queue_name: str) -> None:
    command = [sys.executable, "-m", "glidemq_py.cli", "job", "add", queue_name, "hello", "-"]
    done = subprocess.run(command, input=b"\xff", capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().splitlines() == ["glidemq: stdin is not utf-8 text: invalid start byte"]


@pytest.mark.slow
def test_jobs_are_added_promoted_cancelled_and_deleted(shell: Shell, queue_name: str) -> None:
    assert shell("job", "add", queue_name, "hello", '{"to": 1}', "--id", "x", "--delay", "1h").out == "x\n"
    again = shell("job", "add", queue_name, "hello", "{}", "--id", "x")
    assert again.err == "not added as a new job: duplicate\n"
    assert shell("job", "add", queue_name, "hello", "text", "-o", "attempts=3", "-o", "nope=1").code == 2
    (number,) = shell("job", "add", queue_name, "hello", "plain text", "-o", "attempts=3", "--priority", "5").lines
    found = shell("job", "show", queue_name, number, "--json").json()
    assert found["data"] == "plain text"
    assert found["options"]["attempts"] == 3
    assert found["job"]["priority"] == 5
    assert shell("job", "promote", queue_name, "x").out == f"promoted 1 job of queue '{queue_name}'\n"
    again = shell("job", "promote", queue_name, "x")
    assert (again.code, again.err) == (1, f"cannot promote job 'x': it is waiting (queue '{queue_name}')\n")
    assert shell("job", "cancel", queue_name, "x", "--yes").code == 0
    assert shell("job", "retry", queue_name, "x").out == f"requeued 1 job of queue '{queue_name}'\n"
    gone = shell("job", "rm", queue_name, "x", "y", "--yes")
    assert gone.code == 4
    assert gone.out == f"deleted 1 job from queue '{queue_name}'\n"
    assert gone.err == "job 'y' does not exist\n"
    assert shell("job", "rm", queue_name, "--name", "hello", "--yes", "--json").json()["ids"] == [number]
    assert shell("job", "rm", queue_name).code == 2
    assert shell("job", "rm", queue_name, "1", "--state", "failed").code == 2
    assert shell("job", "retry", queue_name).err.endswith(f"for many jobs: glidemq failures retry {queue_name}\n")


def test_batches_are_listed_shown_and_cancelled(shell: Shell, url: str, queue_name: str) -> None:
    async def add(queue: Queue[Any, Any]) -> str:
        batch = await queue.create_batch()
        await batch.add_bulk([("one", n) for n in range(3)])
        await batch.close()
        return batch.id

    batch = filled(url, queue_name, add)
    worked(url, queue_name, lambda job: None)
    assert shell("batch", "ls", queue_name).err == f"queue {queue_name!r} has no unfinished batch\n"
    shown = shell("batch", "show", queue_name, batch)
    assert re.search(r"^state +succeeded$", shown.out, re.MULTILINE)
    assert len(re.findall(rf"^{re.escape(queue_name)} +\S+ +completed$", shown.out, re.MULTILINE)) == 3
    other = filled(url, queue_name, add)
    listed = shell("batch", "ls", queue_name)
    assert re.search(rf"^{other} +running +\S.* +3 +3 +0 +0$", listed.out, re.MULTILINE)
    (found,) = shell("batch", "ls", queue_name, "--json").json()["batches"]
    assert (found["id"], found["status"]["pending"], found["status"]["is_closed"]) == (other, 3, True)
    some = shell("batch", "show", queue_name, other, "--state", "pending", "--limit", "2", "--json").json()
    assert (len(some["jobs"]), some["more"]) == (2, True)
    assert shell("batch", "cancel", queue_name, other, "--dry-run").out.startswith("would cancel 3 jobs of batch")
    assert shell("batch", "cancel", queue_name, other, "--yes").out.startswith("cancelled 3 jobs of batch")
    assert re.search(r"^state +cancelled$", shell("batch", "show", queue_name, other).out, re.MULTILINE)
    assert shell("batch", "show", queue_name, "none").code == 4
    assert shell("batch", "cancel", queue_name, "none", "--yes").code == 4
    assert shell("batch", "show", queue_name, other, "--state", "ready").code == 2


def test_jobs_that_match_are_cancelled_a_hundred_per_call(
    shell: Shell, url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def add(queue: Queue[Any, Any]) -> None:
        names = ("even", "odd") * 120
        await queue.add_bulk([(name, {"n": n}, {"delay": 3_600_000}) for n, name in enumerate(names)])

    filled(url, queue_name, add)
    made: list[str] = []
    call = AsyncTransport.call

    async def counted(transport: AsyncTransport, each: Call[Any]) -> Any:
        made.append(each.function)
        return await call(transport, each)

    monkeypatch.setattr(AsyncTransport, "call", counted)
    cancelled = shell("job", "cancel", queue_name, "--name", "even", "--yes")
    assert cancelled.out == f"cancelled 120 jobs of queue '{queue_name}'\n"
    assert made.count("revoke_jobs") == 2
    assert "revoke" not in made
    failed = shell("job", "ls", queue_name, "--state", "failed", "--limit", "200", "--json").json()["jobs"]
    assert {(each["name"], each["error"]) for each in failed} == {("even", "revoked")}
    assert len(failed) == 120


def test_many_delayed_jobs_are_promoted(shell: Shell, url: str, queue_name: str) -> None:
    async def add(queue: Queue[Any, Any]) -> None:
        names = ("even", "odd") * 3
        await queue.add_bulk([(name, {"n": n}, {"delay": 3_600_000}) for n, name in enumerate(names)])

    filled(url, queue_name, add)
    assert shell("job", "promote", queue_name, "--name", "odd", "--dry-run", "--json").json()["count"] == 3
    assert shell("job", "promote", queue_name, "--name", "odd").out == f"promoted 3 jobs of queue '{queue_name}'\n"
    assert shell("job", "promote", queue_name, "--data", "n=0", "--json").json()["done"] == 1
    assert shell("job", "promote", queue_name, "--all", "--json").json()["done"] == 2
    assert shell("queue", "ls", queue_name, "--json").json()[0]["delayed"] == 0


def test_a_job_is_watched_until_it_ends(shell: Shell, url: str, queue_name: str) -> None:
    filled(url, queue_name, _four)
    late = shell("job", "watch", queue_name, "1", "--timeout", "1ms")
    assert (late.code, late.err) == (1, "glidemq: job '1' is waiting after 1ms\n")
    worked(url, queue_name, _fail_odd)
    done = shell("job", "watch", queue_name, "1")
    assert (done.code, done.out) == (0, "  number 0\n1 even: completed\n")
    failed = shell("job", "watch", queue_name, "2", "--json")
    assert failed.code == 1
    assert json.loads(failed.out)["state"] == "failed"


# -- failures, dead letters -------------------------------------------------------------------------------


def test_failures_are_listed_counted_requeued_and_deleted(shell: Shell, url: str, queue_name: str) -> None:
    filled(url, queue_name, _four)
    worked(url, queue_name, _fail_odd)
    found = shell("failures", "ls", queue_name, "--json").json()
    assert [each["job_id"] for each in found["failures"]] == ["2", "4"]
    assert found["failures"][0]["reason"] == "max_attempts_exceeded"
    assert len(shell("failures", "ls", queue_name, "-n", "1").lines) == 2
    newest_first = shell("failures", "ls", queue_name, "--newest", "--json").json()
    assert [each["job_id"] for each in newest_first["failures"]] == ["4", "2"]
    cut = shell("failures", "ls", queue_name, "-n", "1")
    assert cut.err == "more than 1 failures match; list more with --limit, or the newest ones with --newest\n"
    assert "max_attempts_exceeded" in shell("failures", "stats", queue_name).out
    assert shell("failures", "stats", queue_name, "--json").json()["by_reason"] == {"max_attempts_exceeded": 2}
    assert shell("failures", "retry", queue_name, "--reason", "timeout", "--dry-run", "--json").json()["count"] == 0
    assert (
        shell("failures", "retry", queue_name, "--name", "odd").out
        == f"requeued 2 failed jobs of queue '{queue_name}'\n"
    )
    worked(url, queue_name, _fail_odd)
    purged = shell("failures", "purge", queue_name, "--yes")
    assert purged.out == f"deleted 2 failed jobs from queue '{queue_name}'\n"
    assert shell("failures", "ls", queue_name).err == f"no such failures in queue '{queue_name}'\n"


@pytest.mark.parametrize("partitions", [1, 3])
def test_newest_jobs_and_failures_are_listed_first(
    shell: Shell, url: str, queue_name: str, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest, "ROWS_A_CALL", 2)

    async def add(queue: Queue[Any, Any]) -> None:
        if partitions > 1:
            await queue.set_partitions(partitions)
        await queue.add_bulk([("even" if n % 2 == 0 else "odd", {"n": n}) for n in range(12)])

    async def fail_some(job: Job) -> None:
        await asyncio.sleep(0.002)  # each ends at a time of its own
        if job.data["n"] % 4 < 2:
            raise ValueError("is wrong")

    filled(url, queue_name, add)
    worked(url, queue_name, fail_some)
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


def test_newest_jobs_of_other_states_are_rejected(shell: Shell, url: str, queue_name: str) -> None:
    filled(url, queue_name, _four)
    for criteria in ([], ["--state", "waiting"]):
        done = shell("job", "ls", queue_name, "--newest", *criteria)
        assert (done.code, done.err) == (2, "glidemq: --newest requires --state completed or --state failed\n")


@pytest.mark.parametrize("partitions", [1, 2])
def test_dead_letter_queue_is_recognized(shell: Shell, url: str, queue_name: str, partitions: int) -> None:
    async def add(queue: Queue[Any, Any]) -> None:
        if partitions > 1:
            await queue.set_partitions(partitions)
        await _four(queue)

    dead = f"{queue_name}-dead"
    filled(url, queue_name, add)
    worked(url, queue_name, _fail_odd, dead_letter_queue=dead)
    shell("dlq", "ls", queue_name)  # delivers the entries
    listed = shell("dlq", "ls", dead)
    assert listed.code == 0
    assert listed.err.splitlines() == [
        f"queue '{dead}' has no dead letters",
        f"it is the dead letter queue of '{queue_name}': glidemq dlq ls {queue_name}",
    ]
    (finding,) = [each for each in shell("doctor", dead, "--json").json() if each["check"] == "queue"]
    assert finding["severity"] == "note"
    assert finding["problem"] == f"2 dead-letter entries, the oldest of queue '{queue_name}'"
    assert finding["remedy"] == f"list them: glidemq dlq ls {queue_name}"
    filled(url, dead, lambda queue: queue.add("later", delay=60_000))
    (finding,) = [each for each in shell("doctor", dead, "--json").json() if each["check"] == "queue"]
    assert finding["problem"] == "3 unfinished jobs and no live worker"


def test_dead_letters_are_listed_replayed_and_deleted(shell: Shell, url: str, queue_name: str) -> None:
    filled(url, queue_name, _four)
    worked(url, queue_name, _fail_odd, dead_letter_queue=f"{queue_name}-dead")
    entries = shell("dlq", "ls", queue_name, "--json").json()["entries"]
    assert [each["job_id"] for each in entries] == ["2", "4"]
    assert "is odd" in shell("dlq", "ls", queue_name).out
    replayed = shell("dlq", "replay", queue_name, entries[0]["id"], "nope")
    assert replayed.code == 4
    assert replayed.out == f"added 1 job to queue '{queue_name}' again\n"
    assert shell("dlq", "purge", queue_name, "--all", "--yes", "--json").json()["done"] == 1
    assert shell("dlq", "ls", queue_name).err == f"queue '{queue_name}' has no dead letters\n"
    assert shell("dlq", "purge", queue_name, "--yes").code == 2


# -- schedules, flows, workers, groups, events, backups ---------------------------------------------------


@pytest.mark.slow
def test_schedules_are_added_run_and_deleted(shell: Shell, queue_name: str) -> None:
    added = shell("cron", "add", queue_name, "nightly", '{"full": true}', "--pattern", "0 3 * * *", "--job", "report")
    assert added.code == 0
    assert added.out.startswith(f"schedule 'nightly' of queue '{queue_name}': 0 3 * * *, next ")
    assert shell("cron", "add", queue_name, "often", "--every", "90m").code == 0
    assert shell("cron", "add", queue_name, "never").code == 2
    assert shell("cron", "add", queue_name, "manned", "--every", "90m", "--skip-without-worker").code == 0
    assert re.search(r"(?m)^without a worker +skipped$", shell("cron", "show", queue_name, "manned").out)
    assert "without a worker" not in shell("cron", "show", queue_name, "often").out
    assert shell("cron", "show", queue_name, "manned", "--json").json()["skip_without_worker"] is True
    assert shell("cron", "rm", queue_name, "manned", "--yes").code == 0
    listed = shell("cron", "ls").out
    assert re.search(rf"(?m)^QUEUE +NAME .*\n(.*\n)*{queue_name} +nightly +0 3 \* \* \*", listed), listed
    found = shell("cron", "ls", queue_name, "--json").json()
    assert [(each["name"], each["when"], each["job_name"]) for each in found] == [
        ("nightly", "0 3 * * *", "report"), ("often", "every 90m", "often"),
    ]  # fmt: skip
    assert len(found[0]["upcoming"]) == 5
    shown = shell("cron", "show", queue_name, "nightly").out
    assert "next runs" in shown
    assert '{"full": true}' in shown
    assert shell("cron", "pause", queue_name, "nightly").out == f"paused schedule 'nightly' of queue '{queue_name}'\n"
    paused = shell("cron", "show", queue_name, "nightly", "--json").json()
    assert paused["paused_at"] > 0
    assert (paused["next_run"], paused["upcoming"]) == (None, [])
    assert re.search(r"nightly +0 3 \* \* \* +UTC +report +paused", shell("cron", "ls", queue_name).out)
    assert "paused     since " in shell("cron", "show", queue_name, "nightly").out
    data = '{"full": true}'
    added = shell("cron", "add", queue_name, "nightly", data, "--pattern", "0 4 * * *", "--job", "report")
    assert added.out == f"schedule 'nightly' of queue '{queue_name}': 0 4 * * *, paused\n"
    resumed = shell("cron", "resume", queue_name, "nightly").out
    assert resumed.startswith(f"resumed schedule 'nightly' of queue '{queue_name}'\nnext run: ")
    assert shell("cron", "show", queue_name, "nightly", "--json").json()["paused_at"] is None
    assert shell("cron", "resume", queue_name, "nightly", "--catch-up").code == 0
    assert shell("cron", "pause", queue_name, "other").code == 4
    assert shell("cron", "resume", queue_name, "other").code == 4
    ran = shell("cron", "run", queue_name, "nightly", "--json").json()
    job = shell("job", "show", queue_name, ran["ids"][0], "--json").json()
    assert (job["job"]["name"], job["data"]) == ("report", {"full": True})
    assert shell("cron", "rm", queue_name, "nightly", "--yes").code == 0
    assert shell("cron", "rm", queue_name, "nightly", "--yes").code == 4
    assert shell("cron", "show", queue_name, "nightly").code == 4


def test_a_flow_is_drawn(shell: Shell, url: str, queue_name: str) -> None:
    async def add() -> str:
        async with FlowProducer(url) as flows:
            children: Any = [{"name": "fetch", "queue": queue_name, "data": {}}]
            node = await flows.add({"name": "collect", "queue": queue_name, "data": {}, "children": children})
            return node.job.id

    root = asyncio.run(add())
    first, second = shell("flow", "show", queue_name, root).lines
    assert first == f"collect ({queue_name} {root}) waiting-children"
    assert second.startswith("└── fetch (")
    assert shell("flow", "show", queue_name, root, "--json").json()["children"][0]["state"] == "waiting"
    assert shell("flow", "watch", queue_name, root, "--timeout", "1ms").code == 1
    assert shell("flow", "show", queue_name, "99").code == 4


def test_workers_are_listed(shell: Shell, url: str, queue_name: str) -> None:
    assert shell("job", "add", queue_name, "a").code == 0
    assert shell("worker", "ls", queue_name).err == "no live workers\n"
    assert shell("workers", "ls", queue_name, "--json").json() == []


@pytest.mark.parametrize(
    ("state", "words"),
    [({}, []), ({"stuck": 1}, ["1", "stuck"]), ({"stuck": 1, "paused": 1}, ["quiet,", "1", "stuck"])],
)
def test_stuck_slots_are_listed(
    shell: Shell, resp: RespClient, queue_name: str, state: dict[str, int], words: list[str]
) -> None:
    assert shell("job", "add", queue_name, "a").code == 0
    raw = Raw(resp, queue_name)
    info = {"addr": "web", "pid": 7, "startedAt": 1, "activeJobs": 1, "concurrency": 3, **state}
    raw.run("SET", "w:py-x", json.dumps(info), "PX", 60_000)
    raw.run("ZADD", "workers", int(resp.execute("TIME")[0]) * 1_000, "py-x")
    line = shell("worker", "ls", queue_name).lines[1].split()
    assert f"{1 + state.get('stuck', 0)}/3" in line
    assert line[-len(words) :] == words if words else "stuck" not in line
    assert shell("worker", "ls", queue_name, "--json").json()[0]["worker"]["stuck"] == state.get("stuck", 0)


@pytest.mark.slow
def test_workers_are_inspected_quieted_and_resized(shell: Shell, url: str, queue_name: str) -> None:
    async def run() -> None:
        started, finish = asyncio.Event(), asyncio.Event()

        async def wait(_: Job) -> None:
            started.set()
            await finish.wait()

        def shell_of(*argv: str) -> Done:
            return shell("worker", argv[0], queue_name, *argv[1:], "--timeout", "60s")

        async with Queue[Any, Any](queue_name, url) as queue:
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


def test_metrics_by_name_are_recorded_and_shown(shell: Shell, url: str, queue_name: str) -> None:
    filled(url, queue_name, _four)
    assert "metrics by name are off" in shell("queue", "metrics", queue_name).err
    assert shell("queue", "metrics", queue_name, "--keep", "1d", "--json").json()["kept_minutes"] == 1_440
    worked(url, queue_name, _fail_odd)
    found = shell("queue", "metrics", queue_name, "--json").json()["names"]
    assert [(each["name"], each["completed"], each["failed"]) for each in found] == [("even", 2, 0), ("odd", 0, 2)]
    assert [line.split()[:3] for line in shell("queue", "metrics", queue_name, "--name", "odd").lines[1:]] == [
        ["odd", "0", "2"]
    ]
    assert shell("queue", "metrics", queue_name, "--keep", "off", "--json").json()["kept_minutes"] == 0


def test_many_jobs_are_deleted_by_few_calls(
    shell: Shell, url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def add(queue: Queue[Any, Any]) -> None:
        await queue.add_bulk([("old", {"n": n}) for n in range(250)])
        await queue.add("new", {}, delay=3_600_000)

    filled(url, queue_name, add)
    sent: list[str] = []
    call = AsyncTransport.call

    async def counted(transport: AsyncTransport, each: Call[Any]) -> Any:
        sent.append(each.function)
        return await call(transport, each)

    monkeypatch.setattr(AsyncTransport, "call", counted)
    done = shell("job", "rm", queue_name, "--name", "old", "--yes", "--json").json()
    assert (done["done"], len(done["ids"]), sent.count("clean_jobs"), sent.count("remove")) == (250, 250, 3, 0)
    assert shell("job", "cancel", queue_name, "--name", "new", "--yes").code == 0
    assert (sent.count("revoke_jobs"), sent.count("revoke")) == (1, 0)
    assert [job["state"] for job in shell("job", "ls", queue_name, "--json").json()["jobs"]] == ["failed"]


def test_groups_are_listed_and_limited(shell: Shell, url: str, queue_name: str) -> None:
    async def add(queue: Queue[Any, Any]) -> None:
        await queue.add("a", {}, ordering={"key": "acme", "concurrency": 2})
        await queue.add("b", {}, fair_key="tenant")

    filled(url, queue_name, add)
    assert shell("group", "ls", queue_name, "--json").json()["fair_keys"][0]["backlog"] == 1
    limited = shell("group", "limit", queue_name, "acme", "--concurrency", "5", "--rate", "10/s", "--json").json()
    assert limited["limits"]["concurrency"] == 5
    assert limited["limits"]["rate_limit"] == {"max": 10, "duration": 1_000}
    assert "10 per 1s" in shell("group", "limit", queue_name, "acme").out
    shell("group", "fair", queue_name, "tenant", "--weight", "3", "--rate", "10/s", "--max-backlog", "100")
    fair = shell("group", "fair", queue_name, "tenant", "--concurrency", "2", "--json").json()
    assert (fair["weight"], fair["concurrency"], fair["max_backlog"], fair["backlog"]) == (3, 2, 100, 1)
    assert fair["rate_limit"] == {"max": 10, "duration": 1_000}
    free = shell("group", "fair", queue_name, "tenant", "--rate", "off", "--concurrency", "0").out
    assert re.findall(r"no limit", free) == ["no limit"] * 2
    assert shell("group", "fair", "none-such", "tenant").code == 4
    each = shell("group", "fair", queue_name, "--concurrency", "4", "--max-backlog", "9", "--json").json()
    assert each == {"concurrency": 4, "rate_limit": None, "max_backlog": 9}
    assert re.search(r"concurrency of each key +4\n", shell("group", "fair", queue_name).out)
    assert re.search(r"concurrency +4\n", shell("group", "fair", queue_name, "tenant").out)
    done = shell("group", "fair", queue_name, "--weight", "2")
    assert (done.code, "option 'weight' = 2: needs a fair key" in done.err) == (2, True), done.err


def test_events_are_printed(shell: Shell, url: str, queue_name: str) -> None:
    filled(url, queue_name, _four)
    done = shell("events", "tail", queue_name, "--after", "0", "-n", "2")
    assert [line.split()[2:] for line in done.lines] == [["added", "1", "name=even"], ["added", "2", "name=odd"]]
    (line,) = shell("events", "tail", queue_name, "--after", "0", "-n", "1", "--json").lines
    assert json.loads(line)["event"] == "added"
    assert shell("events", "tail", queue_name, "--event", "exploded").code == 2


def test_a_queue_is_backed_up_and_restored(shell: Shell, url: str, queue_name: str, tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    filled(url, queue_name, _four)
    folder = str(tmp_path / "backups")
    assert "4 jobs" in shell("backup", folder, queue_name).out
    restored = shell("restore", folder, f"{queue_name}-2", "--source", queue_name)
    assert (restored.code, "restored 4 jobs" in restored.out) == (0, True)
    again = shell("restore", folder, queue_name)
    assert again.code == 1
    assert "it has jobs" in again.err


def test_the_number_of_partitions_is_shown_and_changed(shell: Shell, url: str, queue_name: str) -> None:
    filled(url, queue_name, _four)
    shown = shell("queue", "partitions", queue_name)
    assert (shown.code, shown.out.strip()) == (0, f"queue {queue_name!r}: no partitions")
    asked = shell("queue", "partitions", queue_name, "3")
    assert asked.code == 2
    assert asked.err.strip().endswith("from no partitions to 3 partitions: confirm with --yes")
    changed = shell("queue", "partitions", queue_name, "3", "--yes", "--json").json()
    assert (changed["count"], len(changed["names"])) == (3, 3)
    assert shell("queue", "partitions", queue_name).out.strip() == f"queue {queue_name!r}: 3 partitions"
    again = shell("queue", "partitions", queue_name, "3")  # asks nothing: the number is the same
    assert again.code == 0
    rejected = shell("queue", "partitions", queue_name, "0", "--yes")
    assert (rejected.code, "option 'count' = 0" in rejected.err) == (2, True)
    assert shell("queue", "partitions", "unknown").code == 4


def test_backups_are_listed_without_a_server(shell: Shell, url: str, queue_name: str, tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    filled(url, queue_name, _four)
    folder = str(tmp_path / "backups")
    for _ in range(2):
        assert shell("backup", folder, queue_name).code == 0
    found = shell("backups", folder, queue_name, "--json", "--url", "valkey://nowhere.invalid").json()
    first, second = found["backups"]
    assert (first["jobs"], first["queue"], found["damaged"]) == (4, queue_name, [])
    listed = shell("backups", folder, queue_name)
    assert (first["id"] in listed.out, second["id"] in listed.out) == (True, True)
    assert "no backup of 'unknown'" in shell("backups", folder, "unknown").err

    (manifest,) = (tmp_path / "backups").rglob(f"*{first['id']}*/manifest.json")
    manifest.write_bytes(b"{}")
    damaged = shell("backups", folder, queue_name)
    assert (damaged.code, second["id"] in damaged.out) == (1, True)
    assert f"queue {queue_name!r}" in damaged.err
    assert first["id"] in damaged.err


# -- the server and the settings --------------------------------------------------------------------------


@pytest.mark.slow
def test_doctor_reports_what_to_do(shell: Shell, url: str, queue_name: str) -> None:
    filled(url, queue_name, _four)
    done = shell("doctor", queue_name)
    assert done.code == 1
    assert "4 unfinished jobs and no live worker; start one: glidemq worker MODULE:WORKER" in done.out
    found = {(each["check"], each["severity"]) for each in shell("doctor", queue_name, "--json").json()}
    assert {("latency", "ok"), ("eviction", "ok"), ("library", "ok"), ("queue", "warning")} <= {
        (check, "ok" if check == "latency" else severity) for check, severity in found
    }
    accepted = shell("doctor", queue_name, "--url", f"{url}?allow_no_aof=true", "--json").json()
    assert [each["severity"] for each in accepted if each["check"] == "aof"] in (["note"], ["ok"])
    shell("queue", "pause", queue_name)
    assert f"glidemq queue resume {queue_name}" in shell("doctor", queue_name).out


@pytest.mark.slow
def test_doctor_examines_the_permissions_of_a_user(shell: Shell, queue_name: str, resp: Any) -> None:
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


def test_no_server_is_reported_in_one_line(shell: Shell) -> None:
    done = shell("queue", "ls", "a", "--url", "valkey://127.0.0.1:1")
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith("glidemq: cannot connect to 127.0.0.1:1: connection refused")
    assert done.err.count("\n") == 1


@pytest.mark.slow
def test_an_observer_may_look_at_everything_and_change_nothing(
    shell: Shell, url: str, queue_name: str, resp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(url, queue_name, _four)
    worked(url, queue_name, _fail_odd)
    page = (ROOT / "docs" / "operate" / "permissions.md").read_text(encoding="utf-8")
    (rules,) = re.findall(r"ACL SETUSER observer on >SECRET ([^`]+)```", page)
    user = f"observer-{queue_name}"
    resp.execute("ACL", "SETUSER", user, "on", ">hunter2", *rules.split())
    try:
        monkeypatch.setenv("GLIDEMQ_URL", url.replace("://", f"://{user}:hunter2@"))
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
) -> None:
    monkeypatch.delenv("GLIDEMQ_URL")
    none = shell("queue", "ls", "a")
    assert (none.code, none.err) == (2, "glidemq: no server given; use --url, GLIDEMQ_URL, or url in [tool.glidemq]\n")
    settings = tmp_path / "pyproject.toml"
    settings.write_text(f'[tool.glidemq]\nurl = "{url}"\nprefix = "other"\nqueues = ["{queue_name}"]\n')
    assert shell("job", "add", queue_name, "hello").code == 0
    assert shell("queue", "ls", "--json").json()[0]["waiting"] == 1
    assert shell("--prefix", "glide", "--json", "queue", "ls").json()[0]["waiting"] == 0
    monkeypatch.setenv("GLIDEMQ_PREFIX", "glide")
    assert shell("queue", "ls", "--json").json()[0]["waiting"] == 0
    settings.write_text("[tool.glidemq]\nserver = 1\n")
    wrong = shell("queue", "ls", "--url", url)
    assert wrong.code == 2
    assert "option 'tool.glidemq.server' = 1: unknown; must be one of url, prefix, queues" in wrong.err


def test_a_password_is_never_printed(shell: Shell) -> None:
    done = shell("queue", "ls", "a", "--url", "valkey://user:hunter2@127.0.0.1:1/x/y")
    assert done.code in (2, 3)
    assert "hunter2" not in done.out + done.err


# -- commands that are modules of their own ------------------------------------------------------------------


@pytest.mark.parametrize("form", [["--url", "URL", "library", "check"], ["--url=URL", "library", "check"]])
def test_options_before_a_command_of_its_own_reach_it(
    shell: Shell, url: str, monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    monkeypatch.delenv("GLIDEMQ_URL")
    done = shell(*(word.replace("URL", url) for word in form))
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize(
    "form", [["--url", "URL", "worker", "ls"], ["worker", "--url", "URL", "ls"], ["worker", "ls", "--url=URL"]]
)
def test_workers_are_listed_wherever_the_options_stand(
    shell: Shell, url: str, monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    monkeypatch.delenv("GLIDEMQ_URL")
    done = shell(*(word.replace("URL", url) for word in form), "--json")
    assert done.code == 0, done.err
    assert isinstance(done.json(), list)


def test_settings_of_a_project_reach_commands_of_their_own(
    shell: Shell, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GLIDEMQ_URL")
    (tmp_path / "pyproject.toml").write_text(f'[tool.glidemq]\nurl = "{url}"\n')
    done = shell("library", "check")
    assert (done.code, done.err) == (0, "")
    (tmp_path / "pyproject.toml").write_text("[tool.glidemq]\nurl = 17\n")
    done = shell("gateway")
    assert done.code == 2
    assert done.err.startswith("glidemq gateway: option 'tool.glidemq.url' = 17: must be a string")


@pytest.mark.parametrize(("form", "option"), [(["--json", "gateway"], "--json"), (["--prefix=x", "demo"], "--prefix")])
def test_options_that_a_command_lacks_are_refused(shell: Shell, form: list[str], option: str) -> None:
    done = shell(*form)
    assert (done.code, done.err) == (2, f"glidemq {form[1]}: does not accept {option}\n")


# -- what does not exist -------------------------------------------------------------------------------------


def test_dry_runs_and_prompts_know_what_does_not_exist(shell: Shell, url: str, queue_name: str) -> None:
    (job,) = filled(url, queue_name, lambda queue: queue.add_bulk([("a", 1)]))
    done = shell("job", "rm", queue_name, "99999", "--dry-run")
    assert (done.code, done.err) == (4, "job '99999' does not exist\n")
    assert shell("job", "rm", queue_name, "99999").code == 4
    done = shell("job", "rm", queue_name, job.id, "99999", "--dry-run")
    assert done.lines == [f"would delete 1 job from queue {queue_name!r}"]
    for command in ("rm", "run", "pause", "resume"):
        done = shell("cron", command, queue_name, "nope")
        assert (done.code, done.err) == (4, "schedule 'nope' does not exist\n")
    done = shell("dlq", "replay", queue_name, "nope")
    assert (done.code, done.err) == (4, "entry 'nope' does not exist\n")


@pytest.mark.parametrize("command", [
    ("cron", "show"), ("cron", "pause"), ("cron", "resume"), ("cron", "run"), ("cron", "rm"), ("dlq", "replay"),
    ("dlq", "purge"),
], ids=" ".join)  # fmt: skip
def test_missing_queue_of_a_schedule_or_entry_is_reported(
    shell: Shell, queue_name: str, command: tuple[str, ...]
) -> None:
    done = shell(*command, queue_name, "nope")
    assert (done.code, done.err) == (4, f"glidemq: queue '{queue_name}' does not exist (prefix 'glide')\n")


@pytest.mark.parametrize(("command", "criteria"), [("cancel", "--state waiting"), ("rm", "--state failed")])
def test_suggested_criteria_are_valid_for_the_command(
    shell: Shell, url: str, queue_name: str, command: str, criteria: str
) -> None:
    done = shell("job", command, queue_name)
    assert (done.code, done.err) == (2, f"glidemq: give ids of jobs, or criteria such as {criteria}\n")
    filled(url, queue_name, _four)
    if command == "rm":
        worked(url, queue_name, _fail_odd)
    changed = shell("job", command, queue_name, *criteria.split(), "--yes", "--json")
    assert changed.code == 0
    assert changed.json()["done"] == (4 if command == "cancel" else 2)


def test_a_dry_run_of_a_repair_is_a_check(shell: Shell, url: str, queue_name: str) -> None:
    filled(url, queue_name, lambda queue: queue.add("a", 1))
    assert shell("queue", "repair", queue_name, "--dry-run").out == shell("queue", "check", queue_name).out


def test_a_pattern_in_the_place_of_the_data_is_recognized(shell: Shell, queue_name: str) -> None:
    done = shell("cron", "add", queue_name, "nightly", "0 3 * * *")
    assert done.code == 2
    assert done.err == "glidemq: give either --pattern or --every; did you mean --pattern '0 3 * * *'?\n"


def test_data_that_looks_like_json_and_is_none_is_reported(shell: Shell, queue_name: str) -> None:
    done = shell("job", "add", queue_name, "welcome", "{bad")
    assert (done.code, done.err) == (0, "DATA is not JSON: the job gets it as text\n")


# -- names that do not exist, states that cannot be cleaned ---------------------------------------------------


@pytest.mark.parametrize("command", [
    ("queue", "ls"), ("worker", "ls"), ("worker", "ping"), ("worker", "inspect"), ("doctor",),
], ids=" ".join)  # fmt: skip
def test_named_queue_must_exist(shell: Shell, queue_name: str, command: tuple[str, ...]) -> None:
    done = shell(*command, queue_name)
    assert (done.code, done.out) == (4, "")
    assert done.err == f"glidemq: queue '{queue_name}' does not exist (prefix 'glide')\n"


async def test_ping_without_workers_fails(shell: Shell, url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        await queue.add("a")
    done = await asyncio.to_thread(shell, "worker", "ping", queue_name)
    assert (done.code, done.err) == (1, f"glidemq: queue '{queue_name}' has no live workers\n")


@pytest.mark.parametrize("state", ["active", "bogus"])
@pytest.mark.parametrize("option", ["--dry-run", "--yes"])
async def test_states_that_cannot_be_cleaned(shell: Shell, url: str, queue_name: str, state: str, option: str) -> None:
    async with Queue(queue_name, url) as queue:
        await queue.add("a")
    done = await asyncio.to_thread(shell, "queue", "clean", queue_name, "--state", state, option)
    assert (done.code, done.out) == (2, "")
    # GLIDE may print a line of its own before.
    assert f"glidemq: option 'state' = '{state}': must be one of 'waiting', 'delayed'" in done.err


async def test_doctor_finds_schedules_without_a_worker(shell: Shell, url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        await queue.upsert_job_scheduler("nightly", pattern="0 3 * * *")
    done = await asyncio.to_thread(shell, "doctor", queue_name)
    assert done.code == 1
    assert "1 schedule and no live worker, which adds their jobs" in done.out
