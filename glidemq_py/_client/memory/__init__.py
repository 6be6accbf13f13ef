"""An in-memory server for tests: the real function library, run by Lua over fakeredis.

fakeredis and Lua are imported only when a `MemoryServer` is created. Modules: `clock` (time), `store` (commands, by
fakeredis), `script` (functions, by lupa), `server.lua` and `codecs.lua` (the server API of functions), `replies`
(converts replies to GLIDE's types), `transport` (connections of queues and workers), `server` (combines them).
"""

from glidemq_py._client.memory.server import MemoryServer
from glidemq_py._client.memory.store import Clock
from glidemq_py._client.memory.transport import MemoryBlockingTransport, MemoryTransport

__all__ = ["Clock", "MemoryBlockingTransport", "MemoryServer", "MemoryTransport"]
