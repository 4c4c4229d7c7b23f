"""`Registry`: hooks as data, for many tenants, switched and changed while agents run."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import msgspec

from hookline.calls import Call
from hookline.delivery import KeyRing
from hookline.errors import HookUsageError, StoreUnavailableError, message_of
from hookline.events import Event
from hookline.hooks import AnyHook
from hookline.registry._build import Builder
from hookline.registry._catalog import HandlerCatalog, HandlerEntry
from hookline.registry._definition import (
    READ_ONLY,
    HookDefinition,
    check_request,
    check_tenant_id,
    is_id,
    read_definition,
    spelled,
)
from hookline.registry._dry_run import DryRun, dry_run
from hookline.registry._errors import (
    DefinitionConflictError,
    DefinitionError,
    DefinitionFileError,
    DefinitionNotFoundError,
    QuotaError,
)
from hookline.registry._files import Files
from hookline.registry._rows import Change, changed_since, changing
from hookline.registry._scripts import Scripts
from hookline.registry._snapshot import Snapshot
from hookline.store import Page, SqlStore

__all__ = ["Registry", "Rules", "Write", "apply", "create", "delete", "found", "switch", "update"]

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


def found(shelf: Snapshot, id: str, tenant_id: str | None) -> HookDefinition:  # noqa: A002
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


async def create(store: SqlStore, rules: Rules, shelf: Snapshot, given: Given, *, actor: str) -> HookDefinition:
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
    store: SqlStore, rules: Rules, shelf: Snapshot, write: Write, changed: Mapping[str, Any]
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


async def switch(store: SqlStore, shelf: Snapshot, write: Write, *, enabled: bool) -> HookDefinition:
    """Switch a definition on or off."""
    if not isinstance(enabled, bool):
        raise DefinitionError("invalid", "$.enabled", f"it is true or false; got {enabled!r:.100}")
    async with changing(store, write.actor) as change:
        old, _ = await _to_change(change, shelf, write)
        new = msgspec.structs.replace(old, enabled=enabled)
        if old.source != "api":
            return await change.switch(new)
        return await change.put(new, "definition.enable" if enabled else "definition.disable", old=old)


async def delete(store: SqlStore, shelf: Snapshot, write: Write) -> None:
    """Delete a definition."""
    async with changing(store, write.actor) as change:
        old, _ = await _to_change(change, shelf, write)
        _refuse_filed(old)
        await change.remove(old)


async def apply(
    store: SqlStore,
    rules: Rules,
    shelf: Snapshot,
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


async def _to_change(change: Change, shelf: Snapshot, write: Write) -> tuple[HookDefinition, dict[str, HookDefinition]]:
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
    change: Change, shelf: Snapshot, definition: HookDefinition, own: Mapping[str, HookDefinition]
) -> None:
    """Refuse an id that the tenant, or the system whose hooks it sees, has already.

    Of the shelf only what stands in files counts: another process may just have deleted what is stored.
    """
    filed = [each for tenant in (definition.tenant_id, "") if (each := shelf.own(tenant).get(definition.id))]
    taken = definition.id in own or any(each.source != "api" for each in filed)
    if taken or "" in await change.tenants_of(definition.id):
        raise DefinitionConflictError(definition.id, "there is one of that id already; leave the id out")


def _check_name(shelf: Snapshot, definition: HookDefinition, own: Mapping[str, HookDefinition]) -> None:
    """Refuse a name that another definition of the tenant has at the same point."""
    filed = [each for each in shelf.own(definition.tenant_id).values() if each.source != "api"]
    for other in (*own.values(), *filed):
        same = other.point == definition.point and other.name == definition.name
        if same and other.id != definition.id:
            problem = f"{other.id!r} at {other.point} is named {other.name!r} already; choose another name"
            raise DefinitionConflictError(definition.id, problem)


logger = logging.getLogger("hookline")

# Inside of the class, `list` is its method.
AnyHooks: TypeAlias = list[AnyHook]
Definitions: TypeAlias = list[HookDefinition]
HandlerEntries: TypeAlias = list[HandlerEntry]

LONGEST_LOOK = 5.0
"""Seconds that a look into the database may take, until it counts as lost."""


class Registry:
    """Hooks as data: stored, checked, switched and changed while agents run, each tenant's for itself.

    It is opened with `async with`, on asyncio. `hooks(tenant_id)` is what a run is given, as `exec_agent(...,
    hooks=[*registry.hooks("acme")], tenant_id="acme")`. A change takes effect in the next run: at once in this process,
    and within a second in every other one that has opened a registry on the same database. When the database is lost,
    runs go on with the definitions that were known last.

    Args:
        store: Where definitions are stored; without it, those of the files are all there are.
        files: TOML and YAML files of definitions, or folders of them. They are read again when they change; a broken
            one is logged, and what the files said before still holds.
        modules: Modules whose functions definitions may name as handlers, beside those that are installed.
        scripts: Folder of the scripts that definitions may name.
        script_env: Variables of the environment that scripts see, beside `PATH` and `LANG`.
        webhook_env: Variables of the environment that headers of stored webhooks may name.
        keys: What signs the deliveries of this process; the keys of its environment unless given. Definitions of
            webhooks that none of them signs have a `problem`.
        endpoint_secrets: Whether deliveries of hooks that name no key are signed with the secrets of their endpoints,
            as a server's are.
        quota: How many definitions of its own a tenant may store. Those of the system and of files do not count.
        refresh_seconds: Between two looks at the database and the files.

    Raises:
        HookUsageError: If an argument makes no sense.
        WebhookKeyError: If a key of the environment cannot be read.
    """

    def __init__(
        self,
        store: SqlStore | None = None,
        *,
        files: Sequence[Path] = (),
        modules: Sequence[str] = (),
        scripts: Path | None = None,
        script_env: Sequence[str] = (),
        webhook_env: Sequence[str] = (),
        keys: KeyRing | None = None,
        endpoint_secrets: bool = False,
        quota: int = 50,
        refresh_seconds: float = 0.3,
    ) -> None:
        if isinstance(quota, bool) or not isinstance(quota, int) or quota < 0:
            raise HookUsageError(f"`quota` is a whole number from 0; got {quota!r}.")
        if not isinstance(refresh_seconds, int | float) or not 0 < refresh_seconds < math.inf:
            raise HookUsageError(f"`refresh_seconds` is a number of seconds above 0; got {refresh_seconds!r}.")
        self._store = store
        self._files = Files(files)
        self._catalog = HandlerCatalog(modules)
        known_scripts = None if scripts is None else Scripts(Path(scripts), script_env)
        ring = KeyRing.from_environment() if keys is None else keys
        self._builder = Builder(self._catalog, known_scripts, ring, endpoint_secrets=endpoint_secrets)
        self._shelf = Snapshot(self._builder)
        self._rules = Rules(builder=self._builder, quota=quota, variables=frozenset(webhook_env))
        self._seconds = float(refresh_seconds)
        self._refreshing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._problems: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        """Read the files and the database.

        Raises:
            DefinitionFileError: If a file is broken: nothing has held before.
            StoreUnavailableError: If the database cannot be reached.
            HookUsageError: If it is open already.
        """
        if self._task is not None:
            raise HookUsageError("This registry was opened before; make a new one.")
        self._files.changed()
        self._shelf.take_files(self._files.load(self._builder.fresh))
        await self._look()
        self._task = asyncio.create_task(self._keep_looking())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop looking for changes; `hooks` still gives what was known last."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def problems(self) -> tuple[str, ...]:
        """What keeps it from being up to date: a lost database, or a broken file with the line that is wrong."""
        return tuple(self._problems.values())

    def hooks(self, tenant_id: str = "") -> AnyHooks:
        """What a run of a tenant is given: the enabled hooks of the system, then its own.

        Args:
            tenant_id: For whom the run is.

        Raises:
            HookUsageError: If it was never open.
        """
        if self._task is None:
            raise HookUsageError("This registry is not open, so nobody knows its hooks; write `async with`.")
        return self._shelf.hooks(tenant_id)

    def handlers(self) -> HandlerEntries:
        """The handlers that definitions may name, but for those in the configured modules."""
        return self._catalog.entries()

    async def get(self, id: str, tenant_id: str | None = None) -> HookDefinition:  # noqa: A002
        """One definition, as it is stored now, also where another process has just changed it.

        If the database cannot be reached, it is the definition as it was known last.

        Args:
            id: Its id.
            tenant_id: Who asks: a tenant sees its own and those of the system. `None` sees those of all tenants.

        Raises:
            DefinitionNotFoundError: If there is none, or it is another tenant's.
            DefinitionConflictError: If several tenants have one of that id, and nobody said whose.
            StoreUnavailableError: If the database cannot be reached, and none was known of that id.
        """
        return self._shelf.shown(await self._current(id, tenant_id))

    async def list(
        self,
        tenant_id: str | None = None,
        *,
        cursor: str | None = None,
        limit: int = 50,
        point: str | None = None,
        enabled: bool | None = None,
    ) -> Page[HookDefinition]:
        """A part of the list of definitions: the system's, then the tenant's, each in the order of their creation.

        Args:
            tenant_id: Who asks, as for `get`.
            cursor: Where the part begins; that of the part before.
            limit: How many at most, up to 1000.
            point: Only those that stand there.
            enabled: Only those that are enabled, or only those that are not.

        Raises:
            HookUsageError: If the cursor or the limit makes no sense.
        """
        return self._shelf.page(tenant_id, cursor=cursor, limit=limit, point=point, enabled=enabled)

    async def create(self, definition: HookDefinition | Mapping[str, Any], *, actor: str = "") -> HookDefinition:
        """Store a new definition, for the tenant that it names.

        Args:
            definition: The definition, or a mapping with its fields.
            actor: Who does it, for the audit.

        Returns:
            The definition as it is stored.

        Raises:
            DefinitionError: If it cannot work.
            DefinitionConflictError: If its id, or its name at that point, is taken.
            QuotaError: If the tenant has as many as it may have.
            StoreUnavailableError: If the database cannot be reached.
        """
        stored = await create(self._writable(), self._rules, self._shelf, definition, actor=actor)
        return await self._now(stored)

    async def update(
        self,
        id: str,  # noqa: A002
        changed: Mapping[str, Any],
        *,
        tenant_id: str | None = None,
        if_revision: int | None = None,
        actor: str = "",
    ) -> HookDefinition:
        """Change fields of a definition; it is checked as a new one is.

        Args:
            id: Its id.
            changed: The fields, by their names in either spelling.
            tenant_id: Who does it: a tenant may change its own; `None` may change all.
            if_revision: Only if that is its revision.
            actor: Who does it, for the audit.

        Raises:
            DefinitionError: If it could not work then, or may not be changed: it is the system's, or of a file.
            DefinitionNotFoundError: If there is none, or it is another tenant's.
            DefinitionConflictError: If its revision is another one, or its name at that point is taken.
            StoreUnavailableError: If the database cannot be reached.
        """
        write = Write(id=id, tenant_id=tenant_id, if_revision=if_revision, actor=actor)
        return await self._now(await update(self._writable(), self._rules, self._shelf, write, changed))

    async def set_enabled(
        self,
        id: str,  # noqa: A002
        enabled: bool,
        *,
        tenant_id: str | None = None,
        if_revision: int | None = None,
        actor: str = "",
    ) -> HookDefinition:
        """Switch a definition on or off; those of files too, for which that outlasts changes of the file.

        Args:
            id: Its id.
            enabled: Whether it takes part in the next run.
            tenant_id: Who does it, as for `update`.
            if_revision: Only if that is its revision.
            actor: Who does it, for the audit.

        Raises:
            DefinitionError: If it is the system's, and a tenant asks.
            DefinitionNotFoundError: If there is none, or it is another tenant's.
            DefinitionConflictError: If its revision is another one.
            StoreUnavailableError: If the database cannot be reached.
        """
        write = Write(id=id, tenant_id=tenant_id, if_revision=if_revision, actor=actor)
        return await self._now(await switch(self._writable(), self._shelf, write, enabled=enabled))

    async def delete(
        self,
        id: str,  # noqa: A002
        *,
        tenant_id: str | None = None,
        if_revision: int | None = None,
        actor: str = "",
    ) -> None:
        """Delete a definition.

        Args:
            id: Its id.
            tenant_id: Who does it, as for `update`.
            if_revision: Only if that is its revision.
            actor: Who does it, for the audit.

        Raises:
            DefinitionError: If it may not be deleted: it is the system's, or of a file.
            DefinitionNotFoundError: If there is none, or it is another tenant's.
            DefinitionConflictError: If its revision is another one.
            StoreUnavailableError: If the database cannot be reached.
        """
        write = Write(id=id, tenant_id=tenant_id, if_revision=if_revision, actor=actor)
        await delete(self._writable(), self._shelf, write)
        await self.refresh()

    async def apply(
        self,
        definitions: Sequence[HookDefinition | Mapping[str, Any]],
        *,
        tenant_id: str = "",
        prune: bool = False,
        actor: str = "",
    ) -> Definitions:
        """Store many definitions of a tenant: all of them, or none.

        One with the id, or with the name and the point, of a stored definition takes its place.

        Args:
            definitions: The definitions, or mappings with their fields.
            tenant_id: Whose they are; `""` for the system.
            prune: Whether to delete what the tenant has stored beside them.
            actor: Who does it, for the audit.

        Returns:
            The definitions as they are stored, in the same order.

        Raises:
            DefinitionError: If one cannot work; its `path` begins with `$[n]`.
            DefinitionConflictError: If an id is another one's.
            QuotaError: If the tenant would have more than it may have.
            StoreUnavailableError: If the database cannot be reached.
        """
        stored = await apply(
            self._writable(), self._rules, self._shelf, definitions, tenant_id=tenant_id, prune=prune, actor=actor
        )
        await self.refresh()
        return [self._shelf.shown(definition) for definition in stored]

    async def dry_run(
        self,
        definition: str | HookDefinition | Mapping[str, Any],
        sample: Call | Event | Mapping[str, Any],
        *,
        tenant_id: str | None = None,
        timeout: float = 5.0,
    ) -> DryRun:
        """Try a definition out on a sample, apart from everything: not logged, counted or stored, and with no memory.

        Args:
            definition: Its id, or a definition that need not be stored.
            sample: The call or the event, or a mapping with some of its fields; others are filled in. For a hook that
                comes after a call, `result` has that of the call. What a webhook would be sent is shown, not sent.
            tenant_id: Who asks, as for `get`.
            timeout: Seconds that it may take.

        Raises:
            DefinitionError: If the definition cannot work, or the sample is none for it.
            DefinitionNotFoundError: If there is none, or it is another tenant's.
            StoreUnavailableError: As for `get`.
        """
        if isinstance(definition, str):
            tried = await self._current(definition, tenant_id)
        else:
            tried = self._rules.checked(read_definition(definition))
        return await dry_run(self._builder, tried, sample, timeout=timeout)

    async def refresh(self) -> None:
        """Look for changes now. What goes wrong is logged once, and what was known still holds."""
        try:
            await self._look()
        except (StoreUnavailableError, TimeoutError) as error:
            self._note("store", f"the definitions are those that were known last: {message_of(error)}")
        except Exception as error:
            if "store" not in self._problems:
                logger.debug("A look into the database failed", exc_info=True)
            self._note("store", f"looking for changes failed: {type(error).__name__}: {message_of(error)}")
        else:
            self._note("store", "")
        try:
            if self._files.changed():
                self._shelf.take_files(self._files.load(self._builder.fresh))
                self._note("files", "")
        except Exception as error:  # one that got out would end the looking for good, and nobody would know
            if not isinstance(error, DefinitionFileError):
                logger.debug("A look at the files failed", exc_info=True)
            self._note("files", f"the definitions of all files stay as they were: {message_of(error)}")

    async def _look(self) -> None:
        if self._store is None:
            return
        async with self._refreshing, asyncio.timeout(LONGEST_LOOK):
            changed = await changed_since(self._store, self._shelf.revision, self._shelf.stored)
            if changed is not None:
                self._shelf.take(changed)

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            await self.refresh()

    async def _now(self, stored: HookDefinition) -> HookDefinition:
        await self.refresh()
        return self._shelf.shown(stored)

    def _note(self, part: str, problem: str) -> None:
        before = self._problems.pop(part, "")
        if problem:
            self._problems[part] = problem
            # What a lost database says differs from try to try; a file is broken in another way only if it was written.
            if not before or (part == "files" and problem != before):
                logger.error("Registry: %s", problem)
        elif before:
            logger.info("Registry: up to date again")

    def _writable(self) -> SqlStore:
        if self._store is None:
            raise HookUsageError("This registry has no store; give it one: Registry(SqlStore(...)).")
        return self._store

    async def _current(self, id: str, tenant_id: str | None) -> HookDefinition:  # noqa: A002
        """Return the definition that somebody sees under an id, after a look into the database.

        Another process may have made, changed or deleted it a moment ago, and whoever did that may ask here next.
        """
        try:
            await self._look()
        except (StoreUnavailableError, TimeoutError) as error:
            try:
                return found(self._shelf, id, tenant_id)
            except DefinitionNotFoundError:
                if isinstance(error, StoreUnavailableError):
                    raise error from None
                raise StoreUnavailableError(self._writable()._address.name, "a look into it took too long") from error
        return found(self._shelf, id, tenant_id)
