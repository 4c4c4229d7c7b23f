"""`find_hook_names`: the names of stored hooks, which views show in place of ids."""

from __future__ import annotations

import msgspec

from hookline.server._callers import Caller
from hookline.server._parts import ServerParts

__all__ = ["NamedHook", "find_hook_names"]

MOST_HOOKS = 1000


class NamedHook(msgspec.Struct, frozen=True, kw_only=True):
    """A stored hook as views name it.

    Attributes:
        name: Its name.
        tenant_id: The tenant that owns it; `""` is the system.
    """

    name: str
    tenant_id: str


async def find_hook_names(parts: ServerParts, caller: Caller, tenant_id: str | None) -> dict[str, NamedHook]:
    """Return the stored hooks that a caller may see by their ids; hooks of the code are not among them.

    Args:
        parts: The parts of the server.
        caller: Who asks; without the scope hooks:read, the result is empty.
        tenant_id: The tenant whose hooks, and the system's, are wanted; `None` for those of all tenants.
    """
    registry = parts.known_registry
    if registry is None or "hooks:read" not in caller.scopes:
        return {}
    found = await registry.list(tenant_id, limit=MOST_HOOKS)
    return {
        each.id: NamedHook(name=each.name, tenant_id=each.tenant_id)
        for each in found.items
        if caller.sees_all or each.tenant_id == caller.tenant_id
    }
