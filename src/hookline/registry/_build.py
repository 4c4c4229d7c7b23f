"""What a definition becomes in a process: a bundle, or a hook with a webhook, and why it cannot where it cannot."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from hookline.calls import Call, Deny
from hookline.delivery import ENVIRONMENT_KEY, KeyRing
from hookline.errors import HookDefinitionError, message_of
from hookline.hooks import AnyHook, Hook, Hooks, Interceptor, check_hook, check_interceptor
from hookline.registry._catalog import HandlerCatalog
from hookline.registry._definition import HookDefinition, Point, point_of
from hookline.registry._errors import DefinitionError
from hookline.registry._scripts import Scripts
from hookline.webhooks import Webhook

__all__ = ["Builder", "Built"]

logger = logging.getLogger("hookline")

UNSEEN = frozenset(
    {"name", "description", "enabled", "tags", "source", "revision", "createdAt", "updatedAt", "problem"}
)
"""Fields that a hook does not know of: where only these change, it stays the same, with all that it has counted."""


class Built(NamedTuple):
    """What a definition has become.

    Attributes:
        hook: What a run is given; `None` if it is left out.
        problem: Why it is not what it should be; `""` if it is.
    """

    hook: AnyHook | None
    problem: str = ""


class Builder:
    """Makes hooks of definitions, and keeps them: what a hook counts survives every change that it does not notice.

    Args:
        catalog: Handlers that may be named.
        scripts: Scripts that may be run.
        keys: What signs the deliveries of this process.
        endpoint_secrets: Whether secrets of endpoints sign for hooks that name no key.
    """

    def __init__(
        self, catalog: HandlerCatalog, scripts: Scripts | None, keys: KeyRing, *, endpoint_secrets: bool = False
    ) -> None:
        self._catalog = catalog
        self._scripts = scripts
        self._keys = keys
        self._endpoint_secrets = endpoint_secrets
        self._kept: dict[bytes, Built] = {}

    def fresh(self, definition: HookDefinition) -> AnyHook:
        """A new hook of a checked definition.

        Raises:
            DefinitionError: If it cannot be made.
        """
        try:
            return self._made(definition, point_of(definition))
        except HookDefinitionError as error:
            raise DefinitionError("point_not_served", "$", f"{error.where}: {error.problem}") from None

    def _made(self, definition: HookDefinition, point: Point) -> AnyHook:
        if definition.webhook is not None and point.event is not None:
            return Hook(
                id=definition.id,
                type=point.event,
                tool=definition.tool,
                webhook=definition.webhook,
                tenant_id=definition.tenant_id,
            )
        if definition.script is not None:
            if self._scripts is None:
                problem = "no folder of scripts is configured here"
                raise DefinitionError("script_refused", "$.script", problem)
            return _bundle(definition, point, self._scripts.handler(definition, point), spare=1.0)
        made = self._catalog.build(definition)
        if isinstance(made, Hooks):
            return _adopted(made, definition, point)
        return _bundle(definition, point, made)

    def kept(self, definition: HookDefinition) -> Built:
        """The hook of a checked definition, made when it is first asked for."""
        key = _key(definition)
        built = self._kept.get(key)
        if built is None:
            try:
                if definition.problem:
                    raise DefinitionError("unreadable", "$", definition.problem)
                built = Built(self.fresh(definition))
            except Exception as error:
                problem = error.problem if isinstance(error, DefinitionError) else message_of(error)
                logger.error("Hook definition %r (%s) cannot run here: %s", definition.id, definition.name, problem)
                built = Built(stand_in(definition, problem), problem)
            self._kept[key] = built
        return built

    def problem_of(self, definition: HookDefinition) -> str:
        """Why a checked definition cannot run in this process; `""` if it can."""
        problem = self.kept(definition).problem
        if not problem and definition.script is not None and self._scripts is not None:
            return self._scripts.problem_of(definition.script)
        if not problem and definition.webhook is not None:
            return self._unsigned(definition.webhook)
        return problem

    def _unsigned(self, webhook: Webhook) -> str:
        """Why no delivery of this process can be signed for a webhook; `""` if one can, or need not."""
        if urlsplit(webhook.url).scheme == "local" or self._keys.signs(webhook.key):
            return ""
        if self._endpoint_secrets and not webhook.key:
            return ""
        variable = ENVIRONMENT_KEY + (f"_{webhook.key.upper()}" if webhook.key else "")
        return f"this process has no key that signs its deliveries; set {variable}, or give the registry its `keys`"

    def forget(self, definition: HookDefinition, *, but: HookDefinition | None) -> None:
        """Let go of the hook of a definition, unless it is that of another one too."""
        key = _key(definition)
        if but is None or _key(but) != key:
            self._kept.pop(key, None)


def _key(definition: HookDefinition) -> bytes:
    wire = msgspec.to_builtins(definition)
    return msgspec.json.encode({name: value for name, value in wire.items() if name not in UNSEEN})


def stand_in(definition: HookDefinition, problem: str) -> AnyHook | None:
    """What runs in the place of an interceptor that cannot: if it fails closed, a guard that refuses its calls.

    A guard also meets the calls that a person has approved, and none happens whose result would be withheld.
    """
    point = point_of(definition)
    if point.call is None or definition.on_error == "open":
        return None
    answer = Deny(f"the hook {definition.name!r} cannot run, and it fails closed: {problem}")

    def refuse(call: Call) -> Deny:
        return answer

    bundle = _empty(definition)
    bundle.guard(point.call, tool=definition.tool, id=definition.id)(refuse)
    return bundle


def _empty(definition: HookDefinition) -> Hooks:
    bundle = Hooks(
        definition.id, priority=definition.priority, tenant_id=definition.tenant_id, inherit=definition.inherits
    )
    bundle.from_definition = True
    return bundle


def _bundle(definition: HookDefinition, point: Point, handler: Callable[..., Any], *, spare: float = 0.0) -> Hooks:
    """A bundle with the one hook of a definition.

    Args:
        definition: The definition.
        point: Where the hook stands.
        handler: What is called there.
        spare: Seconds by which the hook may outlast the definition's `timeout`, so that it says itself what happened.
    """
    bundle = _empty(definition)
    options: dict[str, Any] = {"tool": definition.tool, "id": definition.id}
    if definition.timeout is not None or spare:
        options["timeout"] = Scripts.timeout_of(definition) + spare if spare else definition.timeout
    if point.event is not None:
        bundle.on(point.event, **options)(handler)
    else:
        getattr(bundle, point.kind or "")(point.call, on_error=definition.on_error, **options)(handler)
    return bundle


def _adopted(made: Hooks, definition: HookDefinition, point: Point) -> Hooks:
    """A bundle that a factory has made, as the definition wants it."""
    stands = {each.event.hook_type.value for each in made.observers}
    stands |= {f"{each.call.__name__}.{each.kind}" for each in made.interceptors}
    if point.name not in stands:
        raise DefinitionError(
            "point_not_served",
            "$.point",
            f"{definition.handler!r} does not stand at {point.name}, but at {', '.join(sorted(stands)) or 'none'}",
        )
    if definition.tool is not None:
        raise DefinitionError("invalid", "$.tool", f"{definition.handler!r} names its tools in `config`")
    bundle = _empty(definition)
    changes: dict[str, Any] = {} if definition.timeout is None else {"timeout": definition.timeout}
    for observer in made.observers:
        hook = msgspec.structs.replace(observer, id=definition.id, **changes)
        check_hook(hook, definition.id)
        bundle.observers = (*bundle.observers, hook)
    opened: dict[str, Any] = {"on_error": "open"} if definition.on_error == "open" else {}
    for given in made.interceptors:
        interceptor: Interceptor = msgspec.structs.replace(
            given, id=definition.id, tenant_id=definition.tenant_id, **changes, **opened
        )
        check_interceptor(interceptor, definition.id)
        bundle.interceptors = (*bundle.interceptors, interceptor)
    bundle.phase_hooks = made.phase_hooks
    return bundle
