"""What tests of queues need: a queue and a worker in memory, real servers, assertions, and the pytest fixtures.

Nothing of this is imported by the package itself, and nothing of it needs pytest but `pytest_plugin`. The in-memory
parts need the extra `testing`; they are imported when they are first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from glidemq_py.testing.resp import RespClient, RespError
from glidemq_py.testing.servers import SERVER_BINARIES, ClusterProcess, ServerProcess, server_binary

if TYPE_CHECKING:
    from glidemq_py._client.memory import Clock, MemoryServer
    from glidemq_py.testing.broadcast import TestBroadcast, TestBroadcastWorker
    from glidemq_py.testing.enqueued import assert_enqueued, assert_not_enqueued
    from glidemq_py.testing.queue import TestQueue
    from glidemq_py.testing.stepping import JobRun, run_until_empty, run_until_idle
    from glidemq_py.testing.worker import TestWorker

__all__ = [
    "SERVER_BINARIES",
    "Clock",
    "ClusterProcess",
    "JobRun",
    "MemoryServer",
    "RespClient",
    "RespError",
    "ServerProcess",
    "TestBroadcast",
    "TestBroadcastWorker",
    "TestQueue",
    "TestWorker",
    "assert_enqueued",
    "assert_not_enqueued",
    "run_until_empty",
    "run_until_idle",
    "server_binary",
]

_LATER: Final = {
    "Clock": "glidemq_py._client.memory",
    "MemoryServer": "glidemq_py._client.memory",
    "assert_enqueued": "glidemq_py.testing.enqueued",
    "assert_not_enqueued": "glidemq_py.testing.enqueued",
    "TestQueue": "glidemq_py.testing.queue",
    "JobRun": "glidemq_py.testing.stepping",
    "TestBroadcast": "glidemq_py.testing.broadcast",
    "TestBroadcastWorker": "glidemq_py.testing.broadcast",
    "TestWorker": "glidemq_py.testing.worker",
    "run_until_empty": "glidemq_py.testing.stepping",
    "run_until_idle": "glidemq_py.testing.stepping",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
