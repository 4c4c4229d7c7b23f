"""Ready-made hooks for tool calls: allow, deny, require approval, limit, cache.

Globs name tools: `"search"` is the tool of that name in any toolset, `"github/*"` every tool of that toolset,
`"agent/<id>"` a sub-agent.
"""

import contextlib
import hashlib
import json
import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import Any, Generic, Literal, TypeAlias, TypedDict, TypeVar, Unpack

from msgspec.structs import replace

from hookline._checks import tool_test
from hookline.calls import Ask, Call, Deny, ModelCall, SubAgentCall, ToolCall, ToolResult
from hookline.errors import HookDefinitionError, HookDenied
from hookline.events import AfterToolCall, BeforeToolCall, OnComplete
from hookline.hooks import Hooks, meets_approved

__all__ = [
    "BundleOptions",
    "Globs",
    "Per",
    "PerOperation",
    "allow_tools",
    "cache",
    "check_number",
    "deny_tools",
    "limit_calls",
    "name_of",
    "require_approval",
    "with_defaults",
]


class Globs:
    """Matches tools by globs over `toolset/tool_name`; one without a `/` means `*/<glob>`.

    Args:
        where: The hook's name in errors.
        globs: At least one; `*` also matches `/`.

    Raises:
        HookDefinitionError: If there is none, or one is not text.
    """

    def __init__(self, where: str, globs: tuple[str, ...]) -> None:
        for glob in globs or (None,):
            if not isinstance(glob, str) or not glob:
                raise HookDefinitionError(
                    where,
                    "name tools by globs: 'search' (that tool in any toolset), 'github/*', 'agent/<id>', or "
                    f"'*' for every tool; got {', '.join(map(repr, globs)) or 'none'}",
                )
        self._tests = [(glob, tool_test(glob)) for glob in globs]

    def __str__(self) -> str:
        return ", ".join(glob for glob, _ in self._tests)

    def match(self, toolset: str, tool_name: str) -> str | None:
        """Return the first glob that matches a tool; `None` if none does."""
        name = f"{toolset}/{tool_name}"
        return next((glob for glob, test in self._tests if test(name)), None)


def name_of(call: ToolCall | SubAgentCall) -> tuple[str, str]:
    """Return the `toolset` and the `tool_name` of a call; a sub-agent is the tool `agent/<id>`."""
    return ("agent", call.callee_id) if isinstance(call, SubAgentCall) else (call.toolset, call.tool_name)


T = TypeVar("T")

MOST = 100_000
"""Most values that are kept. A run drops its own when it ends; the limit is for runs that wait for a person who never
comes, and for chains outside of a run, where nobody says that an operation has ended."""


class PerOperation(Generic[T]):
    """Keeps values per operation or tenant; beyond `MOST`, the least recently used one is dropped.

    Args:
        make: Makes the first one.

    Attributes:
        lock: Held by whoever reads and then writes, since a bundle may be shared by event loops in several threads.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self.lock = Lock()
        self._make = make
        self._kept: OrderedDict[str, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def of(self, key: str, *, like: str | None = None) -> T:
        """Return the value of an operation or tenant.

        Args:
            key: An operation or a tenant.
            like: Another key; if that is known and `key` is not yet, both share one.
        """
        if key not in self._kept:
            self._kept[key] = self._kept[like] if like is not None and like in self._kept else self._make()
            if len(self._kept) > MOST:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def drop_on_complete(self, hooks: Hooks) -> None:
        """Drop an operation when it ends; one that waits for a person goes on later."""

        @hooks.on(OnComplete, id=hooks.id)
        def forget(event: OnComplete) -> None:
            if event.reason != "waiting_for_human":
                with self.lock:
                    self._kept.pop(event.operation_id, None)


class BundleOptions(TypedDict, total=False):
    """Options that every ready-made hook takes besides its own; they are those of `Hooks`.

    Attributes:
        id: Name of the bundle, and `hook_id` of its denials and records. Default: the function's name.
        priority: From 0 (outermost) to 1000. Hooks of the bundle that change a call before it runs use
            `1000 - priority`, so that they run last.
        tenant_id: The tenant whose runs the bundle applies to; `""` for all tenants.
        inherit: Whether the bundle also applies to sub-agents. Default: `True`.
    """

    id: str
    priority: int
    tenant_id: str
    inherit: bool


def with_defaults(id: str, priority: int, given: BundleOptions) -> dict[str, Any]:  # noqa: A002
    """Return the arguments of `Hooks` for a ready-made bundle."""
    return {"id": id, "priority": priority, "inherit": True, **given}


def check_number(where: str, name: str, value: object, *, least: float = 0, whole: bool = False) -> None:
    """Check that an option is a finite number in its range.

    Args:
        where: The hook's name in the error.
        name: The argument's name in the error.
        value: The value to check.
        least: The smallest valid number; 0 means that it must be above 0.
        whole: Whether it must be an `int`.

    Raises:
        HookDefinitionError: If it is not; the error names the valid range.
    """
    kind = "a whole number" if whole else "a number"
    wanted = f"{kind} from {least:g}" if least else f"{kind} above 0"
    number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or (value < least if least else value <= 0):  # type: ignore[arg-type, operator]
        raise HookDefinitionError(where, f"`{name}` must be {wanted}; got {value!r}")


AnyToolCall: TypeAlias = ToolCall | SubAgentCall
Per: TypeAlias = Literal["operation", "tool", "tenant"] | float
"""The scope of a limit of `limit_calls`; a number is a sliding window of that many seconds, per tenant."""


def allow_tools(*globs: str, hide: bool = True, **options: Unpack[BundleOptions]) -> Hooks:
    """Deny calls to all tools and sub-agents except these.

    The bundle also applies to sub-agents, so name their tools too, or pass `inherit=False`. Priority: 10.

    Args:
        *globs: The tools: `"search"`, `"github/*"`, `"agent/<id>"`.
        hide: Whether to hide the other tools from the model.
        **options: Options of the bundle, see `BundleOptions`.

    Raises:
        HookDefinitionError: If no tool is named, or an option is invalid.
    """
    allowed = Globs("allow_tools", globs)

    def refusal(toolset: str, tool_name: str) -> str | None:
        if allowed.match(toolset, tool_name) is not None:
            return None
        return f"{toolset}/{tool_name} is not one of the allowed tools: {allowed}"

    return _filter(Hooks(**with_defaults("allow_tools", 10, options)), refusal, hide=hide)


def deny_tools(*globs: str, hide: bool = True, **options: Unpack[BundleOptions]) -> Hooks:
    """Deny calls to these tools and sub-agents.

    Priority: 10.

    Args:
        *globs: The tools: `"bash"`, `"github/*"`, `"agent/<id>"`.
        hide: Whether to hide these tools from the model.
        **options: Options of the bundle, see `BundleOptions`.

    Raises:
        HookDefinitionError: If no tool is named, or an option is invalid.
    """
    denied = Globs("deny_tools", globs)

    def refusal(toolset: str, tool_name: str) -> str | None:
        rule = denied.match(toolset, tool_name)
        return None if rule is None else f"{toolset}/{tool_name} is denied by the rule {rule!r}"

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
            offered = [spec for spec in call.tools if refusal(spec.toolset, spec.name) is None]
            return None if len(offered) == len(call.tools) else replace(call, tools=offered)

    return hooks


def require_approval(
    *globs: str, prompt: str | Callable[[ToolCall], str] | None = None, **options: Unpack[BundleOptions]
) -> Hooks:
    """Ask a person before these tools are called: the run pauses, and `resume_agent` continues with the decision.

    Where nobody can be asked, as in a bare chain, the call is denied. Priority: 50.

    Args:
        *globs: The tools: `"pay"`, `"github/*"`. Sub-agents cannot be asked about.
        prompt: The question to the person, or a function that returns it for a call.
        **options: Options of the bundle, see `BundleOptions`.

    Raises:
        HookDefinitionError: If no tool is named, or an option is invalid.
    """
    asked = Globs("require_approval", globs)
    if not (prompt is None or isinstance(prompt, str) or callable(prompt)):
        raise HookDefinitionError(
            "require_approval", f"`prompt` must be text or a function of the call; got {prompt!r}"
        )
    hooks = Hooks(**with_defaults("require_approval", 50, options))

    @hooks.guard(ToolCall, id=hooks.id)
    def ask(call: ToolCall) -> Ask | None:
        if asked.match(*name_of(call)) is None:
            return None
        if callable(prompt):
            return Ask(prompt(call))
        return Ask(prompt or f"May {call.toolset}/{call.tool_name} be called with {call.args!r:.500}?")

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

    Calls that another guard denies are not counted. A call that waits for approval is counted when it runs. Counts are
    kept in this process. Priority: 1000, the innermost guard.

    Args:
        n: The number of calls to allow.
        tool: Glob of the tools to count.
        per: `"operation"`; `"tool"`, for each tool of an operation separately; `"tenant"`, for all operations of a
            tenant together; or a number of seconds: at most `n` calls of a tenant in any period of that length.
        clock: Returns the time in seconds.
        **options: Options of the bundle, see `BundleOptions`.

    Raises:
        HookDefinitionError: If a limit or an option is invalid.
    """
    hooks, tally = Hooks(**with_defaults("limit_calls", 1000, options)), _Tally(n, per, tool, clock)

    async def give_back(call: AnyToolCall, call_next: Callable[[AnyToolCall], Any]) -> Any:
        try:
            return await call_next(call)
        except HookDenied:
            tally.give_back(call)
            raise

    hooks.guard(ToolCall, id=hooks.id)(tally.judge)
    hooks.guard(SubAgentCall, id=hooks.id)(tally.judge)
    hooks.around(ToolCall, id=hooks.id)(give_back)
    hooks.around(SubAgentCall, id=hooks.id)(give_back)
    hooks.interceptors = tuple(meets_approved(each) for each in hooks.interceptors)
    if tally.per_operation:
        tally.kept.drop_on_complete(hooks)
    return hooks


class _Tally:
    """Keeps the times of calls that count, per operation or tenant and, if wanted, per tool."""

    def __init__(self, n: int, per: Per, tool: str, clock: Callable[[], float]) -> None:
        check_number("limit_calls", "n", n, least=1, whole=True)
        if not isinstance(per, str):
            check_number("limit_calls", "per", per)
        elif per not in _UNITS:
            known = ", ".join(map(repr, _UNITS))
            raise HookDefinitionError("limit_calls", f"`per` must be {known}, or a number of seconds; got {per!r}")
        self.n, self.per, self.clock = n, per, clock
        self.counted = Globs("limit_calls", (tool,))
        self.window = math.inf if isinstance(per, str) else per
        self.per_operation = per in ("operation", "tool")
        self.mark = f"hookline.limit_calls.{id(self)}"
        self.kept: PerOperation[defaultdict[str, deque[float]]] = PerOperation(lambda: defaultdict(deque))

    def judge(self, call: AnyToolCall) -> Deny | None:
        """Count a call, unless there were too many before it."""
        if self.counted.match(*name_of(call)) is None:
            return None
        scope = call.operation_id if self.per_operation else call.tenant_id
        tool = "/".join(name_of(call)) if self.per == "tool" else ""
        now = self.clock()
        with self.kept.lock:
            times = self.kept.of(scope)[tool]
            while times and times[0] <= now - self.window:
                times.popleft()
            if len(times) >= self.n:
                unit = _UNITS.get(str(self.per), f"in {self.per} s")
                calls = "call" if self.n == 1 else "calls"
                return Deny(f"the limit of {self.n} {calls} {unit} is reached for tools that match {self.counted}")
            times.append(now)
        call.metadata[self.mark] = scope, tool, now
        return None

    def give_back(self, call: AnyToolCall) -> None:
        """Uncount a call that was denied after all, or that waits for a person and will be judged again."""
        scope, tool, then = call.metadata.pop(self.mark, ("", "", None))
        if then is not None:
            with self.kept.lock, contextlib.suppress(ValueError):
                self.kept.of(scope)[tool].remove(then)


_UNITS = {"operation": "per operation", "tool": "of one tool per operation", "tenant": "per tenant"}


def cache(
    call: type[Call],
    *,
    tools: str = "*",
    ttl: float | None = None,
    max_entries: int = 1000,
    clock: Callable[[], float] = monotonic,
    **options: Unpack[BundleOptions],
) -> Hooks:
    """Answer a repeated tool call with its first successful result, for tools that only read.

    The answer is a mock, so guards judge the call first. `AfterToolCall` has `mocked=True`, and `cached: True` in its
    metadata. Calls are equal if tenant, tool and final arguments are. Failures are not cached. Equal calls that start
    at the same time all run.

    Args:
        call: `ToolCall`.
        tools: Glob of the tools to cache. Their results must depend on their arguments only.
        ttl: Seconds after which the tool is called again; `None` for never.
        max_entries: Maximum number of results to keep; the least recently used one is dropped first.
        clock: Returns the time in seconds.
        **options: Options of the bundle, see `BundleOptions`. `priority` has no effect.

    Raises:
        HookDefinitionError: If `call` is not `ToolCall`, or an option is invalid.
    """
    if call is not ToolCall:
        raise HookDefinitionError("cache", f"only tool results can be cached: pass ToolCall; got {call!r}")
    answers = _Answers(ttl, max_entries, Globs("cache", (tools,)), clock)
    hooks = Hooks(**with_defaults("cache", 100, options))
    hooks.on(BeforeToolCall, id=hooks.id)(answers.recall)
    hooks.on(AfterToolCall, id=hooks.id)(answers.keep)
    return hooks


class _Answers:
    """Keeps results of tools by tenant, tool and arguments, and drops the least recently used ones."""

    def __init__(self, ttl: float | None, most: int, tools: Globs, clock: Callable[[], float]) -> None:
        check_number("cache", "max_entries", most, least=1, whole=True)
        if ttl is not None:
            check_number("cache", "ttl", ttl)
        self.ttl, self.most, self.tools, self.clock = math.inf if ttl is None else ttl, most, tools, clock
        self.kept: OrderedDict[bytes, tuple[float, ToolResult]] = OrderedDict()
        self.lock = Lock()

    def key(self, event: BeforeToolCall | AfterToolCall) -> bytes | None:
        """Return the key of a call, the same for equal calls; `None` for calls that are never cached."""
        if self.tools.match(event.toolset, event.tool_name) is None:
            return None
        try:
            said = json.dumps([event.tenant_id, event.toolset, event.tool_name, event.args], sort_keys=True)
        except (TypeError, ValueError, RecursionError):
            return None  # a hook has put something into the arguments that JSON does not know
        return hashlib.sha256(said.encode()).digest()

    def recall(self, event: BeforeToolCall) -> None:
        """Answer a call from the cache."""
        key = self.key(event)
        with self.lock:
            then, result = self.kept.get(key, (-math.inf, None)) if key else (-math.inf, None)
            if key is None or result is None:
                return
            if then <= self.clock() - self.ttl:
                del self.kept[key]
                return
            self.kept.move_to_end(key)
        event.mock(result)

    def keep(self, event: AfterToolCall) -> None:
        """Keep the first result that a tool itself gave."""
        key = self.key(event) if event.success and not event.mocked else None
        if key is None:
            return
        result = ToolResult(content=event.content, metadata={**event.metadata, "cached": True})
        with self.lock:
            self.kept.setdefault(key, (self.clock(), result))
            if len(self.kept) > self.most:
                self.kept.popitem(last=False)
