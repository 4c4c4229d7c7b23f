"""Policies of the open AGENT-HOOKS-0.1 contract in a run, and hookline as a host that conforms to it."""

from hookline.adapters.agent_hooks._api import CtkHarness, PolicyHooks, PolicyTransformError, host_surface

__all__ = ["CtkHarness", "PolicyHooks", "PolicyTransformError", "host_surface"]
