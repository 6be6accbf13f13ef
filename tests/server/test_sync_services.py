"""Background services of blocking code: `Maintenance`, `Scheduler` and `BackupSchedule` in a thread of their own."""

import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from glidemq_py import ClosedError, GlideMQConnectionError, GlideMQError, JobState
from glidemq_py.sync import BackupSchedule, Lease, Maintenance, Queue, Scheduler
from glidemq_py.testing import RespClient
from tests.inside import tasks_of_portal
from tests.server.test_services_over_partitions import reach
from tests.server.worker_support import Raw, StartServer


@pytest.fixture
def queue(url: str, queue_name: str) -> Iterator[Queue]:
    with Queue(queue_name, url) as queue:
        yield queue


def quick(queue: Queue) -> Maintenance:
    return Maintenance([queue], lock_duration=1_000, stalled_interval=1_000)


def expiring(queue: Queue) -> Lease:
    queue.add("n")
    (lease,) = queue.fetch(1, lock_duration=1_000)
    return lease


def state_of(queue: Queue, job_id: str) -> JobState | None:
    job = queue.get_job(job_id)
    assert job is not None
    return job.get_state()


def is_maintained(queue: Queue) -> bool:
    return f"glidemq-maintenance-{queue.name}" in tasks_of_portal()


# -- Maintenance --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_expired_leases_are_recovered(queue: Queue):
    lease = expiring(queue)
    with quick(queue):
        assert is_maintained(queue)
        reach(lambda: state_of(queue, lease.id) == "waiting")
    assert not is_maintained(queue)
    assert queue.count() == 1  # the queue is open


def test_closing_lets_another_process_take_over(queue: Queue, resp: RespClient):
    expiring(queue)
    with quick(queue):
        reach(lambda: Raw(resp, queue.name).run("GET", "lock:maintenance"))
    assert Raw(resp, queue.name).run("GET", "lock:maintenance") is None


@pytest.mark.slow
def test_schedulers_created_later_fire_after_wake(queue: Queue):
    with Maintenance([queue]) as maintenance:
        queue.schedulers.upsert("s", every=1_000, template={"name": "tick"})
        maintenance.wake()
        reach(lambda: queue.count() >= 2, seconds=30)  # without a wake-up, up to a minute later


def test_run_ends_when_another_thread_closes(queue: Queue):
    maintenance = Maintenance([queue])
    thread = threading.Thread(target=maintenance.run)
    thread.start()
    reach(lambda: is_maintained(queue))
    maintenance.close()
    thread.join(30)
    assert not thread.is_alive()
    maintenance.close()  # idempotent


def test_starting_twice_or_after_the_end_is_rejected(queue: Queue):
    maintenance = Maintenance([queue])
    with maintenance, pytest.raises(GlideMQError, match=r"^the maintenance was already started; make a new one$"):
        maintenance.start()
    with pytest.raises(GlideMQError, match="already started"):
        maintenance.start()
    maintenance.wake()  # no effect


def test_a_closed_queue_is_rejected(queue: Queue):
    maintenance = Maintenance([queue])
    queue.close()
    with pytest.raises(ClosedError, match=f"^queue '{queue.name}' is closed$"):
        maintenance.start()
    assert not is_maintained(queue)


def test_a_failed_start_leaves_nothing_and_may_be_repeated(private_server: StartServer):
    server = private_server()
    queue = Queue("q", server.url)
    maintenance = Maintenance([queue])
    server.stop()
    with pytest.raises(GlideMQConnectionError, match="connection refused"):
        maintenance.start()
    assert not is_maintained(queue)
    server.start()
    with maintenance:
        assert is_maintained(queue)


@pytest.mark.slow
def test_closing_in_a_forked_process_leaves_the_parent_alone(url: str, queue_name: str):
    program = f"""
        import os
        from glidemq_py import GlideMQError
        from glidemq_py.sync import Maintenance, Queue

        with Queue({queue_name!r}, {url + "?allow_no_aof=true"!r}) as queue, Maintenance([queue]) as maintenance:
            child = os.fork()
            if not child:
                maintenance.wake()
                maintenance.close()
                try:
                    maintenance.start()
                except GlideMQError as error:
                    print("child:", error, flush=True)
                with Maintenance([queue]):
                    print("child: another one", flush=True)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            queue.schedulers.upsert("s", every=1_000)
            maintenance.wake()
            while not queue.count():
                pass
        print("parent: end")
    """
    assert run(program).splitlines() == [
        "child: the maintenance was already started; make a new one", "child: another one", "parent: end",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_program_that_does_not_close_ends(url: str, queue_name: str):
    program = f"""
        from glidemq_py.sync import Maintenance, Queue

        queue = Queue({queue_name!r}, {url + "?allow_no_aof=true"!r})
        maintenance = Maintenance([queue])
        maintenance.start()
        print("end", flush=True)
    """
    assert run(program) == "end\n"


def run(program: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


# -- Scheduler ----------------------------------------------------------------------------------------------


def test_a_scheduler_uses_the_options_of_the_queue(url: str, queue_name: str):
    with Queue(queue_name, url, serializer="msgpack", prefix="other") as queue:
        queue.schedulers.upsert("s", every=1_000, template={"name": "tick", "data": {"raw": b"\x00"}})
        with Scheduler(queue):
            reach(queue.count)
        assert queue.get_jobs("waiting")[0].data == {"raw": b"\x00"}
        queue.obliterate(force=True)


# -- BackupSchedule -----------------------------------------------------------------------------------------


def test_due_backups(queue: Queue, url: str, tmp_path: Path):
    queue.add("n")
    with Queue(f"{queue.name}-copy", url) as copy:
        schedule = BackupSchedule([queue, copy], tmp_path, every=60_000, keep=2)
        assert [(each.queue, each.jobs) for each in schedule.run_due()] == [(queue.name, 1), (copy.name, 0)]
        assert schedule.run_due() == []
        with schedule:
            assert schedule.run_due() == []
    assert len(queue.backups.get_all(tmp_path)) == 1


def test_a_running_schedule_makes_the_first_backup(queue: Queue, tmp_path: Path):
    queue.add("n")
    with BackupSchedule([queue], tmp_path):
        reach(lambda: queue.backups.get_all(tmp_path))
    assert queue.backups.verify(tmp_path).jobs == 1
