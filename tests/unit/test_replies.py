"""Replies of GLIDE reach every event loop, also if several threads connect for the first time at once."""

import contextlib
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.inside import replies


def test_first_use_by_two_threads_installs_once(monkeypatch: pytest.MonkeyPatch):
    """A second replacement would wrap the first and hold its lock: no reply would be read, and all loops would spin."""
    reads: list[int] = []
    glide = SimpleNamespace(**dict.fromkeys(replies._NEEDED))
    glide._on_async_pipe_readable = lambda: reads.append(1)
    both = threading.Barrier(2)

    def has(found: Any, name: str) -> bool:
        if name == replies._NEEDED[-1]:  # checked last: without a lock, both threads arrive here
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.5)
        return hasattr(found, name)

    monkeypatch.setattr(replies, "_glide", glide)
    monkeypatch.setattr(replies, "_installed", False)
    monkeypatch.setattr(replies, "hasattr", has, raising=False)
    threads = [threading.Thread(target=replies._install) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    glide._on_async_pipe_readable()
    assert reads == [1]
