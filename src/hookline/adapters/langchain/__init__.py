"""Hooks in runs of LangChain agents: build the agent with `HooklineMiddleware`, and wrap it with `hooked`.

`HooklineMiddleware` is an `AgentMiddleware` of LangChain: it wraps model calls and tool calls.
"""

from hookline.adapters.langchain._api import (
    DRIVES,
    HookedAgent,
    HooklineMiddleware,
    HooklineSummarization,
    answers,
    hooked,
)

__all__ = ["DRIVES", "HookedAgent", "HooklineMiddleware", "HooklineSummarization", "answers", "hooked"]
