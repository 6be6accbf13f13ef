"""HTTP proxy: an ASGI application for programs in any language. Needs the extra `proxy` (starlette, uvicorn).

Endpoints are declared in tables next to their handlers (endpoint.py); the OpenAPI document is generated from the same
tables. Every handler calls a `Queue`; the proxy has no job logic of its own.
"""

from importlib import import_module

try:
    import_module("starlette")  # before app.py, whose import error would not name the extra
except ImportError as error:
    raise ImportError('the proxy requires Starlette: pip install "glidemq-py[proxy]"') from error

from glidemq_py.proxy.app import create_proxy_app
from glidemq_py.proxy.options import ProxyOptions

__all__ = ["ProxyOptions", "create_proxy_app"]
