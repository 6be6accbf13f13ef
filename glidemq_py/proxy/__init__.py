"""The queue over HTTP: an ASGI application for programs in any language. Needs the extra `proxy` (starlette, uvicorn).

Endpoints are declared in tables beside their handlers (endpoint.py), and the OpenAPI document is made from the same
tables. Nothing about jobs is decided here: every handler calls a `Queue`.
"""

from importlib import import_module

try:
    import_module("starlette")  # before app.py, whose own error would not say what to install
except ImportError as error:
    raise ImportError('the proxy needs Starlette: pip install "glidemq-py[proxy]"') from error

from glidemq_py.proxy.app import create_proxy_app
from glidemq_py.proxy.options import ProxyOptions

__all__ = ["ProxyOptions", "create_proxy_app"]
