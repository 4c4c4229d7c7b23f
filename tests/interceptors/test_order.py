"""Laws 1, 2, 9 and 13: who runs when, who sees what the others did, and that guards have the last word."""

from __future__ import annotations

from typing import Any

import pytest

from hookline.calls import AgentCall, Call, Continue, Deny, ToolCall, ToolResult
from hookline.hooks import Hooks
from hookline.interceptors import Chain, Interceptor
from tests.tables import for_each

from .calls import CALLS, Tool, after, around, before, guard, hook, lead, replace, run, statuses, tool_call, with_args

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


def traced(trace: list[str], kind: str, name: str, *, is_async: bool = True, **options: Any) -> Interceptor:
    """A hook that says when it runs, on both of its ways."""

    def step(*args: Any) -> None:
        trace.append(name)

    async def step_later(*args: Any) -> None:
        trace.append(name)

    async def through(call: Any, call_next: Any) -> Any:
        trace.append(f"{name} in")
        result = await call_next(call)
        trace.append(f"{name} out")
        return result

    handler = through if kind == "around" else step_later if is_async else step
    return hook(kind, handler, id=name, **options)


@BOTH
async def test_lower_priority_is_first_on_the_way_in_and_last_on_the_way_out(*, is_async: bool) -> None:
    trace: list[str] = []
    hooks = [
        traced(trace, kind, f"{kind} {priority}", priority=priority, is_async=is_async)
        for priority in (1000, 0, 500)
        for kind in ("after", "around", "before")
    ]

    await run(hooks)

    assert trace == [
        *("around 0 in", "before 0", "around 500 in", "before 500", "around 1000 in", "before 1000"),
        *("around 1000 out", "after 1000", "around 500 out", "after 500", "around 0 out", "after 0"),
    ]


async def test_before_runs_in_order_and_after_in_reverse() -> None:
    trace: list[str] = []
    hooks = [traced(trace, kind, f"{kind} {n}", priority=n) for n in (3, 1, 2) for kind in ("before", "after")]

    await run(hooks)

    assert trace == ["before 1", "before 2", "before 3", "after 3", "after 2", "after 1"]


async def test_hooks_of_one_priority_run_in_the_order_of_registration_and_back() -> None:
    trace: list[str] = []
    kinds = ("before", "around", "after", "around", "before", "after")

    await run([traced(trace, kind, f"{kind} {n}") for n, kind in enumerate(kinds)])

    assert trace == [
        *("before 0", "around 1 in", "around 3 in", "before 4"),
        *("after 5", "around 3 out", "after 2", "around 1 out"),
    ]


async def test_registration_order_counts_across_bundles_and_plain_interceptors() -> None:
    trace: list[str] = []
    first, last = Hooks("first"), Hooks("last")
    last.before(ToolCall)(lambda call: trace.append("last"))
    first.before(ToolCall)(lambda call: trace.append("first"))
    first.before(ToolCall)(lambda call: trace.append("first too"))

    await run([first, before(lambda call: trace.append("plain")), last])

    assert trace == ["first", "first too", "plain", "last"]


@for_each("kind", ["before", "guard", "around", "after"])
async def test_system_hooks_come_before_tenant_hooks_of_the_same_priority(kind: str) -> None:
    trace: list[str] = []
    hooks = [
        traced(trace, kind, "tenant", tenant_id="acme"),
        traced(trace, kind, "system"),
        traced(trace, kind, "tenant first", tenant_id="acme", priority=99),
    ]

    outcome = await run(hooks, tool_call(tenant_id="acme"))

    order = [execution.hook_id for execution in outcome.executions]
    inwards = ["tenant first", "system", "tenant"]
    assert order == (inwards[::-1] if kind == "after" else inwards)


async def test_a_hook_has_a_priority_of_its_own_and_else_its_bundles() -> None:
    trace: list[str] = []
    bundle = Hooks("bundle", priority=50)
    bundle.before(ToolCall)(lambda call: trace.append("50"))
    bundle.before(ToolCall, priority=0)(lambda call: trace.append("0"))
    bundle.before(ToolCall, priority=100)(lambda call: trace.append("100"))

    await run([before(lambda call: trace.append("default 100"), id="x"), before(lambda call: trace.append("49"), priority=49), bundle])  # fmt: skip

    assert trace == ["0", "49", "50", "default 100", "100"]
    assert [each.priority for each in bundle.interceptors] == [50, 0, 100]


async def test_one_bundle_can_be_outermost_both_on_the_way_in_and_on_the_way_out() -> None:
    trace: list[str] = []
    bundle = Hooks("bundle", priority=0)
    bundle.before(ToolCall)(lambda call: trace.append("in"))
    bundle.after(ToolCall)(lambda call, result: trace.append("out"))

    await run([traced(trace, "around", "other"), bundle])

    assert trace == ["in", "other in", "other out", "out"]


async def test_a_before_and_an_after_of_one_id_do_not_collide() -> None:
    trace: list[str] = []
    hooks = [hook(kind, lambda *args, kind=kind: trace.append(kind), id="same") for kind in ("before", "guard", "after")]  # fmt: skip

    outcome = await run([*hooks, hooks[0]])

    assert trace == ["before", "before", "guard", "after"]
    assert statuses(outcome) == [("same", "ok")] * 4


# --- guards


@BOTH
async def test_guards_run_after_every_before_and_inside_every_around_whatever_their_priority(*, is_async: bool) -> None:
    trace: list[str] = []
    kinds = ("guard", "before", "around", "after")

    await run(
        [traced(trace, kind, f"{kind} {n}", priority=n, is_async=is_async) for n in (0, 1000) for kind in kinds],
        terminal=lambda call: mark(trace),
    )

    assert trace == [
        *("before 0", "around 0 in", "before 1000", "around 1000 in", "guard 0", "guard 1000", "terminal"),
        *("after 1000", "around 1000 out", "after 0", "around 0 out"),
    ]


async def mark(trace: list[str]) -> ToolResult:
    trace.append("terminal")
    return ToolResult(content="")


async def test_a_guard_registered_before_a_rewriter_judges_the_rewritten_arguments() -> None:
    tool = Tool()

    def no_rm(call: ToolCall) -> Deny | None:
        return Deny("destructive") if "rm" in call.args["command"] else None

    hooks = [guard(no_rm, priority=0), before(lambda call: with_args(call, command="rm -rf /"), priority=1000)]
    outcome = await run(hooks, tool_call(args={"command": "ls"}), tool)

    assert outcome.denied is not None
    assert outcome.denied.reason == "destructive"
    assert tool.calls == []


async def test_a_guard_judges_what_an_around_hands_on() -> None:
    seen: list[Any] = []
    tool = Tool()

    async def rewrite(call: ToolCall, call_next: Any) -> Any:
        return await call_next(with_args(call, q="rewritten"))

    await run([guard(lambda call: seen.append(call), priority=0), around(rewrite)], terminal=tool)

    assert seen == tool.calls
    assert seen[0].args == {"q": "rewritten"}


async def test_every_guard_sees_the_same_final_call() -> None:
    seen: list[Any] = []
    tool = Tool()
    guards = [guard(lambda call: seen.append(call), priority=n) for n in (0, 500, 1000)]

    outcome = await run([*guards, before(lambda call: with_args(call, n=1), priority=700)], terminal=tool)

    assert all(call is tool.calls[0] for call in seen)
    assert len(seen) == 3
    assert outcome.call is tool.calls[0]


@pytest.mark.parametrize("on_error", ["open", "closed"])
async def test_nothing_rewrites_after_the_guards(on_error: str) -> None:
    tool = Tool()

    outcome = await run([guard(lambda call: with_args(call, q="sneaked in"), on_error=on_error)], terminal=tool)

    assert [call.args for call in tool.calls] == ([{"q": "x"}] if on_error == "open" else [])
    assert statuses(outcome) == [("guard", "error")]


async def test_a_guard_that_filters_by_tool_meets_the_tool_that_will_really_run() -> None:
    hooks = [
        guard(lambda call: Deny("no shell"), tool="*/bash"),
        before(lambda call: replace(call, tool_name="bash")),
    ]

    assert (await run(hooks, tool_call(tool_name="ls"))).denied is not None
    assert (await run(hooks[:1], tool_call(tool_name="ls"))).denied is None


async def test_a_guard_whose_tool_was_rewritten_away_does_not_run() -> None:
    hooks = [guard(lambda call: Deny("no shell"), tool="*/bash"), before(lambda call: replace(call, tool_name="ls"))]

    outcome = await run(hooks, tool_call(tool_name="bash"))

    assert outcome.denied is None
    assert statuses(outcome) == [("before", "ok")]


# --- composing


async def test_changed_calls_compose_each_hook_seeing_the_one_before_it() -> None:
    seen: list[Any] = []
    tool = Tool()

    def adding(name: str) -> Any:
        def handler(call: ToolCall) -> ToolCall:
            seen.append(dict(call.args))
            return with_args(call, **{name: 1})

        return handler

    async def around_adding(call: ToolCall, call_next: Any) -> Any:
        seen.append(dict(call.args))
        return await call_next(with_args(call, b=1))

    await run([before(adding("a")), around(around_adding), before(adding("c"))], tool_call(args={}), tool)

    assert seen == [{}, {"a": 1}, {"a": 1, "b": 1}]
    assert tool.calls[0].args == {"a": 1, "b": 1, "c": 1}


async def test_fields_that_a_hook_did_not_touch_survive_its_change() -> None:
    call = tool_call(call_index=7, step_index=3, toolset="server", tenant_id="acme")
    tool = Tool()

    await run([before(lambda call: replace(call, args={"new": 1}))], call, tool)

    assert tool.calls == [replace(call, args={"new": 1})]


async def test_a_hook_that_returns_none_changes_nothing() -> None:
    call = tool_call()
    tool = Tool()
    hooks = [before(lambda call: None), guard(lambda call: None), after(lambda call, result: None)]

    outcome = await run(hooks, call, tool)

    assert tool.calls[0] is call
    assert outcome.result is tool.answer


async def test_no_hooks_hand_the_very_same_call_and_result_through() -> None:
    call = tool_call()
    tool = Tool()

    outcome = await run([], call, tool)

    assert tool.calls[0] is outcome.call is call
    assert outcome.result is outcome.unwrap() is tool.answer
    assert (outcome.denied, outcome.asked, outcome.continues, outcome.executions) == (None, None, [], [])


async def test_changed_results_compose_from_the_inside_out() -> None:
    def adding(name: str) -> Any:
        return lambda call, result: replace(result, content=result.content + name)

    async def around_adding(call: Any, call_next: Any) -> ToolResult:
        result = await call_next(call)
        return replace(result, content=result.content + "b")

    outcome = await run([after(adding("a")), around(around_adding), after(adding("c"))], terminal=Tool("_"))

    assert outcome.result.content == "_cba"


async def test_an_after_hook_sees_the_call_as_it_really_ran() -> None:
    seen: list[Any] = []

    async def rewrite(call: ToolCall, call_next: Any) -> Any:
        return await call_next(with_args(call, q="around"))

    tool = Tool()
    await run([after(lambda call, result: seen.append(call), priority=0), around(rewrite), before(lambda call: with_args(call, p=1))], terminal=tool)  # fmt: skip

    assert seen == tool.calls
    assert seen[0].args == {"q": "around", "p": 1}


async def test_continues_hold_the_inputs_in_the_order_in_which_the_hooks_ran() -> None:
    hooks = [after(lambda call, result, n=n: Continue(f"input {n}"), call=AgentCall, priority=n) for n in range(3)]
    call, result = CALLS[0]

    outcome = await run([*hooks, after(lambda call, result: Continue(""), call=AgentCall)], call, Tool(result))

    assert outcome.continues == ["input 2", "input 1", "input 0"]
    assert outcome.result is result


# --- all the calls


@for_each(("call", "result"), CALLS, ids=lambda value: type(value).__name__)
async def test_every_class_of_calls_passes_every_kind_of_hook(call: Call, result: Any) -> None:
    trace: list[str] = []
    kinds = ("before", "around", "after", "guard")
    tool = Tool(result)

    outcome = await run([traced(trace, kind, kind, call=type(call)) for kind in kinds], call, tool)

    assert trace == ["before", "around in", "guard", "after", "around out"]
    assert outcome.result is result
    assert [each.hook_type for each in outcome.executions] == [type(call).__name__] * 4


@for_each(("call", "result"), CALLS, ids=lambda value: type(value).__name__)
async def test_hooks_of_one_class_of_calls_do_not_meet_another(call: Call, result: Any) -> None:
    chain = Chain([before(lambda call: Deny("not yours"), call=type(other)) for other, _ in CALLS if other is not call])

    assert (await lead(chain, call, Tool(result))).result is result


def test_the_order_of_a_chain_is_by_priority_and_guards_come_last() -> None:
    hooks = [hook(kind, print, id=f"{kind} {n}", priority=n) for n in (2, 1) for kind in ("guard", "before", "after")]
    hooks.append(before(print, id="theirs", priority=1, tenant_id="acme"))
    chain = Chain(hooks)

    assert chain.order(ToolCall) == ["before 1", "after 1", "before 2", "after 2", "guard 1", "guard 2"]
    assert chain.order(ToolCall, tenant_id="acme") == [
        *("before 1", "after 1", "theirs", "before 2", "after 2"),
        *("guard 1", "guard 2"),
    ]
    assert chain.order(AgentCall) == []
