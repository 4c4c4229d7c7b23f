"""Hooks in runs of the OpenAI Agents SDK: `await hooked(agent, hooks=[hooks]).run("go")`.

In the SDK's own way: `HooklineRunner([hooks])` in place of `Runner`.
"""

from hookline.adapters.openai_agents._api import DRIVES, HooklineRunner, OpenAIRunStopped, answers
from hookline.adapters.openai_agents._hooked import HookedAgent, hooked

__all__ = ["DRIVES", "HookedAgent", "HooklineRunner", "OpenAIRunStopped", "answers", "hooked"]
