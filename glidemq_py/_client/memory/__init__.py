"""An in-memory server for tests: the real function library, run by Lua over fakeredis.

fakeredis and Lua are imported only when a `MemoryServer` is created. Modules: `store` (time, and commands by
fakeredis), `script` (functions, by lupa), `server.lua` and `codecs.lua` (the server API of functions), `transport`
(connections of queues and workers), `server` (combines them, and converts replies to GLIDE's types).
"""

from glidemq_py._client.memory.server import MemoryServer
from glidemq_py._client.memory.store import Clock
from glidemq_py._client.memory.transport import MemoryTransport

__all__ = ["Clock", "MemoryServer", "MemoryTransport"]
