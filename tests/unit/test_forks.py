"""Locks are created by one module, which resets them in a forked child."""

import os
import re
import threading
from os import _exit
from pathlib import Path

import pytest

import glidemq_py
from glidemq_py._core.forks import new_event, new_lock, new_rlock

PACKAGE = Path(glidemq_py.__file__).parent
PRIMITIVE = re.compile(r"threading\.(Lock|RLock|Condition|Event|Semaphore|BoundedSemaphore|Barrier)\(")


def test_all_locks_are_reset_in_a_forked_child():
    made = [
        str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if PRIMITIVE.search(path.read_text("utf-8"))
    ]
    assert made == [str(Path("_core") / "forks.py")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_child_can_use_locks_held_by_other_threads_of_its_parent():
    lock, rlock, event = new_lock(), new_rlock(), new_event()
    event.set()
    held, release = threading.Event(), threading.Event()

    def hold():
        with lock, rlock, event._cond:  # type: ignore[attr-defined]
            held.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    child = os.fork()
    if child == 0:
        free = lock.acquire(timeout=20) and rlock.acquire(timeout=20)
        event.clear()
        event.set()
        _exit(0 if free and event.wait(20) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    release.set()
    thread.join()
