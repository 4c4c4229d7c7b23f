"""Build hooks from definitions: a bundle of a handler or script, or a webhook; or the reason why it cannot run."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from hookline._hook_scopes import HookScope
from hookline.budgets import BudgetStore
from hookline.bus import SECRET_VARIABLE, Bus, ask_about, check_secret, remote
from hookline.calls import Ask, Call, Deny, Respond
from hookline.delivery import ENVIRONMENT_KEY, InProcess, KeyRing
from hookline.errors import HookDefinitionError, HookUsageError, message_of
from hookline.events import EVENTS, HookType
from hookline.hooks import (
    AnyHook,
    Hook,
    Hooks,
    Interceptor,
    check_hook,
    check_interceptor,
    copy_bundle,
    meets_approved,
)
from hookline.registry._catalog import BUILT_IN, HandlerCatalog
from hookline.registry._definition import HookDefinition, Point, RemoteTarget, point_of
from hookline.registry._errors import DefinitionError
from hookline.registry._scripts import Scripts
from hookline.webhooks import Webhook

__all__ = ["Builder", "BuiltHook"]

logger = logging.getLogger("hookline")

UNUSED_FIELDS = frozenset(
    {
        *("name", "description", "enabled", "exceptTenants", "tags"),
        *("tenants", "agents", "operationTags", "environments", "percent", "shadowAbove"),
        *("source", "revision", "createdAt", "updatedAt", "problem"),
    }
)
"""Fields that do not reach the handler: if only these change, it stays the same and keeps its counters."""
MOST_KEYS = 10_000
"""How many definitions have their cache keys kept."""


class BuiltHook(NamedTuple):
    """The hook of a definition in this process.

    Attributes:
        hook: The hook for runs; `None` if the definition is left out.
        problem: Why the definition cannot run here; `""` if it can.
    """

    hook: AnyHook | None
    problem: str = ""


class IssuedHook(NamedTuple):
    """A hook as it was last given to runs.

    Attributes:
        built: The hook with the handler.
        revision: The revision of the definition.
        scope: The operations that it is for.
        hook: What runs got.
    """

    built: AnyHook
    revision: int
    scope: HookScope | None
    hook: AnyHook


class Builder:
    """Builds hooks from definitions and caches them, so that a hook keeps its counters over unrelated changes.

    Args:
        catalog: The handlers that definitions may name.
        scripts: The scripts that definitions may name.
        keys: The keys that sign the deliveries of this process.
        endpoint_secrets: Whether secrets of endpoints sign for hooks that name no key.
        budgets: Keeps the counts of budgets for the hooks of runs; `None` for counts of this process.
        bus: Carries the questions of remote hooks, if it is a bus.
        needs_bus: Whether definitions of remote hooks are refused without one.

    Attributes:
        unasked: The names of processes that could not be asked for lack of a bus.
    """

    def __init__(
        self,
        catalog: HandlerCatalog,
        scripts: Scripts | None,
        keys: KeyRing,
        *,
        endpoint_secrets: bool = False,
        budgets: BudgetStore | None = None,
        bus: object = None,
        needs_bus: bool = True,
    ) -> None:
        self._catalog = catalog
        self._scripts = scripts
        self._keys = keys
        self._endpoint_secrets = endpoint_secrets
        self._budgets = budgets
        self._bus, self._needs_bus = bus, needs_bus
        self.unasked: list[str] = []
        self._cache: dict[bytes, BuiltHook] = {}
        self._issued: dict[bytes, IssuedHook] = {}
        self._known_keys: dict[int, tuple[HookDefinition, bytes]] = {}

    def renew(self) -> Builder:
        """Return a builder with the same handlers, scripts and keys, whose hooks share no state with this one's."""
        return Builder(
            self._catalog,
            self._scripts,
            self._keys,
            endpoint_secrets=self._endpoint_secrets,
            bus=self._bus,
            needs_bus=self._needs_bus,
        )

    def build_new(
        self,
        definition: HookDefinition,
        *,
        budgets: BudgetStore | None = None,
        clock: Callable[[], float] | None = None,
    ) -> AnyHook:
        """Build a new hook from a checked definition, without the cache.

        Args:
            definition: The definition.
            budgets: Keeps the counts of budgets. By default, a budget counts nothing but its own calls, so that a hook
                which is only tried does not use up what runs share.
            clock: Returns the time in seconds for hooks that count calls in a time; `None` for the time of now.

        Raises:
            DefinitionError: If it cannot be built.
        """
        try:
            return self._build(definition, point_of(definition), budgets, clock)
        except HookDefinitionError as error:
            raise DefinitionError("point_not_served", "$", f"{error.where}: {error.problem}") from None

    def _build(
        self,
        definition: HookDefinition,
        point: Point,
        budgets: BudgetStore | None,
        clock: Callable[[], float] | None,
    ) -> AnyHook:
        if definition.webhook is not None and point.event is not None:
            return Hook(
                id=definition.id,
                type=point.event,
                tool=definition.tool,
                webhook=definition.webhook,
                tenant_id=definition.tenant_id,
                inherit=definition.inherits,
                shadow=definition.mode == "shadow",
            )
        if definition.script is not None:
            if self._scripts is None:
                problem = "this process has no folder of scripts; pass `scripts`"
                raise DefinitionError("script_refused", "$.script", problem)
            return _build_bundle(definition, point, self._scripts.build_handler(definition, point), spare=1.0)
        if definition.remote is not None and point.event is not None:
            return _build_remote_observers(definition, point, definition.remote)
        if definition.remote is not None:
            return self._build_remote(definition, point, definition.remote)
        made = self._catalog.build(definition, budgets=budgets, clock=clock)
        if isinstance(made, Hooks):
            return _adapt_bundle(made, definition, point)
        return _build_bundle(definition, point, made)

    def _build_remote(self, definition: HookDefinition, point: Point, target: RemoteTarget) -> Hooks:
        """Build the bundle of a remote hook, which also judges calls that a person has approved.

        Raises:
            DefinitionError: If there is no bus and one is needed, or the secret that signs is invalid.
        """
        bus = self._bus if isinstance(self._bus, Bus) else None
        if bus is None and self._needs_bus:
            found = "has none" if self._bus is None else f"wakes up with {type(self._bus).__name__}, which cannot ask"
            problem = f"a remote hook needs a bus, and the store of this registry {found}; give the store "
            raise DefinitionError("remote_refused", "$.remote", problem + "`wakeups=NatsBus(...)`")
        try:
            secret = check_secret(os.environ.get(SECRET_VARIABLE, "").split() or None)
        except HookUsageError as error:
            raise DefinitionError("remote_refused", "$.remote", f"{SECRET_VARIABLE}: {error}") from None

        async def ask(call: Call) -> Call | Respond | Deny | Ask | None:
            if bus is None:
                self.unasked.append(target.name)
                raise HookUsageError(
                    f"This process has no bus on which it could ask {target.name!r}. Set HOOKLINE_BUS for a command; "
                    "in a program, give the registry its `bus`."
                )
            return await ask_about(call, bus, target.name, deadline=target.deadline, secret=secret)

        asking = msgspec.structs.replace(definition, timeout=target.deadline + 1.0)  # later, so that the bus says why
        bundle = _build_bundle(asking, point, ask)
        bundle.interceptors = tuple(map(meets_approved, bundle.interceptors))
        return bundle

    def is_built_in(self, definition: HookDefinition) -> bool:
        """Return whether the handler of a definition is one of hookline's own."""
        return definition.handler in BUILT_IN

    def make_delivery(self) -> InProcess:
        """Make a delivery that asks the receivers of controls from this process, signed with its keys."""
        return InProcess(keys=self._keys)

    def get_or_build(self, definition: HookDefinition) -> BuiltHook:
        """Return the cached hook of a checked definition, which is built at its first use."""
        key = self._cache_key(definition)
        built = self._cache.get(key)
        if built is None:
            try:
                if definition.problem:
                    raise DefinitionError("unreadable", "$", definition.problem)
                built = BuiltHook(self.build_new(definition, budgets=self._budgets))
            except Exception as error:
                problem = error.problem if isinstance(error, DefinitionError) else message_of(error)
                logger.error("Hook definition %r (%s) cannot run here: %s", definition.id, definition.name, problem)
                built = BuiltHook(build_refusing_guard(definition, problem), problem)
            self._cache[key] = built
        return built

    def issue(self, definition: HookDefinition) -> AnyHook | None:
        """Return the hook of a checked definition for runs, which names its revision and its operations.

        It is the same object as long as neither changes, and the handler of `get_or_build`, with its counters, as long
        as that one does.
        """
        hook = self.get_or_build(definition).hook
        if hook is None:
            return None
        key, revision, scope = self._cache_key(definition), definition.revision, definition.scope
        known = self._issued.get(key)
        if known is not None and known.built is hook and known.revision == revision and known.scope == scope:
            return known.hook
        issued: AnyHook
        if isinstance(hook, Hooks):
            issued = copy_bundle(hook, revision=revision, scope=scope)
        else:
            assert isinstance(hook, Hook)  # a definition is built as a bundle, or as a hook with a webhook
            issued = msgspec.structs.replace(hook, revision=revision, scope=scope)
        self._issued[key] = IssuedHook(hook, revision, scope, issued)
        return issued

    def find_problem(self, definition: HookDefinition) -> str:
        """Return why a checked definition cannot run in this process; `""` if it can."""
        problem = self.get_or_build(definition).problem
        if not problem and definition.script is not None and self._scripts is not None:
            return self._scripts.find_problem(definition.script)
        if not problem and definition.webhook is not None:
            return self._find_missing_key(definition.webhook)
        return problem

    def _find_missing_key(self, webhook: Webhook) -> str:
        """Return why this process cannot sign deliveries of a webhook; `""` if it can, or need not."""
        if urlsplit(webhook.url).scheme == "local" or self._keys.signs(webhook.key):
            return ""
        if self._endpoint_secrets and not webhook.key:
            return ""
        variable = ENVIRONMENT_KEY + (f"_{webhook.key.upper()}" if webhook.key else "")
        return f"this process has no key that signs its deliveries; set {variable}, or give the registry its `keys`"

    def discard(self, definition: HookDefinition, *, but: HookDefinition | None) -> None:
        """Remove the hook of a definition from the cache, unless its new version `but` shares it."""
        key = self._cache_key(definition)
        if but is None or self._cache_key(but) != key:
            self._cache.pop(key, None)
            self._issued.pop(key, None)

    def _cache_key(self, definition: HookDefinition) -> bytes:
        """Return what is equal for definitions that build the same hook.

        It is kept for each object: otherwise it would take a fifth of the time in which a server lists definitions.
        """
        known = self._known_keys.get(id(definition))
        if known is not None and known[0] is definition:
            return known[1]
        wire = msgspec.to_builtins(definition)
        key = msgspec.json.encode({name: value for name, value in wire.items() if name not in UNUSED_FIELDS})
        if len(self._known_keys) >= MOST_KEYS:
            self._known_keys.clear()
        self._known_keys[id(definition)] = definition, key
        return key


def build_refusing_guard(definition: HookDefinition, problem: str) -> AnyHook | None:
    """Build a guard that denies all calls of an interceptor that cannot run and fails closed; else return `None`.

    A guard also judges calls that a person has approved, and it denies a call before it runs, where the failure of an
    `after` hook would only withhold the result.
    """
    point = point_of(definition)
    if point.call is None or definition.on_error == "open":
        return None
    answer = Deny(f"the hook {definition.name!r} cannot run, so the call was denied (onError is 'closed'): {problem}")

    def refuse(call: Call) -> Deny:
        return answer

    bundle = _empty_bundle(definition)
    bundle.guard(point.call, tool=definition.tool, id=definition.id)(refuse)
    return bundle


def _empty_bundle(definition: HookDefinition) -> Hooks:
    bundle = Hooks(
        definition.id,
        priority=definition.priority,
        tenant_id=definition.tenant_id,
        inherit=definition.inherits,
        shadow=definition.mode == "shadow",
    )
    bundle.from_definition = True
    return bundle


def _build_bundle(
    definition: HookDefinition, point: Point, handler: Callable[..., Any], *, spare: float = 0.0
) -> Hooks:
    """Build a bundle with a single hook.

    Args:
        definition: The definition.
        point: The point of the hook.
        handler: The function that the hook calls.
        spare: Seconds added to the definition's `timeout`, so that the handler itself reports that it timed out.
    """
    bundle = _empty_bundle(definition)
    options: dict[str, Any] = {"tool": definition.tool, "id": definition.id}
    if definition.timeout is not None or spare:
        options["timeout"] = Scripts.timeout_of(definition) + spare if spare else definition.timeout
    if point.event is not None:
        bundle.on(point.event, **options)(handler)
    else:
        getattr(bundle, point.kind or "")(point.call, on_error=definition.on_error, **options)(handler)
    return bundle


def _build_remote_observers(definition: HookDefinition, point: Point, target: RemoteTarget) -> Hooks:
    """Build the bundle of remote observers; a run that keeps no events for them refuses it."""
    names = [point.name, *target.events]
    bundle = remote(
        target.name,
        observes=True,
        events=None if "*" in names else [EVENTS[HookType(name)] for name in names],
        tenant_id=definition.tenant_id,
        inherit=definition.inherits,
    )
    bundle.id, bundle.from_definition = definition.id, True
    return bundle


def _adapt_bundle(made: Hooks, definition: HookDefinition, point: Point) -> Hooks:
    """Apply a definition's id, tenant, timeout and other options to the bundle of a handler's factory."""
    stands = {each.event.hook_type.value for each in made.observers}
    stands |= {f"{each.call.__name__}.{each.kind}" for each in made.interceptors}
    if point.name not in stands:
        raise DefinitionError(
            "point_not_served",
            "$.point",
            f"{definition.handler!r} cannot be used at {point.name}; it fits {', '.join(sorted(stands)) or 'none'}",
        )
    if definition.tool is not None:
        raise DefinitionError(
            "invalid", "$.tool", f"the tools of {definition.handler!r} are set in `config`; leave `tool` out"
        )
    bundle = _empty_bundle(definition)
    changes: dict[str, Any] = {} if definition.timeout is None else {"timeout": definition.timeout}
    for observer in made.observers:
        hook = msgspec.structs.replace(observer, id=definition.id, **changes)
        check_hook(hook, definition.id)
        bundle.observers = (*bundle.observers, hook)
    opened: dict[str, Any] = {"on_error": "open"} if definition.on_error == "open" else {}
    for given in made.interceptors:
        interceptor: Interceptor = msgspec.structs.replace(
            given, id=definition.id, tenant_id=definition.tenant_id, shadow=bundle.shadow, **changes, **opened
        )
        check_interceptor(interceptor, definition.id)
        bundle.interceptors = (*bundle.interceptors, interceptor)
    bundle.phase_hooks = made.phase_hooks
    return bundle
