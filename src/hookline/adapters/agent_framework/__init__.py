"""Hooks for runs of Microsoft Agent Framework: `await agent.run("go", middleware=[HookMiddleware([...])])`."""

from hookline.adapters.agent_framework._api import DRIVES, HookMiddleware, answers

__all__ = ["DRIVES", "HookMiddleware", "answers"]
