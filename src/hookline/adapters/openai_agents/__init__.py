"""Hooks in runs of the OpenAI Agents SDK: `HooklineRunner` stands where `Runner` stood."""

from hookline.adapters.openai_agents._api import DRIVES, HooklineRunner, RunStopped

__all__ = ["DRIVES", "HooklineRunner", "RunStopped"]
