"""Hooks in the Claude Agent SDK: `query(prompt=..., hooks=[...])` and `HookedClient(options, hooks=[...])`."""

from hookline.adapters.claude_agent_sdk._api import DRIVES, HookedClient, query

__all__ = ["DRIVES", "HookedClient", "query"]
