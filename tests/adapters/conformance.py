"""The contract's conformance kit, driving hookline. Run it with

python -m pytest tests/adapters/conformance.py --agent-hooks-harness=hookline.adapters.agent_hooks:CtkHarness
"""

from __future__ import annotations


def test_a_vector_of_the_kit(agent_hooks_assert: None) -> None:
    """The kit's fixture has run it, and skips or fails by itself."""
