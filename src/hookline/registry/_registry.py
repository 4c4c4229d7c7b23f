"""`Registry`: store hooks as data, for many tenants, and switch and change them while agents run."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import anyio
import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.bus import Bus
from hookline.calls import Call
from hookline.delivery import KeyRing
from hookline.errors import HookUsageError, StoreUnavailableError, message_of
from hookline.events import Event
from hookline.hooks import AnyHook, select_hooks
from hookline.interceptors import Fence, FencedHooks
from hookline.registry._backtest import Backtest, BacktestQuery, run_backtest
from hookline.registry._build import Builder
from hookline.registry._call_labels import CallLabel
from hookline.registry._catalog import HandlerCatalog, HandlerEntry
from hookline.registry._definition import (
    READ_ONLY,
    HookDefinition,
    check_request,
    check_tenant_id,
    is_id,
    normalize_keys,
    read_definition,
)
from hookline.registry._dry_run import DryRun, dry_run, find_operation_id
from hookline.registry._errors import (
    DefinitionConflictError,
    DefinitionError,
    DefinitionFileError,
    DefinitionNotFoundError,
    QuotaError,
)
from hookline.registry._fencing import FenceMember, wait_for_members
from hookline.registry._files import DefinitionFiles, HookFile, check_buildable, check_unique, load_hook_file
from hookline.registry._hook_test_runs import HookTestResult, run_hook_test
from hookline.registry._hook_tests import read_hook_tests
from hookline.registry._log_rows import first_key
from hookline.registry._matched_calls import CallMatches, RecentCalls, read_stored_sample
from hookline.registry._order import assign_priorities
from hookline.registry._plans import DefinitionPlan, check_plan, make_plan
from hookline.registry._policy_alerts import ALERT_KINDS, PolicyAlert, read_alerts
from hookline.registry._policy_watch import AlertSettings, PolicyWatch
from hookline.registry._revisions import DefinitionRevision, find_revised_tenants, read_deleted, read_revision_page
from hookline.registry._rows import ChangeTransaction, DefinitionRows, open_change, read_changes
from hookline.registry._scripts import Scripts
from hookline.registry._shared_read import SharedRead
from hookline.registry._snapshot import Snapshot
from hookline.store import DEFINITIONS, OperationLineage, Page, SqlStore, check_limit, read_lineages

__all__ = ["Registry"]

logger = logging.getLogger("hookline")

# Aliases, since inside of the class `Registry`, `list` is its method.
AnyHooks: TypeAlias = list[AnyHook]
Definitions: TypeAlias = list[HookDefinition]
DefinitionsById: TypeAlias = dict[str, HookDefinition]
HandlerEntries: TypeAlias = list[HandlerEntry]
HookTestResults: TypeAlias = list[HookTestResult]
Tenants: TypeAlias = list[str]
GivenDefinition: TypeAlias = HookDefinition | Mapping[str, Any]

BEHAVIOR_FIELDS = ("point", "handler", "webhook", "script", "remote", "dialect", "host_event", "matcher", "config")
"""Fields that decide what a definition does."""
CLOSING = 1.0
"""Seconds that a query for changes may still take when the registry is closed."""
LONGEST_REFRESH = 5.0
"""Seconds after which a query for changes counts as failed."""


class DefinitionRules(msgspec.Struct, frozen=True, kw_only=True):
    """Rules that a definition has to fulfil to be stored.

    Attributes:
        builder: Builds hooks from definitions.
        quota: Number of definitions that a tenant may store.
        variables: Environment variables that headers of webhooks may name.
    """

    builder: Builder
    quota: int
    variables: frozenset[str]

    def check(self, definition: HookDefinition) -> HookDefinition:
        """Return the definition if its hook can run in this process.

        Raises:
            DefinitionError: If it cannot.
        """
        check_request(definition, self.variables)
        self.builder.build_new(definition if definition.id else msgspec.structs.replace(definition, id="hook_new"))
        return definition

    def check_change(self, new: HookDefinition, old: HookDefinition) -> HookDefinition:
        """Return a changed definition if its hook can run, or if it could not run before either and does the same.

        Raises:
            DefinitionError: If neither is true.
        """
        try:
            return self.check(new)
        except DefinitionError:
            # A definition of another version is not understood well enough to be written again.
            if old.problem or any(getattr(new, name) != getattr(old, name) for name in BEHAVIOR_FIELDS):
                raise
            if self._is_valid(old):
                raise
        return new

    def check_batch_entry(self, given: GivenDefinition, tenant_id: str, nth: int) -> HookDefinition:
        """Parse and check one of many definitions of a tenant.

        Raises:
            DefinitionError: If it is invalid, or another tenant's; `path` begins with `$[nth]`.
        """
        try:
            definition = read_definition(given)
            if definition.tenant_id not in ("", tenant_id):
                raise DefinitionError(
                    "invalid", "$.tenantId", f"these are definitions of {tenant_id!r}; leave `tenantId` out"
                )
            return self.check(msgspec.structs.replace(definition, tenant_id=tenant_id))
        except DefinitionError as error:
            raise DefinitionError(error.code, f"$[{nth}]{error.path.removeprefix('$')}", error.problem) from None

    def check_quota(self, tenant_id: str, *, before: int, after: int) -> None:
        """Raise if a tenant would store more definitions than its quota; the system has none.

        Raises:
            QuotaError: If the number grows beyond the quota.
        """
        if tenant_id and after > self.quota and after > before:
            raise QuotaError(tenant_id, self.quota)

    def _is_valid(self, definition: HookDefinition) -> bool:
        try:
            self.check(definition)
        except DefinitionError:
            return False
        return True


class Registry:
    """Stores hooks as data, for many tenants, and switches and changes them while agents run.

    Open it with `async with`, on asyncio, and pass `hooks(tenant_id)` to a run: `exec_agent(..., hooks=[
    *registry.hooks("acme")], tenant_id="acme")`. A change takes effect in the next run: at once in this process, and
    within a second in every other process that has opened a registry on the same database; if the wake-up gets lost,
    within 30 seconds. If the database cannot be reached, runs go on with the last known definitions.

    Args:
        store: The store of the definitions; without it, the registry has the definitions of the files only.
        files: TOML and YAML files of definitions, or folders of them. They are read again when they change; a broken
            file is logged, and its last valid content stays in force.
        modules: Modules whose functions definitions may name as handlers, besides the installed handlers.
        scripts: Folder of the scripts that definitions may name.
        script_env: Environment variables that scripts see, besides `PATH` and `LANG`.
        webhook_env: Environment variables that headers of stored webhooks may name.
        keys: Keys that sign the deliveries of this process; the keys of its environment by default. Webhook
            definitions that none of them signs have a `problem`.
        endpoint_secrets: Whether deliveries of hooks that name no key are signed with the secrets of their endpoints,
            as a server does.
        quota: Number of definitions that each tenant may store, not counting those of the system and of files.
        alerts: When a changed rate of denials of a shadow hook raises an alert, and where alerts are sent.
        refresh_seconds: Seconds between two looks at the files, and between two tries to reach a database that is down.
            The database is queried when the store's `wakeups` say that definitions were changed.
        environment: The name of the environment of this process, such as `"production"`, which definitions may name;
            that of the variable `HOOKLINE_ENVIRONMENT` by default.
        bus: Carries the questions of remote hooks; by default the `wakeups` of the store, if they are a bus.
        needs_bus: Whether definitions of remote hooks are refused without a bus. `False` is for a process that checks
            or stores definitions and runs no agents: such hooks fail there, and tests that would ask are not run.
        lease_seconds: Take part in fenced changes: `update(..., fence=True)` in any process waits until this one judges
            by the new revision, in operations that are running, too. If the database cannot be reached for so many
            seconds, calls that the hooks of this registry would judge are denied until it can. `None` takes no part.
        fence_timeout: Seconds for which a fenced change waits for all processes.

    Raises:
        HookUsageError: If an argument is invalid.
        WebhookKeyError: If a key of the environment cannot be parsed.
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
        alerts: AlertSettings = AlertSettings(),  # noqa: B008
        refresh_seconds: float = 0.3,
        environment: str | None = None,
        bus: Bus | None = None,
        needs_bus: bool = True,
        lease_seconds: float | None = None,
        fence_timeout: float = 60.0,
    ) -> None:
        if isinstance(quota, bool) or not isinstance(quota, int) or quota < 0:
            raise HookUsageError(f"`quota` must be a whole number, 0 or more; got {quota!r}.")
        if not isinstance(refresh_seconds, int | float) or not 0 < refresh_seconds < math.inf:
            raise HookUsageError(f"`refresh_seconds` must be a number above 0; got {refresh_seconds!r}.")
        if environment is None:
            environment = os.environ.get("HOOKLINE_ENVIRONMENT", "")
        if not isinstance(environment, str):
            raise HookUsageError(f"`environment` must be a name, such as 'production'; got {environment!r:.100}.")
        _check_lease(lease_seconds, fence_timeout, store)
        if bus is not None and not isinstance(bus, Bus):
            raise HookUsageError(f"`bus` must be a NatsBus or another subclass of Bus; got {type(bus).__name__}.")
        if not isinstance(alerts, AlertSettings):
            raise HookUsageError(f"`alerts` must be AlertSettings; got {type(alerts).__name__}.")
        self._store = store
        self._recent_calls: RecentCalls | None = None
        self._files = DefinitionFiles(files)
        self._catalog = HandlerCatalog(modules)
        known_scripts = None if scripts is None else Scripts(Path(scripts), script_env)
        ring = KeyRing.from_environment() if keys is None else keys
        self._builder = Builder(
            self._catalog,
            known_scripts,
            ring,
            endpoint_secrets=endpoint_secrets,
            budgets=store,
            bus=getattr(store, "wakeups", None) if bus is None else bus,
            needs_bus=needs_bus,
        )
        self._snapshot = Snapshot(self._builder, environment)
        self._rules = DefinitionRules(builder=self._builder, quota=quota, variables=frozenset(webhook_env))
        self._watch = None if store is None else PolicyWatch(store, self._snapshot, alerts, self.refresh)
        self._fence = Fence(self._snapshot.hooks)
        self._member: FenceMember | None = None
        if store is not None and lease_seconds is not None:
            report = partial(self._set_problem, "lease")
            self._member = FenceMember(store, self._fence, float(lease_seconds), self._read_changes, report)
        self._fence_timeout = float(fence_timeout)
        self._refresh_seconds = float(refresh_seconds)
        self._changes_read = SharedRead(self._read_changes_once)
        self._woken = asyncio.Event()
        self._open = AsyncExitStack()
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._problems: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        """Read the files and the database.

        Raises:
            DefinitionFileError: If a file is broken, since there is no earlier content to keep.
            StoreUnavailableError: If the database cannot be reached.
            HookUsageError: If the registry was opened before.
        """
        if self._task is not None:
            raise HookUsageError("This registry was already opened; create a new one for each `async with`.")
        self._files.have_changed()
        self._snapshot.set_file_definitions(self._files.load(self._builder.build_new))
        if self._store is not None:
            await self._open.enter_async_context(self._store.wakeups.woken(DEFINITIONS, self._woken.set))
        try:
            await (self._read_changes() if self._member is None else self._member.join())
        except BaseException:
            await self._changes_read.aclose(patience=CLOSING)
            await self._open.aclose()
            raise
        if self._member is not None:
            self._member.start()
        self._task = asyncio.create_task(self._follow_changes())
        if self._watch is not None:
            self._watch.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop looking for changes; `hooks` still returns the last known hooks.

        With `lease_seconds`, they deny all calls from now on, also those of operations that are still running.
        """
        if self._watch is not None:
            await self._watch.aclose()
        if self._member is not None and self._task is not None:
            await self._member.leave()
        if self._task is not None:
            await self._open.aclose()
            self._closing = True
            self._woken.set()
            await asyncio.wait([self._task], timeout=CLOSING)  # a query that is cancelled costs its connection
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self._changes_read.aclose(patience=CLOSING)

    @property
    def problems(self) -> tuple[str, ...]:
        """Reasons why the definitions may be out of date: a lost database, or a broken file with its line."""
        return tuple(self._problems.values())

    @property
    def files(self) -> tuple[Path, ...]:
        """The files and folders of definitions that this registry reads."""
        return self._files.paths

    @property
    def environment(self) -> str:
        """The name of the environment of this process; `""` for none."""
        return self._snapshot.environment

    @property
    def quota(self) -> int:
        """Number of definitions that each tenant may store."""
        return self._rules.quota

    def hooks(
        self, tenant_id: str = "", *, operation_id: str | None = None, agent_id: str = "", tags: Collection[str] = ()
    ) -> AnyHooks:
        """Return the hooks for a run of a tenant: the enabled hooks of the system, then the tenant's own.

        Hooks that are only for a share of operations, or for some agents or tags, are among them: a run selects those
        that are for it, and for its sub-agents. Only without a run, as for a `HookDispatcher` of your own, name the
        operation, its agent and its tags to have them selected here.

        Args:
            tenant_id: The tenant for whom the agent runs.
            operation_id: The operation, to return only hooks that are for it; `None` for a run that selects them.
            agent_id: With `operation_id`, the agent of the operation.
            tags: With `operation_id`, the tags of the operation.

        Raises:
            HookUsageError: If the registry was never opened.
        """
        if self._task is None:
            raise HookUsageError(
                "This registry is not open, so its hooks are not known; use `async with Registry(...)`."
            )
        found = self._snapshot.hooks(tenant_id)
        if operation_id is not None:
            return select_hooks(found, operation_id, [agent_id], tags)
        if self._member is None:
            return found
        return [FencedHooks(self._fence, tenant_id, self._snapshot.revision), *found]

    def handlers(self) -> HandlerEntries:
        """List the handlers that definitions may name, except those in the configured modules."""
        return self._catalog.entries()

    def describe_handler(self, reference: str) -> HandlerEntry:
        """Describe a handler, also one in the configured modules, with the JSON schema of its `config`.

        Args:
            reference: Its name, or `module:function`. If definitions may not name it, the entry has a `problem`.
        """
        return self._catalog.describe(reference)

    def tenants(self) -> Tenants:
        """List the tenants that have definitions of their own, or that a system hook names."""
        return self._snapshot.tenants()

    async def get(self, id: str, tenant_id: str | None = None) -> HookDefinition:  # noqa: A002
        """Return a definition as it is stored now, even if another process has just changed it.

        If the database cannot be reached, the last known definition is returned.

        Args:
            id: The id of the definition.
            tenant_id: The tenant that asks: it sees its own definitions and the system's. `None` sees all tenants'.

        Raises:
            DefinitionNotFoundError: If there is no such definition, or it is another tenant's.
            DefinitionConflictError: If several tenants have a definition of that id, and `tenant_id` is `None`.
            StoreUnavailableError: If the database cannot be reached, and no definition of that id is known.
        """
        return self._snapshot.with_problem(await self._read_current(id, tenant_id))

    async def list(
        self,
        tenant_id: str | None = None,
        *,
        cursor: str | None = None,
        limit: int = 50,
        point: str | None = None,
        enabled: bool | None = None,
        text: str | None = None,
    ) -> Page[HookDefinition]:
        """Return a page of definitions: the system's, then the tenant's, each in the order of creation.

        Args:
            tenant_id: The tenant that asks, as for `get`.
            cursor: The cursor of the page before; `None` for the first page.
            limit: Number of definitions at most, up to 1000.
            point: Only definitions at this point.
            enabled: Only enabled definitions, or only disabled ones.
            text: Only definitions with all of these words in their name, id, description, tags, tools, or handler,
                script or URL, in upper or lower case.

        Raises:
            HookUsageError: If the cursor or the limit is invalid.
        """
        return self._snapshot.page(tenant_id, cursor=cursor, limit=limit, point=point, enabled=enabled, text=text)

    async def create(
        self, definition: HookDefinition | Mapping[str, Any], *, actor: str = "", fence: bool = False
    ) -> HookDefinition:
        """Store a new definition, for the tenant that it names.

        Args:
            definition: The definition, or a mapping with its fields.
            actor: Who creates it, for the audit log.
            fence: Whether it takes effect in operations that are running, and in all processes before this returns; see
                `update`.

        Returns:
            The definition as it is stored.

        Raises:
            DefinitionError: If the definition is invalid.
            DefinitionConflictError: If its id, or its name at that point, is taken.
            QuotaError: If the tenant's quota is used up.
            StoreUnavailableError: If the database cannot be reached.
            FenceError: If `fence` is set, and some processes have not confirmed the change in time; it is stored.
            HookUsageError: If `fence` is set, and no process takes part in fenced changes.
        """
        store = self._require_store()
        new = self._rules.check(read_definition(definition))
        new = msgspec.structs.replace(new, id=new.id or f"hook_{os.urandom(6).hex()}")
        async with open_change(store, actor, fence=fence) as change:
            own = await change.read_tenant(new.tenant_id)
            await self._check_id(change, new, own)
            self._check_name(new, own)
            self._rules.check_quota(new.tenant_id, before=len(own), after=len(own) + 1)
            stored = await change.put(new, "create", old=None)
        return await self._take_effect_and_show(change, stored)

    async def update(
        self,
        id: str,  # noqa: A002
        changed: Mapping[str, Any],
        *,
        tenant_id: str | None = None,
        if_revision: int | None = None,
        actor: str = "",
        fence: bool = False,
    ) -> HookDefinition:
        """Change fields of a definition; the result is checked like a new definition.

        Args:
            id: The id of the definition.
            changed: The new values by field name, in snake_case or camelCase.
            tenant_id: The tenant that changes it, which has to own it; `None` may change all definitions.
            if_revision: Change it only if this is its revision.
            actor: Who changes it, for the audit log.
            fence: Return only when no process will judge a call by the old revision. The change then takes effect in
                operations that are running, too: their next calls are judged by the new revision, which the records
                name, and the results of calls that are running by its `after` hooks. Each process whose registry has
                `lease_seconds` has confirmed it, or its lease has ended and it denies calls. Calls that an `around`
                hook of the old revision is inside of are waited for.

        Raises:
            DefinitionError: If the result is invalid, or the definition is read-only: the system's, or in a file.
            DefinitionNotFoundError: If there is no such definition, or it is another tenant's.
            DefinitionConflictError: If its revision is another one, or its name at that point is taken.
            StoreUnavailableError: If the database cannot be reached.
            FenceError: If `fence` is set, and some processes have not confirmed the change in time; it is stored.
            HookUsageError: If `fence` is set, and no process takes part in fenced changes.
        """
        store = self._require_store()
        if not isinstance(changed, Mapping):
            raise DefinitionError("invalid", "$", f"changes must be a mapping of fields; got {type(changed).__name__}")
        fields = normalize_keys(changed)
        for name in READ_ONLY & set(fields):
            raise DefinitionError("read_only", f"$.{name}", f"`{name}` cannot be changed; leave it out")
        async with open_change(store, actor, fence=fence) as change:
            old, own = await self._read_to_change(change, id, tenant_id, if_revision)
            _refuse_file_definition(old)
            new = self._rules.check_change(read_definition({**msgspec.to_builtins(old), **fields}), old)
            self._check_name(new, own)
            stored = await change.put(new, "update", old=old)
        return await self._take_effect_and_show(change, stored)

    async def set_enabled(
        self,
        id: str,  # noqa: A002
        enabled: bool,
        *,
        tenant_id: str | None = None,
        if_revision: int | None = None,
        actor: str = "",
        fence: bool = False,
    ) -> HookDefinition:
        """Enable or disable a definition. For a definition in a file, this outlasts changes of the file.

        Args:
            id: The id of the definition.
            enabled: Whether it takes part in the next run.
            tenant_id: The tenant that changes it, as for `update`.
            if_revision: Change it only if this is its revision.
            actor: Who changes it, for the audit log.
            fence: Whether it takes effect in operations that are running, and in all processes before this returns; see
                `update`.

        Raises:
            DefinitionError: If a tenant tries to change a definition of the system.
            DefinitionNotFoundError: If there is no such definition, or it is another tenant's.
            DefinitionConflictError: If its revision is another one.
            StoreUnavailableError: If the database cannot be reached.
            FenceError: If `fence` is set, and some processes have not confirmed the change in time; it is stored.
            HookUsageError: If `fence` is set, and no process takes part in fenced changes.
        """
        store = self._require_store()
        if not isinstance(enabled, bool):
            raise DefinitionError("invalid", "$.enabled", f"it must be true or false; got {enabled!r:.100}")
        async with open_change(store, actor, fence=fence) as change:
            old, _ = await self._read_to_change(change, id, tenant_id, if_revision)
            new = msgspec.structs.replace(old, enabled=enabled)
            if not old.is_stored:
                stored = await change.switch(new)
            else:
                stored = await change.put(new, "enable" if enabled else "disable", old=old)
        return await self._take_effect_and_show(change, stored)

    async def delete(
        self,
        id: str,  # noqa: A002
        *,
        tenant_id: str | None = None,
        if_revision: int | None = None,
        actor: str = "",
        fence: bool = False,
    ) -> None:
        """Delete a definition.

        Args:
            id: The id of the definition.
            tenant_id: The tenant that deletes it, as for `update`.
            if_revision: Delete it only if this is its revision.
            actor: Who deletes it, for the audit log.
            fence: Whether it takes effect in operations that are running, and in all processes before this returns; see
                `update`.

        Raises:
            DefinitionError: If the definition is read-only: the system's, or in a file.
            DefinitionNotFoundError: If there is no such definition, or it is another tenant's.
            DefinitionConflictError: If its revision is another one.
            StoreUnavailableError: If the database cannot be reached.
            FenceError: If `fence` is set, and some processes have not confirmed the change in time; it is stored.
            HookUsageError: If `fence` is set, and no process takes part in fenced changes.
        """
        async with open_change(self._require_store(), actor, fence=fence) as change:
            old, _ = await self._read_to_change(change, id, tenant_id, if_revision)
            _refuse_file_definition(old)
            await change.remove(old)
        await self._take_effect(change)

    async def revisions(
        self,
        id: str,  # noqa: A002
        tenant_id: str | None = None,
        *,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[DefinitionRevision]:
        """Return a page of the changes of a stored definition, newest first, also of one that was deleted.

        The newest 100 of each definition are kept, and for the last 200 definitions that a tenant has deleted. A
        definition in a file has none: its history is that of the file.

        Args:
            id: The id of the definition.
            tenant_id: The tenant that asks, as for `get`.
            cursor: The cursor of the page before; `None` for the first page.
            limit: Number of revisions at most, up to 1000.

        Raises:
            HookUsageError: If the cursor or the limit is invalid.
            DefinitionNotFoundError: If there is no such definition, or it is another tenant's.
            DefinitionConflictError: If several tenants have one of that id, and `tenant_id` is `None`.
            StoreUnavailableError: If the database cannot be reached.
        """
        check_limit(limit)
        snapshot = self._snapshot
        in_files = {each for each in snapshot.tenants_with(id) if not snapshot.of_tenant(each)[id].is_stored}

        async def read(connection: AsyncConnection) -> Page[DefinitionRevision]:
            known = {*(await find_revised_tenants(connection, id) if is_id(id) else ()), *in_files}
            owner = _choose_owner(id, sorted(known), tenant_id)
            return await read_revision_page(connection, owner, id, cursor=cursor, limit=limit)

        return await self._require_store().read(read)

    async def deleted(
        self, tenant_id: str | None = None, *, cursor: str | None = None, limit: int = 50
    ) -> Page[DefinitionRevision]:
        """Return a page of the definitions that were deleted and can be brought back with `revert`, the last first.

        Args:
            tenant_id: Only definitions of this tenant; `""` for the system's, `None` for all.
            cursor: The cursor of the page before; `None` for the first page.
            limit: Number of definitions at most, up to 1000.

        Raises:
            HookUsageError: If the cursor or the limit is invalid.
            StoreUnavailableError: If the database cannot be reached.
        """
        check_limit(limit)
        return await self._require_store().read(partial(read_deleted, tenant_id=tenant_id, cursor=cursor, limit=limit))

    async def revert(
        self,
        id: str,  # noqa: A002
        revision: int,
        *,
        tenant_id: str | None = None,
        if_revision: int | None = None,
        actor: str = "",
        fence: bool = False,
    ) -> HookDefinition:
        """Make a definition again what it was after a revision; this is a new revision. A deleted one is brought back.

        Args:
            id: The id of the definition.
            revision: One of its `revisions`. That of a deletion has the definition as it was before.
            tenant_id: The tenant that changes it, as for `update`.
            if_revision: Change it only if this is its revision now.
            actor: Who changes it, for the history and the audit log.
            fence: Whether it takes effect in operations that are running, and in all processes before this returns; see
                `update`.

        Returns:
            The definition as it is stored.

        Raises:
            DefinitionError: If the revision is not kept, its definition cannot run any more, or the definition is the
                system's or in a file.
            DefinitionNotFoundError: If there is no such definition, or it is another tenant's.
            DefinitionConflictError: If its revision is another one, or its name or id is taken by now.
            QuotaError: If it was deleted, and the tenant's quota is used up.
            StoreUnavailableError: If the database cannot be reached.
            FenceError: If `fence` is set, and some processes have not confirmed the change in time; it is stored.
            HookUsageError: If `fence` is set, and no process takes part in fenced changes.
        """
        store = self._require_store()
        async with open_change(store, actor, fence=fence) as change:
            owner = await self._find_owner_to_revert(change, id, tenant_id)
            own = await change.read_tenant(owner)
            old = own.get(id)
            found = await change.read_revision(owner, id, revision) if 0 <= revision < 2**63 else None
            if found is None or found.problem:
                problem = "it is not kept, or was written by another version; see the list of revisions"
                raise DefinitionError("invalid", "$.revision", f"revision {revision} cannot be restored: {problem}")
            if if_revision is not None and (old is None or old.revision != if_revision):
                raise _changed_error(id, old)
            if old is None:
                await self._check_id(change, found, own)
                self._rules.check_quota(owner, before=len(own), after=len(own) + 1)
                new = self._rules.check(found)
            else:
                new = self._rules.check_change(found, old)
            self._check_name(new, own)
            stored = await change.put(new, "revert", old=old, restored=revision)
        return await self._take_effect_and_show(change, stored)

    async def _find_owner_to_revert(
        self,
        change: ChangeTransaction,
        id: str,  # noqa: A002
        tenant_id: str | None,
    ) -> str:
        """Return the tenant whose definition of an id is reverted.

        Raises:
            DefinitionNotFoundError: If there is no such definition, or it is another tenant's.
            DefinitionError: If it belongs to the system and a tenant asks, or is in a file.
        """
        snapshot = self._snapshot
        in_files = [each for each in snapshot.tenants_with(id) if not snapshot.of_tenant(each)[id].is_stored]
        known = {*(await change.find_revised_tenants(id) if is_id(id) else ()), *in_files}
        owner = _choose_owner(id, sorted(known), tenant_id)
        _refuse_system_definition(owner, tenant_id)
        if owner in in_files:
            _refuse_file_definition(snapshot.of_tenant(owner)[id])
        return owner

    async def reorder(
        self,
        point: str,
        ids: Sequence[str],
        *,
        tenant_id: str = "",
        if_revisions: Mapping[str, int] | None = None,
        actor: str = "",
        fence: bool = False,
    ) -> Definitions:
        """Have the hooks of an owner at a point run in an order, by changing as few priorities as possible, at once.

        Args:
            point: The point.
            ids: The ids of all definitions of the owner at that point, in the order in which they should run.
            tenant_id: The tenant that owns them; `""` is the system, whose hooks run before those of tenants.
            if_revisions: Change them only if these are their revisions.
            actor: Who changes them, for the history and the audit log.
            fence: Whether it takes effect in operations that are running, and in all processes before this returns; see
                `update`.

        Returns:
            All of them, in their new order.

        Raises:
            DefinitionError: If the order is not possible, since a definition in a file keeps its priority.
            DefinitionConflictError: If the owner has other definitions at that point, or one has another revision.
            StoreUnavailableError: If the database cannot be reached.
            FenceError: If `fence` is set, and some processes have not confirmed the change in time; it is stored.
            HookUsageError: If `fence` is set, and no process takes part in fenced changes.
        """
        store = self._require_store()
        check_tenant_id(tenant_id)
        async with open_change(store, actor, fence=fence) as change:
            own = await change.read_tenant(tenant_id)
            known = {**self._file_definitions(tenant_id), **own}
            here = {each.id: each for each in known.values() if each.point == point}
            _check_same_hooks(here, ids, if_revisions or {})
            wanted = [here[id] for id in ids]  # noqa: A001
            priorities = assign_priorities(wanted)
            stored = [
                await change.put(
                    self._rules.check_change(msgspec.structs.replace(each, priority=priorities[each.id]), each),
                    "reorder",
                    old=each,
                )
                if each.id in priorities
                else each
                for each in wanted
            ]
        await self._take_effect(change)
        return [self._snapshot.with_problem(definition) for definition in stored]

    def _file_definitions(self, tenant_id: str) -> DefinitionsById:
        known = self._snapshot.of_tenant(tenant_id)
        return {id: each for id, each in known.items() if not each.is_stored}  # noqa: A001

    async def matches(
        self, definition: str | HookDefinition | Mapping[str, Any], *, tenant_id: str | None = None
    ) -> CallMatches:
        """Count the stored calls of the last day that a definition is for: its point, tools and tenants.

        At most the newest 10,000 calls are looked at; they are read again after 20 times as long as reading took. It
        does not say what the hook would have decided.

        Args:
            definition: The id of a stored definition, or a definition that need not be stored.
            tenant_id: The tenant that asks, as for `get`; only its calls are counted.

        Raises:
            DefinitionError: If the definition is invalid.
            DefinitionNotFoundError: If there is no such definition, or it is another tenant's.
            StoreUnavailableError: If the database cannot be reached.
        """
        if isinstance(definition, str):
            found = await self._read_current(definition, tenant_id)
        else:
            found = read_definition(definition)
        if self._recent_calls is None:
            self._recent_calls = RecentCalls(self._require_store())
        return await self._recent_calls.match(found, tenant_id)

    async def stored_sample(
        self,
        definition: str | HookDefinition | Mapping[str, Any],
        operation_id: str,
        number: int,
        *,
        tenant_id: str | None = None,
    ) -> dict[str, Any]:
        """Read a stored call or event as a sample for `dry_run`.

        Args:
            definition: The id of a stored definition, or a definition that need not be stored.
            operation_id: The id of the operation.
            number: The number of its event: for hooks of tool calls, that of a `beforeToolCall`.
            tenant_id: The tenant that asks, as for `get`; only its calls are found.

        Raises:
            DefinitionError: If the call is not stored, is another tenant's, or does not fit the definition's point.
            DefinitionNotFoundError: If there is no such definition, or it is another tenant's.
            StoreUnavailableError: If the database cannot be reached.
        """
        if isinstance(definition, str):
            found = await self._read_current(definition, tenant_id)
        else:
            found = read_definition(definition)
        return await read_stored_sample(self._require_store(), found, operation_id, number, tenant_id)

    async def apply(
        self,
        definitions: Sequence[HookDefinition | Mapping[str, Any]],
        *,
        tenant_id: str = "",
        prune: bool = False,
        actor: str = "",
        fence: bool = False,
    ) -> Definitions:
        """Store many definitions of a tenant atomically.

        A definition with the id, or with the name and the point, of a stored one replaces it.

        Args:
            definitions: The definitions, or mappings with their fields.
            tenant_id: The tenant that owns them; `""` is the system.
            prune: Whether to delete the tenant's other stored definitions.
            actor: Who stores them, for the audit log.
            fence: Whether it takes effect in operations that are running, and in all processes before this returns; see
                `update`.

        Returns:
            The definitions as they are stored, in the same order.

        Raises:
            DefinitionError: If a definition is invalid; `path` begins with `$[n]`.
            DefinitionConflictError: If an id is taken.
            QuotaError: If the tenant would exceed its quota.
            StoreUnavailableError: If the database cannot be reached.
            FenceError: If `fence` is set, and some processes have not confirmed the change in time; it is stored.
            HookUsageError: If `fence` is set, and no process takes part in fenced changes.
        """
        store = self._require_store()
        wanted = self._check_batch(definitions, tenant_id)
        async with open_change(store, actor, fence=fence) as change:
            plan = await self._make_plan(change, wanted, tenant_id=tenant_id, prune=prune)
            stored = await _carry_out(change, plan)
        await self._take_effect(change)
        return [self._snapshot.with_problem(definition) for definition in stored]

    async def plan(
        self,
        definitions: Sequence[HookDefinition | Mapping[str, Any]],
        *,
        tenant_id: str = "",
        prune: bool = False,
    ) -> DefinitionPlan:
        """Say what `apply` would change, without changing anything.

        Args:
            definitions: The definitions, or mappings with their fields.
            tenant_id: The tenant that owns them; `""` is the system.
            prune: Whether the tenant's other stored definitions would be deleted.

        Raises:
            DefinitionError: As for `apply`, like the errors that follow.
            DefinitionConflictError: If an id is taken.
            QuotaError: If the tenant would exceed its quota.
            StoreUnavailableError: If the database cannot be reached.
        """
        store = self._require_store()
        wanted = self._check_batch(definitions, tenant_id)
        async with store.reading() as connection:
            return await self._make_plan(DefinitionRows(connection), wanted, tenant_id=tenant_id, prune=prune)

    async def apply_plan(
        self, plan: DefinitionPlan, *, actor: str = "", file: str = "", fence: bool = False
    ) -> Definitions:
        """Carry out a plan of `plan` atomically, unless something has changed since it was made.

        Args:
            plan: The plan.
            actor: Who carries it out, for the audit log.
            file: The file that the definitions come from, for the audit log and their `source`.
            fence: Whether it takes effect in operations that are running, and in all processes before this returns; see
                `update`.

        Returns:
            All definitions of the plan as they are stored, in its order.

        Raises:
            DefinitionConflictError: If a definition was created, changed or deleted meanwhile; nothing was changed.
            QuotaError: If the tenant would exceed its quota.
            StoreUnavailableError: If the database cannot be reached.
            FenceError: If `fence` is set, and some processes have not confirmed the change in time; it is stored.
            HookUsageError: If `fence` is set, and no process takes part in fenced changes.
        """
        async with open_change(self._require_store(), actor, file=file, fence=fence) as change:
            now = await self._make_plan(change, plan.definitions, tenant_id=plan.tenant_id, prune=plan.prune, made=plan)
            stored = await _carry_out(change, now)
        await self._take_effect(change)
        return [self._snapshot.with_problem(definition) for definition in stored]

    def _check_batch(self, definitions: Sequence[GivenDefinition], tenant_id: str) -> Definitions:
        check_tenant_id(tenant_id)
        return [self._rules.check_batch_entry(each, tenant_id, nth) for nth, each in enumerate(definitions)]

    async def _make_plan(
        self,
        rows: DefinitionRows,
        wanted: Definitions,
        *,
        tenant_id: str,
        prune: bool,
        made: DefinitionPlan | None = None,
    ) -> DefinitionPlan:
        """Plan to store checked definitions of a tenant.

        Args:
            rows: The stored definitions.
            wanted: The definitions.
            tenant_id: The tenant.
            prune: Whether to delete its other definitions.
            made: The plan that was made before, which this one has to equal.
        """
        own = await rows.read_tenant(tenant_id)
        plan = make_plan(wanted, own, tenant_id=tenant_id, prune=prune)
        if made is not None:
            check_plan(made, plan)
        before = len(own)
        if prune:
            own = {id: each for id, each in own.items() if id in {definition.id for definition in plan.definitions}}  # noqa: A001
        for definition in plan.definitions:
            if not plan.revisions[definition.id]:
                await self._check_id(rows, definition, own)
            own[definition.id] = definition
        for definition in plan.definitions:
            self._check_name(definition, own)
        self._rules.check_quota(tenant_id, before=before, after=len(own))
        return plan

    async def test_file(self, file: Path | HookFile, *, timeout: float = 5.0) -> HookTestResults:
        """Run the tests of a file of definitions with new hooks; nothing is logged, counted, stored or delivered.

        Remote hooks are asked over the bus. Without one, if the registry does not need it, tests that would ask are not
        run.

        Args:
            file: The file, or its content from `load_hook_file`. Its hooks need not be stored.
            timeout: Seconds that each hook without a `timeout` may take.

        Returns:
            A result for each test, in the order of the file; none if it has no tests.

        Raises:
            DefinitionFileError: If the file cannot be read, or a definition or a test in it is invalid.
        """
        read = load_hook_file(file) if isinstance(file, Path) else file
        check_buildable(read, self._builder.build_new)
        check_unique([read])
        return [await run_hook_test(self._builder, test, timeout=timeout) for test in read_hook_tests(read)]

    async def dry_run(
        self,
        definition: str | HookDefinition | Mapping[str, Any],
        sample: Call | Event | Mapping[str, Any],
        *,
        tenant_id: str | None = None,
        timeout: float = 5.0,
    ) -> DryRun:
        """Try a definition out on a sample, with a new hook; nothing is logged, counted, stored or sent.

        Args:
            definition: The id of a stored definition, or a definition that need not be stored.
            sample: The call or the event, or a mapping with some of its fields; others are filled in. For a hook after
                a call, `result` has fields of the call's result. A webhook's payload is shown, not sent. If it names a
                tenant, an agent or an operation that the hook is not for, the hook is not called.
            tenant_id: The tenant that asks, as for `get`.
            timeout: Seconds that the hook may take.

        Raises:
            DefinitionError: If the definition is invalid, or the sample does not fit its point.
            DefinitionNotFoundError: If there is no such definition, or it is another tenant's.
            StoreUnavailableError: As for `get`.
        """
        if isinstance(definition, str):
            tried = await self._read_current(definition, tenant_id)
        else:
            tried = self._rules.check(read_definition(definition))
        lineage = await self._read_lineage(tried, find_operation_id(sample))
        return await dry_run(self._builder, tried, sample, timeout=timeout, lineage=lineage)

    async def _read_lineage(self, definition: HookDefinition, operation_id: str) -> OperationLineage | None:
        """Read by whom the operation of a sample was called, if that matters and the operation is stored."""
        if definition.scope is None or not operation_id or self._store is None:
            return None
        found = (await self._store.read(partial(read_lineages, operation_ids=[operation_id]))).get(operation_id)
        return found if found is not None and found.agent_ids else None

    async def check_policies(self) -> None:
        """Look at the statistics of policies now, as the registry does every few seconds while it is open.

        A hook beyond the limits of its `shadow_above` is put into shadow mode. A shadow hook whose rate of denials has
        changed raises an alert. Statistics are those that `ExecutionLog`s of all processes have written.

        Raises:
            HookUsageError: If the registry has no store.
            StoreUnavailableError: If the database cannot be reached.
        """
        self._require_store()
        assert self._watch is not None
        await self._watch.check()

    @property
    def raised_alerts(self) -> Mapping[str, int]:
        """Number of alerts that this process has raised: `"fallback"` and `"rate"`; see `PolicyAlert`."""
        raised = {} if self._watch is None else self._watch.raised
        return {kind: raised.get(kind, 0) for kind in ALERT_KINDS}

    async def alerts(
        self,
        tenant_id: str | None = None,
        *,
        hook_id: str | None = None,
        since: float | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[PolicyAlert]:
        """Return a page of the alerts of policies that all processes have raised, newest first.

        They are kept for 30 days, or as long as the execution log if that is longer.

        Args:
            tenant_id: Only alerts of definitions of this tenant; `""` for the system's, `None` for all.
            hook_id: Only alerts of this definition.
            since: Only alerts that were raised at this time or later, in unix seconds.
            cursor: The cursor of the page before; `None` for the first page.
            limit: Number of alerts at most, up to 1000.

        Raises:
            HookUsageError: If the time, the cursor or the limit is invalid, or the registry has no store.
            StoreUnavailableError: If the database cannot be reached.
        """
        check_limit(limit)
        if since is not None:
            first_key(since)
        query = partial(read_alerts, tenant_id=tenant_id, hook_id=hook_id, since=since, cursor=cursor, limit=limit)
        return await self._require_store().read(query)

    async def backtest(
        self,
        definition: str | HookDefinition | Mapping[str, Any],
        *,
        tenant_id: str | None = None,
        agent_id: str | None = None,
        tool: str | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int | None = None,
        timeout: float | None = None,
        labels: Iterable[CallLabel] = (),
        examples: int = 5,
        allow_webhooks: bool = False,
        on_progress: Callable[[Backtest], None] | None = None,
        scope: anyio.CancelScope | None = None,
    ) -> Backtest:
        """Run a definition over stored calls, and say what it would have decided about each.

        The calls of an operation are judged in order, at their final arguments, by hooks that are built anew for each
        operation; those of the newest operation first. No tool runs, nothing is stored, logged or counted, and nobody
        is asked. Whatever the handler itself does, it does.

        A `limit-calls` per tenant or time, and a `budget` per user, tenant, agent or tool, judge the calls of all
        operations in the order of time, by counts that begin with the first operation that is looked at.

        Args:
            definition: The id of a stored definition, or a definition that need not be stored.
            tenant_id: The tenant that asks, as for `get`; only its calls are judged.
            agent_id: Only calls of this agent.
            tool: Only calls of the tools that match this glob count; hooks see the others, too.
            since: Only operations that began at this time or later, in unix seconds.
            until: Only operations that began before this time, in unix seconds; now by default.
            limit: Number of calls to judge at most.
            timeout: Seconds that the whole may take; then the result is of what was judged by then.
            labels: People's labels of the calls, to compare with; see `read_call_labels`.
            examples: Number of examples of each kind.
            allow_webhooks: Whether the receiver of a control webhook is asked about each call.
            on_progress: Called with the counts so far, at the beginning and after every 100 operations. The object is
                the same each time, and its counts grow meanwhile.
            scope: A scope that nobody has entered. Cancel it to end the backtest with what was judged so far.

        Raises:
            DefinitionError: If the definition is invalid, or cannot be judged on stored calls.
            DefinitionNotFoundError: If there is no such definition, or it is another tenant's.
            HookUsageError: If a number is invalid.
            StoreUnavailableError: If the database cannot be reached.
        """
        if isinstance(definition, str):
            judged = await self._read_current(definition, tenant_id)
        else:
            judged = self._rules.check(read_definition(definition))
        query = BacktestQuery(
            tenant_id=tenant_id,
            agent_id=agent_id,
            tool=tool,
            since=since,
            until=until,
            limit=limit,
            timeout=timeout,
            labels=tuple(labels),
            examples=examples,
            allow_webhooks=allow_webhooks,
        )
        return await run_backtest(self._require_store(), self._builder, judged, query, on_progress, scope)

    async def refresh(self) -> None:
        """Look for changes now. Errors are logged once, and the last known definitions stay in force."""
        await self._refresh_stored()
        self._refresh_files()

    async def _refresh_stored(self) -> None:
        """Look for changes in the database."""
        self._woken.clear()
        try:
            await self._read_changes()
        except StoreUnavailableError as error:
            self._set_problem("store", f"the last known definitions stay active: {message_of(error)}")
        except Exception as error:
            if "store" not in self._problems:
                logger.debug("Reading changes from the database failed", exc_info=True)
            self._set_problem("store", f"checking for changes failed: {type(error).__name__}: {message_of(error)}")
        else:
            self._set_problem("store", "")

    def _refresh_files(self) -> None:
        """Look for changes of the files; this costs no query."""
        try:
            if self._files.have_changed():
                self._snapshot.set_file_definitions(self._files.load(self._builder.build_new))
                self._set_problem("files", "")
        except Exception as error:  # one that escaped would silently end the task that looks for changes
            if not isinstance(error, DefinitionFileError):
                logger.debug("Reading the files failed", exc_info=True)
            self._set_problem("files", f"the previous definitions of all files stay active: {message_of(error)}")

    async def _read_changes(self) -> None:
        """Read what has changed in the database, in a read that begins after this call.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        if self._store is not None:
            await self._changes_read.share()

    async def _read_changes_once(self) -> None:
        store = self._require_store()
        try:
            async with asyncio.timeout(LONGEST_REFRESH):
                changes = await read_changes(store, self._snapshot.revision, self._snapshot.stored_keys)
        except TimeoutError as error:
            problem = f"reading the definitions took longer than {LONGEST_REFRESH:g} s"
            raise StoreUnavailableError(repr(store), problem) from error
        if changes is not None:
            self._snapshot.apply_changes(changes)
            self._fence.advance(changes.revision, changes.fenced)
            if changes.fenced and self._member is not None:
                self._member.note_change()

    async def _follow_changes(self) -> None:
        """Look for changes in the database when woken, and for changes of the files again and again."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._refresh_seconds):
                    await self._woken.wait()
            if self._closing:
                return
            if self._woken.is_set() or "store" in self._problems:
                await self._refresh_stored()
            self._refresh_files()

    async def _take_effect(self, change: ChangeTransaction) -> None:
        """Have a change that was committed take effect here, and in all processes if it is fenced.

        Raises:
            FenceError: If some have not confirmed it in time.
        """
        await self.refresh()
        if change.fence:
            await wait_for_members(self._require_store(), change.revision, self._fence_timeout)

    async def _take_effect_and_show(self, change: ChangeTransaction, stored: HookDefinition) -> HookDefinition:
        await self._take_effect(change)
        return self._snapshot.with_problem(stored)

    def _set_problem(self, part: str, problem: str) -> None:
        before = self._problems.pop(part, "")
        if problem:
            self._problems[part] = problem
            # A lost database fails with varying messages; a file gets another error only if it was written again.
            if not before or (part == "files" and problem != before):
                logger.error("Registry: %s", problem)
        elif before:
            logger.info("Registry: up to date again")

    def _require_store(self) -> SqlStore:
        if self._store is None:
            raise HookUsageError("This registry has no store; give it one: Registry(SqlStore(...)).")
        return self._store

    async def _read_current(self, id: str, tenant_id: str | None) -> HookDefinition:  # noqa: A002
        """Return the definition that a tenant sees under an id, after reading changes from the database.

        Another process may have changed it a moment ago, and its caller may ask this process next.
        """
        try:
            await self._read_changes()
        except StoreUnavailableError as error:
            try:
                return self._find(id, tenant_id)
            except DefinitionNotFoundError:
                raise error from None
        return self._find(id, tenant_id)

    def _find(self, id: str, tenant_id: str | None) -> HookDefinition:  # noqa: A002
        """Return the known definition that a tenant sees under an id.

        Raises:
            DefinitionNotFoundError: If there is none.
            DefinitionConflictError: If several tenants have one.
        """
        snapshot = self._snapshot
        if tenant_id is None:
            tenants = snapshot.tenants_with(id)
        else:
            tenants = [each for each in (tenant_id, "") if id in snapshot.of_tenant(each)]
        if not tenants:
            raise DefinitionNotFoundError(id)
        if tenant_id is None and len(tenants) > 1:
            raise DefinitionConflictError(id, SEVERAL_TENANTS)
        return snapshot.of_tenant(tenants[0])[id]

    async def _read_to_change(
        self,
        change: ChangeTransaction,
        id: str,  # noqa: A002
        tenant_id: str | None,
        if_revision: int | None,
    ) -> tuple[HookDefinition, DefinitionsById]:
        """Read the definition that a tenant wants to change, and all stored definitions of its owner.

        Raises:
            DefinitionNotFoundError: If there is no such definition, or it is another tenant's.
            DefinitionConflictError: If its revision is another one.
            DefinitionError: If a tenant wants to change a definition of the system.
        """
        tenants = await change.find_tenants(id) if is_id(id) else []
        snapshot = self._snapshot
        tenants += [each for each in snapshot.tenants_with(id) if not snapshot.of_tenant(each)[id].is_stored]
        if tenant_id is not None:
            tenants = [each for each in (tenant_id, "") if each in tenants][:1]
        if not tenants:
            raise DefinitionNotFoundError(id)
        if len(set(tenants)) > 1:
            raise DefinitionConflictError(id, SEVERAL_TENANTS)
        owner = tenants[0]
        _refuse_system_definition(owner, tenant_id)
        own = await change.read_tenant(owner)
        in_file = snapshot.of_tenant(owner).get(id)
        old = own[id] if in_file is None or in_file.is_stored else await change.apply_switch(in_file)
        if if_revision is not None and old.revision != if_revision:
            raise _changed_error(id, old)
        return old, own

    async def _check_id(
        self, change: DefinitionRows, definition: HookDefinition, own: Mapping[str, HookDefinition]
    ) -> None:
        """Raise if the tenant, or the system whose hooks it sees, has a definition of that id.

        Of the snapshot, only definitions of files count: another process may just have deleted a stored one.
        """
        seen = [self._snapshot.of_tenant(tenant).get(definition.id) for tenant in (definition.tenant_id, "")]
        taken = definition.id in own or any(each is not None and not each.is_stored for each in seen)
        if taken or "" in await change.find_tenants(definition.id):
            raise DefinitionConflictError(definition.id, "this id is taken; leave the id out to have one generated")

    def _check_name(self, definition: HookDefinition, own: Mapping[str, HookDefinition]) -> None:
        """Raise if another definition of the tenant has the same name at the same point."""
        known = self._snapshot.of_tenant(definition.tenant_id).values()
        for other in (*own.values(), *(each for each in known if not each.is_stored)):
            same = other.point == definition.point and other.name == definition.name
            if same and other.id != definition.id:
                problem = f"{other.id!r} at {other.point} already has the name {other.name!r}; choose another name"
                raise DefinitionConflictError(definition.id, problem)


def _check_lease(lease_seconds: float | None, fence_timeout: float, store: SqlStore | None) -> None:
    """Refuse a lease with which no process could take part in fenced changes.

    Raises:
        HookUsageError: If so.
    """
    given: dict[str, object] = {"fence_timeout": fence_timeout}
    if lease_seconds is not None:
        given["lease_seconds"] = lease_seconds
        if store is None:
            raise HookUsageError("`lease_seconds` needs a store, by which processes agree; give one, or leave it out.")
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise HookUsageError(f"`{name}` must be a number of seconds above 0; got {value!r:.100}.")


SEVERAL_TENANTS = "several tenants have a definition with this id; name the tenant"


def _changed_error(id: str, old: HookDefinition | None) -> DefinitionConflictError:  # noqa: A002
    """Build the error for a definition that has another revision than the expected one."""
    if old is None:
        return DefinitionConflictError(id, "it was deleted in the meantime; read it again", 0)
    problem = f"it was changed in the meantime and has revision {old.revision}; read it again"
    return DefinitionConflictError(id, problem, old.revision)


def _choose_owner(id: str, tenants: Sequence[str], tenant_id: str | None) -> str:  # noqa: A002
    """Return whose definition of an id is meant: the tenant's own, else the system's.

    Raises:
        DefinitionNotFoundError: If neither has one.
        DefinitionConflictError: If several tenants have one, and none is named.
    """
    if tenant_id is not None:
        tenants = [each for each in (tenant_id, "") if each in tenants][:1]
    if not tenants:
        raise DefinitionNotFoundError(id)
    if len(tenants) > 1:
        raise DefinitionConflictError(id, SEVERAL_TENANTS)
    return tenants[0]


def _check_same_hooks(here: DefinitionsById, ids: Sequence[str], if_revisions: Mapping[str, int]) -> None:
    """Raise if an order does not name just the definitions at its point, or one has changed meanwhile.

    Raises:
        DefinitionConflictError: If so.
    """
    for id, definition in here.items():  # noqa: A001
        if id not in ids:
            problem = f"{definition.name!r} stands at this point too; read the order again"
            raise DefinitionConflictError(id, problem, definition.revision)
    for id in ids:  # noqa: A001
        found = here.get(id)
        if found is None or ids.count(id) > 1:
            problem = "it is not at this point any more, or is named twice; read the order again"
            raise DefinitionConflictError(id, problem, 0 if found is None else found.revision)
        if found.revision != if_revisions.get(id, found.revision):
            raise _changed_error(id, found)


def _refuse_system_definition(owner: str, tenant_id: str | None) -> None:
    if tenant_id is not None and owner != tenant_id:
        raise DefinitionError("read_only", "$.tenantId", "it belongs to the system, so a tenant cannot change it")


def _refuse_file_definition(definition: HookDefinition) -> None:
    if not definition.is_stored:
        problem = f"it is defined in {definition.source}; change it there. Here you can only enable and disable it"
        raise DefinitionError("read_only", "$.source", problem)


async def _carry_out(change: ChangeTransaction, plan: DefinitionPlan) -> Definitions:
    """Make the changes of a plan, and return its definitions as they are stored."""
    own = await change.read_tenant(plan.tenant_id)
    for planned in plan.changes:
        if planned.action == "delete":
            await change.remove(own[planned.definition.id])
        else:
            old = own.get(planned.definition.id)
            own[planned.definition.id] = await change.put(planned.definition, planned.action, old=old)
    return [own[definition.id] for definition in plan.definitions]
