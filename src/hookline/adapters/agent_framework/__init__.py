"""Hooks in runs of Microsoft Agent Framework: `await hooked(agent, hooks=[hooks]).run("go")`.

In the framework's own way: `agent.run("go", middleware=[HooklineMiddleware([hooks])])`.
"""

from hookline.adapters.agent_framework._api import DRIVES, HooklineMiddleware, answers
from hookline.adapters.agent_framework._hooked import HookedAgent, hooked

__all__ = ["DRIVES", "HookedAgent", "HooklineMiddleware", "answers", "hooked"]
