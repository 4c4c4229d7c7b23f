"""Hooks in runs of Pydantic AI: `agent.run(prompt, capabilities=[Hookline([hooks])])`."""

from hookline.adapters.pydantic_ai._api import DRIVES, Hookline, RunRejected, agent_tool, deferred_results

__all__ = ["DRIVES", "Hookline", "RunRejected", "agent_tool", "deferred_results"]
