"""Changes of definitions: what may be changed by whom, and all of it in one transaction."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hookline.registry._building import Builder
from hookline.registry._definition import (
    READ_ONLY,
    HookDefinition,
    check_tenant_id,
    is_id,
    read_definition,
    spelled,
)
from hookline.registry._errors import DefinitionConflictError, DefinitionError, DefinitionNotFoundError, QuotaError
from hookline.registry._shelf import Shelf
from hookline.registry._stored import Change, changing
from hookline.registry._trust import check_request
from hookline.store import SqlStore

__all__ = ["Rules", "Write", "apply", "create", "delete", "found", "switch", "update"]

Given = HookDefinition | Mapping[str, Any]

WORK = ("point", "handler", "webhook", "script", "config")
"""Fields that say what a definition does."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What a definition must fulfil to be stored.

    Attributes:
        builder: Makes hooks of definitions.
        quota: How many a tenant may store.
        variables: Variables of the environment that headers may name.
    """

    builder: Builder
    quota: int
    variables: frozenset[str]

    def checked(self, definition: HookDefinition) -> HookDefinition:
        """A definition that works in this process.

        Raises:
            DefinitionError: If it does not.
        """
        check_request(definition, self.variables)
        self.builder.fresh(definition if definition.id else msgspec.structs.replace(definition, id="hook_new"))
        return definition

    def checked_change(self, new: HookDefinition, old: HookDefinition) -> HookDefinition:
        """A definition that works in this process; or one that did not work before, and is to do the same as before.

        Raises:
            DefinitionError: If it is neither.
        """
        try:
            return self.checked(new)
        except DefinitionError:
            # What another version has written is not known well enough to be written again.
            if old.problem or any(getattr(new, name) != getattr(old, name) for name in WORK) or self._works(old):
                raise
        return new

    def _works(self, definition: HookDefinition) -> bool:
        try:
            self.checked(definition)
        except DefinitionError:
            return False
        return True

    def check_quota(self, tenant_id: str, *, before: int, after: int) -> None:
        """Refuse more definitions of a tenant than it may store; the system may store any number.

        Raises:
            QuotaError: Then.
        """
        if tenant_id and after > self.quota and after > before:
            raise QuotaError(tenant_id, self.quota)


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be changed, and by whom.

    Attributes:
        id: The definition.
        tenant_id: Who does it; `None` may change all.
        if_revision: Only if that is its revision.
        actor: Who does it, for the audit.
    """

    id: str
    tenant_id: str | None
    if_revision: int | None
    actor: str


def found(shelf: Shelf, id: str, tenant_id: str | None) -> HookDefinition:  # noqa: A002
    """The definition that somebody sees under an id.

    Raises:
        DefinitionNotFoundError: If there is none.
        DefinitionConflictError: If there are several.
    """
    tenants = shelf.having(id) if tenant_id is None else [each for each in (tenant_id, "") if id in shelf.own(each)]
    if not tenants:
        raise DefinitionNotFoundError(id)
    if tenant_id is None and len(tenants) > 1:
        raise DefinitionConflictError(id, "several tenants have one of that id; name the tenant whose it is")
    return shelf.own(tenants[0])[id]


async def create(store: SqlStore, rules: Rules, shelf: Shelf, given: Given, *, actor: str) -> HookDefinition:
    """Store a new definition."""
    definition = rules.checked(read_definition(given))
    definition = msgspec.structs.replace(definition, id=definition.id or f"hook_{os.urandom(6).hex()}")
    async with changing(store, actor) as change:
        own = await change.of_tenant(definition.tenant_id)
        await _check_id(change, shelf, definition, own)
        _check_name(shelf, definition, own)
        rules.check_quota(definition.tenant_id, before=len(own), after=len(own) + 1)
        return await change.put(definition, "definition.create", old=None)


async def update(
    store: SqlStore, rules: Rules, shelf: Shelf, write: Write, changed: Mapping[str, Any]
) -> HookDefinition:
    """Change fields of a definition."""
    if not isinstance(changed, Mapping):
        raise DefinitionError("invalid", "$", f"changes are a mapping of fields; got {type(changed).__name__}")
    fields = spelled(changed)
    for name in READ_ONLY & set(fields):
        raise DefinitionError("read_only", f"$.{name}", f"`{name}` cannot be changed; leave it out")
    async with changing(store, write.actor) as change:
        old, own = await _to_change(change, shelf, write)
        _refuse_filed(old)
        new = rules.checked_change(read_definition({**msgspec.to_builtins(old), **fields}), old)
        _check_name(shelf, new, own)
        return await change.put(new, "definition.update", old=old)


async def switch(store: SqlStore, shelf: Shelf, write: Write, *, enabled: bool) -> HookDefinition:
    """Switch a definition on or off."""
    if not isinstance(enabled, bool):
        raise DefinitionError("invalid", "$.enabled", f"it is true or false; got {enabled!r:.100}")
    async with changing(store, write.actor) as change:
        old, _ = await _to_change(change, shelf, write)
        new = msgspec.structs.replace(old, enabled=enabled)
        if old.source != "api":
            return await change.switch(new)
        return await change.put(new, "definition.enable" if enabled else "definition.disable", old=old)


async def delete(store: SqlStore, shelf: Shelf, write: Write) -> None:
    """Delete a definition."""
    async with changing(store, write.actor) as change:
        old, _ = await _to_change(change, shelf, write)
        _refuse_filed(old)
        await change.remove(old)


async def apply(
    store: SqlStore,
    rules: Rules,
    shelf: Shelf,
    given: Sequence[Given],
    *,
    tenant_id: str,
    prune: bool,
    actor: str,
) -> list[HookDefinition]:
    """Store many definitions of a tenant, or none."""
    check_tenant_id(tenant_id)
    wanted = [_of_batch(rules, each, tenant_id, nth) for nth, each in enumerate(given)]
    async with changing(store, actor) as change:
        own = await change.of_tenant(tenant_id)
        before, left = len(own), dict(own)
        by_name = {(each.point, each.name): each for each in own.values()}
        pairs: list[tuple[HookDefinition, HookDefinition | None]] = []
        for nth, definition in enumerate(wanted):
            old = own.get(definition.id) if definition.id else by_name.get((definition.point, definition.name))
            if old is not None and left.pop(old.id, None) is None:
                raise DefinitionError("invalid", f"$[{nth}]", "another one of the list is the same definition")
            id_ = old.id if old is not None else definition.id or f"hook_{os.urandom(6).hex()}"
            pairs.append((msgspec.structs.replace(definition, id=id_), old))
        if prune:
            for gone in left.values():
                await change.remove(gone)
                del own[gone.id]
        for definition, old in pairs:
            if old is None:
                await _check_id(change, shelf, definition, own)
            own[definition.id] = definition
        for definition, _ in pairs:
            _check_name(shelf, definition, own)
        rules.check_quota(tenant_id, before=before, after=len(own))
        return [await _put_changed(change, definition, old) for definition, old in pairs]


def _of_batch(rules: Rules, given: Given, tenant_id: str, nth: int) -> HookDefinition:
    try:
        definition = read_definition(given)
        if definition.tenant_id not in ("", tenant_id):
            raise DefinitionError("invalid", "$.tenantId", f"these are definitions of {tenant_id!r}; leave it out")
        return rules.checked(msgspec.structs.replace(definition, tenant_id=tenant_id))
    except DefinitionError as error:
        raise DefinitionError(error.code, f"$[{nth}]{error.path.removeprefix('$')}", error.problem) from None


async def _put_changed(change: Change, definition: HookDefinition, old: HookDefinition | None) -> HookDefinition:
    if old is None:
        return await change.put(definition, "definition.create", old=None)
    kept = {name: getattr(old, name) for name in ("source", "revision", "created_at", "updated_at", "problem")}
    if msgspec.structs.replace(definition, **kept) == old:
        return old
    return await change.put(definition, "definition.update", old=old)


async def _to_change(change: Change, shelf: Shelf, write: Write) -> tuple[HookDefinition, dict[str, HookDefinition]]:
    """The definition that somebody means to change, and all stored ones of its tenant.

    Raises:
        DefinitionNotFoundError: If there is none, or it is another tenant's.
        DefinitionConflictError: If its revision is another one.
        DefinitionError: If it is the system's, and a tenant asks.
    """
    tenants = await change.tenants_of(write.id) if is_id(write.id) else []
    tenants += [each for each in shelf.having(write.id) if shelf.own(each)[write.id].source != "api"]
    if write.tenant_id is not None:
        tenants = [each for each in (write.tenant_id, "") if each in tenants][:1]
    if not tenants:
        raise DefinitionNotFoundError(write.id)
    if len(set(tenants)) > 1:
        raise DefinitionConflictError(write.id, "several tenants have one of that id; name the tenant whose it is")
    owner = tenants[0]
    if write.tenant_id is not None and owner != write.tenant_id:
        raise DefinitionError("read_only", "$.tenantId", "it is a hook of the system, which a tenant cannot change")
    own = await change.of_tenant(owner)
    filed = shelf.own(owner).get(write.id)
    old = own[write.id] if filed is None or filed.source == "api" else await change.switched(filed)
    if write.if_revision is not None and old.revision != write.if_revision:
        raise DefinitionConflictError(
            write.id, f"it was changed meanwhile; its revision is {old.revision}, read it again", old.revision
        )
    return old, own


def _refuse_filed(definition: HookDefinition) -> None:
    if definition.source != "api":
        problem = f"it stands in {definition.source}; change it there, or only switch it off and on"
        raise DefinitionError("read_only", "$.source", problem)


async def _check_id(
    change: Change, shelf: Shelf, definition: HookDefinition, own: Mapping[str, HookDefinition]
) -> None:
    """Refuse an id that the tenant, or the system whose hooks it sees, has already.

    Of the shelf only what stands in files counts: another process may just have deleted what is stored.
    """
    filed = [each for tenant in (definition.tenant_id, "") if (each := shelf.own(tenant).get(definition.id))]
    taken = definition.id in own or any(each.source != "api" for each in filed)
    if taken or "" in await change.tenants_of(definition.id):
        raise DefinitionConflictError(definition.id, "there is one of that id already; leave the id out")


def _check_name(shelf: Shelf, definition: HookDefinition, own: Mapping[str, HookDefinition]) -> None:
    """Refuse a name that another definition of the tenant has at the same point."""
    filed = [each for each in shelf.own(definition.tenant_id).values() if each.source != "api"]
    for other in (*own.values(), *filed):
        same = other.point == definition.point and other.name == definition.name
        if same and other.id != definition.id:
            problem = f"{other.id!r} at {other.point} is named {other.name!r} already; choose another name"
            raise DefinitionConflictError(definition.id, problem)
