"""`Snapshot`: the definitions that this process knows, from database and files, and the hooks built from them."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator, KeysView, Mapping
from itertools import islice

import msgspec

from hookline._checks import has_wildcard
from hookline.hooks import AnyHook
from hookline.registry._build import Builder
from hookline.registry._definition import HookDefinition
from hookline.registry._rows import DefinitionChanges, FileSwitch, Key
from hookline.store import Page, check_limit, encode_cursor, parse_cursor

__all__ = ["Snapshot", "running_order"]

logger = logging.getLogger("hookline")

ListPosition = tuple[str, float, str]
"""The sort key of a definition in the list: its tenant, time of creation, and id."""


class Snapshot:
    """The definitions that this process knows. Reading them costs the same however many other tenants there are.

    Args:
        builder: Builds hooks from definitions.
        environment: The name of the environment of this process; `""` for none.

    Attributes:
        revision: The newest known revision.
    """

    def __init__(self, builder: Builder, environment: str = "") -> None:
        self._builder = builder
        self.environment = environment
        self.revision = -1
        self._stored: dict[Key, HookDefinition | FileSwitch] = {}
        self._from_files: dict[Key, HookDefinition] = {}
        self._tenants: dict[str, dict[str, HookDefinition]] = {}
        self._owners: dict[str, set[str]] = {}
        self._hooks: dict[str, list[AnyHook]] = {}
        self._system: list[tuple[AnyHook, HookDefinition]] | None = None
        self._lists: dict[str | None, tuple[list[ListPosition], list[HookDefinition]]] = {}
        self._warned: set[tuple[str, str, str]] = set()

    @property
    def stored_keys(self) -> KeysView[Key]:
        """Tenant and id of each definition that is known to be in the database."""
        return self._stored.keys()

    def apply_changes(self, changed: DefinitionChanges) -> None:
        """Apply changes that were read from the database."""
        gone = set() if changed.keys is None else set(self._stored) - changed.keys
        for key in gone:
            del self._stored[key]
        self._stored.update(changed.rows)
        self._update_definitions({*gone, *changed.rows})
        self.revision = changed.revision

    def set_file_definitions(self, definitions: Iterable[HookDefinition]) -> None:
        """Replace the definitions that come from files."""
        filed = {(each.tenant_id, each.id): each for each in definitions}
        touched = {key for key in {*filed, *self._from_files} if filed.get(key) != self._from_files.get(key)}
        self._from_files = filed
        self._update_definitions(touched)

    def _update_definitions(self, touched: Iterable[Key]) -> None:
        tenants = set()
        for tenant_id, id in touched:  # noqa: A001
            tenants.add(tenant_id)
            own = self._tenants.setdefault(tenant_id, {})
            old, definition = own.pop(id, None), self._resolve((tenant_id, id))
            owners = self._owners.setdefault(id, set())
            if definition is not None:
                own[id] = definition
                owners.add(tenant_id)
                self._warn_about_glob(definition)
            else:
                owners.discard(tenant_id)
            if old is not None:
                self._builder.discard(old, but=definition)
            if not own:
                del self._tenants[tenant_id]
            if not owners:
                del self._owners[id]
        if not tenants:
            return
        self._lists.pop(None, None)
        if "" in tenants:
            self._hooks.clear()
            self._lists.clear()
            self._system = None
        for tenant_id in tenants:
            self._hooks.pop(tenant_id, None)
            self._lists.pop(tenant_id, None)

    def _warn_about_glob(self, definition: HookDefinition) -> None:
        """Log once, for each definition and glob, that a glob without a `/` matches names of tools only."""
        pattern = definition.tool or ""
        named = (definition.tenant_id, definition.id, pattern)
        if "/" in pattern or not pattern.strip("*") or not has_wildcard(pattern) or named in self._warned:
            return
        self._warned.add(named)
        logger.warning(
            "Hook definition %r: tool=%r has no '/', so it matches names of tools, like '*/%s', and not toolsets, like "
            "'%s/*'. Write the one that you mean.",
            definition.id,
            pattern,
            pattern,
            pattern,
        )

    def _resolve(self, key: Key) -> HookDefinition | None:
        """Return the definition in force: a file's wins over a stored one, except for its `enabled` switch."""
        filed, stored = self._from_files.get(key), self._stored.get(key)
        if filed is None:
            return stored if isinstance(stored, HookDefinition) else None
        if not isinstance(stored, FileSwitch):
            return filed
        updated_at = max(filed.updated_at, stored.updated_at)
        return msgspec.structs.replace(filed, enabled=stored.enabled, revision=stored.revision, updated_at=updated_at)

    def of_tenant(self, tenant_id: str) -> Mapping[str, HookDefinition]:
        """Return the definitions of a tenant by id."""
        return self._tenants.get(tenant_id, {})

    def definitions(self) -> Iterator[HookDefinition]:
        """Yield all definitions."""
        for own in self._tenants.values():
            yield from own.values()

    def tenants_with(self, id: str) -> list[str]:  # noqa: A002
        """Return the tenants that have a definition of that id."""
        return list(self._owners.get(id, ()))

    def tenants(self) -> list[str]:
        """Return the tenants that have definitions, or that a definition of the system names."""
        system = self.of_tenant("").values()
        named = (tenant for each in system for tenant in (*each.except_tenants, *each.tenants))
        return sorted({*self._tenants, *named} - {""})

    def with_problem(self, definition: HookDefinition) -> HookDefinition:
        """Return a definition with its `problem` filled in, if it cannot run here."""
        problem = self._builder.find_problem(definition)
        return msgspec.structs.replace(definition, problem=problem) if problem else definition

    def hooks(self, tenant_id: str) -> list[AnyHook]:
        """Return the hooks for a run of a tenant, the system's first."""
        hooks = self._hooks.get(tenant_id)
        if hooks is None:
            # Hooks of tenants without definitions are not cached, since callers may invent any number of tenants.
            hooks = self._find_system_hooks(tenant_id) + (self._build_hooks(tenant_id) if tenant_id else [])
            if not tenant_id or tenant_id in self._tenants:
                self._hooks[tenant_id] = hooks
        return hooks.copy()

    def _find_system_hooks(self, tenant_id: str) -> list[AnyHook]:
        """Return the hooks of the system for a run of a tenant."""
        if self._system is None:
            definitions = sorted(self.of_tenant("").values(), key=running_order)
            built = ((self._builder.issue(each), each) for each in definitions if self._is_here(each))
            self._system = [(hook, each) for hook, each in built if hook is not None]
        return [
            hook
            for hook, each in self._system
            if tenant_id not in each.except_tenants and (not each.tenants or tenant_id in each.tenants)
        ]

    def _is_here(self, definition: HookDefinition) -> bool:
        """Return whether a definition takes part in runs in the environment of this process."""
        return definition.enabled and (not definition.environments or self.environment in definition.environments)

    def _build_hooks(self, tenant_id: str) -> list[AnyHook]:
        own = sorted(self.of_tenant(tenant_id).values(), key=running_order)
        # A tenant cannot put its hooks before the system's: at the same priority, the system's come first.
        floor = max((each.priority for each in self.of_tenant("").values() if each.enabled), default=0)
        own = [msgspec.structs.replace(each, priority=max(each.priority, floor)) for each in own]
        built = (self._builder.issue(definition) for definition in own if self._is_here(definition))
        return [hook for hook in built if hook is not None]

    def page(
        self,
        tenant_id: str | None,
        *,
        cursor: str | None,
        limit: int,
        point: str | None,
        enabled: bool | None,
        text: str | None,
    ) -> Page[HookDefinition]:
        """Return a page of definitions: the system's, then the tenant's; for `None` those of all tenants.

        Raises:
            HookUsageError: If the cursor or the limit is invalid.
        """
        check_limit(limit)
        places, definitions = self._sort(tenant_id)
        start = 0 if cursor is None else bisect_right(places, parse_cursor(cursor, tuple[str, float, str]))
        words = (text or "").casefold().split()
        found: list[HookDefinition] = []
        for definition in islice(definitions, start, None):
            if (
                (point is None or definition.point == point)
                and (enabled is None or definition.enabled is enabled)
                and (not words or _has_words(definition, words))
            ):
                if len(found) == limit:
                    return Page(items=found, cursor=encode_cursor(_position(found[-1])))
                found.append(self.with_problem(definition))
        return Page(items=found)

    def _sort(self, tenant_id: str | None) -> tuple[list[ListPosition], list[HookDefinition]]:
        known = self._lists.get(tenant_id)
        if known is None:
            tenants = self._tenants if tenant_id is None else {"", tenant_id}
            every = sorted((each for tenant in tenants for each in self.of_tenant(tenant).values()), key=_position)
            known = [_position(each) for each in every], every
            if tenant_id is None or tenant_id in self._tenants:
                self._lists[tenant_id] = known
        return known


def running_order(definition: HookDefinition) -> tuple[int, float, str]:
    """Return the key by which the hooks of one owner at one point are ordered in a run."""
    return definition.priority, definition.created_at, definition.id


def _has_words(definition: HookDefinition, words: Iterable[str]) -> bool:
    """Return whether each word occurs in what people call a definition by, or in what it runs."""
    texts = (definition.name, definition.id, definition.description, definition.tool)
    named = (*texts, definition.target, *definition.tags)
    whole = "\n".join(each for each in named if each).casefold()
    return all(word in whole for word in words)


def _position(definition: HookDefinition) -> ListPosition:
    return definition.tenant_id, definition.created_at, definition.id
