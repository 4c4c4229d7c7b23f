"""Hooks in runs of LangChain agents: build the agent with `HooklineMiddleware`, and wrap it with `hooked`."""

from hookline.adapters.langchain._api import (
    DRIVES,
    HookedAgent,
    HooklineMiddleware,
    HooklineSummarization,
    answers,
    hooked,
)

__all__ = ["DRIVES", "HookedAgent", "HooklineMiddleware", "HooklineSummarization", "answers", "hooked"]
