"""HTTP proxy: an ASGI application for programs in any language. Needs the extra `proxy` (FastAPI, uvicorn).

Every endpoint calls a `Queue`; the proxy has no job logic of its own. FastAPI routes and validates requests by the
types of the endpoints' arguments, and generates the OpenAPI document from them. This takes about 0.2 ms of CPU per
request more than hand-written tables, which the maintained library is worth: the network costs more.
"""

from importlib import import_module

try:
    import_module("fastapi")  # before app.py, whose import error would not name the extra
except ImportError as error:
    raise ImportError('the proxy requires FastAPI: pip install "glidemq-py[proxy]"') from error

from glidemq_py.proxy.app import create_proxy_app
from glidemq_py.proxy.state import ProxyOptions

__all__ = ["ProxyOptions", "create_proxy_app"]
