"""Shadow hooks say what they would decide, and nothing comes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import Hooks
from hookline.calls import (
    AgentCall,
    AgentResult,
    Ask,
    Continue,
    Deny,
    Guide,
    Message,
    ModelCall,
    ModelResponse,
    Respond,
    ToolCall,
    ToolResult,
)
from hookline.errors import HookDefinitionError
from hookline.interceptors import Chain, Interceptor, Outcome
from tests.tables import for_each

from .calls import Tool, after, around, before, guard, lead, recorded, replace, run, tool_call, with_args

pytestmark = pytest.mark.anyio


async def rewriting(call: Any, call_next: Any) -> Any:
    return await call_next(with_args(call, q="other"))


async def replacing(call: Any, call_next: Any) -> Any:
    return replace(await call_next(call), content="other")


async def answering(call: Any, call_next: Any) -> Any:
    return ToolResult(content="mine")


async def through(call: Any, call_next: Any) -> Any:
    return await call_next(call)


def broken(*args: Any) -> Any:
    raise RuntimeError("broken")


async def cancelling(*args: Any) -> Any:
    raise asyncio.CancelledError


async def hanging(*args: Any) -> Any:
    await anyio.sleep_forever()


DECIDING: list[tuple[Interceptor, str, str]] = [
    (before(lambda call: None), "", ""),
    (before(lambda call: replace(call)), "", ""),
    (before(lambda call: with_args(call, q="other")), "changed", ""),
    (before(lambda call: Respond("mine")), "mocked", ""),
    (before(lambda call: Deny("no")), "denied", "no"),
    (before(lambda call: Ask("may I?")), "asked", "may I?"),
    (guard(lambda call: None), "", ""),
    (guard(lambda call: Deny("no", stop=True)), "denied", "no"),
    (guard(lambda call: Ask("may I?")), "asked", "may I?"),
    (after(lambda call, result: None), "", ""),
    (after(lambda call, result: replace(result, content="other")), "changed", ""),
    (after(lambda call, result: Deny("no")), "denied", "no"),
    (around(through), "", ""),
    (around(rewriting), "changed", ""),
    (around(replacing), "changed", ""),
    (around(answering), "mocked", ""),
    (around(lambda call, call_next: Deny("no")), "denied", "no"),
    (guard(broken, on_error="open"), "", ""),
    (guard(broken), "denied", "the hook failed, and it fails closed: RuntimeError: broken"),
]
IDS = [f"{hook.kind}-{decision or 'nothing'}-{number}" for number, (hook, decision, _) in enumerate(DECIDING)]


def decision_of(outcome: Outcome) -> tuple[str, str]:
    [execution] = outcome.executions
    return execution.decision, execution.reason


@for_each(("hook", "decision", "reason"), DECIDING, ids=IDS)
async def test_the_record_says_what_a_hook_decided_or_would_decide(
    hook: Interceptor, decision: str, reason: str
) -> None:
    enforced, shadow, without = await run([hook]), await run([replace(hook, shadow=True)]), await run([])

    assert decision_of(enforced) == (decision, reason)
    assert decision_of(shadow) == (decision, reason)
    assert [execution.status for execution in shadow.executions] == ["shadow"]
    assert (shadow.call, shadow.result, shadow.denied, shadow.asked) == (without.call, without.result, None, None)


@for_each("kind", ["before", "guard", "around", "after"])
async def test_a_failing_shadow_hook_has_its_error_in_the_record(kind: str) -> None:
    outcome = await run([Interceptor(id="h", call=ToolCall, kind=kind, handler=broken, shadow=True)])  # type: ignore[arg-type]

    [execution] = outcome.executions
    assert (execution.status, execution.error) == ("shadow", "RuntimeError: broken")
    assert outcome.result == ToolResult(content="result")


@for_each("kind", ["before", "guard", "around", "after"])
async def test_a_hanging_shadow_hook_is_stopped_after_its_timeout(kind: str) -> None:
    hook = Interceptor(id="h", call=ToolCall, kind=kind, handler=hanging, timeout=0.02, shadow=True)  # type: ignore[arg-type]
    outcome = await run([hook])

    [execution] = outcome.executions
    assert execution.status == "shadow"
    assert "0.02" in (execution.error or "")
    assert outcome.result == ToolResult(content="result")


async def test_a_continue_and_a_guide_in_the_shadow_have_no_effect() -> None:
    hooks = Hooks("shadow", shadow=True)
    hooks.after(AgentCall)(lambda call, result: Continue("go on"))
    hooks.after(ModelCall)(lambda call, result: Guide("try again"))
    chain = Chain([hooks])

    async def agent(call: Any) -> AgentResult:
        return AgentResult(output="done")

    async def model(call: Any) -> ModelResponse:
        return ModelResponse(content="done")

    ran = await lead(chain, AgentCall(input=[Message(role="user", content="hi")]), agent)
    answered = await lead(chain, ModelCall(messages=[]), model)

    assert (ran.continues, answered.guides) == ([], [])
    assert decision_of(ran) == ("continued", "go on")
    assert decision_of(answered) == ("continued", "try again")


async def test_shadow_hooks_of_one_bundle_judge_in_their_order_in_and_out_again() -> None:
    log: list[str] = []
    hooks = Hooks("shadow", shadow=True)
    for n in (2, 1, 3):
        hooks.before(ToolCall, priority=n)(lambda call, n=n: log.append(f"before {n}"))
        hooks.guard(ToolCall, priority=n)(lambda call, n=n: log.append(f"guard {n}"))
        hooks.after(ToolCall, priority=n + 3)(lambda call, result, n=n: log.append(f"after {n}"))

    await run([hooks])

    assert log == [
        *("before 1", "before 2", "before 3", "guard 1", "guard 2", "guard 3"),
        *("after 3", "after 2", "after 1"),
    ]


async def test_a_shadow_hook_sees_the_call_as_it_stands_at_its_place() -> None:
    seen: list[Any] = []

    def look(call: ToolCall) -> None:
        seen.append(call.args["q"])

    hooks = [
        before(look, id="outer", priority=0, shadow=True),
        before(lambda call: with_args(call, q="1"), priority=1),
        before(look, id="middle", priority=2, shadow=True),
        around(rewriting, priority=3),
        guard(look, id="guard", shadow=True),
    ]
    outcome = await run(hooks)

    assert sorted(seen) == ["1", "other", "x"]
    assert outcome.call.args == {"q": "other"}


async def test_an_around_in_the_shadow_gets_the_real_outcome_from_call_next() -> None:
    seen: list[Any] = []

    async def watch(call: Any, call_next: Any) -> Any:
        try:
            seen.append(await call_next(call))
        except Exception as error:
            seen.append(error)
            raise
        return seen[-1]

    hook = around(watch, shadow=True, priority=0)
    failure = ValueError("broken tool")
    outcome = await run([hook, after(lambda call, result: replace(result, content="changed"), priority=1)])
    with pytest.raises(ValueError, match="broken tool"):
        await run([hook], terminal=Tool(error=failure))
    denied = await run([hook, guard(lambda call: Deny("no"))])

    assert seen == [ToolResult(content="changed"), failure, denied.refusal]
    assert outcome.result == ToolResult(content="changed")


async def test_a_guard_further_inside_than_a_denial_is_not_asked() -> None:
    asked: list[str] = []
    hooks = [
        guard(lambda call: asked.append("before"), id="a", priority=0, shadow=True),
        guard(lambda call: Deny("no"), id="b", priority=1),
        guard(lambda call: asked.append("after"), id="c", priority=2, shadow=True),
    ]
    outcome = await run(hooks)

    assert asked == ["before"]
    assert [(each.hook_id, each.status) for each in outcome.executions] == [("b", "denied"), ("a", "shadow")]


async def test_what_a_shadow_bundle_writes_into_metadata_only_it_reads() -> None:
    seen: dict[str, Any] = {}
    shadow, other, real = Hooks("shadow", shadow=True), Hooks("other", shadow=True), Hooks("real", priority=50)

    @real.before(ToolCall)
    def note(call: ToolCall) -> None:
        call.metadata["real"] = 1

    @shadow.before(ToolCall)
    def write(call: ToolCall) -> None:
        call.metadata["mine"] = call.metadata["real"] + 1

    @shadow.after(ToolCall)
    def read(call: ToolCall, result: ToolResult) -> None:
        seen["shadow"] = dict(call.metadata)

    @other.after(ToolCall)
    def look(call: ToolCall, result: ToolResult) -> None:
        seen["other"] = dict(call.metadata)

    @real.after(ToolCall)
    def end(call: ToolCall, result: ToolResult) -> None:
        seen["real"] = dict(call.metadata)

    await run([shadow, other, real], tool_call(metadata={}))

    assert seen == {"shadow": {"real": 1, "mine": 2}, "other": {"real": 1}, "real": {"real": 1}}


async def test_context_that_a_shadow_hook_adds_reaches_nobody() -> None:
    shadow = guard(lambda call: call.add_context("unseen"), id="shadow", shadow=True)
    real = guard(lambda call: call.add_context("seen"), id="real")

    outcome = await run([shadow, real])

    assert [added.text for added in outcome.context] == ["seen"]
    assert [(each.hook_id, each.error) for each in outcome.executions] == [("real", None), ("shadow", None)]


async def test_the_records_of_shadow_hooks_are_announced() -> None:
    chain = Chain([guard(lambda call: Deny("no"), shadow=True)], record=False)
    with recorded(chain) as executions:
        await lead(chain)

    assert [(each.status, each.decision, each.reason) for each in executions] == [("shadow", "denied", "no")]


def test_whether_results_are_judged_does_not_depend_on_shadow_hooks() -> None:
    assert not Chain([after(lambda call, result: None, shadow=True)]).judges_result(ToolCall)
    assert Chain([after(lambda call, result: None)]).judges_result(ToolCall)


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_a_shadow_that_is_no_bool_is_refused(value: Any) -> None:
    with pytest.raises(HookDefinitionError, match="`shadow` must be True or False"):
        Hooks("h", shadow=value)
    with pytest.raises(HookDefinitionError, match="`shadow` must be True or False"):
        Chain([guard(lambda call: None, shadow=value)])


ACTS = {
    "before": [lambda call: None, lambda call: with_args(call, n=1), lambda call: Respond("a"), lambda call: Deny("b")],
    "guard": [lambda call: None, lambda call: Deny("g"), lambda call: Ask("?")],
    "after": [lambda call, result: None, lambda call, result: replace(result, content="c")],
    "around": [through, rewriting, replacing, answering],
}
FAILING = [broken, cancelling]
real_hooks = st.sampled_from(sorted(ACTS)).flatmap(
    lambda kind: st.builds(
        lambda handler, priority: Interceptor(
            id=kind,
            call=ToolCall,
            kind=kind,
            handler=handler,
            priority=priority,  # type: ignore[arg-type]
        ),
        st.sampled_from(ACTS[kind]),
        st.integers(0, 3),
    )
)
shadow_hooks = st.sampled_from(sorted(ACTS)).flatmap(
    lambda kind: st.builds(
        lambda handler, priority, on_error: Interceptor(
            id="shadow",
            call=ToolCall,
            kind=kind,
            handler=handler,
            priority=priority,
            on_error=on_error,
            shadow=True,  # type: ignore[arg-type]
        ),
        st.sampled_from([*ACTS[kind], *FAILING]),
        st.integers(0, 3),
        st.sampled_from(["open", "closed"]),
    )
)


@settings(max_examples=60)
@given(st.lists(real_hooks, max_size=5), st.lists(shadow_hooks, min_size=1, max_size=4), st.booleans())
def test_a_call_with_shadow_hooks_ends_as_without_them(
    real: list[Interceptor], shadows: list[Interceptor], fails: bool
) -> None:
    async def play(hooks: list[Interceptor]) -> tuple[Any, ...]:
        tool = Tool(error=ValueError("broken") if fails else None)
        try:
            outcome = await run(hooks, tool_call(metadata={}), tool)
        except ValueError as error:
            return tool.calls, str(error)
        ran = [(each.hook_id, each.status, each.decision) for each in outcome.executions if each.hook_id != "shadow"]
        return tool.calls, outcome.call, outcome.result, outcome.denied, outcome.asked, ran

    async def both() -> None:
        assert await play([*shadows, *real]) == await play(real)

    anyio.run(both)
