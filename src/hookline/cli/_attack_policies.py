"""The guards that `hookline eval attack` measures: the rows of its table."""

from __future__ import annotations

from hookline.evals.suites.agentdojo import FREE, AttackPolicy
from hookline.ready import PromptInjectionScan, require_provenance

__all__ = ["attack_policies"]


def attack_policies() -> list[AttackPolicy]:
    """No guard, the guards that hookline has, and two together: the rows of the table in the docs."""
    return [
        AttackPolicy(name="no guard", hooks=lambda tools: []),
        AttackPolicy(name="scan", hooks=lambda tools: [PromptInjectionScan()]),
        AttackPolicy(name="provenance: deny", hooks=lambda tools: [require_provenance(*tools)]),
        AttackPolicy(name="provenance: ask", hooks=lambda tools: [require_provenance(*tools, on_violation="ask")]),
        AttackPolicy(name="targets: deny", hooks=lambda tools: [require_provenance(*tools, free=FREE)]),
        AttackPolicy(
            name="targets: ask", hooks=lambda tools: [require_provenance(*tools, free=FREE, on_violation="ask")]
        ),
        AttackPolicy(
            name="scan + provenance: ask",
            hooks=lambda tools: [PromptInjectionScan(), require_provenance(*tools, on_violation="ask")],
        ),
    ]
