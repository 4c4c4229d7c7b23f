"""Errors of MCP servers that cannot be started, reached or listed."""

from __future__ import annotations

from hookline.errors import HooklineError

__all__ = ["McpServerError", "McpStartError", "McpToolsError"]


class McpServerError(HooklineError):
    """An MCP server cannot be used, so a run with its tools cannot start.

    Attributes:
        server: The server's name.
        problem: What happened, and how to fix it; without the secrets that the server was given.
    """

    def __init__(self, server: str, problem: str) -> None:
        super().__init__(server, problem)
        self.server, self.problem = server, problem

    def __str__(self) -> str:
        return f"MCP server {self.server!r} {self.problem}"


class McpStartError(McpServerError):
    """An MCP server could not be started or reached, or did not speak MCP in time."""


class McpToolsError(McpServerError):
    """The tools of an MCP server cannot be used as requested."""
