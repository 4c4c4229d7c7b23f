"""The definitions as a process knows them, by tenant, with what has been made of them."""

from __future__ import annotations

import binascii
import logging
from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Iterable, KeysView, Mapping
from itertools import islice

import msgspec

from hookline._checks import has_wildcard
from hookline.errors import HookUsageError
from hookline.hooks import AnyHook
from hookline.registry._build import Builder
from hookline.registry._definition import HookDefinition
from hookline.registry._rows import Changed, Key, Switch
from hookline.store import Page

__all__ = ["Snapshot"]

logger = logging.getLogger("hookline")

LONGEST_PAGE = 1000
Place = tuple[str, float, str]
"""Where a definition stands in the list: its tenant, when it was created, its id."""


class Snapshot:
    """The definitions as a process knows them. Reading costs the same, however many other tenants there are.

    Args:
        builder: Makes hooks of them.

    Attributes:
        revision: The newest one that is known.
    """

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self.revision = -1
        self._stored: dict[Key, HookDefinition | Switch] = {}
        self._filed: dict[Key, HookDefinition] = {}
        self._tenants: dict[str, dict[str, HookDefinition]] = {}
        self._owners: dict[str, set[str]] = {}
        self._hooks: dict[str, list[AnyHook]] = {}
        self._lists: dict[str | None, tuple[list[Place], list[HookDefinition]]] = {}
        self._warned: set[tuple[str, str, str]] = set()

    @property
    def stored(self) -> KeysView[Key]:
        """What is known to be in the database."""
        return self._stored.keys()

    def take(self, changed: Changed) -> None:
        """Note what has changed in the database."""
        gone = set() if changed.keys is None else set(self._stored) - changed.keys
        for key in gone:
            del self._stored[key]
        self._stored.update(changed.rows)
        self._settle({*gone, *changed.rows})
        self.revision = changed.revision

    def take_files(self, definitions: Iterable[HookDefinition]) -> None:
        """Note what the files say now."""
        filed = {(each.tenant_id, each.id): each for each in definitions}
        touched = {key for key in {*filed, *self._filed} if filed.get(key) != self._filed.get(key)}
        self._filed = filed
        self._settle(touched)

    def _settle(self, touched: Iterable[Key]) -> None:
        tenants = set()
        for tenant_id, id in touched:  # noqa: A001
            tenants.add(tenant_id)
            own = self._tenants.setdefault(tenant_id, {})
            old, definition = own.pop(id, None), self._effective((tenant_id, id))
            owners = self._owners.setdefault(id, set())
            if definition is not None:
                own[id] = definition
                owners.add(tenant_id)
                self._warn_of_glob(definition)
            else:
                owners.discard(tenant_id)
            if old is not None:
                self._builder.forget(old, but=definition)
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
        for tenant_id in tenants:
            self._hooks.pop(tenant_id, None)
            self._lists.pop(tenant_id, None)

    def _warn_of_glob(self, definition: HookDefinition) -> None:
        """Log, once for each definition and glob, that a glob without a `/` is one over names."""
        pattern = definition.tool or ""
        named = (definition.tenant_id, definition.id, pattern)
        if "/" in pattern or not pattern.strip("*") or not has_wildcard(pattern) or named in self._warned:
            return
        self._warned.add(named)
        logger.warning(
            "Hook definition %r: tool=%r has no '/', so it is compared with the names of tools, as '*/%s' would be, "
            "and not with 'toolset/tool_name', as '%s/*' would be. Write the one that you mean.",
            definition.id,
            pattern,
            pattern,
            pattern,
        )

    def _effective(self, key: Key) -> HookDefinition | None:
        """What holds: what a file says, but for its switch; or what is stored."""
        filed, stored = self._filed.get(key), self._stored.get(key)
        if filed is None:
            return stored if isinstance(stored, HookDefinition) else None
        if not isinstance(stored, Switch):
            return filed
        updated_at = max(filed.updated_at, stored.updated_at)
        return msgspec.structs.replace(filed, enabled=stored.enabled, revision=stored.revision, updated_at=updated_at)

    def own(self, tenant_id: str) -> Mapping[str, HookDefinition]:
        """The definitions of a tenant, by id."""
        return self._tenants.get(tenant_id, {})

    def having(self, id: str) -> list[str]:  # noqa: A002
        """The tenants that have a definition of that id."""
        return list(self._owners.get(id, ()))

    def shown(self, definition: HookDefinition) -> HookDefinition:
        """A definition with why it cannot run here, if it cannot."""
        problem = self._builder.problem_of(definition)
        return msgspec.structs.replace(definition, problem=problem) if problem else definition

    def hooks(self, tenant_id: str) -> list[AnyHook]:
        """What a run of a tenant is given: the system's first."""
        hooks = self._hooks.get(tenant_id)
        if hooks is None:
            # A tenant that has none of its own is not kept: anybody may make up names.
            hooks = self._made("") + (self._made(tenant_id) if tenant_id else [])
            if not tenant_id or tenant_id in self._tenants:
                self._hooks[tenant_id] = hooks
        return hooks.copy()

    def _made(self, tenant_id: str) -> list[AnyHook]:
        if not tenant_id and "" in self._hooks:
            return self._hooks[""]
        own = sorted(self.own(tenant_id).values(), key=lambda each: (each.priority, each.created_at, each.id))
        if tenant_id:
            # The hooks of the system come first, whatever a tenant says: at one priority they do.
            floor = max((each.priority for each in self.own("").values() if each.enabled), default=0)
            own = [msgspec.structs.replace(each, priority=max(each.priority, floor)) for each in own]
        built = (self._builder.kept(definition).hook for definition in own if definition.enabled)
        return [hook for hook in built if hook is not None]

    def page(
        self, tenant_id: str | None, *, cursor: str | None, limit: int, point: str | None, enabled: bool | None
    ) -> Page[HookDefinition]:
        """A part of the list of definitions: the system's, then the tenant's; for `None` those of all tenants.

        Raises:
            HookUsageError: If the cursor or the limit makes no sense.
        """
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LONGEST_PAGE:
            raise HookUsageError(f"`limit` is a whole number from 1 to {LONGEST_PAGE}; got {limit!r}.")
        places, definitions = self._sorted(tenant_id)
        start = 0 if cursor is None else bisect_right(places, _place_of(cursor))
        found: list[HookDefinition] = []
        for definition in islice(definitions, start, None):
            if (point is None or definition.point == point) and (enabled is None or definition.enabled is enabled):
                if len(found) == limit:
                    return Page(items=found, cursor=_cursor_at(found[-1]))
                found.append(self.shown(definition))
        return Page(items=found)

    def _sorted(self, tenant_id: str | None) -> tuple[list[Place], list[HookDefinition]]:
        known = self._lists.get(tenant_id)
        if known is None:
            tenants = self._tenants if tenant_id is None else {"", tenant_id}
            every = sorted((each for tenant in tenants for each in self.own(tenant).values()), key=_place)
            known = [_place(each) for each in every], every
            if tenant_id is None or tenant_id in self._tenants:
                self._lists[tenant_id] = known
        return known


def _place(definition: HookDefinition) -> Place:
    return definition.tenant_id, definition.created_at, definition.id


def _cursor_at(last: HookDefinition) -> str:
    return urlsafe_b64encode(msgspec.json.encode(_place(last))).decode()


def _place_of(cursor: str) -> Place:
    try:
        return msgspec.json.decode(urlsafe_b64decode(cursor.encode()), type=tuple[str, float, str])
    except (binascii.Error, msgspec.MsgspecError, ValueError) as error:
        raise HookUsageError("`cursor` is not one that this list has given; leave it out to begin anew.") from error
