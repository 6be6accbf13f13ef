"""Pages that show queues in a browser: `python -m glidemq_py.dashboard`, or `Dashboard`, an ASGI application to mount.

The pages are rendered here and kept current by server-sent events. They read through `glidemq_py._operate`, as the
command `glidemq` does, and change nothing unless that is allowed.
"""

from __future__ import annotations

from glidemq_py._operate.access import Access

try:
    from glidemq_py.dashboard.app import Dashboard
except ImportError as error:
    raise ImportError('the dashboard requires starlette and jinja2: pip install "glidemq-py[dashboard]"') from error

__all__ = ["Access", "Dashboard"]
