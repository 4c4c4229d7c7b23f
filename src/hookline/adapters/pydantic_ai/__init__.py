"""Hooks in runs of Pydantic AI: `await hooked(agent, hooks=[hooks]).run("go")`.

In the framework's own way: `agent.run("go", capabilities=[Hookline([hooks])])`.
"""

from hookline.adapters.pydantic_ai._api import DRIVES, Hookline, agent_tool, answers
from hookline.adapters.pydantic_ai._hooked import HookedAgent, hooked

__all__ = ["DRIVES", "HookedAgent", "Hookline", "agent_tool", "answers", "hooked"]
