"""Runs handlers in child processes: a crash, a memory leak or an endless loop affects one job, not the worker.

Why not a maintained pool: each one tried lost a guarantee (docs/design/decisions.md has the figures). A round trip
takes 0.16 ms here and 0.32 ms with pebble; a crash breaks the whole pool of `concurrent.futures` and loky; none kills
the programs that a handler has started, and all import the parent's main module and unpickle its exceptions.

`child` is the child process, which may be forked; `process` is the worker's side of it, `pool` reuses processes,
`framing` defines the messages and the name of the handler.
"""

from glidemq_py._worker.sandbox.pool import Sandbox, sandboxed

__all__ = ["Sandbox", "sandboxed"]
