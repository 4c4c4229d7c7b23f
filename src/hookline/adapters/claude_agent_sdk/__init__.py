"""Hooks in the Claude Agent SDK: `hooked(options, hooks=[hooks]).query("go")`.

In the SDK's own way: `query(prompt=..., hooks=[hooks])` and `HookedClient(options, hooks=[hooks])`.
"""

from hookline.adapters.claude_agent_sdk._api import DRIVES, HookedClient, query
from hookline.adapters.claude_agent_sdk._hooked import HookedClaude, answers, hooked

__all__ = ["DRIVES", "HookedClaude", "HookedClient", "answers", "hooked", "query"]
