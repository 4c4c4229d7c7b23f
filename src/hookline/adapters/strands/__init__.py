"""Hooks for runs of Strands agents: `await hooked(agent, hooks=[...]).invoke_async("go")`."""

from hookline.adapters.strands._api import DRIVES, HookedAgent, answers, attach, hooked

__all__ = ["DRIVES", "HookedAgent", "answers", "attach", "hooked"]
