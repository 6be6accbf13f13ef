"""What tests of queues need: servers, a raw client to look at keys, and the pytest fixtures.

Nothing of this is imported by the package itself, and nothing of it needs pytest but `pytest_plugin`.
"""

from glidemq_py.testing.resp import RespClient, RespError
from glidemq_py.testing.servers import SERVER_BINARIES, ClusterProcess, ServerProcess, server_binary

__all__ = ["SERVER_BINARIES", "ClusterProcess", "RespClient", "RespError", "ServerProcess", "server_binary"]
