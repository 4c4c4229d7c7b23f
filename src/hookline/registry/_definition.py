"""`HookDefinition`: a hook as data, with its validation, and the points at which a hook may stand."""

import math
import re
from collections.abc import Container, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from hookline._hook_scopes import HookScope
from hookline._readonly import NO_DICT, NO_LIST, ReadOnlyDict, ReadOnlyList, check_finite, freeze_dict, freeze_list
from hookline.bus import NAME
from hookline.calls import CALLS, Call, RequestCall, ToolCall
from hookline.dialects import DialectName, HostEventName
from hookline.errors import HookDefinitionError
from hookline.events import EVENTS, TOOL_EVENTS, BeforeToolCall
from hookline.hooks import EVENTS_OF_CALLS, EventClass, Kind, OnError
from hookline.registry._errors import DefinitionError
from hookline.webhooks import LONGEST_MATCHER, Webhook, check_webhook, find_dialect_problem, to_camel

__all__ = [
    "POINTS",
    "READ_ONLY",
    "HookDefinition",
    "Point",
    "RemoteTarget",
    "ShadowLimits",
    "check_definition",
    "check_request",
    "check_tenant_id",
    "field_error",
    "is_id",
    "normalize_keys",
    "point_of",
    "read_definition",
]

KINDS: tuple[Kind, ...] = ("before", "guard", "after", "around")
DEEPEST = 64
SHOWN_NAMES = 3
DEADLINE = 2.0
"""Seconds until a remote process must have answered, if a definition does not say so."""
LARGEST_CONFIG = 64 * 1024
"""Largest `config`, in bytes of JSON."""
RESERVED_IDS = frozenset(
    {"alerts", "backtest", "deleted", "handlers", "logs", "matches", "new", "order", "stats", "test", ".", ".."}
)
"""Ids that would collide with other paths of the HTTP API and of the web page."""
APPLIED = "apply:"
"""How the `source` of a stored definition begins that was applied from a file."""
READ_ONLY = frozenset({"id", "tenantId", "source", "revision", "createdAt", "updatedAt", "problem"})
"""Fields (wire names) that a change may not set."""

Text = Annotated[str, Meta(max_length=2000)]
Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$(?!\n)")]
Id = Annotated[str, Meta(max_length=100, pattern=r"^[A-Za-z0-9_.-]*$(?!\n)")]
Tag = Annotated[str, Meta(min_length=1, max_length=60, pattern=r"^[^\x00-\x1f\x7f]+$(?!\n)")]
Tenant = Annotated[str, Meta(max_length=400, pattern=r"^[^\x00-\x1f\x7f]*$(?!\n)")]
OneTenant = Annotated[str, Meta(min_length=1, max_length=400, pattern=r"^[^\x00-\x1f\x7f]+$(?!\n)")]
AgentGlob = Annotated[str, Meta(min_length=1, max_length=300, pattern=r"^[^\x00-\x1f\x7f]+$(?!\n)")]
OperationTag = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$(?!\n)")]
Environment = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$(?!\n)")]
Percent = Annotated[float, Meta(ge=0, le=100)]
Mode = Literal["enforce", "shadow"]
Seconds = Annotated[float, Meta(gt=0, le=3600)]
RemoteName = Annotated[str, Meta(pattern=rf"^{NAME.pattern}$(?!\n)")]
Share = Annotated[float, Meta(ge=0, lt=1)]


class ShadowLimits(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Limits beyond which the registry puts an enforced hook into shadow mode by itself.

    Attributes:
        failures: The share of calls, 0 to below 1, in which the hook may fail: raise, return an invalid value, or take
            too long. `None` is no limit.
        denials: The share of calls, 0 to below 1, that it may deny. `None` is no limit.
        window: Seconds over which calls are counted, by whole minutes, and only those since the last change of the
            definition.
        minimum: Number of calls in the window from which on the limits hold.
    """

    failures: Share | None = None
    denials: Share | None = None
    window: Annotated[float, Meta(ge=60, le=86_400)] = 300.0
    minimum: Annotated[int, Meta(ge=1, le=10**9)] = 20


class RemoteTarget(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The processes that decide or observe in the place of a hook: those that serve a name on a bus.

    Attributes:
        name: The name that they serve: up to 63 letters, digits, `_` and `-`.
        deadline: Where they decide: seconds until the answer must be there.
        events: Where they observe: events that they hear besides that of the point, such as `"onComplete"`; `["*"]` is
            all.
    """

    name: RemoteName
    deadline: Seconds = DEADLINE
    events: Annotated[list[str], Meta(max_length=len(EVENTS))] = NO_LIST

    def __post_init__(self) -> None:
        if isinstance(self.events, list) and self.events.__class__ is not ReadOnlyList:
            freeze_list(self, "events", self.events)


class Point(NamedTuple):
    """A point at which a hook may stand: an event, or a kind of interceptor of a call.

    Attributes:
        name: Wire name of an event (`"afterStep"`), or call and kind (`"ToolCall.guard"`).
        event: The event, for an observer.
        call: The call, for an interceptor.
        kind: The kind of interceptor.
    """

    name: str
    event: EventClass | None = None
    call: type[Call] | None = None
    kind: Kind | None = None

    @property
    def has_tool(self) -> bool:
        """Whether the event or call is about a tool."""
        return self.call is ToolCall or self.event in TOOL_EVENTS


POINTS: Mapping[str, Point] = {
    **{event.value: Point(event.value, event=kind) for event, kind in EVENTS.items()},
    **{
        f"{call.__name__}.{kind}": Point(f"{call.__name__}.{kind}", call=call, kind=kind)
        for call in CALLS
        for kind in KINDS
    },
}
"""The 48 points by name: the sixteen events, and four kinds of interceptors for each of the eight calls."""


class HookDefinition(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A hook as data. Exactly one of `handler`, `webhook`, `script` and `remote` is set.

    Attributes:
        id: The id of the hook, also in records and denials; `hook_` and twelve hex digits by default.
        name: A name for people; unique for a tenant and a point.
        point: The point at which the hook stands: one of `POINTS`.
        description: What the hook is for.
        priority: Order among the interceptors, 0 (outermost) to 1000. The order of observers follows it too.
        handler: Name of an installed handler, or `module:attribute` in one of the configured modules.
        webhook: The webhook that delivers the event. A control of `beforeToolCall` decides about the call.
        script: A file in the folder of scripts.
        remote: The processes on the bus that decide about the call, for points such as `"ToolCall.before"`, or that
            observe, for an event: they hear it after the commit that stores it.
        dialect: The protocol that the script speaks: `"hookline"`, or that of the hooks of a coding agent, `"claude"`,
            `"codex"`, `"gemini"` or `"copilot"`. A webhook has a `dialect` of its own.
        host_event: With another dialect, the agent's event that the script is for, by Claude Code's name, where the
            point has several; `""` for what happens at the point.
        matcher: With another dialect, the tools or agents that the script is for, as the agent's settings have it:
            names, or a regular expression, of tools as the agent calls them. `""` is all of them.
        tool: Glob over `toolset/tool_name`; one without a `/` means `*/<glob>`. Tool calls and tool events only.
        timeout: Seconds that the hook may take; `None` for the default.
        enabled: Whether the hook takes part in the next run.
        tenant_id: The tenant for whose runs the hook is; `""` is a system hook, for the runs of every tenant.
        except_tenants: The tenants whose runs a system hook leaves out.
        tenants: The only tenants for whose runs a system hook is; empty for all.
        agents: Globs of the ids of the only agents for whose operations it is, sub-agents that they call among them;
            empty for all.
        operation_tags: Globs of tags, one of which an operation must have; empty for all operations.
        environments: The only environments, as `Registry(environment=...)` names them, in which it is; empty for all.
        percent: The share of operations for which it is, 0 to 100, with up to two decimals. The id of the hook and of
            the operation decide which; a higher percentage only adds operations, and a sub-agent goes with its caller.
        config: Arguments of the handler, or configuration for the script.
        on_error: For an interceptor: what happens to the call if the hook fails. `"closed"` denies it.
        mode: `"enforce"`, or `"shadow"` to record what an interceptor or a control decides, without any effect.
        shadow_above: Limits for its failures and denials, beyond which the registry sets `mode` to `"shadow"`.
        inherit: Whether the operations of sub-agents inherit the hook. By default, an interceptor and a control are
            inherited, and an observer is not.
        tags: Words to find the hook by.
        source: `"api"`; `"apply:"` and the file from which `apply_plan` has stored it, until it is changed otherwise;
            or the file in which the definition stands. Set by the registry, like all that follow.
        revision: The revision of its last change, counted over all definitions.
        created_at: When it was created, in unix seconds.
        updated_at: When it was last changed, in unix seconds.
        problem: Why the hook cannot run in the process that was asked; `""` if it can.
    """

    id: Id = ""
    name: Name
    point: str
    description: Text = ""
    priority: Annotated[int, Meta(ge=0, le=1000)] = 100
    handler: Annotated[str, Meta(min_length=1, max_length=300)] | None = None
    webhook: Webhook | None = None
    script: Annotated[str, Meta(min_length=1, max_length=300)] | None = None
    remote: RemoteTarget | None = None
    dialect: DialectName = "hookline"
    host_event: HostEventName | Literal[""] = ""
    matcher: Annotated[str, Meta(max_length=LONGEST_MATCHER)] = ""
    tool: Annotated[str, Meta(min_length=1, max_length=300)] | None = None
    timeout: Seconds | None = None
    enabled: bool = True
    tenant_id: Tenant = ""
    except_tenants: Annotated[list[OneTenant], Meta(max_length=1000)] = NO_LIST
    tenants: Annotated[list[OneTenant], Meta(max_length=1000)] = NO_LIST
    agents: Annotated[list[AgentGlob], Meta(max_length=100)] = NO_LIST
    operation_tags: Annotated[list[OperationTag], Meta(max_length=100)] = NO_LIST
    environments: Annotated[list[Environment], Meta(max_length=100)] = NO_LIST
    percent: Percent = 100.0
    config: dict[str, Any] = NO_DICT
    on_error: OnError = "closed"
    mode: Mode = "enforce"
    shadow_above: ShadowLimits | None = None
    inherit: bool | None = None
    tags: Annotated[list[Tag], Meta(max_length=30)] = NO_LIST
    source: str = "api"
    revision: int = 0
    created_at: float = 0.0
    updated_at: float = 0.0
    problem: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.config, dict) and self.config.__class__ is not ReadOnlyDict:
            freeze_dict(self, "config", self.config)
        for name in ("tags", "except_tenants", "tenants", "agents", "operation_tags", "environments"):
            given = getattr(self, name)
            if isinstance(given, list) and given.__class__ is not ReadOnlyList:
                freeze_list(self, name, given)

    @property
    def scope(self) -> HookScope | None:
        """The operations for which it is among those of its tenants and environments; `None` for all of them."""
        if self.percent >= 100 and not self.agents and not self.operation_tags:
            return None
        return HookScope(key=self.id, percent=self.percent, agents=tuple(self.agents), tags=tuple(self.operation_tags))

    def describe_scope(self) -> str:
        """Return for what it is, for people: `"25 % of operations of agents refund*"`; `""` if nothing restricts it."""
        whole = "requests" if self.point.startswith("RequestCall.") else "operations"
        share = f"{self.percent:g} % of {whole}" if self.percent < 100 else whole
        named = [
            f"{words} {_list_some(names)}"
            for words, names in (
                ("of agents", self.agents),
                ("tagged", self.operation_tags),
                ("for tenants", self.tenants),
                ("in", self.environments),
            )
            if names
        ]
        return " ".join([share, *named]) if named or self.percent < 100 else ""

    @property
    def is_stored(self) -> bool:
        """Whether the database has the definition, so that it can be changed there; else a file has it."""
        return self.source == "api" or self.source.startswith(APPLIED)

    @property
    def applied_file(self) -> str:
        """The file from which a stored definition was applied; `""` if it was made or changed otherwise."""
        return self.source.removeprefix(APPLIED) if self.source.startswith(APPLIED) else ""

    @property
    def runs(self) -> Literal["handler", "webhook", "script", "remote"]:
        """Which of the four fields is set: `"handler"`, `"webhook"`, `"script"` or `"remote"`."""
        if self.remote is not None:
            return "remote"
        return "handler" if self.handler is not None else "webhook" if self.webhook is not None else "script"

    @property
    def target(self) -> str:
        """The handler, the URL of the webhook, the file of the script, or the name that remote processes serve."""
        if self.webhook is not None:
            return self.webhook.url
        return self.remote.name if self.remote is not None else self.handler or self.script or ""

    @property
    def decides(self) -> bool:
        """Whether it can decide about a call: an interceptor, a control, or a handler of `beforeToolCall`."""
        if self.webhook is not None:
            return self.webhook.control
        point = POINTS.get(self.point)
        answers = self.remote is None and point is not None and point.event is BeforeToolCall
        return point is not None and (point.call is not None or answers)

    @property
    def inherits(self) -> bool:
        """Whether the operations of sub-agents inherit the hook: its `inherit`, or the default of its point."""
        if self.inherit is not None:
            return self.inherit
        is_control = self.webhook is not None and self.webhook.control
        return is_control or (self.point in POINTS and POINTS[self.point].call is not None)


def _list_some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN_NAMES])
    return shown if len(names) <= SHOWN_NAMES else f"{shown} and {len(names) - SHOWN_NAMES} more"


def is_id(text: str) -> bool:
    """Return whether a text is a valid id of a definition."""
    return 0 < len(text) <= 100 and re.fullmatch(r"[A-Za-z0-9_.-]+", text) is not None


def check_tenant_id(tenant_id: object) -> None:
    """Check the id of a tenant.

    Raises:
        DefinitionError: If it is invalid.
    """
    try:
        msgspec.json.encode(msgspec.convert(tenant_id, Tenant))
    except (msgspec.ValidationError, ValueError) as error:
        raise DefinitionError("invalid", "$.tenantId", f"it is not a valid tenant id: {error}") from None


def point_of(definition: HookDefinition) -> Point:
    """Return the point of a checked definition."""
    return POINTS[definition.point]


def normalize_keys(given: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the keys of a definition to camelCase, whether they come in snake_case or camelCase.

    Raises:
        DefinitionError: If a key is no text, or is given in both spellings.
    """
    found: dict[str, Any] = {}
    for key, value in given.items():
        if not isinstance(key, str):
            raise DefinitionError("invalid", "$", f"a key must be text; got {key!r:.100}")
        wire = key if key.startswith("_") else to_camel(key)
        if wire in found:
            raise DefinitionError("invalid", f"$.{wire}", f"`{wire}` is given in two spellings; leave one out")
        parted = wire in ("webhook", "shadowAbove", "remote") and isinstance(value, Mapping)
        found[wire] = normalize_keys(value) if parted else value
    return found


def read_definition(given: object) -> HookDefinition:
    """Parse and validate a definition.

    Args:
        given: A definition, or a mapping with its fields, in snake_case or camelCase.

    Raises:
        DefinitionError: If it is no definition, or a field has an invalid value.
    """
    try:
        # A struct that was made in Python has not been validated yet.
        plain = msgspec.to_builtins(given)
        if not isinstance(plain, dict):
            raise DefinitionError(
                "invalid", "$", f"a definition must be a mapping with its fields; got {type(given).__name__}"
            )
        definition = check_definition(msgspec.convert(normalize_keys(plain), HookDefinition))
    except msgspec.ValidationError as error:
        raise field_error(str(error)) from None
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, DefinitionError):
            raise
        raise DefinitionError("invalid", "$", f"it has a value that JSON cannot represent: {error}") from None
    if definition.id in RESERVED_IDS:
        problem = "this id is a path of the HTTP API; choose another id, or leave it out"
        raise DefinitionError("invalid", "$.id", problem)
    return definition


def _meant_point(given: str) -> str:
    """Return which point is meant, for an event in place of a call, a call in place of an event, or a typo."""
    head, _, kind = given.partition(".")
    name = f"{head[:1].upper()}{head[1:]}"
    call = next((call for call, events in EVENTS_OF_CALLS.items() if name in events), name)
    near = get_close_matches(given, POINTS, 1, 0.8)
    if name in EVENTS_OF_CALLS and not kind:
        events = [f"'{event[0].lower()}{event[1:]}'" for event in EVENTS_OF_CALLS[name]]
        observe = f"; to observe it, use {' or '.join(events)}" if events else ""
        return f"to decide about the call, use '{name}.guard'{observe}"
    if f"{call}.{kind}" in POINTS:
        return f"you mean '{call}.{kind}'"
    if near:
        return f"you mean {near[0]!r}"
    return "use an event such as 'afterStep', or a call and a kind such as 'ToolCall.guard'"


def check_definition(definition: HookDefinition) -> HookDefinition:
    """Check that the fields of a definition go together, and return it.

    Raises:
        DefinitionError: If they do not.
    """
    point = POINTS.get(definition.point)
    if point is None:
        raise DefinitionError(
            "invalid",
            "$.point",
            f"{definition.point!r:.100} is not a point; {_meant_point(definition.point)}",
        )
    given = [name for name in ("handler", "webhook", "script", "remote") if getattr(definition, name) is not None]
    if len(given) != 1:
        named = " and ".join(given) or "none"
        problem = f"set exactly one of `handler`, `webhook`, `script` and `remote`; got {named}"
        raise DefinitionError("invalid", "$", problem)
    _check_tool(definition, point)
    _check_dialect(definition, point)
    _check_config(definition)
    _check_texts(definition)
    _check_scope(definition, point)
    if point.event is not None and definition.on_error != "closed":
        raise DefinitionError("invalid", "$.onError", "an observer cannot deny a call; leave `onError` out")
    if definition.mode == "shadow" and not definition.decides:
        problem = f"a hook at {point.name} only observes, and decides nothing; leave `mode` out"
        raise DefinitionError("invalid", "$.mode", problem)
    _check_shadow_limits(definition, point)
    if definition.webhook is not None:
        _check_webhook(definition, point, definition.webhook)
    if definition.remote is not None:
        _check_remote(definition, point, definition.remote)
    return definition


def _check_remote(definition: HookDefinition, point: Point, target: RemoteTarget) -> None:
    if point.call is not None and point.kind != "before":
        problem = f"remote processes decide before a call; use '{point.call.__name__}.before'"
        raise DefinitionError("point_not_served", "$.point", problem)
    observes = point.event is not None
    for name, is_set, instead in (
        ("config", definition.config, "the processes that serve a name have their own; leave `config` out"),
        ("tool", observes and definition.tool, "observers name their tools where they are written; leave `tool` out"),
        ("timeout", observes and definition.timeout is not None, "no run waits for them; leave `timeout` out"),
        ("timeout", definition.timeout is not None, "set `remote.deadline` instead"),
        ("remote.deadline", observes and target.deadline != DEADLINE, "no run waits for them; leave `deadline` out"),
        ("remote.events", not observes and target.events, "only observers hear events; use an event as the point"),
    ):
        if is_set:
            raise DefinitionError("invalid", f"$.{name}", instead)
    for nth, each in enumerate(target.events):
        if each not in EVENTS and each != "*":
            problem = f"{each!r:.100} is no event; use {', '.join(EVENTS)}, or '*' for all"
            raise DefinitionError("invalid", f"$.remote.events[{nth}]", problem)


def _check_shadow_limits(definition: HookDefinition, point: Point) -> None:
    limits = definition.shadow_above
    if limits is None:
        return
    if not definition.decides:
        problem = f"a hook at {point.name} only observes, and has no shadow mode; leave `shadowAbove` out"
        raise DefinitionError("invalid", "$.shadowAbove", problem)
    if limits.failures is None and limits.denials is None:
        raise DefinitionError("invalid", "$.shadowAbove", "set at least one of `failures` and `denials`")
    for name in ("failures", "denials", "window"):
        value = getattr(limits, name)
        if value is not None and not math.isfinite(value):
            raise DefinitionError("invalid", f"$.shadowAbove.{name}", f"it must be a number; got {value!r}")


def _check_scope(definition: HookDefinition, point: Point) -> None:
    """Check the fields that say for which operations a hook is."""
    for name, given in (("exceptTenants", definition.except_tenants), ("tenants", definition.tenants)):
        if given and definition.tenant_id:
            problem = f"only a system hook is for several tenants; leave `{name}` out"
            raise DefinitionError("invalid", f"$.{name}", problem)
    if definition.tenants and definition.except_tenants:
        problem = "a hook that is only for some tenants leaves out all others; leave `exceptTenants` out"
        raise DefinitionError("invalid", "$.exceptTenants", problem)
    if round(definition.percent, 2) != definition.percent:
        problem = f"a percentage has at most two decimals, such as 0.01; got {definition.percent!r}"
        raise DefinitionError("invalid", "$.percent", problem)
    if point.call is RequestCall:
        for name, is_set in (
            ("agents", definition.agents),
            ("operationTags", definition.operation_tags),
            ("percent", definition.percent != 100),
        ):
            if is_set:
                problem = f"a request to a server belongs to no operation; leave `{name}` out"
                raise DefinitionError("invalid", f"$.{name}", problem)


def _check_tool(definition: HookDefinition, point: Point) -> None:
    if definition.tool is None:
        return
    if not point.has_tool:
        raise DefinitionError("invalid", "$.tool", f"{point.name} has no tool; leave `tool` out")


def _check_dialect(definition: HookDefinition, point: Point) -> None:
    if definition.script is None:
        for name, given in (
            ("dialect", definition.dialect != "hookline"),
            ("hostEvent", definition.host_event),
            ("matcher", definition.matcher),
        ):
            if given:
                instead = f"set `webhook.{name}` instead" if definition.webhook is not None else "leave it out"
                raise DefinitionError("invalid", f"$.{name}", f"only a script has a `{name}`; {instead}")
        return
    found = find_dialect_problem(
        definition.dialect, point.name, host_event=definition.host_event, matcher=definition.matcher
    )
    if found is not None:
        name, problem = to_camel(found[0]), found[1]
        raise DefinitionError("invalid", f"$.{name}", f"`{name}` {problem}")


def _is_deep(value: object, left: int) -> bool:
    if left == 0:
        return True
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(_is_deep(each, left - 1) for each in inner)


def _check_config(definition: HookDefinition) -> None:
    for name, value in (
        ("config", definition.config),
        ("webhook.body", definition.webhook and definition.webhook.body),
    ):
        if _is_deep(value, DEEPEST):
            raise DefinitionError("invalid", f"$.{name}", f"it has more than {DEEPEST} nested levels")
    if definition.webhook is not None and definition.config:
        raise DefinitionError("invalid", "$.config", "a webhook has its own fields; leave `config` out")
    try:
        check_finite("config", definition.config)
        size = len(msgspec.json.encode(definition.config))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DefinitionError("invalid", "$.config", f"it cannot be written as JSON: {error}") from None
    if size > LARGEST_CONFIG:
        raise DefinitionError("invalid", "$.config", f"it has {size} bytes as JSON; the limit is {LARGEST_CONFIG}")


def _check_texts(definition: HookDefinition) -> None:
    """Raise if a text cannot be encoded as UTF-8, such as a lone surrogate."""
    try:
        msgspec.json.encode(definition)
    except ValueError:
        for name, value in msgspec.to_builtins(definition).items():
            try:
                msgspec.json.encode(value)
            except ValueError as error:
                raise DefinitionError("invalid", f"$.{name}", f"it cannot be stored: {error}") from None


def _check_webhook(definition: HookDefinition, point: Point, webhook: Webhook) -> None:
    if point.event is None:
        raise DefinitionError(
            "point_not_served",
            "$.point",
            "a webhook receives events; to decide about tool calls, use 'beforeToolCall' with `control: true`",
        )
    for name, differs, problem in (
        ("timeout", definition.timeout is not None, "set `webhook.timeout` instead"),
        ("priority", webhook.control and definition.priority != 100, "a control always has priority 100; leave it out"),
    ):
        if differs:
            raise DefinitionError("invalid", f"$.{name}", problem)
    if not math.isfinite(webhook.timeout):
        raise DefinitionError("webhook_refused", "$.webhook.timeout", "it must be a number of seconds")
    try:
        check_webhook(webhook, point.event, "webhook")
    except HookDefinitionError as error:
        raise DefinitionError("webhook_refused", _place_in_webhook(error.problem), error.problem) from None


def _place_in_webhook(problem: str) -> str:
    """Return the JSON path of the first field that an error of a webhook names."""
    wire = dict(zip(Webhook.__struct_fields__, Webhook.__struct_encode_fields__, strict=True))
    named = next((wire[name] for name in re.findall(r"`(\w+)`", problem) if name in wire), None)
    return "$.webhook" if named is None else f"$.webhook.{named}"


def field_error(message: str) -> DefinitionError:
    """Build the error for a message of a failed conversion, with the path of the field."""
    reason, _, path = message.rpartition(" - at `")
    if not reason:
        reason, path = message, "$"
    path = path.rstrip("`")
    if path == "$.percent":
        problem = f"a percentage is a number from 0 to 100, with at most two decimals ({_lower(reason)})"
        return DefinitionError("invalid", path, problem)
    missing = re.fullmatch(r"Object (?:missing required|contains unknown) field `(.+)`", reason)
    if missing is not None:
        path = f"{path}.{missing[1]}"
    return DefinitionError("invalid", path, _lower(reason))


def _lower(reason: str) -> str:
    return f"{reason[:1].lower()}{reason[1:]}"


def check_request(definition: HookDefinition, variables: Container[str]) -> None:
    """Refuse a webhook or remote hook that would use resources of the process that delivers or asks it.

    A header could send any environment variable to a receiver of the tenant's choice, a named key could sign for
    somebody else, and a function served under `local://` expects deliveries of its own process only.

    Args:
        definition: The definition to check.
        variables: Environment variables that headers may name.

    Raises:
        DefinitionError: If it uses something that is not allowed.
    """
    webhook = definition.webhook
    if definition.remote is not None and definition.tenant_id:
        problem = "only a system hook may ask processes on the bus, since a tenant could ask those of others"
        raise DefinitionError("remote_refused", "$.remote", problem)
    if webhook is None:
        return
    for name in webhook.allowed_env_vars:
        if name not in variables:
            raise DefinitionError(
                "webhook_refused",
                "$.webhook.allowedEnvVars",
                f"headers may not use the variable {name!r:.100}; the operator can allow it with `webhook_env`",
            )
    if not definition.tenant_id:
        return
    if webhook.allowed_env_vars:
        raise DefinitionError(
            "webhook_refused",
            "$.webhook.allowedEnvVars",
            "only a system hook may send environment variables; a tenant could send them to itself",
        )
    if webhook.key:
        raise DefinitionError("webhook_refused", "$.webhook.key", "only a system hook may name a key; leave `key` out")
    if urlsplit(webhook.url).scheme == "local":
        raise DefinitionError("webhook_refused", "$.webhook.url", "only a system hook may be delivered to local://")
