"""The command `python -m glidemq_py.worker`: processes, signals, recycling, health checks."""

import asyncio
import json
import os
import re
import signal
import socket
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from glidemq_py import Queue, __version__
from glidemq_py.testing import RespClient
from tests.server.command import Command

pytestmark = pytest.mark.slow

APPLICATION = """
    import asyncio, logging, os, time
    from pathlib import Path
    from glidemq_py import Worker

    QUEUE = os.environ.get("QUEUE", "q")
    GATE = Path(__file__).parent / "gate"
    held = []

    async def wait(job):
        print(f"began {job.id} in {os.getpid()}", flush=True)
        while not GATE.exists():
            await asyncio.sleep(0.01)
        return os.getpid()

    def wait_in_thread(job):
        print(f"began {job.id} in {os.getpid()}", flush=True)
        while not GATE.exists():
            time.sleep(0.01)
        return os.getpid()

    async def quick(job):
        logging.getLogger("application").info("at work")
        return os.getpid()

    async def hungry(job):
        held.append(bytearray(os.urandom(1)) * 300_000_000)
        return os.getpid()

    worker = Worker(QUEUE, wait, lock_duration=1_000, stalled_interval=1_000)
    threads = Worker(QUEUE, wait_in_thread)
    eager = Worker(QUEUE, quick)
    both = (Worker(QUEUE, quick), Worker(QUEUE + "-2", quick))
"""

Start = Callable[..., Command]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "application.py").write_text(textwrap.dedent(APPLICATION))
    return tmp_path


@pytest.fixture
def start(folder: Path, url: str, queue_name: str) -> Start:
    """`start("application:worker", ...)`: the command, on the shared server and a queue of the test's own."""

    def run(*arguments: str, **env: str | None) -> Command:
        given = {"GLIDEMQ_URL": url, "QUEUE": queue_name, **env}
        return Command(folder, "glidemq_py.worker", *arguments, env=given)

    return run


def open_gate(folder: Path) -> None:
    (folder / "gate").touch()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


async def gone(pid: int) -> None:
    """Poll until the process has ended; only the end of a child can be awaited."""
    deadline = time.monotonic() + 120
    while alive(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        await asyncio.sleep(0.02)


# -- signals ------------------------------------------------------------------------------------------------

SINGLE_AND_SUPERVISED = pytest.mark.parametrize("options", [(), ("--processes", "1")], ids=["single", "supervised"])


async def test_process_ends_when_the_queue_uses_a_later_feature(
    start: Start, queue_name: str, resp: RespClient
) -> None:
    meta = f"glide:{{{queue_name}}}:meta"
    with start("application:worker") as command:
        await command.printed("working on")
        resp.execute("HSET", meta, "features", "partitions:9.9")
        await command.printed("uses the feature 'partitions'.*upgrade to version 9.9 or later; the worker closes")
        assert await command.ends() == 1
    resp.execute("DEL", meta)


@SINGLE_AND_SUPERVISED
async def test_sigterm_finishes_the_running_job(
    start: Start, folder: Path, url: str, queue_name: str, options: tuple[str, ...]
) -> None:
    async with Queue(queue_name, url) as queue:
        with start("application:worker", *options) as command:
            running, waiting = await queue.add("first"), await queue.add("second")
            await command.printed(f"began {running.id}")
            command.signal(signal.SIGTERM)
            await command.printed(rf"closing; 1 job is running: {running.id} 'first' \(queue '{queue_name}'\)")
            open_gate(folder)
            assert await command.ends() == 0
        assert await running.get_state() == "completed"
        assert await waiting.get_state() == "waiting"
        assert await queue.get_workers() == []


@SINGLE_AND_SUPERVISED
async def test_sigterm_repeated_within_a_second_counts_once(
    start: Start, folder: Path, url: str, queue_name: str, options: tuple[str, ...]
) -> None:
    async with Queue(queue_name, url) as queue:
        with start("application:worker", *options) as command:
            job = await queue.add("long")
            await command.printed("began")
            command.signal(signal.SIGTERM)
            command.signal(signal.SIGTERM)
            await command.printed("closing; 1 job is running")
            open_gate(folder)
            assert await command.ends() == 0
            assert "at once" not in command.text
        assert await job.get_state() == "completed"


@pytest.mark.parametrize("attribute", ["worker", "threads"])
@SINGLE_AND_SUPERVISED
async def test_second_sigterm_releases_the_running_job(
    start: Start, url: str, queue_name: str, options: tuple[str, ...], attribute: str
) -> None:
    async with Queue(queue_name, url) as queue:
        with start(f"application:{attribute}", *options) as command:
            job = await queue.add("long")
            await command.printed("began")
            command.signal(signal.SIGTERM)
            await command.printed("closing; 1 job is running")
            command.signal(signal.SIGINT)
            assert await command.ends() == 0
        again = await queue.get_job(job.id)
        assert again is not None
        assert await again.get_state() == "waiting"
        assert again.attempts_made == 0


async def test_shutdown_timeout_releases_the_running_job(start: Start, url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        with start("application:worker", "--shutdown-timeout", "100ms") as command:
            job = await queue.add("long")
            await command.printed("began")
            command.signal(signal.SIGTERM)
            assert await command.ends() == 0
            assert "shutdown timeout: closing now; releasing 1 running job" in command.text
        assert await job.get_state() == "waiting"


async def test_ctrl_c_reaches_the_children_once(start: Start, folder: Path, url: str, queue_name: str) -> None:
    """A terminal signals the whole process group, and the supervisor forwards the signal too."""
    async with Queue(queue_name, url) as queue:
        with start("application:worker", "--processes", "1") as command:
            job = await queue.add("long")
            await command.printed("began")
            os.killpg(command.pid, signal.SIGINT)
            await command.printed("closing; 1 job is running")
            open_gate(folder)
            assert await command.ends() == 0
            assert "at once" not in command.text
        assert await job.get_state() == "completed"


IMPATIENT = """
    import sys
    from glidemq_py._worker.command import supervisor
    from glidemq_py.worker import main

    supervisor._KILL_AFTER_S, supervisor._IMPORT_S = 1.0, float(sys.argv.pop(1))
    sys.exit(main())
"""

HANGING = """
    import os, signal, time
    from pathlib import Path

    signal.signal(signal.SIGTERM, lambda *_: None)
    print(f"importing in {os.getpid()}", flush=True)
    while True:
        time.sleep(0.05)
"""


@pytest.fixture
def impatient(folder: Path, url: str, queue_name: str) -> Start:
    """Return `start` with short limits: `impatient("600", "application:worker", ...)`; the first is for the import."""
    (folder / "impatient.py").write_text(textwrap.dedent(IMPATIENT))

    def run(*arguments: str) -> Command:
        given: dict[str, str | None] = {"GLIDEMQ_URL": url, "QUEUE": queue_name}
        return Command(folder, "impatient", *arguments, "--processes", "2", env=given)

    return run


async def test_child_that_hangs_while_importing_is_killed(impatient: Start, folder: Path) -> None:
    (folder / "hanging.py").write_text(textwrap.dedent(HANGING))
    with impatient("2", "hanging:worker") as command:
        await command.printed(r"child \d+ is still importing the target: killing it")
        await command.printed(r"child \d+ was killed by SIGKILL; restarting")


async def test_child_that_ignores_sigterm_while_importing_is_killed(impatient: Start, folder: Path) -> None:
    (folder / "hanging.py").write_text(textwrap.dedent(HANGING))
    with impatient("600", "hanging:worker") as command:
        (importing,) = await command.printed(r"importing in (\d+)")
        command.signal(signal.SIGTERM)
        await command.printed(rf"child {importing[1]} ignores SIGTERM: killing it")
        await command.ends()


async def test_child_that_does_not_exit_is_killed(impatient: Start, folder: Path) -> None:
    """A thread of the program that never ends keeps the interpreter from exiting."""
    (folder / "endless.py").write_text(
        "import threading\nfrom application import *\nthreading.Thread(target=threading.Event().wait).start()\n"
    )
    with impatient("600", "endless:eager") as command:
        await command.printed("has started", times=2)
        command.signal(signal.SIGTERM)
        await command.printed("has closed its workers but does not exit: killing it", times=2)
        await command.ends()


async def test_crash_is_noticed_while_another_process_holds_the_connection(
    start: Start, folder: Path, url: str, queue_name: str
) -> None:
    (folder / "forking.py").write_text(
        textwrap.dedent(
            """
            import os, time
            from application import *

            async def crash(job):
                if os.fork() == 0:
                    os.setsid()
                    print(f"daemon {os.getpid()}", flush=True)
                    time.sleep(600)
                os.kill(os.getpid(), 9)

            forking = Worker(QUEUE, crash)
            """
        )
    )
    with start("forking:forking", "--processes", "1") as command:
        await command.printed("has started")
        async with Queue(queue_name, url) as queue:
            await queue.add("a")
            (daemon,) = await command.printed(r"daemon (\d+)")
            try:
                await command.printed(r"child \d+ was killed by SIGKILL; restarting")
            finally:
                os.kill(int(daemon[1]), signal.SIGKILL)


async def test_a_signal_while_the_server_is_away_ends_it(start: Start) -> None:
    with start("application:worker", GLIDEMQ_URL="valkey://127.0.0.1:1") as command:
        await command.printed("retrying in")
        command.signal(signal.SIGTERM)
        assert await command.ends() == 0


# -- children -----------------------------------------------------------------------------------------------


async def test_a_killed_child_is_replaced_and_its_job_recovered(
    start: Start, folder: Path, url: str, queue_name: str
) -> None:
    async with Queue(queue_name, url) as queue:
        with start("application:worker", "--processes", "2") as command:
            await command.printed("has started", times=2)
            job = await queue.add("long")
            victim = int((await command.printed(r"began \d+ in (\d+)"))[0][1])
            os.kill(victim, signal.SIGKILL)
            await command.printed(rf"child {victim} was killed by SIGKILL; restarting")
            await command.printed("has started", times=3)
            second = int((await command.printed(rf"began {job.id} in (\d+)", times=2))[1][1])
            open_gate(folder)
            assert await job.wait_until_finished() == second != victim
            command.signal(signal.SIGTERM)
            assert await command.ends() == 0


async def test_children_end_when_their_supervisor_is_killed(
    start: Start, folder: Path, url: str, queue_name: str
) -> None:
    async with Queue(queue_name, url) as queue:
        with start("application:worker", "--processes", "2") as command:
            children = [int(found[1]) for found in await command.printed(r"child (\d+) has started", times=2)]
            job = await queue.add("long")
            await command.printed("began")
            command.signal(signal.SIGKILL)
            await command.printed("the supervisor has ended: closing", times=2)
            open_gate(folder)
            for child in children:
                await gone(child)
        assert await job.get_state() == "completed"


async def test_crashes_at_start_are_not_repeated_for_ever(start: Start, folder: Path) -> None:
    (folder / "broken.py").write_text("import os\nos._exit(3)\n")
    with start("broken:worker", "--processes", "3") as command:
        assert await command.ends() == 1
        assert "giving up: children crashed during start 5 times in a row" in command.text
        pauses = [float(text) for text in re.findall(r"exit code 3; restarting in (\d+\.\d) s", command.text)]
        assert len(pauses) == 4
        assert pauses == sorted(pauses)


FAILING = """
    from glidemq_py import Worker

    async def handle(job):
        raise ValueError("bad\\nline")

    worker = Worker("{queue}", handle)
"""


@SINGLE_AND_SUPERVISED
async def test_json_lines_of_failing_jobs(
    start: Start, folder: Path, url: str, queue_name: str, options: tuple[str, ...]
) -> None:
    (folder / "failing.py").write_text(textwrap.dedent(FAILING.replace("{queue}", queue_name)))
    async with Queue(queue_name, url) as queue:
        with start("failing:worker", "--log-format", "json", *options) as command:
            job = await queue.add("na\nme", attempts=2)
            await command.printed('"job_outcome": "failed"')
            command.signal(signal.SIGTERM)
            assert await command.ends() == 0
    lines = [json.loads(line) for line in command.lines]
    retried, failed = (line for line in lines if line["logger"] == "glidemq_py.failures")
    assert (retried["level"], retried["job_outcome"], retried["job_attempt"]) == ("WARNING", "retrying", 1)
    assert (failed["level"], failed["job_id"], failed["job_name"]) == ("ERROR", job.id, "na\nme")
    assert (failed["queue_name"], failed["job_attempt"], failed["job_attempts"]) == (queue_name, 2, 2)
    assert failed["traceback"].endswith("ValueError: bad\nline")
    assert failed["worker_id"].split("-")[-2] == str(failed["process"])
    assert ("glidemq_py.worker.supervisor" in {line["logger"] for line in lines}) is bool(options)


BROKEN = """
    import contextlib
    from glidemq_py import Worker

    async def handle(job):
        pass

    @contextlib.asynccontextmanager
    async def lifespan(worker):
        raise TypeError("no such database")
        yield

    @contextlib.contextmanager
    def blocking(worker):
        yield

    worker = Worker("q", handle, lifespan=lifespan)
    other = Worker("q", handle, lifespan=blocking)
"""


async def test_common_start_error_is_reported_once(start: Start, folder: Path) -> None:
    (folder / "broken.py").write_text(textwrap.dedent(BROKEN))
    with start("broken:worker", "--processes", "2") as command:
        assert await command.ends() == 1
        assert command.text.count("Traceback") == 1
        # The fifth crash in a row ends the supervisor; the other process may crash once more meanwhile.
        assert len(re.findall("cannot start, as before: TypeError: no such database", command.text)) in (4, 5)
        # A child that was starting may log after it.
        assert "giving up: children crashed during start 5 times in a row: TypeError: no such database" in command.text
    with start("broken:worker") as command:
        assert await command.ends() == 1
        assert command.text.count("Traceback") == 1


async def test_failing_lifespan_ends_the_command(start: Start, folder: Path) -> None:
    (folder / "broken.py").write_text(textwrap.dedent(BROKEN))
    for options in ((), ("--processes", "2")):
        with start("broken:other", *options) as command:
            assert await command.ends() == 2
            assert "Traceback" not in command.text
            lines = re.findall("cannot start: .*", command.text)  # of one process, or of both
            assert 1 <= len(lines) <= 2
            for line in lines:
                assert "option 'lifespan' =" in line
                assert "contextlib.asynccontextmanager" in line


async def test_max_jobs_replaces_the_process(start: Start, url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        jobs = await queue.add_bulk([("a", None)] * 12)
        with start("application:eager", "--max-jobs", "3") as command:
            pids = [await job.wait_until_finished() for job in jobs]
            command.signal(signal.SIGTERM)
            assert await command.ends() == 0
            assert "recycled: 3 jobs have ended" in command.text
            assert "handed back" not in command.text
        # One more was fetched by the call that reported the third.
        assert {pids.count(pid) for pid in pids} <= {3, 4}
        assert (await queue.get_job_counts()).completed == 12


async def test_max_memory_replaces_the_process(start: Start, url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        with start("application:hungry", "--queue", queue_name, "--max-memory", "300M") as command:
            first = await (await queue.add("a")).wait_until_finished()
            await command.printed(rf"child {first} recycled: \d+ MiB of memory are in use")
            second = await (await queue.add("b")).wait_until_finished()
            assert first != second
            command.signal(signal.SIGTERM)
            assert await command.ends() == 0


async def test_memory_limit_below_a_new_process_is_rejected(start: Start) -> None:
    with start("application:worker", "--max-memory", "10M") as command:
        assert await command.ends() == 2
        assert "--max-memory" in command.text


async def test_without_a_url_all_children_share_one_private_server(start: Start, queue_name: str) -> None:
    with start("application:eager", "--processes", "2", GLIDEMQ_URL=None) as command:
        await command.printed("has started", times=2)
        (found,) = await command.printed(r"private Valkey at (\S+), data directory")
        async with Queue(queue_name, found[1]) as queue:
            assert len(await queue.get_workers()) == 2
            await (await queue.add("a")).wait_until_finished()
        command.signal(signal.SIGTERM)
        assert await command.ends() == 0
        with pytest.raises(OSError, match="refused"):
            RespClient.from_url(found[1]).execute("PING")


# -- options ------------------------------------------------------------------------------------------------


async def test_options_override_those_of_the_worker(
    start: Start, folder: Path, url: str, queue_name: str, resp: RespClient
) -> None:
    given = ("--concurrency", "2", "--prefix", "mine", "--url", url, "--log-level", "warning")
    async with Queue(queue_name, url, prefix="mine") as queue:
        with start("application:worker", *given, GLIDEMQ_URL="valkey://127.0.0.1:1") as command:
            jobs = await queue.add_bulk([("a", None)] * 2)
            await command.printed("began", times=2)
            open_gate(folder)
            for job in jobs:
                await job.wait_until_finished()
            command.signal(signal.SIGTERM)
            assert await command.ends() == 0
            assert "INFO" not in command.text
    assert resp.keys(f"glide:{{{queue_name}}}:*") == []


async def test_another_prefix_is_logged(start: Start, url: str, queue_name: str) -> None:
    with start("application:worker", "--prefix", "mine", "--url", url) as command:
        await command.printed(f"working on '{queue_name}' \\(prefix 'mine'\\)")


async def test_a_tuple_of_workers_and_whose_job_a_log_line_is(start: Start, url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as one, Queue(f"{queue_name}-2", url) as two:
        with start("application:both") as command:
            for queue in (one, two):
                job = await queue.add("greet")
                await job.wait_until_finished()
            await command.printed(rf"application: \[job {job.id} greet\] at work", times=2)
            command.signal(signal.SIGTERM)
            assert await command.ends() == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("application:wroker",), "did you mean 'worker'?"),
        (("application:wroker", "--processes", "2"), "giving up: invalid target or option"),
        (("application:quick",), "--queue NAME"),
        (("application:worker", "--queue", "other"), "already has a queue"),
        ((), "TARGET is missing"),
        (("application:worker", "--shutdown-timeout", "30"), "must be a duration with a unit, such as 30s"),
        (("application:worker", "--url", "http://here"), "argument --url"),
    ],
)
async def test_invalid_target_exits_with_code_2_and_a_reason(
    start: Start, arguments: tuple[str, ...], message: str
) -> None:
    with start(*arguments) as command:
        assert await command.ends() == 2
        assert message in command.text
        assert "Traceback" not in command.text


async def test_version(start: Start) -> None:
    with start("--version") as command:
        assert await command.ends() == 0
        assert command.lines == [f"glidemq_py {__version__}"]


# -- health -------------------------------------------------------------------------------------------------


async def check(start: Start, *arguments: str, **env: str | None) -> tuple[int, str]:
    with start("--check", *arguments, **env) as command:
        code = await command.ends()
        assert len(command.lines) == 1, command.text
        return code, command.text


async def test_check_reports_whether_a_worker_runs_here(start: Start, queue_name: str) -> None:
    queue = ("--queue", queue_name)
    code, text = await check(start, *queue)
    assert (code, text.startswith("not healthy: queue")) == (1, True)
    with start("application:worker") as command:
        await command.printed("working on")
        code, text = await check(start, *queue)
        assert (code, f"pid {command.pid} is connected" in text) == (0, True)
        assert (await check(start, "application:worker"))[0] == 0
        assert (await check(start, "application:both"))[0] == 1
        command.signal(signal.SIGTERM)
        await command.ends()
    assert (await check(start, *queue))[0] == 1


async def test_check_pings_a_worker_whose_queues_are_idle(start: Start, resp: RespClient, queue_name: str) -> None:
    queues = ("--queue", queue_name, "--queue", f"{queue_name}-2")
    registrations = f"glide:{{{queue_name}}}:workers"
    with start("application:quick", *queues) as command:
        await command.printed("working on")
        async with asyncio.timeout(30):
            while not (names := resp.execute("ZRANGE", registrations, 0, -1)):  # noqa: ASYNC110  another process
                await asyncio.sleep(0.05)
        resp.execute("ZADD", registrations, 1, names[0])  # a long time ago
        code, text = await check(start, *queues)
        assert (code, f"pid {command.pid} is connected (answered a ping)" in text) == (0, True), text


async def test_check_of_a_worker_with_every_slot_busy(start: Start, folder: Path, url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        with start("application:worker") as command:
            job = await queue.add("long")
            await command.printed("began")
            assert (await check(start, "--queue", queue_name))[0] == 0
            open_gate(folder)
            await job.wait_until_finished()


async def test_check_without_a_server(start: Start, queue_name: str) -> None:
    code, text = await check(start, "--queue", queue_name, GLIDEMQ_URL=None)
    assert (code, "no server given" in text) == (1, True)
    code, text = await check(start, "--queue", queue_name, GLIDEMQ_URL="valkey://127.0.0.1:1")
    assert (code, "127.0.0.1:1" in text) == (1, True)


@pytest.mark.parametrize(
    ("beat", "silence", "channel", "message"),
    [
        (40_000, 0, "", r"has sent no heartbeat for (\d+) s$"),
        (40_000, 0, "glidemq_py:wake:0:c1", r"has sent no heartbeat for (\d+) s and does not answer a ping$"),
        (1_000, 60_000, "", r"has had no reply from the server for (\d+) s"),
    ],
)
async def test_check_of_a_worker_that_is_stuck(
    start: Start, resp: RespClient, queue_name: str, beat: int, silence: int, channel: str, message: str
) -> None:
    base = f"glide:{{{queue_name}}}"
    info = json.dumps(
        {
            "addr": socket.gethostname(),
            "pid": 7,
            "startedAt": 1,
            "activeJobs": 0,
            "silence": silence,
            "channel": channel,
        }
    )
    now = int(resp.execute("TIME")[0]) * 1000
    resp.execute("SET", f"{base}:w:py-x", info, "PX", 600_000)
    resp.execute("ZADD", f"{base}:workers", now - beat, "py-x")
    code, text = await check(start, "--queue", queue_name)
    assert code == 1
    found = re.search(message, text)
    assert found is not None, text
    assert int(found[1]) >= (beat + silence) // 1_000  # more on a slow machine
