"""Hooks for runs of Microsoft Agent Framework: `await agent.run("go", middleware=[HooklineMiddleware([...])])`."""

from hookline.adapters.agent_framework._api import DRIVES, HooklineMiddleware, answers

__all__ = ["DRIVES", "HooklineMiddleware", "answers"]
