"""Hooks to register: the bundle `Hooks`, and the records `Hook` and `Interceptor`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from copy import copy
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_args

import msgspec

from hookline._checks import (
    check_decides_nothing,
    check_id,
    check_priority,
    check_signature,
    check_tenant,
    check_timeout,
    check_tool,
    format_record,
    module_of,
    name_of,
    quote,
)
from hookline._hook_scopes import HookScope
from hookline._phase import Phase, PhaseHandler, PhaseHook, PhaseTransition
from hookline.calls import (
    CALLS,
    AgentCall,
    AgentResult,
    Ask,
    Call,
    CompactResult,
    Continue,
    Deny,
    Guide,
    MemoryResult,
    ModelCall,
    ModelResponse,
    RequestResult,
    Respond,
    StepCall,
    StepResult,
    ToolCall,
    ToolResult,
)
from hookline.errors import HookDefinitionError
from hookline.events import EVENTS, TOOL_EVENTS, Event, HookType
from hookline.webhooks import HookData, Webhook, check_json, check_webhook, webhook_of

__all__ = ["AnyHook", "Hook", "Hooks", "Interceptor", "TextParts", "hook_batch"]

EventClass: TypeAlias = type[Event]
Kind = Literal["before", "guard", "after", "around"]
OnError = Literal["open", "closed"]
Heard = Literal["at once", "committed"]

_ARGUMENTS: dict[str, str] = {
    "before": "the call",
    "guard": "the call",
    "after": "the call and the result",
    "around": "the call and call_next",
}


EVENTS_OF_CALLS: dict[str, tuple[str, ...]] = {
    "AgentCall": ("OnComplete", "OnError"),
    "StepCall": ("BeforeStep", "AfterStep"),
    "ModelCall": ("AfterStep",),
    "ToolCall": ("BeforeToolCall", "AfterToolCall", "OnToolCallError"),
    "CompactCall": ("BeforeCompact", "AfterCompact", "OnCompactError"),
    "SubAgentCall": ("BeforeCallAgent", "AfterCallAgent", "OnCallAgentError"),
    "RequestCall": (),
    "MemoryCall": (),
}
"""By call, the events that tell what becomes of it. Users easily give one where the other is meant."""


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """An observer: a handler and the event that it handles. `Hooks.on` makes these.

    Attributes:
        id: Name of the hook in logs and records; need not be unique.
        type: The event: its class, or its wire name.
        handler: `(event) -> None`, plain or async. Its return value decides nothing. A returned decision is an error,
            and denies the call of a `BeforeToolCall`.
        tool: Glob over `toolset/tool_name`, for tool events; without a `/` it means `*/<glob>` (`"search"`). `None` for
            every tool.
        timeout: Time limit of an async handler in seconds; `None` for the dispatcher's `hook_timeout`, `math.inf` for
            none.
        webhook: Where to deliver the event: a `Webhook`, or a mapping with its fields. A hook has a handler, a webhook,
            or both.
        tenant_id: Only for events of this tenant; `""` for every tenant.
        inherit: Whether sub-agents inherit the hook.
        shadow: Of a control webhook: whether its answers are only recorded.
        revision: The revision of the stored definition that made it; 0 for any other hook.
        scope: The operations that it is for, if a stored definition restricts it; a run selects it.
        heard: When the handler hears an event: `"at once"`, or after the commit that stores it; see `Hooks.on`.
    """

    id: str
    type: HookType | EventClass
    handler: Callable[[Any], object] | None = None
    tool: str | None = None
    timeout: float | None = None
    webhook: Webhook | dict[str, Any] | None = None
    tenant_id: str = ""
    inherit: bool = False
    shadow: bool = False
    revision: int = 0
    scope: HookScope | None = None
    heard: Heard = "at once"

    @property
    def event(self) -> EventClass:
        """Return the class of the event."""
        return EVENTS[HookType(self.type)] if isinstance(self.type, str) else self.type

    def __repr__(self) -> str:
        return format_record(self)

    def data(self) -> HookData | None:
        """Return the hook as data that is stored with an operation, without its handler; `None` without a webhook.

        Raises:
            HookDefinitionError: If its webhook is invalid, or JSON cannot represent it.
        """
        if self.webhook is None:
            return None
        where = f"Hook {self.id!r}"
        webhook = webhook_of(self.webhook, where)
        data = HookData(
            id=self.id,
            type=self.event.hook_type,
            tool=self.tool,
            webhook=webhook,
            tenant_id=self.tenant_id,
            inherit=self.inherit,
            shadow=self.shadow,
            revision=self.revision,
        )
        try:
            return msgspec.json.decode(msgspec.json.encode(data), type=HookData)  # as it will be kept
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise HookDefinitionError(where, f"it cannot be written as JSON: {error}") from error


class TextParts(msgspec.Struct, frozen=True, kw_only=True):
    """The way in which an `after` hook of `ModelCall` judges an answer while the model writes it.

    The hook is called with a `PartialResponse` for each part, and at the end with the whole answer. After each call,
    readers get the text that it let pass, but for the tail that is held.

    Attributes:
        hold: Characters at the end of the text that are not released with it, so that the hook can find what is split
            between two parts: the length of the longest text that it looks for, less one. `"sentence"` holds the text
            after the last complete sentence.
        max_chars: New characters with which the hook judges the text again. A piece of the model is not split.
        max_seconds: Seconds after which it judges new text also if it is shorter; `None` for no limit.
    """

    hold: int | Literal["sentence"] = 0
    max_chars: int = 80
    max_seconds: float | None = None


class Interceptor(msgspec.Struct, frozen=True, kw_only=True):
    """An interceptor: a handler that can change, answer or deny calls. The decorators of `Hooks` make these.

    Attributes:
        id: Name of the hook in logs, records and denials; need not be unique.
        call: The class of the calls that it wraps.
        kind: `"before"`, `"guard"`, `"after"` or `"around"`.
        handler: `(call)`, `(call, result)` for `"after"`, `(call, call_next)` for `"around"`; plain or async.
        priority: From 0 (outermost) to 1000.
        tool: Glob over `toolset/tool_name`, for `ToolCall`; without a `/` it means `*/<glob>` (`"search"`). `None` for
            every tool.
        timeout: Limit of its own time in seconds; `None` for the chain's `hook_timeout`, `math.inf` for none.
        on_error: What happens to the call if the hook fails: `"closed"` denies it, `"open"` continues without the hook.
        wait: Whether the call waits for the hook; only `"before"` and `"after"` can have `False`.
        tenant_id: Only for calls of this tenant; `""` for every tenant.
        shadow: Whether its decisions are recorded, and have no effect.
        parts: For an `after` hook of `ModelCall`: how it judges an answer while the model writes it; `None` to judge
            the whole answer only.
        hold_text: For an `after` or `around` hook of `ModelCall`, `StepCall` or `AgentCall`: whether readers get the
            text of the model only when the hook has run.
        revision: The revision of the stored definition that made it; 0 for any other hook.
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
    shadow: bool = False
    parts: TextParts | None = None
    hold_text: bool = True
    revision: int = 0

    def __repr__(self) -> str:
        return format_record(self)


class ControlInterceptor(Interceptor, frozen=True, kw_only=True):
    """An interceptor that also sees calls which a person has approved, unlike any other `before` or `around`.

    It is a control webhook, which judges the call again, or a ready-made `around` that only records the outcome.
    """


def meets_approved(interceptor: Interceptor) -> Interceptor:
    """Return an interceptor that also sees calls which a person has approved."""
    return ControlInterceptor(**msgspec.structs.asdict(interceptor))


def _wrong_event(given: object) -> str:
    """Return the problem with a value that is not an event, with the event that was meant if it is a call."""
    name = _class_name(given)
    if name not in EVENTS_OF_CALLS:
        return (
            f"{quote(given)} is not one of the sixteen events: {', '.join(event.__name__ for event in EVENTS.values())}"
        )
    events = " or ".join(f"hooks.on({event})" for event in EVENTS_OF_CALLS[name])
    observe = f"to observe it, use {events}" if events else "it has no events"
    return f"{quote(given)} is a call, not an event; {observe}; to decide about it, use hooks.guard({name})"


def _wrong_call(given: object, kind: str) -> str:
    """Return the problem with a value that is not a call, with the call that was meant if it is an event."""
    name = _class_name(given)
    for call, events in EVENTS_OF_CALLS.items():
        if name == call:
            return f"give the class itself, {call}; got {quote(given)}"
        if name in events:
            return f"{quote(given)} is an event, not a call; you mean hooks.{kind}({call})"
    return f"{quote(given)} is not one of the eight calls: {', '.join(EVENTS_OF_CALLS)}"


def _refuse_bare(given: object, decorator: str, example: str) -> None:
    """Refuse `@hooks.on` without an event: it would take the function for the event, and register nothing.

    Raises:
        HookDefinitionError: If a function was given.
    """
    if callable(given) and not isinstance(given, type):
        raise HookDefinitionError(
            f"@hooks.{decorator}", f"name what the hook is for, such as @hooks.{decorator}({example}); got a function"
        )


def _class_name(given: object) -> str:
    name = given if isinstance(given, str) else getattr(given, "__name__", "")
    if isinstance(given, str) and given in EVENTS:  # the event's name on the wire
        return EVENTS[HookType(given)].__name__
    return name if isinstance(name, str) else ""


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
        raise HookDefinitionError(where, _wrong_event(hook.type))
    if hook.webhook is not None:
        webhook = webhook_of(hook.webhook, where)
        check_webhook(webhook, hook.event, where)
        check_json({"id": hook.id, "tool": hook.tool, "tenant_id": hook.tenant_id}, where)
        if webhook.control and hook.handler is not None:
            raise HookDefinitionError(
                where, "a hook cannot have both a `control` webhook and a `handler`; make two hooks"
            )
        if hook.shadow and not webhook.control:
            raise HookDefinitionError(
                where, "a webhook that only receives events cannot have shadow=True; leave it out"
            )
    elif hook.handler is None:
        raise HookDefinitionError(
            where, "a hook needs a `handler` (a plain or async function of one event) or a `webhook`"
        )
    if hook.handler is not None:
        check_signature(hook.handler, "the event", where)
        check_decides_nothing(hook.handler, "an observer", where)
    check_timeout(hook.timeout, where)
    if hook.heard not in get_args(Heard):
        raise HookDefinitionError(where, f"`heard` must be 'at once' or 'committed'; got {quote(hook.heard)}")
    if hook.heard == "committed" and hook.handler is None:
        raise HookDefinitionError(
            where,
            "only a hook with a `handler` can have heard='committed'; leave it out, since a webhook of a durable run "
            "receives committed events only",
        )
    if hook.shadow is not False and (hook.shadow is not True or hook.webhook is None or hook.handler is not None):
        raise HookDefinitionError(
            where,
            f"`shadow` must be True or False, and only a control webhook can have True; got {quote(hook.shadow)}; for "
            "a handler, use Hooks(shadow=True)",
        )
    if hook.tool is not None:
        check_tool(hook.tool, hook.event.__name__, has_tool=hook.event in TOOL_EVENTS, where=where)


def check_interceptor(hook: Interceptor, where: str) -> None:
    """Refuse an interceptor that could never work.

    Raises:
        HookDefinitionError: With what is wrong and how to fix it.
    """
    check_id(hook.id, where)
    if not any(hook.call is call for call in CALLS):
        raise HookDefinitionError(where, _wrong_call(hook.call, hook.kind))
    if not isinstance(hook.kind, str) or hook.kind not in _ARGUMENTS:
        raise HookDefinitionError(
            where, f"`kind` must be one of {', '.join(map(repr, _ARGUMENTS))}; got {quote(hook.kind)}"
        )
    if not isinstance(hook.on_error, str) or hook.on_error not in ("open", "closed"):
        raise HookDefinitionError(where, f"`on_error` must be 'open' or 'closed'; got {quote(hook.on_error)}")
    if not isinstance(hook.wait, bool) or (not hook.wait and hook.kind not in ("before", "after")):
        raise HookDefinitionError(
            where,
            f"`wait` must be True; only before and after can have False; got {quote(hook.wait)} for {quote(hook.kind)}",
        )
    if not isinstance(hook.shadow, bool):
        raise HookDefinitionError(where, f"`shadow` must be True or False; got {quote(hook.shadow)}")
    check_signature(hook.handler, _ARGUMENTS[hook.kind], where)
    if not hook.wait:
        check_decides_nothing(hook.handler, "a hook with wait=False", where)
    check_priority(hook.priority, where)
    check_tenant(hook.tenant_id, where)
    check_timeout(hook.timeout, where)
    if hook.tool is not None:
        check_tool(hook.tool, hook.call.__name__, has_tool=hook.call is ToolCall, where=where)
    if hook.parts is not None:
        check_parts(hook, hook.parts, where)
    if hook.hold_text is not True and (
        hook.hold_text is not False
        or hook.kind not in ("after", "around")
        or hook.call not in (ModelCall, StepCall, AgentCall)
    ):
        raise HookDefinitionError(
            where,
            "`hold_text` must be True or False, and only `after` and `around` hooks of ModelCall, StepCall and "
            f"AgentCall can have False; got {quote(hook.hold_text)}",
        )


def check_parts(hook: Interceptor, parts: object, where: str) -> None:
    """Refuse parts that no hook can judge.

    Raises:
        HookDefinitionError: With what is wrong and how to fix it.
    """
    if not isinstance(parts, TextParts):
        raise HookDefinitionError(where, f"`parts` must be a TextParts or None; got {quote(parts)}")
    if hook.kind != "after" or hook.call is not ModelCall or not hook.wait:
        raise HookDefinitionError(
            where, "only a hook of after(ModelCall) with wait=True can judge text in parts; leave `parts` out"
        )
    hold: object = parts.hold
    if hold != "sentence" and (not isinstance(hold, int) or isinstance(hold, bool) or hold < 0):
        raise HookDefinitionError(
            where, f'`hold` must be a number of characters from 0, or "sentence"; got {quote(hold)}'
        )
    most: object = parts.max_chars
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise HookDefinitionError(where, f"`max_chars` must be a number of characters from 1; got {quote(most)}")
    check_timeout(parts.max_seconds, where, name="max_seconds")


def check_phase_handler(hook: PhaseHandler, where: str) -> None:
    """Refuse a phase hook that could never work.

    Raises:
        HookDefinitionError: With what is wrong and how to fix it.
    """
    check_id(hook.id, where)
    for name, phase in (("source", hook.source), ("target", hook.target)):
        if phase is not None and not isinstance(phase, Phase):
            raise HookDefinitionError(where, f"`{name}` must be a Phase, or None for any; got {quote(phase)}")
    check_signature(hook.handler, "the transition", where)
    check_decides_nothing(hook.handler, "a phase hook", where)
    check_timeout(hook.timeout, where)


def phase_handler(hook: PhaseHook, where: str = "PhaseHook") -> PhaseHandler:
    """Return the plain record of a phase hook that is given as an object.

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


E = TypeVar("E", bound=Event)
C = TypeVar("C", bound=Call)

Decision: TypeAlias = Respond | Deny | Ask
Result: TypeAlias = AgentResult | StepResult | ModelResponse | ToolResult | CompactResult | RequestResult | MemoryResult

# What a handler may return, plain or async, so that type checkers refuse all else. Bounds, since they keep the type of
# the decorated function as it is.
Nothing = TypeVar("Nothing", bound=Awaitable[None] | None)
Onward = TypeVar("Onward", bound=Awaitable[Call | Decision | None] | Call | Decision | None)
Verdict = TypeVar("Verdict", bound=Awaitable[Deny | Ask | None] | Deny | Ask | None)
Outcome = TypeVar(
    "Outcome", bound=Awaitable[Result | Deny | Continue | Guide | None] | Result | Deny | Continue | Guide | None
)
Answer = TypeVar("Answer", bound=Awaitable[Result | Decision | None] | Result | Decision | None)

AnyHook: TypeAlias = "Hooks | Hook | Interceptor | PhaseHook"
"""What `hooks=[...]` may hold."""


class _Unnamed(str):
    """The id of bundles that were given none, which differs from the same text as a given id."""

    __slots__ = ()


UNNAMED = _Unnamed("hooks")


class Hooks:
    """A named bundle of hooks that any number of runs can use.

    Add hooks with the decorators, and give the bundle to runs, agents and dispatchers. Hooks that you add after a
    registration apply from the next registration on.

    Args:
        id: Name of the bundle, and the first part of its hooks' default ids. Without a name, this part is the module of
            the handler.
        priority: Order of its interceptors, from 0 (outermost) to 1000. Each decorator can set its own.
        tenant_id: Only for events and calls of this tenant; `""` for every tenant.
        inherit: Whether sub-agents inherit the bundle.
        shadow: Whether its interceptors only say what they would decide: their decisions are recorded with the status
            `"shadow"` and have no effect on the run, which does not wait for them.

    Raises:
        HookDefinitionError: If an argument is invalid.
    """

    recorded = True
    """Whether runs of its observers are announced to whoever watches hooks."""
    from_definition = False
    """Whether a stored definition made it: a run that is resumed has those that are in force then."""
    needs_store = False
    """Whether it needs something of the store of the run, which `for_store` gives it."""
    hearer = ""
    """The name under which other processes hear the stored events of its runs; `""` if none do."""
    heard_events: tuple[str, ...] = ()
    """Wire names of the events that these processes hear; empty for all."""
    needs_journal = False
    """Whether only a run whose store keeps its events may have it, which `for_store` checks."""
    revision = 0
    """The revision of that definition."""
    scope: HookScope | None = None
    """The operations that it is for, if that definition restricts it; a run selects it."""

    def __init__(
        self,
        id: str = UNNAMED,  # noqa: A002
        *,
        priority: int = 100,
        tenant_id: str = "",
        inherit: bool = False,
        shadow: bool = False,
    ) -> None:
        check_id(id, "Hooks")
        check_priority(priority, f"Hooks {id!r}")
        check_tenant(tenant_id, f"Hooks {id!r}")
        if not isinstance(shadow, bool):
            raise HookDefinitionError(f"Hooks {id!r}", f"`shadow` must be True or False; got {quote(shadow)}")
        self.id = id
        self.priority = priority
        self.tenant_id = tenant_id
        self.inherit = inherit
        self.shadow = shadow
        self.observers: tuple[Hook, ...] = ()
        self.interceptors: tuple[Interceptor, ...] = ()
        """The plain records behind `before`, `guard`, `after` and `around`."""
        self.phase_hooks: tuple[PhaseHandler, ...] = ()
        """The plain records behind `on_phase`."""
        self.lane = object()
        """Key of the bundle's lanes. Not the bundle itself, so that what is compiled from it does not refer to it."""
        # Filled by the dispatcher. It sits here, not in a table of a dispatcher, so that it dies with the bundle.
        self._compiled: Any = None
        self._chain: Any = None
        self._keys: Any = None
        self._unscoped: Hooks | None = None

    def __repr__(self) -> str:
        return (
            f"Hooks({self.id!r}, observers={len(self.observers)}, interceptors={len(self.interceptors)}, "
            f"phase_hooks={len(self.phase_hooks)})"
        )

    def for_store(self, store: object) -> Hooks:
        """Return the bundle for a run that is kept in a store; called if it `needs_store`."""
        return self

    def for_sub_agents(self) -> Hooks:
        """Return the bundle as sub-agents inherit it; called if `inherit` is set."""
        return self

    def _default_id(self, handler: object) -> str:
        """Return the default id of a hook: `<bundle>.<function>`, or `<module>.<function>` for an unnamed bundle."""
        return f"{module_of(handler) if self.id is UNNAMED else self.id}.{name_of(handler)}"

    def on(
        self,
        event: type[E],
        *,
        tool: str | None = None,
        timeout: float | None = None,
        heard: Heard = "at once",
        id: str | None = None,  # noqa: A002
    ) -> Callable[[Callable[[E], Nothing]], Callable[[E], Nothing]]:
        """Call the decorated function for each event of a class.

        A plain function runs at once, inside the agent's step, and must be quick. An async function is queued; the
        agent does not wait for it. The return value decides nothing: return `None`. A returned decision is logged as an
        error, and denies the call if the event is a `BeforeToolCall`.

        With `heard="committed"`, the function hears an event of a durable run after the commit that stores it, in the
        order of the stored events. So if the process is killed, nothing that it heard is contradicted later. It hears
        each event at most once: an event that was stored just before the kill may not be heard. It cannot answer or
        deny a `BeforeToolCall`. Without a durable store, no other process continues the run, and it hears events at
        once.

        Args:
            event: One of the sixteen event classes.
            tool: Glob over `toolset/tool_name`, for tool events. `*` also matches `/`; without a `/` it means
                `*/<glob>`.
            timeout: Time limit of an async handler in seconds; `None` for the dispatcher's `hook_timeout`, `math.inf`
                for none.
            heard: `"at once"` when the event happens, or `"committed"` after the commit that stores it.
            id: The hook's id; `"<bundle>.<function>"` by default, or `"<module>.<function>"` in a bundle without a
                name.

        Returns:
            A decorator that returns the function unchanged.

        Raises:
            HookDefinitionError: If an argument or the function is invalid.
        """
        _refuse_bare(event, "on", "AfterToolCall")

        def register(handler: Callable[[E], Nothing]) -> Callable[[E], Nothing]:
            name = id if id is not None else self._default_id(handler)
            hook = Hook(id=name, type=cast(EventClass, event), handler=handler, tool=tool, timeout=timeout, heard=heard)
            check_hook(hook, f"Hook {name!r} of {self.id!r}")
            self.observers = (*self.observers, hook)
            self._compiled = None
            return handler

        return register

    def before(
        self,
        call: type[C],
        *,
        priority: int | None = None,
        tool: str | None = None,
        timeout: float | None = None,
        on_error: OnError = "closed",
        wait: bool = True,
        id: str | None = None,  # noqa: A002
    ) -> Callable[[Callable[[C], Onward]], Callable[[C], Onward]]:
        """Call the decorated function before a call: `(call)`.

        The function returns `None`, a changed call, `Respond(answer)`, `Deny(reason)` or `Ask(prompt)`.

        After a person has approved a call, a `before` that already judged it does not run again; use a `guard` for what
        must still hold then. A `before` that an outer `Ask` kept from the call runs then, and can only deny it.

        Args:
            call: The class of the calls: `AgentCall`, `StepCall`, `ModelCall`, `ToolCall`, `CompactCall`,
                `SubAgentCall`, `RequestCall` or `MemoryCall`.
            priority: From 0 (outermost) to 1000; that of the bundle by default.
            tool: Glob over `toolset/tool_name`, for `ToolCall`. `*` also matches `/`; without a `/` it means
                `*/<glob>`.
            timeout: Limit of its own time in seconds; `None` for the chain's `hook_timeout`, `math.inf` for none.
            on_error: What happens to the call if the hook raises, times out or returns another value: `"closed"` denies
                it, `"open"` continues without the hook.
            wait: `False` to run the hook in the background, once all hooks have let the call happen. It then decides
                nothing: a returned decision is logged as an error.
            id: The hook's id; `"<bundle>.<function>"` by default, or `"<module>.<function>"` in a bundle without a
                name.

        Raises:
            HookDefinitionError: If an argument is invalid.
        """
        return self._register(
            "before", call, id, priority=priority, tool=tool, timeout=timeout, on_error=on_error, wait=wait
        )

    def guard(
        self,
        call: type[C],
        *,
        priority: int | None = None,
        tool: str | None = None,
        timeout: float | None = None,
        on_error: OnError = "closed",
        wait: bool = True,
        id: str | None = None,  # noqa: A002
    ) -> Callable[[Callable[[C], Verdict]], Callable[[C], Verdict]]:
        """Call the decorated function to check the final call: `(call)`.

        Guards run after all hooks that can change the call. The function returns `None`, `Deny(reason)` or
        `Ask(prompt)`.

        See `before` for the options; `priority` and `wait` differ.

        Args:
            call: The class of the calls.
            priority: The order among the guards.
            tool: The tools to filter by.
            timeout: Seconds of its own time.
            on_error: Whether a failure denies the call.
            wait: Must be `True`: the call always waits for a guard.
            id: The hook's id.
        """
        return self._register(
            "guard", call, id, priority=priority, tool=tool, timeout=timeout, on_error=on_error, wait=wait
        )

    def after(
        self,
        call: type[C],
        *,
        priority: int | None = None,
        tool: str | None = None,
        timeout: float | None = None,
        on_error: OnError = "closed",
        wait: bool = True,
        id: str | None = None,  # noqa: A002
        parts: TextParts | None = None,
        hold_text: bool = True,
    ) -> Callable[[Callable[[C, Any], Outcome]], Callable[[C, Any], Outcome]]:
        """Call the decorated function after a call: `(call, result)`.

        The function returns `None`, a changed result or `Deny(reason)`; for an `AgentCall` also `Continue(input)`, and
        for a `ModelCall` also `Guide(feedback)`. `after` hooks run in the reverse order of `before` hooks.

        See `before` for the options; `priority` and `wait` differ.

        Args:
            call: The class of the calls.
            priority: From 0 (outermost, runs last) to 1000.
            tool: The tools to filter by.
            timeout: Seconds of its own time.
            on_error: Whether a failure withholds the result.
            wait: `False` to run the hook in the background, with the final result. It then decides nothing: a returned
                decision is logged as an error.
            id: The hook's id.
            parts: For a `ModelCall`: judges the answer also while the model writes it, and releases it in parts. The
                function gets a `PartialResponse` for each part; it returns `None`, a response with changed `content`,
                or `Deny`.
            hold_text: For a `ModelCall`, a `StepCall` or an `AgentCall`: whether readers get the text of the model only
                when the hook has run. With `False` it withholds the result, but not the text that they have.
        """
        return self._register(
            "after",
            call,
            id,
            priority=priority,
            tool=tool,
            timeout=timeout,
            on_error=on_error,
            wait=wait,
            parts=parts,
            hold_text=hold_text,
        )

    def around(
        self,
        call: type[C],
        *,
        priority: int | None = None,
        tool: str | None = None,
        timeout: float | None = None,
        on_error: OnError = "closed",
        wait: bool = True,
        id: str | None = None,  # noqa: A002
        hold_text: bool = True,
    ) -> Callable[[Callable[[C, Any], Answer]], Callable[[C, Any], Answer]]:
        """Call the decorated function around a call: `(call, call_next)`.

        `await call_next(call)` runs the call, at most once, and returns its result. The function returns that result,
        another one, `None` for no change, `Respond(answer)`, `Deny(reason)` or `Ask(prompt)`.

        See `before` for the options; only `wait` differs.

        Args:
            call: The class of the calls.
            priority: From 0 (outermost) to 1000.
            tool: The tools to filter by.
            timeout: Seconds of its own time.
            on_error: Whether a failure denies the call.
            wait: Must be `True`: the call always waits for an `around`.
            id: The hook's id.
            hold_text: As for `after`.
        """
        return self._register(
            "around",
            call,
            id,
            priority=priority,
            tool=tool,
            timeout=timeout,
            on_error=on_error,
            wait=wait,
            hold_text=hold_text,
        )

    def on_phase(
        self,
        source: Phase | None,
        target: Phase | None,
        *,
        timeout: float | None = None,
        id: str | None = None,  # noqa: A002
    ) -> Callable[[Callable[[PhaseTransition], Nothing]], Callable[[PhaseTransition], Nothing]]:
        """Call the decorated function when the agent of a session moves to another phase: `(transition)`.

        Args:
            source: The phase that the agent leaves; `None` for any.
            target: The phase that the agent enters; `None` for any.
            timeout: Time limit of an async function in seconds; `None` for 30, `math.inf` for none.
            id: The hook's id; `"<bundle>.<function>"` by default, or `"<module>.<function>"` in a bundle without a
                name.

        Raises:
            HookDefinitionError: If an argument is invalid.
        """

        def register(handler: Callable[[PhaseTransition], Nothing]) -> Callable[[PhaseTransition], Nothing]:
            name = id if id is not None else self._default_id(handler)
            hook = PhaseHandler(id=name, source=source, target=target, handler=handler, timeout=timeout)
            check_phase_handler(hook, f"Phase hook {name!r} of {self.id!r}")
            self.phase_hooks = (*self.phase_hooks, hook)
            return handler

        return register

    def _register(
        self,
        kind: Kind,
        call: type[Any],
        id: str | None,  # noqa: A002
        *,
        priority: int | None,
        tool: str | None,
        timeout: float | None,
        on_error: OnError,
        wait: bool,
        parts: TextParts | None = None,
        hold_text: bool = True,
    ) -> Callable[[Any], Any]:
        """Return the decorator that adds an interceptor of a kind to the bundle."""
        _refuse_bare(call, kind, "ToolCall")

        def register(handler: Any) -> Any:
            hook = Interceptor(
                id=self._default_id(handler) if id is None else id,
                call=call,
                kind=kind,
                handler=handler,
                priority=self.priority if priority is None else priority,
                tool=tool,
                timeout=timeout,
                on_error=on_error,
                wait=wait,
                tenant_id=self.tenant_id,
                shadow=self.shadow,
                parts=parts,
                hold_text=hold_text,
            )
            check_interceptor(hook, f"Interceptor {hook.id!r} of {self.id!r}")
            self.interceptors = (*self.interceptors, hook)
            self._chain = self._compiled = None
            return handler

        return register


def hooks_for_store(hooks: Sequence[AnyHook], store: object) -> Sequence[AnyHook]:
    """Return hooks for a run that is kept in a store.

    Raises:
        HookUsageError: If one needs what the store does not have.
    """
    if any(isinstance(entry, Hooks) and entry.needs_store for entry in hooks):
        return [entry.for_store(store) if isinstance(entry, Hooks) else entry for entry in hooks]
    return hooks


def hook_batch(hooks: Iterable[AnyHook]) -> list[AnyHook]:
    """Return the hooks of `hooks=[...]` as a list, checked as a whole.

    Raises:
        HookDefinitionError: If an entry is invalid. The error names the entry and the fix.
    """
    if hooks.__class__ not in (list, tuple) and (
        isinstance(hooks, Hooks | Hook | Interceptor | PhaseHook | str | bytes) or not isinstance(hooks, Iterable)
    ):
        raise HookDefinitionError("hooks", f"give a list of bundles and single hooks; got {quote(hooks)}")
    batch = list(hooks)
    for position, entry in enumerate(batch):
        if isinstance(entry, Hooks):
            continue
        if isinstance(entry, Hook):
            check_hook(entry, f"hooks[{position}], Hook {entry.id!r}")
        elif isinstance(entry, Interceptor):
            check_interceptor(entry, f"hooks[{position}], Interceptor {entry.id!r}")
        elif isinstance(entry, PhaseHook):
            phase_handler(entry, f"hooks[{position}], {type(entry).__name__}")
        else:
            raise HookDefinitionError(
                f"hooks[{position}]",
                f"expected a `Hooks` bundle, a `Hook`, an `Interceptor` or a `PhaseHook`, got {quote(entry)}; "
                "add a function to a bundle with a decorator, such as @hooks.on(...)",
            )
    return batch


def has_scopes(hooks: Sequence[AnyHook]) -> bool:
    """Return whether any of the hooks is for some operations only."""
    return any(entry.scope is not None for entry in hooks if isinstance(entry, Hooks | Hook))


def select_hooks(
    hooks: Iterable[AnyHook], root_operation_id: str, agent_ids: Sequence[str], tags: Collection[str] = ()
) -> list[AnyHook]:
    """Return the hooks that are for an operation, without those whose stored definition is for others.

    Args:
        hooks: The hooks.
        root_operation_id: The operation, or the outermost one that called it.
        agent_ids: Its agent, and those that called it.
        tags: Its tags.
    """
    selected: list[AnyHook] = []
    for entry in hooks:
        scope = entry.scope if isinstance(entry, Hooks | Hook) else None
        if scope is None:
            selected.append(entry)
        elif scope.includes(root_operation_id, agent_ids, tags):
            selected.append(_without_scope(entry))
    return selected


def _without_scope(entry: AnyHook) -> AnyHook:
    if isinstance(entry, Hook):
        return msgspec.structs.replace(entry, scope=None)
    if isinstance(entry, Hooks) and entry._unscoped is not None:
        return entry._unscoped
    return entry


def copy_bundle(bundle: Hooks, *, revision: int, scope: HookScope | None) -> Hooks:
    """Return a bundle with the same handlers, for another revision of its definition.

    Args:
        bundle: The bundle of a definition.
        revision: The revision of the definition, which the records of its hooks name.
        scope: The operations that it is for; `None` for all.
    """
    made = copy(bundle)
    made.revision = revision
    made.observers = tuple(msgspec.structs.replace(each, revision=revision) for each in bundle.observers)
    made.interceptors = tuple(msgspec.structs.replace(each, revision=revision) for each in bundle.interceptors)
    made._compiled = made._chain = made._keys = None
    if scope is None:
        return made
    scoped = copy(made)
    scoped.scope, scoped._unscoped = scope, made
    return scoped


def refuse_scoped(entry: AnyHook, where: str) -> None:
    """Refuse a hook that is for some operations only, where nobody knows the operation.

    Raises:
        HookDefinitionError: If its stored definition restricts it.
    """
    if isinstance(entry, Hooks | Hook) and entry.scope is not None:
        raise HookDefinitionError(
            where,
            f"the definition {entry.id!r} is only for some operations, which a run selects; outside of a run, use "
            "`registry.hooks(tenant_id, operation_id=..., agent_id=..., tags=...)`",
        )
