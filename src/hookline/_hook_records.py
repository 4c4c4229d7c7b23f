"""The plain records behind the decorators of `Hooks`, and what is refused of them."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec

from hookline._hook_checks import (
    check_decides_nothing,
    check_id,
    check_priority,
    check_signature,
    check_tenant,
    check_timeout,
    check_tool,
    shown,
)
from hookline._phase import Phase, PhaseHandler, PhaseHook
from hookline._webhook import HookData, Webhook, check_json, check_webhook, webhook_of
from hookline.calls import CALLS, Call, ToolCall
from hookline.errors import HookDefinitionError
from hookline.events import EVENTS, TOOL_EVENTS, Event, HookType

__all__ = [
    "ControlInterceptor",
    "EventClass",
    "Hook",
    "Interceptor",
    "Kind",
    "OnError",
    "check_hook",
    "check_interceptor",
    "check_phase_handler",
    "meets_approved",
    "phase_handler",
]

EventClass: TypeAlias = type[Event]
Kind = Literal["before", "guard", "after", "around"]
OnError = Literal["open", "closed"]

_ARGUMENTS: dict[str, str] = {
    "before": "the call",
    "guard": "the call",
    "after": "the call and the result",
    "around": "the call and call_next",
}


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """One observer: a handler and when to call it. `Hooks.on` makes these.

    Attributes:
        id: Name of the hook in logs and records; need not be unique.
        type: The event: its class, or its wire name.
        handler: `(event) -> None`, plain or async. It decides nothing by what it returns; a decision that it returns is
            an error, and denies the call of a `BeforeToolCall`.
        tool: Glob over `identifier/api_name`; one without a `/` means `*/<glob>` (`"search"`). `None` for every tool.
            Tool events only.
        timeout: Seconds an async handler may take; `None` for the dispatcher's `hook_timeout`, `math.inf` for no limit.
        webhook: Where to deliver the event, to another process: a `Webhook`, or a mapping with its fields. A hook may
            have a handler, a webhook, or both.
        tenant_id: Only for events of this tenant; `""` for every tenant.
    """

    id: str
    type: HookType | EventClass
    handler: Callable[[Any], object] | None = None
    tool: str | None = None
    timeout: float | None = None
    webhook: Webhook | dict[str, Any] | None = None
    tenant_id: str = ""

    @property
    def event(self) -> EventClass:
        """The event's class."""
        return EVENTS[HookType(self.type)] if isinstance(self.type, str) else self.type

    def data(self) -> HookData | None:
        """What of it can travel: everything but the handler; `None` without a webhook.

        Raises:
            HookDefinitionError: If its webhook cannot be read, or JSON cannot carry it.
        """
        if self.webhook is None:
            return None
        where = f"Hook {self.id!r}"
        webhook = webhook_of(self.webhook, where)
        data = HookData(
            id=self.id, type=self.event.hook_type, tool=self.tool, webhook=webhook, tenant_id=self.tenant_id
        )
        try:
            return msgspec.json.decode(msgspec.json.encode(data), type=HookData)  # as it will be kept
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise HookDefinitionError(where, f"it cannot be written as JSON and read again: {error}") from error


class Interceptor(msgspec.Struct, frozen=True, kw_only=True):
    """One interceptor: a handler that may change, answer or refuse a call. The decorators of `Hooks` make these.

    Attributes:
        id: Name of the hook in logs, records and denials; need not be unique.
        call: The class of the calls that it stands in the way of.
        kind: `"before"`, `"guard"`, `"after"` or `"around"`.
        handler: `(call)`, `(call, result)` for `"after"`, `(call, call_next)` for `"around"`; plain or async.
        priority: From 0, outermost, to 1000.
        tool: Glob over `identifier/api_name`; one without a `/` means `*/<glob>` (`"search"`). `None` for every tool.
            `ToolCall` only.
        timeout: Seconds of its own time; `None` for the chain's `hook_timeout`, `math.inf` for no limit.
        on_error: What becomes of the call when the hook fails: `"closed"` denies it, `"open"` goes on without the hook.
        wait: Whether the call waits for it; `False` for `"before"` and `"after"` only.
        tenant_id: Only for calls of this tenant; `""` for every tenant.
    """

    id: str
    call: type[Call]
    kind: Kind
    handler: Callable[..., object]
    priority: int = 100
    tool: str | None = None
    timeout: float | None = None
    on_error: OnError = "closed"
    wait: bool = True
    tenant_id: str = ""


class ControlInterceptor(Interceptor, frozen=True, kw_only=True):
    """An interceptor that meets a call again which a person has approved, as no other `before` or `around` does.

    It is a control webhook, which judges the call again, or a ready-made `around` that only watches what becomes of it.
    """


def meets_approved(interceptor: Interceptor) -> Interceptor:
    """Make an interceptor one that meets approved calls again."""
    return ControlInterceptor(**msgspec.structs.asdict(interceptor))


def check_hook(hook: Hook, where: str) -> None:
    """Refuse an observer that could never work.

    Args:
        hook: The hook.
        where: How the error names it.

    Raises:
        HookDefinitionError: With what is wrong and how to fix it.
    """
    check_id(hook.id, where)
    check_tenant(hook.tenant_id, where)
    known = hook.type in EVENTS if isinstance(hook.type, str) else hook.type in EVENTS.values()
    if not known:
        raise HookDefinitionError(
            where,
            f"{shown(hook.type)} is not one of the sixteen events: "
            f"{', '.join(kind.__name__ for kind in EVENTS.values())}",
        )
    if hook.webhook is not None:
        webhook = webhook_of(hook.webhook, where)
        check_webhook(webhook, hook.event, where)
        check_json({"id": hook.id, "tool": hook.tool, "tenant_id": hook.tenant_id}, where)
        if webhook.control and hook.handler is not None:
            raise HookDefinitionError(where, "a `control` webhook decides in place of a `handler`; make them two hooks")
    elif hook.handler is None:
        raise HookDefinitionError(
            where, "a hook needs a `handler`, a plain or an async function of one event, or a `webhook`"
        )
    if hook.handler is not None:
        check_signature(hook.handler, "the event", where)
        check_decides_nothing(hook.handler, "an observer", where)
    check_timeout(hook.timeout, where)
    if hook.tool is not None:
        check_tool(hook.tool, hook.event.__name__, has_tool=hook.event in TOOL_EVENTS, where=where)


def check_interceptor(hook: Interceptor, where: str) -> None:
    """Refuse an interceptor that could never work.

    Raises:
        HookDefinitionError: With what is wrong and how to fix it.
    """
    check_id(hook.id, where)
    if not any(hook.call is call for call in CALLS):
        raise HookDefinitionError(
            where, f"{shown(hook.call)} is not one of the eight calls: {', '.join(kind.__name__ for kind in CALLS)}"
        )
    if not isinstance(hook.kind, str) or hook.kind not in _ARGUMENTS:
        raise HookDefinitionError(where, f"`kind` is one of {', '.join(map(repr, _ARGUMENTS))}; got {shown(hook.kind)}")
    if not isinstance(hook.on_error, str) or hook.on_error not in ("open", "closed"):
        raise HookDefinitionError(where, f"`on_error` is 'open' or 'closed'; got {shown(hook.on_error)}")
    if not isinstance(hook.wait, bool) or (not hook.wait and hook.kind not in ("before", "after")):
        raise HookDefinitionError(
            where, f"`wait` is True, or for before and after False; got {shown(hook.wait)} for {shown(hook.kind)}"
        )
    check_signature(hook.handler, _ARGUMENTS[hook.kind], where)
    if not hook.wait:
        check_decides_nothing(hook.handler, "a hook with wait=False", where)
    check_priority(hook.priority, where)
    check_tenant(hook.tenant_id, where)
    check_timeout(hook.timeout, where)
    if hook.tool is not None:
        check_tool(hook.tool, hook.call.__name__, has_tool=hook.call is ToolCall, where=where)


def check_phase_handler(hook: PhaseHandler, where: str) -> None:
    """Refuse a phase hook that could never work.

    Raises:
        HookDefinitionError: With what is wrong and how to fix it.
    """
    check_id(hook.id, where)
    for name, phase in (("source", hook.source), ("target", hook.target)):
        if phase is not None and not isinstance(phase, Phase):
            raise HookDefinitionError(where, f"`{name}` is a Phase, or None for any; got {phase!r}")
    check_signature(hook.handler, "the transition", where)
    check_decides_nothing(hook.handler, "a phase hook", where)
    check_timeout(hook.timeout, where)


def phase_handler(hook: PhaseHook, where: str = "PhaseHook") -> PhaseHandler:
    """The plain record of a phase hook that is given as an object.

    Raises:
        HookDefinitionError: If its phases cannot be read, or are none.
    """
    try:
        source, target = hook.source_phase, hook.target_phase
    except Exception as error:
        raise HookDefinitionError(where, f"its phases cannot be read: {type(error).__name__}: {error}") from error
    handler = PhaseHandler(
        id=type(hook).__name__, source=source, target=target, handler=hook.execute, timeout=hook.timeout
    )
    check_phase_handler(handler, where)
    return handler
