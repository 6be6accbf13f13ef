"""An in-memory server for tests: the real function library, run by Lua over fakeredis.

fakeredis and Lua are imported only when a `MemoryServer` is created. Modules: `store` (time, and commands by
fakeredis), `script` (functions, by lupa), `server.lua` and `codecs.lua` (the server API of functions), `server`
(combines them, converts replies to GLIDE's types, and has the connections of queues and workers).
"""

from glidemq_py._client.memory.server import MemoryServer, MemoryTransport
from glidemq_py._client.memory.store import Clock

__all__ = ["Clock", "MemoryServer", "MemoryTransport"]
