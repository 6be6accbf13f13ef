"""Queues for agents over the Model Context Protocol: the declared readings and actions are the tools.

Tools only read, unless changes of a queue are allowed. See docs/operate/agents.md.
"""

try:
    import mcp  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ImportError as error:
    raise ImportError('glidemq_py.mcp requires the MCP SDK: pip install "glidemq-py[mcp]"') from error

from glidemq_py.mcp.server import AgentServer

__all__ = ["AgentServer"]
