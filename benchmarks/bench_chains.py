"""A chain of interceptors against the same handlers, nested and awaited by hand.

The limits, for `around` hooks `h1` to `h5`, which are the same functions on both sides:

* by hand: what there is to write where the terminal comes with each call, as it does for `chain.run(call, terminal)`.
  Each level is a closure, made anew for each call, and the innermost one is the terminal itself:

      async def nested(call, terminal):
          async def next_4(call): return await h5(call, terminal)
          async def next_3(call): return await h4(call, next_4)
          ...
          return await h1(call, next_1)

* by hand, wrapped: the same, with a level around the terminal: `async def next_5(call): return await terminal(call)`.
* by hand, one terminal: `next_1` to `next_4` are functions of the module, around one terminal for all calls.
* by hand, direct: no `call_next` at all: `async def h1(call): return await h2(call)`.

`before`, `guard` and `after` hooks are held against a loop that calls or awaits them and looks at what they return.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from itertools import pairwise

from benchmarks.harness import Row, Timer, interleave, statement
from hookline import (
    Agent,
    Chain,
    HookDispatcher,
    Hooks,
    Interceptor,
    ModelCall,
    ModelResponse,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    ToolResult,
    exec_agent,
    tool,
)

COUNTS = (0, 1, 5, 20)
TASK = "create_task + await"
CALL = ToolCall(operation_id="op", tool_name="search", args={"query": "hooks"}, tool_call_id="call_1")
RESULT = ToolResult(content="42 results")
OPTIONS = {
    "timeout=inf": {"record": False, "hook_timeout": math.inf},
    "default timeout": {"record": False},
    "default timeout, records": {},
}
"""The last is what a `Chain` does by default."""

STEPS = 30
ASKS = ModelResponse(tool_calls=[ToolRequest("search", {"query": "hooks"}, tool_call_id="call_1")])
ENDS = ModelResponse(content="42 results")

LIMITS = ("", ", wrapped", ", one terminal", ", direct")


async def bench(rounds: int) -> list[Row]:
    rows = [*await in_runs(rounds), *await nested(rounds), *await own_cost(rounds)]
    rows += [*await suspending(rounds), *await waiting(rounds)]
    for kind in SHAPES:
        rows += await in_line(kind, rounds)
    return rows


async def in_runs(rounds: int) -> list[Row]:
    """Hooks on the tool calls of a run: what they cost beyond the same handlers, nested by hand inside of the tool.

    Each run has thirty steps with one async tool call each; a row is the cost per tool call, in tasks.
    """
    cases = {TASK: statement("await create_task(nothing())", create_task=asyncio.create_task, nothing=nothing)}
    own: list[tuple[str, str, str]] = []
    async with HookDispatcher() as dispatcher:
        cases["no hooks"] = run_of(plain_tool, [], dispatcher)
        for count in (1, 5):
            by_hand_inside = f"by hand [around={count}]"
            cases[by_hand_inside] = run_of(tool_inside(make_arounds(count)), [], dispatcher)
            for kind in ("around", "before", "guard", "after"):
                handlers = make_arounds(count) if kind == "around" else [SHAPES[kind][0]() for _ in range(count)]
                hooked = f"hooks [{kind}={count}]"
                cases[hooked] = run_of(plain_tool, [bundle_of(kind, handlers)], dispatcher)
                own.append((hooked, by_hand_inside if kind == "around" else "no hooks", f"{kind}={count}"))
        samples = await interleave(cases, rounds)
    rows = [samples.row(TASK)]
    for hooked, bare, axis in own:
        row = f"own cost per tool call of a run [{axis}]"
        samples.derive(row, lambda ours, theirs: (ours - theirs) / STEPS, hooked, bare)
        rows.append(samples.row(row, TASK))
    return rows


def run_of(function: Callable, hooks: list[Hooks], dispatcher: HookDispatcher) -> Timer:
    """Time a run that calls a tool in each of its steps."""
    agent = Agent(
        id="searcher", model=ScriptedModel(ask_again), tools=[tool(function, name="search")], max_steps=STEPS + 1
    )
    return statement(
        "await exec_agent(agent, 'How many?', hooks=hooks, dispatcher=dispatcher)",
        unroll=1,
        exec_agent=exec_agent,
        agent=agent,
        hooks=hooks,
        dispatcher=dispatcher,
    )


def ask_again(call: ModelCall) -> ModelResponse:
    return ENDS if sum(message.role == "tool" for message in call.messages) == STEPS else ASKS


async def plain_tool(query: str) -> str:
    return "42 results"


def tool_inside(handlers: list[Callable]) -> Callable:
    """Return a tool with handlers nested around its work by hand."""
    names = {f"h{number}": handler for number, handler in enumerate(handlers, 1)}
    nested = function_of("call, terminal", levels(len(handlers), "terminal"), [], names)

    async def work(call: object) -> str:
        return "42 results"

    async def inside(query: str) -> str:
        return await nested(CALL, work)

    return inside


def bundle_of(kind: str, handlers: list[Callable]) -> Hooks:
    hooks = Hooks("hooks")
    for number, handler in enumerate(handlers):
        getattr(hooks, kind)(ToolCall, id=f"h{number}")(handler)
    return hooks


async def nested(rounds: int) -> list[Row]:
    """Hooks that pass the call on and the result back."""
    cases, rows = {}, []
    for count in COUNTS:
        handlers = make_arounds(count)
        limits = by_hand(handlers)
        cases |= {f"by hand{how} [around={count}]": limits[how] for how in LIMITS}
        cases |= chains("around", handlers)
    samples = await interleave(cases, rounds)
    for count in COUNTS:
        limit = f"by hand [around={count}]"
        rows.append(samples.row(limit))
        rows += [samples.row(f"by hand{how} [around={count}]", limit) for how in LIMITS[1:]]
        rows += [samples.row(f"chain [around={count}, {name}]", limit) for name in OPTIONS]
    rows += [samples.row("chain [around=5, timeout=inf]", f"by hand{how} [around=5]") for how in LIMITS[1:]]
    return rows


async def own_cost(rounds: int) -> list[Row]:
    """What a chain costs beyond the frames that there are by hand, in tasks."""
    handlers = make_arounds(5)
    limits = by_hand(handlers)
    cases = {f"by hand{how} [around=5]": limits[how] for how in ("", ", one terminal")}
    cases[TASK] = statement("await create_task(nothing())", create_task=asyncio.create_task, nothing=nothing)
    samples = await interleave(cases | chains("around", handlers), rounds)
    rows = [samples.row(TASK)]
    for name in OPTIONS:
        for how in ("", ", one terminal"):
            own = f"its own cost [around=5, {name}], beyond by hand{how}"
            case, limit = f"chain [around=5, {name}]", f"by hand{how} [around=5]"
            samples.derive(own, lambda ours, theirs: ours - theirs, case, limit)
            rows.append(samples.row(own, TASK))
    return rows


async def suspending(rounds: int) -> list[Row]:
    """Hooks that suspend once each, so that a time limit needs its timer."""
    cases, rows = {}, []
    for count in (1, 5):
        handlers = make_arounds(count, asyncio.sleep)
        cases[f"by hand [around={count}, suspends]"] = by_hand(handlers)[""]
        cases |= chains("around", handlers, "suspends, ")
    samples = await interleave(cases, rounds)
    for count in (1, 5):
        limit = f"by hand [around={count}, suspends]"
        rows.append(samples.row(limit))
        rows += [samples.row(f"chain [around={count}, suspends, {name}]", limit) for name in OPTIONS]
    return rows


async def waiting(rounds: int) -> list[Row]:
    """The usual time limit, `await wait_for(h5(call, next_5), 30)` for each hook: before Python 3.12 a task each."""
    cases, pairs = {}, []
    for suspends, sleep in (("", None), ("suspends, ", asyncio.sleep)):
        for count in (1, 5):
            handlers = make_arounds(count, sleep)
            peer = f"wait_for each, by hand [around={count}, {suspends}timeout=30]"
            cases[peer] = by_hand(handlers, "wait_for({}, 30)")[""]
            cases |= chains("around", handlers, suspends)
            pairs.append((peer, f"chain [around={count}, {suspends}default timeout]"))
    samples = await interleave(cases, rounds)
    goals = {"chain [around=5, default timeout]": 8}
    return [samples.row(peer, ours, at_least=goals.get(ours)) for peer, ours in pairs]


async def in_line(kind: str, rounds: int) -> list[Row]:
    """Hooks of one kind that decide nothing."""
    make, loop = SHAPES[kind]
    cases, rows = {}, []
    for count in COUNTS[1:]:
        handlers = [make() for _ in range(count)]
        cases[f"by hand [{kind}={count}]"] = statement(
            "await loop(handlers, call, terminal)", loop=loop, handlers=handlers, call=CALL, terminal=terminal
        )
        cases |= chains(kind, handlers)
    samples = await interleave(cases, rounds)
    for count in COUNTS[1:]:
        limit = f"by hand [{kind}={count}]"
        rows.append(samples.row(limit))
        rows += [samples.row(f"chain [{kind}={count}, {name}]", limit) for name in OPTIONS]
    return rows


def chains(kind: str, handlers: list[Callable], further: str = "") -> dict[str, Timer]:
    """A timer for each set of options."""
    hooks = [
        Interceptor(id=f"h{number}", call=ToolCall, kind=kind.removeprefix("plain "), handler=handler)
        for number, handler in enumerate(handlers, 1)
    ]
    return {
        f"chain [{kind}={len(handlers)}, {further}{name}]": statement(
            "await chain.run(call, terminal)", chain=Chain(hooks, **options), call=CALL, terminal=terminal
        )
        for name, options in OPTIONS.items()
    }


def levels(count: int, innermost: str, awaited: str = "{}") -> list[str]:
    """Write the body of a function that nests so many handlers around `innermost`; `awaited` as in `by_hand`."""
    lines, following = [], innermost
    for number in range(count, 0, -1):
        line = f"return await {awaited.format(f'h{number}(call, {following})')}"
        following = f"next_{number - 1}"
        lines.append(f"async def {following}(call): {line}" if number > 1 else line)
    return lines or [f"return await {innermost}(call)"]


def function_of(parameters: str, body: list[str], module: list[str], names: dict[str, Callable]) -> Callable:
    """Compile `nested` from its lines, and from those of the module around it."""
    lines = [*module, f"async def nested({parameters}):", *(f"    {line}" for line in body)]
    namespace: dict[str, object] = {"terminal": terminal, "wait_for": asyncio.wait_for, **names}
    exec("\n".join(lines), namespace)
    return namespace["nested"]  # type: ignore[return-value]


def by_hand(handlers: list[Callable], awaited: str = "{}") -> dict[str, Timer]:
    """Timers of the four limits that the module's docstring describes, written out for so many hooks.

    Args:
        handlers: From the outside to the inside.
        awaited: What is awaited of a call of a handler, which is `{}`.
    """
    count = len(handlers)
    wrapper = f"async def next_{count}(call): return await terminal(call)"
    *functions, first = levels(count, "terminal", awaited)
    direct = ["terminal", *(f"direct_{number}" for number in range(count, 0, -1))]
    calls = [f"async def {outer}(call): return await {inner}(call)" for inner, outer in pairwise(direct)]
    names = {f"h{number}": handler for number, handler in enumerate(handlers, 1)}
    return {
        "": timer_of("call, terminal", levels(count, "terminal", awaited), [], names),
        ", wrapped": timer_of("call, terminal", [wrapper, *levels(count, f"next_{count}", awaited)], [], names),
        ", one terminal": timer_of("call", [first], functions, names),
        ", direct": timer_of("call", [f"return await {direct[-1]}(call)"], calls, names),
    }


def timer_of(parameters: str, body: list[str], module: list[str], names: dict[str, Callable]) -> Timer:
    nested = function_of(parameters, body, module, names)
    return statement(f"await nested({parameters})", nested=nested, call=CALL, terminal=terminal)


async def terminal(call: ToolCall) -> ToolResult:
    return RESULT


async def nothing() -> None:
    pass


async def await_before(handlers: list, call: ToolCall, terminal: Callable) -> object:
    for handler in handlers:
        said = await handler(call)
        if said is not None:
            return said
    return await terminal(call)


async def call_before(handlers: list, call: ToolCall, terminal: Callable) -> object:
    for handler in handlers:
        said = handler(call)
        if said is not None:
            return said
    return await terminal(call)


async def await_after(handlers: list, call: ToolCall, terminal: Callable) -> object:
    result = await terminal(call)
    for handler in reversed(handlers):
        said = await handler(call, result)
        if said is not None:
            result = said
    return result


def make_arounds(count: int, sleep=None) -> list[Callable]:
    return [make_around(sleep) for _ in range(count)]


def make_around(sleep):
    async def handler(call: ToolCall, call_next: Callable) -> ToolResult:
        return await call_next(call)

    async def suspending(call: ToolCall, call_next: Callable) -> ToolResult:
        await sleep(0)
        return await call_next(call)

    return suspending if sleep else handler


def make_async():
    async def handler(call: ToolCall) -> None:
        pass

    return handler


def make_plain():
    def handler(call: ToolCall) -> None:
        pass

    return handler


def make_after():
    async def handler(call: ToolCall, result: ToolResult) -> None:
        pass

    return handler


SHAPES = {
    "before": (make_async, await_before),
    "plain before": (make_plain, call_before),
    "guard": (make_async, await_before),
    "plain guard": (make_plain, call_before),
    "after": (make_after, await_after),
}
"""How to make a hook that decides nothing, and the loop by hand."""
