"""Tools of MCP servers, started as processes or reached by URL; each call passes through hooks, mocks and guards."""

from hookline.adapters.mcp._api import McpServer, McpServerError, McpStartError, McpTool, McpToolsError, mcp_server

__all__ = ["McpServer", "McpServerError", "McpStartError", "McpTool", "McpToolsError", "mcp_server"]
