"""Server calls, each declared once: the function's name, how its argument is packed, what its reply means.

A declaration is a pure function that builds a `Call`; the async and the blocking transport both run it. Nothing
here talks to a server. The functions themselves are described in ``docs/reference/functions.md``.
"""

from glidemq_py.wire.calls.packing import Call, pack, unpack

__all__ = ["Call", "pack", "unpack"]
