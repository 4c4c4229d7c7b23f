"""Adapters for agent frameworks, model providers, MCP servers and policies; each has an extra of its own name.

`hooked(agent, hooks=[...])` attaches hooks to an agent of any of the frameworks.
"""

from hookline.adapters._hooked import hooked

__all__ = ["hooked"]
