"""Split the names that coding agents give to the tools of MCP servers into server and tool."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hookline.hosts._jsonc import JsonDocument

__all__ = ["split_server_name"]

UNNAMED_SERVER = "mcp"
"""The toolset of the tools of MCP servers, in a host that does not name the server."""
SERVER_KEYS = ("mcpServers", "servers")
"""The keys of settings under which MCP servers stand by their names."""


def split_server_name(
    name: str, before: str, between: str, *, files: Iterable[Path] | None = None
) -> tuple[str, str] | None:
    """Return the MCP server and its name for a tool; `None` if the name is not that of a tool of a server.

    Args:
        name: The coding agent's name for the tool.
        before: What such a name begins with; empty if with the server.
        between: What stands between server and tool; empty if the name has no server.
        files: Files of settings that name servers, where both parts may have what stands between them; `None` if only
            `before` tells that a name is such a name.
    """
    if before and name.startswith(before):
        rest = name.removeprefix(before)
        server, _, tool = rest.partition(between) if between else (UNNAMED_SERVER, "", rest)
        if server and tool:
            return server, tool
    if files is not None and between in name:
        server, tool = _split_at_server(name, between, files)
        if server and tool:
            return server, tool
    return None


def _split_at_server(name: str, between: str, files: Iterable[Path]) -> tuple[str, str]:
    """Split a name after the longest server that begins it, else at the last place where one may end."""
    known = {server for path in files for server in _read_servers(path)}
    begins = [server for server in known if name.startswith(server + between)]
    found = max(begins, key=len) if begins else name.rpartition(between)[0]
    return found, name.removeprefix(found + between)


def _read_servers(path: Path) -> list[str]:
    """Return the names of the MCP servers that a file of settings has; none if it cannot be read.

    Args:
        path: The file.
    """
    try:
        settings = JsonDocument(path.read_text()).value
    except (OSError, ValueError, RecursionError):  # no file, or one that the coding agent cannot read either
        return []
    return [name for key in SERVER_KEYS if isinstance(found := settings.get(key), dict) for name in found if name]
