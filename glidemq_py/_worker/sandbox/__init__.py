"""Runs handlers in child processes: a crash, a memory leak or an endless loop affects one job, not the worker.

Why not an existing pool such as pebble's ProcessPool: its functions cannot send messages to the parent before they end
(progress, logs, new data), arguments and results are pickled, children import the parent's main module, and memory is
not limited. This package needs only a process that runs one job at a time and a socket for messages.

`target` parses the name of the handler, `child` is the child process, `template` forks it, `process` is the worker's
side of it, `pool` reuses processes, `framing` defines the messages.
"""

from glidemq_py._worker.sandbox.pool import Sandbox, sandboxed

__all__ = ["Sandbox", "sandboxed"]
