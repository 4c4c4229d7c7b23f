"""What can be wrong with an MCP server before its tools can be called."""

from __future__ import annotations

from hookline.errors import HooklineError, define_error

__all__ = ["McpServerError", "McpStartError", "McpToolsError"]


@define_error("MCP server {server!r} {problem}")
class McpServerError(HooklineError):
    """An MCP server cannot be used, so that a run with its tools cannot start.

    Attributes:
        server: The server's name.
        problem: What happened, and how to fix it. Secrets that the server was given are taken out.
    """

    server: str
    problem: str


class McpStartError(McpServerError):
    """A server could not be started or reached, or did not speak MCP in time."""


class McpToolsError(McpServerError):
    """A server's list of tools cannot be used as it was asked for."""
