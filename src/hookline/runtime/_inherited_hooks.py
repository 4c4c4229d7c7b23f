"""The hooks of a sub-agent: those that the run of its caller hands on, and its own."""

from __future__ import annotations

from collections.abc import Iterable

from hookline.hooks import AnyHook, Hook, Hooks
from hookline.runtime._agent import Agent

__all__ = ["hooks_of_child", "inherited_hooks", "without_definitions_of"]


def hooks_of_child(hooks: Iterable[AnyHook], agent: Agent) -> list[AnyHook]:
    """List the hooks of a sub-agent's run: those that its caller hands on, then its own.

    Args:
        hooks: The hooks of the caller.
        agent: The sub-agent.
    """
    own = list(agent.hooks)
    return [*(entry for entry in inherited_hooks(hooks) if entry not in own), *own]


def inherited_hooks(hooks: Iterable[AnyHook]) -> list[AnyHook]:
    """List the hooks that a run hands on to its sub-agents."""
    return [
        entry.for_sub_agents() if isinstance(entry, Hooks) else entry
        for entry in hooks
        if isinstance(entry, Hooks | Hook) and entry.inherit
    ]


def without_definitions_of(first: Iterable[AnyHook], others: Iterable[AnyHook]) -> list[AnyHook]:
    """List other hooks but for those of the stored definitions that the first hooks are of, in whatever revision.

    Args:
        first: Such as the hooks that a sub-agent inherits, in the revision with which its caller began.
        others: Such as the hooks that are in force now.
    """
    known = {key for entry in first if (key := _definition_key(entry)) is not None}
    return [entry for entry in others if _definition_key(entry) not in known] if known else list(others)


def _definition_key(entry: AnyHook) -> tuple[str, str] | None:
    """Return the id and the tenant of the stored definition that made a hook; `None` for any other hook."""
    if isinstance(entry, Hooks):
        return (entry.id, entry.tenant_id) if entry.from_definition else None
    return (entry.id, entry.tenant_id) if isinstance(entry, Hook) and entry.revision else None
