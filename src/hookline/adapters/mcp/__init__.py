"""Tools of MCP servers: in processes that a run starts, or at an address; each call with hooks, mocks and guards."""

from hookline.adapters.mcp._api import McpServer, McpServerError, McpStartError, McpTool, McpToolsError, mcp_server

__all__ = ["McpServer", "McpServerError", "McpStartError", "McpTool", "McpToolsError", "mcp_server"]
