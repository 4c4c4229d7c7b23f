"""Hooks in runs of LangChain agents: a middleware that the agent is built with, and `hooked` for each run of it."""

from hookline.adapters.langchain._api import (
    DRIVES,
    HookedAgent,
    HooklineMiddleware,
    HooklineSummarization,
    RunStopped,
    answers,
    hooked,
)

__all__ = ["DRIVES", "HookedAgent", "HooklineMiddleware", "HooklineSummarization", "RunStopped", "answers", "hooked"]
