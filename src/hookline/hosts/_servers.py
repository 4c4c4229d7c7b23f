"""The names of the MCP servers of a coding agent, from its own settings."""

from __future__ import annotations

from pathlib import Path

from hookline.hosts._jsonc import JsonDocument

__all__ = ["read_servers"]

KEYS = ("mcpServers", "servers")


def read_servers(path: Path) -> list[str]:
    """Return the names of the MCP servers that a file of settings has; none if it cannot be read.

    Args:
        path: The file.
    """
    try:
        settings = JsonDocument(path.read_text()).value
    except (OSError, ValueError, RecursionError):  # no file, or one that the coding agent cannot read either
        return []
    return [name for key in KEYS if isinstance(found := settings.get(key), dict) for name in found if name]
