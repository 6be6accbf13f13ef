"""Objects in several event loops, threads and forked processes: they work or raise EventLoopError, and never hang."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import ClosedError, Queue, QueueEvents
from glidemq_py.errors import EventLoopError
from tests.inside import fetching_of
from tests.server.worker_support import StartServer, WorkerFor

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def run(program: str, url: str, queue: str, *options: str):
    """Return the output of a program of loop_programs.py. Fails if the program does not end."""
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-m", "tests.server.loop_programs", program, url, queue,
         *options],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "destroyed but it is pending" not in done.stderr
    return json.loads(done.stdout)


def test_module_level_objects_work_in_every_run(url: str, queue_name: str):
    assert run("two_runs", url, queue_name) == ["waiting", "waiting", "waiting", "waited", "39"]


@pytest.mark.parametrize(
    ("program", "first", "problem"),
    [("at_exit", "2", "connect before the program ends"), ("under_gevent", "1", "without monkey.patch_all()")],
)
def test_without_threads_blocking_queues_work_and_others_explain(
    url: str, queue_name: str, program: str, first: str, problem: str
):
    added, refused = run(program, url, queue_name)
    assert added == first
    assert problem in refused


def test_threads_with_loops_of_their_own_share_a_queue(url: str, queue_name: str):
    assert run("loop_of_a_thread", url, queue_name) == [1, 2, 3, 4, 5, 6]


def test_every_call_can_have_a_new_loop(url: str, queue_name: str):
    assert run("loop_per_call", url, queue_name) == list(range(1, 61))


def test_asgiref_runs_calls_in_loops_of_its_own(url: str, queue_name: str):
    assert run("asgiref_calls", url, queue_name) == list(range(1, 28))


@pytest.mark.parametrize(
    ("program", "result"),
    [
        ("two_runs", ["waiting", "waiting", "waiting", "waited", "39"]),
        ("loop_of_a_thread", [1, 2, 3, 4, 5, 6]),
        ("stopped_loop", [1, 2, 3, 4]),
        ("busy_loop", [2, 3]),
        ("forked", [1, 2, 3, 4, 5, 6]),
        ("blocking_jobs", [["one", "two"], ["three"]]),
    ],
)
def test_loops_of_uvloop(url: str, queue_name: str, program: str, result: Any):
    assert run(program, url, queue_name, "uvloop") == result


@pytest.mark.parametrize(
    ("program", "result"),
    [
        ("two_runs", ["waiting", "waiting", "waiting", "waited", "39"]),
        ("loop_of_a_thread", [1, 2, 3, 4, 5, 6]),
        ("forked", [1, 2, 3, 4, 5, 6]),
    ],
)
def test_loops_with_a_cluster(cluster_url: str, queue_name: str, program: str, result: Any):
    assert run(program, cluster_url, queue_name) == result


def test_stopped_loop_does_not_take_replies_of_others(url: str, queue_name: str):
    assert run("stopped_loop", url, queue_name) == [1, 2, 3, 4]


def test_blocked_loop_does_not_take_replies_of_others(url: str, queue_name: str):
    assert run("busy_loop", url, queue_name) == [2, 3]


@pytest.mark.skipif(sys.platform != "linux", reason="counts /proc/self/fd")
def test_connections_are_closed_with_their_loop(private_server: StartServer, queue_name: str):
    first, second, last = run("leaks", private_server("valkey-9.1").url, queue_name)
    # The connection that counts, and those of `run` itself; the number of open files equals that of the first run.
    assert first[0] <= 2
    assert second[0] <= 2
    assert second[1] <= first[1]
    # Loops closed without shutdown leave nothing either, once another loop is used.
    assert last[0] <= 2
    assert last[1] <= first[1]


def test_pending_tasks_of_a_bare_closed_loop_are_not_reported(url: str, queue_name: str):
    assert run("loop_closed_with_pending_tasks", url, queue_name) == [1, 2, 3, 4]


def test_forked_process_has_its_own_connections(url: str, queue_name: str):
    assert run("forked", url, queue_name) == [1, 2, 3, 4, 5, 6]


def test_locks_held_by_other_threads_do_not_block_a_forked_process(url: str, queue_name: str):
    assert run("forked_with_locks_held", url, queue_name) == [2, [1, "2", "waited"]]


def test_fork_inside_a_loop_is_rejected(url: str, queue_name: str):
    message, last = run("forked_inside_a_loop", url, queue_name)
    assert "was forked inside a running event loop" in message
    assert last == 2


def test_error_of_a_foreign_loop_names_object_and_remedy(url: str, queue_name: str):
    found = run("bound_objects", url, queue_name)
    assert found == {
        "client": "connection: the given GLIDE client belongs to another event loop; give a URL or "
        "ConnectionOptions, for which every event loop gets a client of its own",
        **dict.fromkeys(
            ("start", "close", "ready"),
            f"worker of queue '{queue_name}': it was started in another event loop; use it there "
            "(asyncio.run_coroutine_threadsafe), or create another Worker",
        ),
        **dict.fromkeys(
            ("events", "ended"),
            f"events of queue '{queue_name}': another event loop reads them; "
            "make another QueueEvents for another reader",
        ),
    }


def test_close_ends_waits_in_other_loops(url: str, queue_name: str):
    assert run("closed_from_another_loop", url, queue_name) == ["ClosedError", False]


def test_close_outlasts_the_ends_of_other_loops(url: str, queue_name: str):
    assert run("closed_while_other_loops_end", url, queue_name) == []


def test_blocking_jobs_use_the_loop_of_their_own_worker(url: str, queue_name: str):
    assert run("blocking_jobs", url, queue_name) == [["one", "two"], ["three"]]


def test_blocking_job_does_not_wait_for_an_ended_loop(url: str, queue_name: str):
    (message,) = run("blocking_job_of_an_ended_loop", url, queue_name)
    assert message.endswith(
        "the worker's event loop has ended; return from the handler: the job is no longer this worker's"
    )


def test_jobs_interrupted_by_the_end_of_their_loop_do_not_fail(url: str, queue_name: str):
    *errors, states, logged = run("jobs_of_a_closing_loop", url, queue_name)
    assert errors == ["EventLoopError"]
    assert states[0] in ("waiting", "active")
    assert states[3] in ("waiting", "active")
    assert states[1:3] == states[4:6] == ["0", "None"]
    assert logged == []


async def test_adds_behind_a_cancelled_sender_do_not_wait(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        adds = [asyncio.create_task(queue.add("a")) for _ in range(600)]
        while (senders := [task for task in asyncio.all_tasks() if task.get_name() == "glidemq-adds"]) == []:  # noqa: ASYNC110
            await asyncio.sleep(0)
        senders[0].cancel()
        async with asyncio.timeout(120):
            outcomes = await asyncio.gather(*adds, return_exceptions=True)
        assert {type(each) for each in outcomes} >= {ClosedError}


def test_events_that_their_ended_loop_closed_name_the_remedy(url: str, queue_name: str):
    events = QueueEvents(queue_name, url)

    async def read() -> str:
        async with Queue(queue_name, url) as queue:
            await events.wait_until_ready()
            await queue.add("n")
            async for event in events:
                return event.event
        raise AssertionError("no event")

    assert asyncio.run(read()) == "added"
    with pytest.raises(EventLoopError, match="are closed; make another QueueEvents in each event loop"):
        asyncio.run(read())


def test_worker_timer_that_is_due_at_once_under_uvloop(worker_for: WorkerFor, url: str, queue_name: str):
    """For a time less than a millisecond away, uvloop returns a handle without `when`."""
    uvloop = pytest.importorskip("uvloop")

    async def main() -> str:
        async with Queue(queue_name, url) as queue, worker_for(lambda job: "done") as worker:
            fetching = fetching_of(worker)
            assert fetching is not None
            for _ in range(3):
                fetching.due_in(0)
            return str(await queue.add_and_wait("n"))

    assert uvloop.run(main()) == "done"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks need Python 3.12")
@pytest.mark.parametrize("options", [{}, {"batch": {"size": 3}}, {"concurrency": 5}], ids=str)
def test_worker_runs_under_an_eager_task_factory(worker_for: WorkerFor, url: str, queue_name: str, options: Any):
    sizes: list[int] = []

    async def handle(job: Any):
        sizes.append(len(job) if isinstance(job, list) else 1)
        return [1] * len(job) if isinstance(job, list) else 1

    async def main() -> list[int]:
        asyncio.get_running_loop().set_task_factory(vars(asyncio)["eager_task_factory"])
        async with Queue(queue_name, url) as queue:
            jobs = await queue.add_bulk([("n", None)] * 3)
            async with asyncio.timeout(100), worker_for(handle, **options):
                return [await job.wait_until_finished() for job in jobs]

    assert asyncio.run(main()) == [1, 1, 1]
    assert sizes == ([3] if "batch" in options else [1, 1, 1])
