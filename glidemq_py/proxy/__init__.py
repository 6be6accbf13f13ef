"""HTTP proxy: an ASGI application for programs in any language. Needs the extra `proxy` (Starlette, uvicorn).

Every endpoint calls a `Queue`; the proxy has no job logic of its own. An endpoint is one declaration: method, path,
query, body and responses, from which requests are checked and the OpenAPI document is made.
"""

from importlib import import_module

try:
    import_module("starlette")  # before app.py, whose import error would not name the extra
except ImportError as error:
    raise ImportError('the proxy requires Starlette: pip install "glidemq-py[proxy]"') from error

from glidemq_py.proxy.app import create_proxy_app
from glidemq_py.proxy.state import ProxyOptions

__all__ = ["ProxyOptions", "create_proxy_app"]
