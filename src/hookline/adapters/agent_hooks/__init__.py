"""Policies of the open AGENT-HOOKS-0.1 contract, as hooks of a run.

No other package of hookline imports the contract's SDK.
"""

from hookline.errors import MissingExtraError

try:
    import agent_hooks as _sdk  # noqa: F401
except ImportError as missing:
    raise MissingExtraError("agent-hooks", "hookline.adapters.agent_hooks") from missing

from hookline.adapters.agent_hooks._conformance import CtkHarness, host_surface
from hookline.adapters.agent_hooks._errors import PolicyTransformError
from hookline.adapters.agent_hooks._policies import PolicyHooks

__all__ = ["CtkHarness", "PolicyHooks", "PolicyTransformError", "host_surface"]
