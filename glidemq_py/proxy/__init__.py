"""The queue over HTTP: an ASGI application for programs in any language. Needs the extra `proxy` (starlette, uvicorn).

Endpoints are declared in tables beside their handlers (endpoint.py), and the OpenAPI document is made from the same
tables. Nothing about jobs is decided here: every handler calls a `Queue`.
"""

from glidemq_py.proxy.app import create_proxy_app
from glidemq_py.proxy.options import ProxyOptions

__all__ = ["ProxyOptions", "create_proxy_app"]
