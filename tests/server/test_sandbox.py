"""Sandboxed handlers: values that cross the process boundary, and the effects of a crash, a hang or a leak."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import GlideMQValidationError, Job, JobFailedError, Middleware, Queue, SandboxOptions, Worker
from glidemq_py._worker.sandbox import process as sandbox_process
from glidemq_py.errors import HandlerError
from glidemq_py.testing import RespClient
from tests.inside import around, sandbox_of
from tests.server.command import Command, alive
from tests.server.lossy_proxy import LossyProxy
from tests.server.worker_support import EventRecorder, Raw, WorkerFor, until, with_timeout

HANDLERS = "tests.server.sandboxed_handlers"
PLAIN, ASYNC = f"{HANDLERS}:plain", f"{HANDLERS}:on_loop"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="sandboxes need a POSIX system")]


async def failure(job: Job) -> tuple[str | None, str]:
    with pytest.raises(JobFailedError) as caught:
        await job.wait_until_finished(300_000)
    return caught.value.failed_type, caught.value.failed_reason


def pids_in(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split() if line.isdigit()] if path.exists() else []


async def test_log_lines_with_lost_replies_are_written_once(server: Any, url: str, queue_name: str):
    """Those of the process, and those of the worker in the same attempt."""

    class Logging(Middleware):
        @contextlib.asynccontextmanager
        async def run(self, job: Any) -> AsyncIterator[None]:
            await job.log("worker")
            yield

    with LossyProxy(server.url) as proxy:
        async with Queue(queue_name, url) as queue, Worker(queue_name, ASYNC, proxy.url, middleware=[Logging()]):
            proxy.lose("_update_job", 4)
            job = await queue.add("log")
            await job.wait_until_finished()
            assert proxy.lost == 4
            assert sorted(await job.logs()) == ["from the loop", "line 0", "line 1", "line 2", "worker"]


async def test_a_call_with_a_lost_reply_is_repeated(server: Any, url: str, queue_name: str):
    with LossyProxy(server.url) as proxy:
        async with Queue(queue_name, url) as queue, Worker(queue_name, ASYNC, proxy.url):
            proxy.lose("_update_job", 1)
            job = await queue.add("advance")
            await job.wait_until_finished()
            assert proxy.lost == 1


@pytest.mark.parametrize("handler", [PLAIN, ASYNC])
async def test_jobs_run_in_one_warm_process(core_url: str, queue_name: str, handler: str):
    async with Queue(queue_name, core_url) as queue, Worker(queue_name, handler, core_url):
        results = [await queue.add_and_wait("echo", {"n": n, "text": "ä\ud7ff"}, attempts=2) for n in range(3)]
    assert [result["data"] for result in results] == [{"n": n, "text": "ä\ud7ff"} for n in range(3)]
    assert len({result["pid"] for result in results}) == 1
    assert results[0]["pid"] != os.getpid()
    assert results[0]["opts"] == {"attempts": 2}


async def test_a_plain_handler_reaches_its_queue(core_url: str, core_resp: RespClient, queue_name: str):
    async with Queue(queue_name, core_url) as queue, Worker(queue_name, PLAIN, core_url):
        job = await queue.add("log", 1)
        assert await job.wait_until_finished() == [{"new": True}, "active", True, None]
        assert await job.logs() == ["one"]
        fields = Raw(core_resp, queue_name).job(job.id)
    assert (fields["progress"], fields["data"], fields["tpmTokens"]) == ("30", '{"new":true}', "5")


async def test_a_missing_await_fails_the_job(queue: Queue, worker_for: WorkerFor):
    async with worker_for(f"{HANDLERS}:log_without_await"):
        kind, reason = await failure(await queue.add("log", attempts=3))
    assert kind == "UnrecoverableError"
    assert "job.blocking.log(...)" in reason


async def test_an_async_handler_reaches_its_queue(
    worker_for: WorkerFor, resp: RespClient, queue: Queue, queue_name: str
):
    async with worker_for(ASYNC):
        job = await queue.add("log", 1)
        assert await job.wait_until_finished() == [{"new": True}, "active"]
        assert sorted(await job.logs()) == ["from the loop", "line 0", "line 1", "line 2"]
        assert Raw(resp, queue_name).job(job.id)["tpmTokens"] == "7"


async def test_usage_and_streams_cross(queue: Queue, worker_for: WorkerFor):
    async with worker_for(PLAIN) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("use")
        assert await job.wait_until_finished() == "used"
        await recorded.wait("completed")
        assert recorded.of("completed")[0][0].usage.tokens == {"in": 3, "out": 4}
        read = await queue.get_job(job.id)
        assert read is not None
        assert read.usage is not None
        assert read.usage.total_tokens == 7
        assert [entry.fields for entry in await queue.read_stream(job.id)] == [{"token": "a"}]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize(
    ("how", "expected"),
    [("exit", "ended with exit code 7"), ("kill", "was killed by SIGKILL"), ("fault", "was killed by SIGSEGV")],
)
async def test_a_crash_fails_its_job_alone(queue: Queue, worker_for: WorkerFor, how: str, expected: str, method: Any):
    options = SandboxOptions(start_method=method)
    async with (
        worker_for(PLAIN, sandbox=options, concurrency=2) as worker,
    ):
        before = await queue.add_and_wait("echo")
        dead = await queue.add("die", how)
        assert await failure(dead) == ("SandboxCrashError", f"the sandbox process {expected}")
        after = await queue.add_and_wait("echo")
        assert after["pid"] != before["pid"]
        assert worker.is_healthy


async def test_a_crash_is_retried_like_any_failure(queue: Queue, worker_for: WorkerFor):
    async with worker_for(PLAIN) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("die", "exit", attempts=3)
        assert (await failure(job))[0] == "SandboxCrashError"
        assert recorded.count["retrying"] == 2


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("name", ["hang", "hang_with_child"])
async def test_a_timeout_kills_the_process(queue: Queue, worker_for: WorkerFor, tmp_path: Path, name: str, method: Any):
    pids = tmp_path / "pids"
    options = SandboxOptions(start_method=method, kill_after=50)
    async with worker_for(PLAIN, sandbox=options) as worker:
        job = await queue.add(name, str(pids), timeout=1_500)
        kind, reason = await failure(job)
        assert (kind, "1500 ms" in reason) == ("JobTimeoutError", True)
        await with_timeout(until(lambda: worker.active_count == 0))
        await with_timeout(until(lambda: not alive(pids_in(pids)[0])))
        assert (await queue.add_and_wait("echo", 1))["data"] == 1


async def test_handler_that_checks_cancellation_keeps_its_process(queue: Queue, worker_for: WorkerFor, tmp_path: Path):
    pids = tmp_path / "pids"
    async with (
        worker_for(PLAIN, sandbox={"kill_after": 30_000}) as worker,
    ):
        job = await queue.add("look", str(pids), timeout=500)
        assert (await failure(job))[0] == "JobTimeoutError"
        await with_timeout(until(lambda: worker.active_count == 0))
        assert (await queue.add_and_wait("echo"))["pid"] == pids_in(pids)[0]


async def test_an_async_handler_is_cancelled_first(queue: Queue, worker_for: WorkerFor, tmp_path: Path):
    out = tmp_path / "out"
    async with worker_for(ASYNC) as worker:
        job = await queue.add("sleep", str(out), timeout=300)
        assert (await failure(job))[0] == "JobTimeoutError"
        await with_timeout(until(lambda: worker.active_count == 0))
        assert out.read_text() == "cleaned up\n"


async def test_revoking_kills_too(queue: Queue, worker_for: WorkerFor, tmp_path: Path):
    pids = tmp_path / "pids"
    async with (
        worker_for(PLAIN, sandbox={"kill_after": 0}, lock_duration=1_000),
    ):
        job = await queue.add("hang", str(pids))
        await with_timeout(until(lambda: pids_in(pids)))
        await job.revoke()
        assert (await failure(job))[0] == "JobRevokedError"
        await with_timeout(until(lambda: not alive(pids_in(pids)[0])))


# -- exceptions and signals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("handler", [PLAIN, ASYNC])
@pytest.mark.parametrize(
    ("what", "kind", "reason"),
    [
        ("own", "OwnError", "my own"),
        ("path", "FileNotFoundError", f"no file [PROJECT_ROOT]{os.sep}x.csv"),
        ("exit", "SystemExit", "3"),
        ("keys", "KeyError", "'absent'"),
        ("group", "ExceptionGroup", "several (2 sub-exceptions)"),
    ],
)
async def test_exceptions_keep_their_name_and_traceback(
    queue: Queue, worker_for: WorkerFor, handler: str, what: str, kind: str, reason: str
):
    async with worker_for(handler):
        job = await queue.add("fail", what)
        assert await failure(job) == (kind, reason)
        read = await queue.get_job(job.id)
        assert read is not None
        assert "in fail\n" in read.stacktrace[0]
        assert "[PROJECT_ROOT]" in read.stacktrace[0]
        assert os.getcwd() not in read.stacktrace[0]
        assert "sandbox/child.py" not in read.stacktrace[0]


async def test_retry_decision_uses_the_error_class(queue: Queue, worker_for: WorkerFor):
    async with (
        worker_for(PLAIN, retry_on=ValueError, no_retry_on=OSError) as worker,
    ):
        recorded = EventRecorder(worker)
        jobs = [await queue.add("fail", what, attempts=2) for what in ("own", "final", "path", "keys", "unrecoverable")]
        for job in jobs:
            await failure(job)
        assert recorded.job_ids("retrying") == [jobs[0].id]
        assert {args[1].__class__.__name__ for args in recorded.of("failed")} == {
            "OwnError", "OwnFinalError", "FileNotFoundError", "KeyError", "UnrecoverableError",
        }  # fmt: skip


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize("handler", [PLAIN, ASYNC])
async def test_signals_are_followed(core_url: str, queue_name: str, handler: str):
    async with Queue(queue_name, core_url) as queue, Worker(queue_name, handler, core_url) as worker:
        recorded = EventRecorder(worker)
        assert await queue.add_and_wait("steps") == {"step": "second", "at": [1, 2]}
        assert await queue.add_and_wait("own_delay") == "moved"
        if handler == PLAIN:
            assert await queue.add_and_wait("limited", attempts=2) == 0
        else:
            job = await queue.add("signal")
            await recorded.wait("suspended")
            await queue.signal(job.id, "go", {"by": "hand"})
            assert await job.wait_until_finished() == {"by": "hand"}
        assert await failure(await queue.add("discard", attempts=5)) == ("OSError", "and never again")
        assert recorded.count["retrying"] == 0


async def test_steps_of_a_sandbox_are_stored(queue: Queue, worker_for: WorkerFor, tmp_path: Path):
    async with worker_for(ASYNC):
        job = await queue.add("durable", str(tmp_path / "lines"), attempts=2)
        assert await job.wait_until_finished() == 1
        assert [step.name for step in await job.get_steps()] == ["step", "pause"]


async def test_a_parent_waits_for_its_children(queue: Queue, worker_for: WorkerFor):
    async with worker_for(PLAIN):
        parent = await queue.add("parent")
        await with_timeout(until_active(parent))
        await queue.add("use", parent=parent, delay=20)
        assert await parent.wait_until_finished() == [{"step": "sum"}, ["used"]]


async def until_active(job: Job):
    while await job.get_state() != "active":  # noqa: ASYNC110  there is no event for it
        await asyncio.sleep(0.01)


async def test_a_serializer_by_name_crosses(worker_for: WorkerFor, url: str, queue_name: str):
    async with (
        Queue(queue_name, url, serializer="msgpack") as queue,
        worker_for(PLAIN, serializer="msgpack"),
    ):
        assert (await queue.add_and_wait("echo", {"raw": b"\0\xff", 5: 6}))["data"] == {"raw": b"\0\xff", 5: 6}


# -- processes ------------------------------------------------------------------------------------------------


async def test_memory_is_bounded(queue: Queue, worker_for: WorkerFor):
    limit = 300 * 1024**2
    async with (
        worker_for(PLAIN, sandbox={"memory_limit": limit}) as worker,
    ):
        before = await queue.add_and_wait("echo")
        assert await queue.add_and_wait("eat", 10_000_000) == 10_000_000
        kind, reason = await failure(await queue.add("eat", limit + 1))
        assert (kind, f"memory_limit of {limit} bytes" in reason) == ("MemoryError", True)
        after = await queue.add_and_wait("echo")
        assert after["pid"] != before["pid"]
        assert worker.active_count == 0


async def test_processes_are_replaced_after_so_many_jobs(queue: Queue, worker_for: WorkerFor):
    async with worker_for(PLAIN, sandbox={"recycle_after": 2}):
        pids = [(await queue.add_and_wait("echo"))["pid"] for _ in range(5)]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
async def test_number_of_processes_is_bounded(queue: Queue, worker_for: WorkerFor, method: Any):
    options = SandboxOptions(max_workers=2, start_method=method)
    async with worker_for(PLAIN, sandbox=options, concurrency=6):
        jobs = await queue.add_bulk([("echo", n) for n in range(40)])
        results = [await job.wait_until_finished() for job in jobs]
    assert [result["data"] for result in results] == list(range(40))
    assert 1 <= len({result["pid"] for result in results}) <= 2


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
async def test_close_ends_every_process(queue: Queue, worker_for: WorkerFor, method: Any):
    options = SandboxOptions(start_method=method)
    async with worker_for(PLAIN, sandbox=options, concurrency=3):
        jobs = await queue.add_bulk([("echo", n) for n in range(6)])
        pids = {(await job.wait_until_finished())["pid"] for job in jobs}
    assert [pid for pid in pids if alive(pid)] == []


async def test_forced_close_releases_the_job_and_kills_the_process(
    worker_for: WorkerFor, resp: RespClient, queue: Queue, queue_name: str, tmp_path: Path
):
    pids = tmp_path / "pids"
    worker = worker_for(PLAIN)
    await worker.start()
    job = await queue.add("hang", str(pids))
    await with_timeout(until(lambda: pids_in(pids)))
    await with_timeout(worker.close(force=True))
    fields = Raw(resp, queue_name).job(job.id)
    assert (fields["state"], fields.get("attemptsMade", "0")) == ("waiting", "0")
    assert not alive(pids_in(pids)[0])


async def test_processes_end_with_their_worker(url: str, queue: Queue, queue_name: str, tmp_path: Path):
    pids = tmp_path / "pids"
    program = (
        f"import asyncio; from glidemq_py import Worker; asyncio.run(Worker({queue_name!r}, {PLAIN!r}, {url!r}).run())"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, env={**os.environ, "PYTHONPATH": path}, cwd=os.getcwd()
    )
    await queue.add("hang", str(pids))
    await with_timeout(until(lambda: pids_in(pids)))
    assert alive(pids_in(pids)[0])
    process.kill()
    await process.wait()
    await with_timeout(until(lambda: not alive(pids_in(pids)[0])))


async def test_the_command_runs_such_a_worker(url: str, queue_name: str, tmp_path: Path):
    (tmp_path / "deeds.py").write_text("def double(job):\n    return job.data * 2\n")
    program = f"from glidemq_py import Worker\nworker = Worker({queue_name!r}, 'deeds:double', {url!r})\n"
    (tmp_path / "application.py").write_text(program)
    with Command(tmp_path, "glidemq_py.worker", "application:worker") as command:
        async with Queue(queue_name, url) as queue:
            assert await queue.add_and_wait("n", 4) == 8
            command.signal(signal.SIGTERM)
            assert await command.ends() == 0


# -- targets --------------------------------------------------------------------------------------------------


async def test_a_file_is_a_target(queue: Queue, worker_for: WorkerFor, tmp_path: Path):
    (tmp_path / "beside.py").write_text("FACTOR = 3\n")
    (tmp_path / "mine.py").write_text(
        "from beside import FACTOR\n\ndef handler(job):\n    return job.data * FACTOR\n\n\n"
        "def other(job):\n    return -job.data\n"
    )
    async with worker_for(str(tmp_path / "mine.py")):
        assert await queue.add_and_wait("n", 5) == 15
    async with worker_for(f"{tmp_path / 'mine.py'}:other"):
        assert await queue.add_and_wait("n", 5) == -5


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        ("no_such_module_at_all:handler", "there is no module 'no_such_module_at_all'"),
        ("/no/such/file.py", "there is no file '/no/such/file.py'"),
        ("just_a_name", "must be"),
        ("", "must be"),
    ],
)
def test_missing_target_is_rejected_by_the_constructor(handler: str, expected: str):
    with pytest.raises(GlideMQValidationError, match=expected) as caught:
        Worker("q", handler)
    assert caught.value.option == "handler"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (f"{HANDLERS}:nothing", "has no 'nothing'"),
        (f"{HANDLERS}:not_a_function", "is int, not a function"),
        ("tests.server.no_such_module:plain", "there is no module 'tests.server.no_such_module'"),
        ("broken.py", "ZeroDivisionError"),
    ],
)
async def test_unloadable_target_is_rejected_at_start(
    worker_for: WorkerFor, tmp_path: Path, handler: str, expected: str, method: Any
):
    (tmp_path / "broken.py").write_text("1 / 0\n")
    if handler.endswith(".py"):
        handler = f"{tmp_path}/{handler}"
    worker = worker_for(handler, sandbox=SandboxOptions(start_method=method))
    with pytest.raises(GlideMQValidationError) as caught:
        await worker.start()
    assert (caught.value.option, caught.value.value) == ("handler", handler)
    assert expected in caught.value.problem
    # Its process has been waited for: a closed worker leaves neither a zombie nor a task behind.
    assert [task for task in asyncio.all_tasks() if task.get_name() == "glidemq-sandbox"] == []
    await worker.close()


HANGING_IMPORT = """
import os, time
from pathlib import Path

if (Path(__file__).parent / "hang").exists():
    (Path(__file__).parent / "pids").open("a").write(f"{os.getpid()}\\n")
    time.sleep(3600)

def handler(job):
    if job.data == "die":
        os._exit(3)
    return job.data
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
async def test_import_that_hangs_ends_at_the_start_timeout(
    worker_for: WorkerFor, url: str, queue_name: str, tmp_path: Path, method: Any
):
    (tmp_path / "hanging.py").write_text(HANGING_IMPORT)
    (tmp_path / "hang").touch()
    handler = str(tmp_path / "hanging.py")
    short, long = (SandboxOptions(start_method=method, start_timeout=ms) for ms in (2_000, 60_000))
    async with asyncio.timeout(300):
        with pytest.raises(HandlerError, match=r"hanging.py' within start_timeout \(2000 ms\)"):
            await worker_for(handler, sandbox=short).start()
        await until(lambda: not any(alive(pid) for pid in pids_in(tmp_path / "pids")))
        (tmp_path / "hang").unlink()
        async with Queue(queue_name, url) as queue, worker_for(handler, sandbox=long) as worker:
            assert await queue.add_and_wait("a", 1) == 1
            if method == "spawn":
                # Later processes too: the job's attempt fails.
                (tmp_path / "hang").touch()
                sandbox_of(worker)._options = short
                assert (await failure(await queue.add("a", "die")))[0] == "SandboxCrashError"
                assert (await failure(await queue.add("a", 2)))[0] == "HandlerError"


async def test_stopped_fork_server_is_replaced(
    worker_for: WorkerFor, url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sandbox_process, "_EXIT_S", 2.0)
    options = SandboxOptions(start_method="forkserver", max_workers=1)
    async with (
        asyncio.timeout(300), Queue(queue_name, url) as queue,
        worker_for(PLAIN, sandbox=options) as worker,
    ):  # fmt: skip
        sandbox = sandbox_of(worker)
        os.kill(sandbox._starter._server.pid, signal.SIGSTOP)
        # The process is lost with its server, which cannot return the exit code.
        assert (await failure(await queue.add("die", "exit")))[0] == "SandboxCrashError"
        assert (await queue.add_and_wait("echo"))["data"] is None


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
async def test_process_that_does_not_read_is_killed(queue: Queue, worker_for: WorkerFor, tmp_path: Path, method: Any):
    options = SandboxOptions(start_method=method, kill_after=100)
    async with (
        asyncio.timeout(300),
        worker_for(PLAIN, sandbox=options),
    ):
        job = await queue.add("hang", str(tmp_path / "pids"), timeout=3_000)
        await until(lambda: pids_in(tmp_path / "pids"))
        os.kill(pids_in(tmp_path / "pids")[0], signal.SIGSTOP)
        assert (await failure(job))[0] == "JobTimeoutError"
        assert (await queue.add_and_wait("echo"))["data"] is None
        await until(lambda: not alive(pids_in(tmp_path / "pids")[0]))


@pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd_open")
async def test_crash_is_noticed_while_another_process_holds_the_socket(
    queue: Queue, worker_for: WorkerFor, tmp_path: Path
):
    async with (
        asyncio.timeout(300),
        worker_for(PLAIN),
    ):
        dead = await queue.add("die_behind_a_daemon", str(tmp_path / "pids"))
        try:
            assert await failure(dead) == ("SandboxCrashError", "the sandbox process ended with exit code 9")
        finally:
            for pid in pids_in(tmp_path / "pids"):
                os.kill(pid, signal.SIGKILL)


async def test_start_cancelled_in_a_thread_does_not_mix_up_processes(
    queue: Queue, worker_for: WorkerFor, monkeypatch: pytest.MonkeyPatch
):
    """A fork server's replies must go to the requests that they answer."""
    options = SandboxOptions(start_method="forkserver", max_workers=4)
    async with (
        asyncio.timeout(300),
        worker_for(PLAIN, sandbox=options) as worker,
    ):
        starter = sandbox_of(worker)._starter
        entered, release = threading.Event(), threading.Event()

        def slow(fork: Any) -> Any:
            entered.set()
            release.wait(30)
            return fork()

        with monkeypatch.context() as patch:
            around(patch, starter, "_fork", slow)
            cancelled = asyncio.create_task(starter.start())
            await asyncio.to_thread(entered.wait, 30)
            cancelled.cancel()
        other = asyncio.create_task(starter.start())
        await asyncio.wait({cancelled})
        assert not other.done()  # it waits for its turn
        release.set()
        child, sock = await other
        sock.close()
        assert await child.ended() == 0
        assert (await queue.add_and_wait("echo"))["data"] is None


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"max_workers": 0}, "sandbox.max_workers"), ({"memory_limit": 1}, "sandbox.memory_limit"),
        ({"start_method": "fork"}, "sandbox.start_method"), ({"recycle_after": 0}, "sandbox.recycle_after"),
        ({"kill_after": -1}, "sandbox.kill_after"),
        ({"start_timeout": 5}, "sandbox.start_timeout"), ({"threads": True}, "sandbox.threads"), (True, "sandbox"),
    ],
)  # fmt: skip
def test_invalid_sandbox_options_are_rejected(options: Any, option: str):
    with pytest.raises(GlideMQValidationError) as caught:
        Worker("q", PLAIN, sandbox=options)
    assert caught.value.option == option


def test_options_unsupported_with_a_sandbox():
    with pytest.raises(GlideMQValidationError, match="one job at a time"):
        Worker("q", PLAIN, batch={"size": 5})
    with pytest.raises(GlideMQValidationError, match=r'"os.path:(abspath|join)"|name it as a text'):
        Worker("q", os.path.join, sandbox={})  # type: ignore[arg-type]

    class Local:
        def serialize(self, value: Any, /) -> str:
            return str(value)

        def deserialize(self, text: str, /):
            return text

    with pytest.raises(GlideMQValidationError, match="cannot be sent to a sandbox"):
        Worker("q", PLAIN, serializer=Local())
