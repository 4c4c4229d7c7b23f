"""Errors of MCP servers that cannot be started, reached or listed."""

from __future__ import annotations

from hookline.errors import HooklineError, define_error

__all__ = ["McpServerError", "McpStartError", "McpToolsError"]


@define_error("MCP server {server!r} {problem}")
class McpServerError(HooklineError):
    """An MCP server cannot be used, so a run with its tools cannot start.

    Attributes:
        server: The server's name.
        problem: What happened, and how to fix it; without the secrets that the server was given.
    """

    server: str
    problem: str


class McpStartError(McpServerError):
    """An MCP server could not be started or reached, or did not speak MCP in time."""


class McpToolsError(McpServerError):
    """The tools of an MCP server cannot be used as requested."""
