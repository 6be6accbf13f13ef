"""Handlers in processes of their own: a crash, a leak or an endless loop costs one job, not the worker.

Why not a ready-made pool: pebble's ProcessPool, the best kept one, ends calls that take too long and survives crashes,
but a function that it runs cannot say anything to the parent before it ends (progress, logs, new data), its arguments
and results are pickled, its children run the parent's main module once more, and it bounds no memory. What is needed
here is little: a process that runs one job at a time, and a socket on which both sides talk.

`target` names the handler, `child` is the process, `starting` and `template` start one, `process` talks to it,
`pool` keeps them warm, `crossing` carries exceptions over.
"""

from glidemq_py._worker.sandbox.pool import Sandbox, sandboxed

__all__ = ["Sandbox", "sandboxed"]
