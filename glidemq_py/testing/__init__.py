"""Test helpers for queues: in-memory queues and workers, real servers, assertions, and pytest fixtures.

The rest of the package does not import this package, and only `pytest_plugin` needs pytest. The in-memory classes need
the extra `testing`. All names are imported on first use.
"""

from typing import TYPE_CHECKING

from glidemq_py._core import import_on_first_use as _import_on_first_use

if TYPE_CHECKING:
    from glidemq_py.testing.names_twin import *  # noqa: F403
    from glidemq_py.testing.names_twin import __all__ as __all__
else:
    __getattr__, __dir__, __all__ = _import_on_first_use(
        __name__,
        {
            "glidemq_py._client.memory": "Clock, MemoryServer",
            "glidemq_py.testing.enqueued": "assert_enqueued, assert_not_enqueued",
            "glidemq_py.testing.in_memory": "TestBroadcast, TestBroadcastWorker, TestQueue, TestWorker",
            "glidemq_py.testing.servers": (
                "SERVER_BINARIES, ClusterProcess, RespClient, RespError, ServerProcess, server_binary"
            ),
            "glidemq_py.testing.stepping": "JobRun, run_until_empty, run_until_idle",
        },
    )
