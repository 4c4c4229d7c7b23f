"""`DefinitionPlan`: what storing a list of definitions would change, made before anything is changed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from hookline.registry._definition import HookDefinition
from hookline.registry._errors import DefinitionConflictError, DefinitionError
from hookline.registry._revisions import FieldChange, list_field_changes

__all__ = ["DefinitionPlan", "PlannedChange", "check_plan", "make_plan"]

KEPT_FIELDS = ("source", "revision", "created_at", "updated_at", "problem")
"""Fields of a stored definition that a plan does not change."""


class PlannedChange(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One change of a plan.

    Attributes:
        action: What is done. `"enable"` and `"disable"` change nothing else.
        definition: The definition after the change; for `"delete"`, the one that is deleted.
        revision: The revision of the stored definition that is changed; 0 for `"create"`.
        changes: The fields that differ from the stored definition.
    """

    action: Literal["create", "update", "enable", "disable", "delete"]
    definition: HookDefinition
    revision: int = 0
    changes: list[FieldChange] = []


class DefinitionPlan(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The changes that storing a list of definitions of a tenant would make.

    Attributes:
        tenant_id: The tenant; `""` is the system.
        prune: Whether the tenant's other stored definitions are deleted.
        definitions: The definitions in the order of the list, with the ids that they have or get; those that need no
            change as they are stored.
        changes: The changes, in the order in which they are made; empty if all definitions are stored as they are.
        revisions: The revisions of the stored definitions that the plan is about, by id; 0 for one that is not stored.
    """

    tenant_id: str
    prune: bool
    definitions: list[HookDefinition]
    changes: list[PlannedChange]
    revisions: dict[str, int]


def make_plan(
    wanted: Sequence[HookDefinition], own: Mapping[str, HookDefinition], *, tenant_id: str, prune: bool
) -> DefinitionPlan:
    """Plan to store definitions of a tenant.

    A definition replaces the stored one with its id; one without an id that with its name and point.

    Args:
        wanted: The definitions, which are checked.
        own: The stored definitions of the tenant, by id.
        tenant_id: The tenant.
        prune: Whether to delete the stored definitions that none replaces.

    Raises:
        DefinitionError: If two would replace the same one; `path` begins with `$[n]`.
    """
    left = dict(own)
    by_name = {(each.point, each.name): each for each in own.values()}
    definitions: list[HookDefinition] = []
    changes: list[PlannedChange] = []
    revisions: dict[str, int] = {}
    for nth, given in enumerate(wanted):
        old = own.get(given.id) if given.id else by_name.get((given.point, given.name))
        if (old is not None and left.pop(old.id, None) is None) or given.id in revisions:
            raise DefinitionError("invalid", f"$[{nth}]", "it replaces the same definition as another one in the list")
        id_ = old.id if old is not None else given.id or f"hook_{os.urandom(6).hex()}"
        definition = msgspec.structs.replace(given, id=id_, tenant_id=tenant_id)
        revisions[id_] = 0 if old is None else old.revision
        change = _plan_change(definition, old)
        if change is not None:
            changes.append(change)
        definitions.append(definition if change is not None or old is None else old)
    if prune:
        gone = [PlannedChange(action="delete", definition=each, revision=each.revision) for each in left.values()]
        revisions |= {each.id: each.revision for each in left.values()}
        changes = gone + changes
    return DefinitionPlan(
        tenant_id=tenant_id, prune=prune, definitions=definitions, changes=changes, revisions=revisions
    )


def _plan_change(definition: HookDefinition, old: HookDefinition | None) -> PlannedChange | None:
    """Return the change that stores a definition; `None` if it is stored as it is."""
    if old is None:
        return PlannedChange(action="create", definition=definition)
    if msgspec.structs.replace(definition, **{name: getattr(old, name) for name in KEPT_FIELDS}) == old:
        return None
    changes = list_field_changes(old, definition)
    action: Literal["update", "enable", "disable"] = "update"
    if [each.field for each in changes] == ["enabled"]:
        action = "enable" if definition.enabled else "disable"
    return PlannedChange(action=action, definition=definition, revision=old.revision, changes=changes)


def check_plan(plan: DefinitionPlan, now: DefinitionPlan) -> None:
    """Check that nothing has changed since a plan was made.

    Args:
        plan: The plan.
        now: The same plan, made anew.

    Raises:
        DefinitionConflictError: If a definition was created, changed or deleted meanwhile.
    """
    for id in {**plan.revisions, **now.revisions}:  # noqa: A001
        before, after = plan.revisions.get(id, 0), now.revisions.get(id, 0)
        if before == after:
            continue
        what = "created" if not before else "changed" if after else "deleted"
        problem = f"it was {what} since the plan was made, so nothing was stored; look at the new plan"
        raise DefinitionConflictError(id, problem, after)
