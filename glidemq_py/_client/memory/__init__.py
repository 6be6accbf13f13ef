"""A server inside this process, for tests: the real function library, run by Lua over fakeredis.

Nothing of fakeredis or Lua is imported before a `MemoryServer` is made. The parts: `clock` (the time), `store`
(commands, by fakeredis), `script` (functions, by lupa), `server.lua` and `codecs.lua` (what a server offers to them),
`replies` (as GLIDE hands them out), `transport` (what queues and workers hold), `server` (all of it together).
"""

from glidemq_py._client.memory.clock import Clock
from glidemq_py._client.memory.server import MemoryServer
from glidemq_py._client.memory.transport import MemoryBlockingTransport, MemoryTransport

__all__ = ["Clock", "MemoryBlockingTransport", "MemoryServer", "MemoryTransport"]
