"""Which tools may be called, how often, with whose consent, and when an earlier answer will do.

Tools are named by globs: `"search"` is the tool of that name wherever it comes from, `"github/*"` every tool of that
source, `"agent/<id>"` a sub-agent.
"""

from collections.abc import Callable
from time import monotonic
from typing import Any, Literal, TypeAlias, Unpack

from msgspec.structs import replace

from hookline.calls import Ask, Deny, ModelCall, SubAgentCall, ToolCall
from hookline.errors import HookDefinitionError, HookDenied
from hookline.hooks import Hooks
from hookline.ready._globs import Globs, name_of
from hookline.ready._options import BundleOptions, with_defaults

__all__ = ["Per", "allow_tools", "cache", "deny_tools", "limit_calls", "require_approval"]

AnyToolCall: TypeAlias = ToolCall | SubAgentCall
Per: TypeAlias = Literal["operation", "tool", "tenant"] | float
"""What `limit_calls` counts together; a number is a sliding window of that many seconds, per tenant."""


def allow_tools(*globs: str, hide: bool = True, **options: Unpack[BundleOptions]) -> Hooks:
    """Let the model call these tools and sub-agents, and no others.

    It goes along into sub-agents, whose tools must then be named too (`inherit=False` leaves them alone). Security:
    priority 10.

    Args:
        *globs: The tools: `"search"`, `"github/*"`, `"agent/<id>"`.
        hide: Whether the model is not even offered the others.
        **options: Of the bundle, see `BundleOptions`.

    Raises:
        HookDefinitionError: If no tool is named, or an option cannot work.
    """
    allowed = Globs("allow_tools", globs)

    def refusal(identifier: str, api_name: str) -> str | None:
        if allowed.match(identifier, api_name) is not None:
            return None
        return f"{identifier}/{api_name} is none of the allowed tools: {allowed}"

    return _filter(Hooks(**with_defaults("allow_tools", 10, options)), refusal, hide=hide)


def deny_tools(*globs: str, hide: bool = True, **options: Unpack[BundleOptions]) -> Hooks:
    """Refuse calls of these tools and sub-agents.

    Security: priority 10.

    Args:
        *globs: The tools: `"bash"`, `"github/*"`, `"agent/<id>"`.
        hide: Whether the model is not even offered them.
        **options: Of the bundle, see `BundleOptions`.

    Raises:
        HookDefinitionError: If no tool is named, or an option cannot work.
    """
    denied = Globs("deny_tools", globs)

    def refusal(identifier: str, api_name: str) -> str | None:
        rule = denied.match(identifier, api_name)
        return None if rule is None else f"{identifier}/{api_name} is denied by the rule {rule!r}"

    return _filter(Hooks(**with_defaults("deny_tools", 10, options)), refusal, hide=hide)


def _filter(hooks: Hooks, refusal: Callable[[str, str], str | None], *, hide: bool) -> Hooks:
    def judge(call: AnyToolCall) -> Deny | None:
        reason = refusal(*name_of(call))
        return None if reason is None else Deny(reason)

    hooks.guard(ToolCall, id=hooks.id)(judge)
    hooks.guard(SubAgentCall, id=hooks.id)(judge)
    if hide:

        @hooks.before(ModelCall, priority=1000 - hooks.priority, id=hooks.id)
        def offer(call: ModelCall) -> ModelCall | None:
            offered = [spec for spec in call.tools if refusal(spec.identifier, spec.name) is None]
            return None if len(offered) == len(call.tools) else replace(call, tools=offered)

    return hooks


def require_approval(
    *globs: str, prompt: str | Callable[[ToolCall], str] | None = None, **options: Unpack[BundleOptions]
) -> Hooks:
    """Ask a person before these tools are called: the run pauses, and `resume_agent` goes on with the decision.

    Where nobody can be asked, as in a bare chain, the call is denied. Governance: priority 50.

    Args:
        *globs: The tools: `"pay"`, `"github/*"`. Sub-agents cannot be asked about.
        prompt: What the person is asked, or a function that makes it of the call.
        **options: Of the bundle, see `BundleOptions`.

    Raises:
        HookDefinitionError: If no tool is named, or an option cannot work.
    """
    asked = Globs("require_approval", globs)
    if not (prompt is None or isinstance(prompt, str) or callable(prompt)):
        raise HookDefinitionError("require_approval", f"`prompt` is text or a function of the call; got {prompt!r}")
    hooks = Hooks(**with_defaults("require_approval", 50, options))

    @hooks.guard(ToolCall, id=hooks.id)
    def ask(call: ToolCall) -> Ask | None:
        if asked.match(*name_of(call)) is None:
            return None
        if callable(prompt):
            return Ask(prompt(call))
        return Ask(prompt or f"May {call.identifier}/{call.api_name} be called with {call.args!r:.500}?")

    return hooks


def limit_calls(
    n: int,
    *,
    tool: str = "*",
    per: Per = "operation",
    clock: Callable[[], float] = monotonic,
    **options: Unpack[BundleOptions],
) -> Hooks:
    """Deny tool and sub-agent calls beyond the first `n`.

    A call counts when every other guard has let it through: priority 1000, the last guard. One that then has to wait
    for a person counts when that person has approved it. Counts live in this process, and as long as the bundle.

    Args:
        n: How many calls may happen.
        tool: Glob of the tools that count.
        per: `"operation"`; `"tool"`, each tool of an operation for itself; `"tenant"`, all operations of a tenant
            together; or seconds, so that no tenant has more than `n` calls in any window of that length.
        clock: Seconds, for tests.
        **options: Of the bundle, see `BundleOptions`.

    Raises:
        HookDefinitionError: If a limit or an option cannot work.
    """
    window = _window(n, per)
    tallies = _Tallies(n, window, by_tool=per == "tool", clock=clock)
    counted = Globs("limit_calls", (tool,))
    hooks = Hooks(**with_defaults("limit_calls", 1000, options))
    mark = f"hookline.limit_calls.{id(tallies)}"
    unit = {"operation": "per operation", "tool": "of a tool per operation", "tenant": "per tenant"}
    rule = f"the limit of {n} calls {unit.get(str(per), f'in {per} s')} ({tool}) is reached"

    def scope(call: AnyToolCall) -> str:
        return call.operation_id if per in ("operation", "tool") else call.tenant_id

    def count(call: AnyToolCall) -> Deny | None:
        if counted.match(*name_of(call)) is None:
            return None
        taken = tallies.take(scope(call), "/".join(name_of(call)))
        if taken is None:
            return Deny(rule)
        call.metadata[mark] = taken
        return None

    async def give_back(call: AnyToolCall, call_next: Callable[[AnyToolCall], Any]) -> Any:
        try:
            return await call_next(call)
        except HookDenied:  # also when the call waits for a person: it is judged, and counted, when it goes on
            taken = call.metadata.pop(mark, None)
            if taken is not None:
                tallies.give_back(scope(call), "/".join(name_of(call)), taken)
            raise

    for kind in (ToolCall, SubAgentCall):
        hooks.guard(kind, id=hooks.id)(count)
        hooks.around(kind, id=hooks.id)(give_back)
    if window is None:
        tallies.kept.drop_on_complete(hooks)
    return hooks
