"""The operations that a hook of a stored definition is for: a share of all, those of some agents, those with a tag."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256

import msgspec

__all__ = ["HookScope", "is_drawn"]

SHARES = 10_000
"""A percentage has two decimals, so that each operation has one of so many places."""


def is_drawn(key: str, root_operation_id: str, percent: float) -> bool:
    """Return whether an operation belongs to a share of all operations.

    A higher percentage has the operations of a lower one, and more. Two keys draw independently of each other.

    Args:
        key: What the share is of: the id of a definition.
        root_operation_id: The operation, or the outermost one that called it.
        percent: The share, 0 to 100, with two decimals.
    """
    drawn = sha256(f"{key}\0{root_operation_id}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(drawn[:8]) % SHARES < round(percent * SHARES / 100)


class HookScope(msgspec.Struct, frozen=True, kw_only=True):
    """The operations that a hook is for.

    A sub-agent goes with the operation that called it: it is in the same share, and belongs to the agents of its
    callers, too. It has the tags of its callers.

    Attributes:
        key: What the share is drawn by: the id of the definition.
        percent: The share of all operations, 0 to 100.
        agents: Globs of the ids of agents; empty for all agents.
        tags: Globs of tags, one of which an operation must have; empty for all operations.
    """

    key: str
    percent: float = 100.0
    agents: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    def includes(self, root_operation_id: str, agent_ids: Sequence[str], tags: Iterable[str]) -> bool:
        """Return whether an operation is one of those that the hook is for.

        Args:
            root_operation_id: The operation, or the outermost one that called it.
            agent_ids: Its agent, and those that called it.
            tags: Its tags.
        """
        return self.has_agent(agent_ids) and self.has_tag(tags) and self.has_operation(root_operation_id)

    def has_agent(self, agent_ids: Sequence[str]) -> bool:
        """Return whether the hook is for one of these agents."""
        return not self.agents or any(fnmatchcase(agent, glob) for glob in self.agents for agent in agent_ids)

    def has_tag(self, tags: Iterable[str]) -> bool:
        """Return whether the hook is for operations with one of these tags."""
        return not self.tags or any(fnmatchcase(tag, glob) for tag in tags for glob in self.tags)

    def has_operation(self, root_operation_id: str) -> bool:
        """Return whether an operation belongs to the share of operations that the hook is for."""
        return self.percent >= 100 or is_drawn(self.key, root_operation_id, self.percent)
