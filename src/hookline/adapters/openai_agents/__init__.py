"""Hooks in runs of the OpenAI Agents SDK: use `HooklineRunner` in place of `Runner`."""

from hookline.adapters.openai_agents._api import DRIVES, HooklineRunner, OpenAIRunStopped

__all__ = ["DRIVES", "HooklineRunner", "OpenAIRunStopped"]
