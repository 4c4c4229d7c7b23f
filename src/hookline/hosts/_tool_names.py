"""Split the name of a tool of an MCP server into server and tool, where nothing but a hyphen is between them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hookline.hosts._jsonc import JsonDocument

__all__ = ["split_at_server"]

SERVER_KEYS = ("mcpServers", "servers")
"""The keys of settings under which MCP servers stand by their names."""


def split_at_server(name: str, between: str, files: Iterable[Path]) -> tuple[str, str]:
    """Split a name after the longest server that begins it, else at the last place where one may end.

    Args:
        name: The coding agent's name for the tool.
        between: What stands between server and tool; both may have it, too.
        files: Files of settings that name servers.
    """
    known = {server for path in files for server in read_servers(path)}
    begins = [server for server in known if name.startswith(server + between)]
    found = max(begins, key=len) if begins else name.rpartition(between)[0]
    return found, name.removeprefix(found + between)


def read_servers(path: Path) -> list[str]:
    """Return the names of the MCP servers that a file of settings has; none if it cannot be read.

    Args:
        path: The file.
    """
    try:
        settings = JsonDocument(path.read_text()).value
    except (OSError, ValueError, RecursionError):  # no file, or one that the coding agent cannot read either
        return []
    return [name for key in SERVER_KEYS if isinstance(found := settings.get(key), dict) for name in found if name]
