"""Test helpers for queues: in-memory queues and workers, real servers, assertions, and pytest fixtures.

The rest of the package does not import this package, and only `pytest_plugin` needs pytest. The in-memory classes need
the extra `testing`; they are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from glidemq_py.testing.servers import (
    SERVER_BINARIES,
    ClusterProcess,
    RespClient,
    RespError,
    ServerProcess,
    server_binary,
)

if TYPE_CHECKING:
    from glidemq_py._client.memory import Clock, MemoryServer
    from glidemq_py.testing.enqueued import assert_enqueued, assert_not_enqueued
    from glidemq_py.testing.in_memory import TestBroadcast, TestBroadcastWorker, TestQueue, TestWorker
    from glidemq_py.testing.stepping import JobRun, run_until_empty, run_until_idle

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
    "TestQueue": "glidemq_py.testing.in_memory",
    "JobRun": "glidemq_py.testing.stepping",
    "TestBroadcast": "glidemq_py.testing.in_memory",
    "TestBroadcastWorker": "glidemq_py.testing.in_memory",
    "TestWorker": "glidemq_py.testing.in_memory",
    "run_until_empty": "glidemq_py.testing.stepping",
    "run_until_idle": "glidemq_py.testing.stepping",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
