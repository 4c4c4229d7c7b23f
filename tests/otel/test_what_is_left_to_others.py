"""Switches that leave spans and metrics to whoever makes them too, and what is told all the same; counts of model calls."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from hookline import (
    AgentCall,
    Approve,
    Ask,
    BeforeToolCall,
    Deny,
    Hooks,
    ModelCall,
    OnComplete,
    ToolCall,
    TransientModelError,
    tool,
)
from hookline.errors import HookUsageError
from hookline.otel import TracingHooks
from hookline.runtime import InMemoryStore
from tests.otel.gauge import Gauge
from tests.otel.scenes import Scene, agent_of, ask, attributes, call, calls, id_of, resume, run, says
from tests.tables import for_each

pytestmark = pytest.mark.anyio

LEFT = {"agent_spans": "invoke_agent", "model_spans": "chat", "tool_spans": "execute_tool"}
SUBSETS = [dict(zip(LEFT, chosen, strict=True)) for chosen in product((True, False), repeat=3)]
ALL_LEFT = dict.fromkeys(LEFT, False)
subsets = pytest.mark.parametrize("switches", SUBSETS, ids=lambda each: ",".join(k for k, v in each.items() if not v))


@pytest.fixture
def scene() -> Iterator[Scene]:
    with Scene() as found:
        yield found


@tool
async def find(key: str = "") -> str:
    """Find it."""
    return "found"


@tool
async def fails() -> str:
    """Fail."""
    raise ValueError("broken")


def lifted(tree: Any, kinds: set[str]) -> list[Any]:
    """A tree without some kinds of spans, whose children are where they were."""
    children = [each for child in tree[1:] for each in lifted(child, kinds)]
    return children if tree[0].split(" ")[0] in kinds else [(tree[0], *sorted(children, key=repr))]


async def whole_program(scene: Scene, **switches: Any) -> Any:
    """Everything that a run may have: parallel calls, a failing one, a denied one, a sub-agent, a pause, hooks."""
    rules = Hooks("rules", inherit=True)
    rules.guard(ToolCall, tool="*/find")(lambda each: Deny("no") if each.tool_call_id == "t2" else None)
    rules.guard(ToolCall, tool="*/find")(lambda each: Ask("sure?") if each.tool_call_id == "t5" else None)
    hooks = [scene.tracing(hook_spans=True, **switches), rules]
    child = agent_of(calls(call("find", "c1")), says(), id="child", tools=[find])
    turns = [
        calls(call("find", "t1"), call("find", "t2"), call("fails", "t3"), ask("child", "t4")),
        calls(call("find", "t5")),
    ]
    agent = agent_of(*turns, says(), tools=[find, fails], sub_agents=[child])
    store = InMemoryStore()
    with scene.tracer.start_as_current_span("request"):
        await run(agent, hooks=hooks, operation_id="op", store=store)
        await resume(agent, "op", Approve("t5"), hooks=hooks, store=store)
    return scene.tree()


@subsets
async def test_what_is_left_to_others_leaves_the_rest_of_the_tree_as_it_was(
    scene: Scene, switches: dict[str, bool]
) -> None:
    whole = await whole_program(scene)
    scene.forget()

    tree = await whole_program(scene, **switches)

    kinds = {kind for switch, kind in LEFT.items() if not switches[switch]}
    assert lifted(tree, set()) == lifted(whole, kinds)


async def test_a_step_says_which_tool_calls_hooks_refused_and_answered(scene: Scene) -> None:
    rules = Hooks("rules")
    rules.guard(ToolCall, id="guard")(lambda each: Deny("no") if each.tool_call_id == "t2" else None)
    rules.on(BeforeToolCall, id="mock")(lambda event: event.mock("42") and None if event.tool_call_id == "t3" else None)
    agent = agent_of(calls(call("find", "t1"), call("find", "t2"), call("find", "t3")), says(), tools=[find])

    await run(agent, hooks=[scene.tracing(tool_spans=False), rules])

    events = {event.name: dict(event.attributes or {}) for span in scene.named("agent_step") for event in span.events}
    assert events.keys() == {"hookline.denied", "hookline.answered"}
    assert events["hookline.denied"] == {
        "gen_ai.tool.name": "find",
        "gen_ai.tool.call.id": "t2",
        "hookline.denial.hook_id": "guard",
        "hookline.denial.call": "ToolCall",
        "hookline.denial.cause": "decision",
    }
    assert events["hookline.answered"]["gen_ai.tool.call.id"] == "t3"
    assert events["hookline.answered"]["hookline.answer.hook_id"] == "mock"


@pytest.mark.parametrize(("kind", "where"), [(ModelCall, "agent_step"), (AgentCall, "request")])
async def test_what_ends_a_run_is_told_where_it_has_no_span(scene: Scene, kind: Any, where: str) -> None:
    rules = Hooks("rules")
    rules.guard(kind, id="guard")(lambda each: Deny("no"))

    with scene.tracer.start_as_current_span("request"):
        await run(agent_of(says()), hooks=[scene.tracing(agent_spans=False), rules])

    (event,) = scene.one(where).events
    assert (event.name, (event.attributes or {})["hookline.denial.hook_id"]) == ("hookline.denied", "guard")


async def test_without_a_span_around_each_step_begins_a_trace(scene: Scene) -> None:
    scene.traces = 2

    await run(agent_of(calls(call("find")), says(), tools=[find]), hooks=[scene.tracing(agent_spans=False)])

    assert [tree[0] for tree in scene.trees()] == ["agent_step", "agent_step"]


async def test_a_run_in_a_trace_that_is_not_sampled_leaves_nothing() -> None:
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

    with Scene(sampler=ParentBased(ALWAYS_OFF)) as scene:
        with scene.tracer.start_as_current_span("request"):
            await run(agent_of(says()), hooks=[scene.tracing(**ALL_LEFT, hook_spans=True)])

        assert scene.spans == []


async def test_a_segment_after_a_pause_has_its_links_on_its_steps(scene: Scene) -> None:
    rules, store = Hooks("rules"), InMemoryStore()
    rules.guard(ToolCall)(lambda each: Ask("sure?"))
    agent = agent_of(calls(call("find")), says(), tools=[find])
    hooks = [scene.tracing(agent_spans=False), rules]

    with scene.tracer.start_as_current_span("first"):
        await run(agent, hooks=hooks, operation_id="op", store=store)
    with scene.tracer.start_as_current_span("second"):
        await resume(agent, "op", Approve("t1"), hooks=hooks, store=store)

    steps = scene.named("agent_step")
    assert [scene.parent(each).name for each in steps] == ["first", "second", "second"]  # type: ignore[union-attr]
    assert {link.context.span_id for link in steps[1].links} == {id_of(scene.one("first"))}


async def test_a_span_that_a_hook_has_opened_keeps_what_the_model_does(scene: Scene) -> None:
    hooks = Hooks("opens")

    @hooks.around(ModelCall)
    async def opens(each: Any, call_next: Any) -> Any:
        with scene.tracer.start_as_current_span("mine"):
            return await call_next(each)

    async def answer(each: ModelCall) -> Any:
        with scene.tracer.start_as_current_span("theirs"):
            return says()

    from tests.otel.scenes import CallbackModel

    await run(agent_of(model=CallbackModel(answer)), hooks=[hooks, scene.tracing(model_spans=False)])

    assert scene.tree() == ("invoke_agent tester", ("agent_step", ("mine", ("theirs",))))


@pytest.mark.parametrize("switch", [*LEFT])
def test_a_switch_is_true_or_false(switch: str) -> None:
    with pytest.raises(HookUsageError, match=switch):
        TracingHooks(**{switch: "no"})  # type: ignore[arg-type]


AGENT_METRICS = {
    "gen_ai.invoke_agent.duration", "gen_ai.invoke_agent.inference_calls", "gen_ai.invoke_agent.tool_calls",
}  # fmt: skip
MODEL_METRICS = {"gen_ai.client.operation.duration", "gen_ai.client.token.usage"}
MEASURED = {
    "agent_metrics": AGENT_METRICS,
    "model_metrics": MODEL_METRICS,
    "tool_metrics": {"gen_ai.execute_tool.duration"},
}


@for_each("chosen", list(product((True, False), repeat=3)))
async def test_metrics_that_are_left_to_others_are_not_measured_and_all_others_are(chosen: Any) -> None:
    whole, gauge = Gauge(), Gauge()
    switches = dict(zip(MEASURED, chosen, strict=True))
    agent = agent_of(calls(call("find"), tokens=3, output=1), says(), tools=[find])

    await run(agent_of(calls(call("find"), tokens=3, output=1), says(), tools=[find]), hooks=[whole.hooks()])
    await run(agent, hooks=[gauge.hooks(**switches)])

    left = {metric for switch, metrics in MEASURED.items() if not switches[switch] for metric in metrics}
    assert set(whole.metrics) - set(gauge.metrics) == left


# Model calls are counted when a model is asked.


@pytest.mark.parametrize("led", [False, True])
@pytest.mark.parametrize(
    ("turns", "counted"),
    [
        ([ConnectionError()], 1),
        ([calls(call("find")), ConnectionError()], 2),
        ([TransientModelError("busy"), TransientModelError("busy"), says()], 1),
        ([calls(call("find")), TransientModelError("busy"), says()], 2),
    ],
)
async def test_a_model_call_counts_once_whether_it_fails_or_is_tried_again(
    turns: list[Any], counted: int, led: bool, scene: Scene
) -> None:
    gauge, hooks, seen = Gauge(), Hooks("watch"), list[OnComplete]()
    hooks.on(OnComplete)(seen.append)
    if led:
        hooks.guard(ModelCall)(lambda each: None)

    await run(agent_of(*turns, tools=[find]), hooks=[hooks, gauge.hooks(), scene.tracing()])

    assert [event.llm_calls for event in seen] == [counted]
    assert gauge.point("gen_ai.invoke_agent.inference_calls").sum == counted
    assert attributes(scene.one("invoke_agent"))["hookline.llm_calls"] == counted
    assert len(scene.named("chat")) == counted


async def test_a_model_call_that_a_hook_refuses_or_answers_is_none(scene: Scene) -> None:
    hooks, seen = Hooks("guard"), list[OnComplete]()
    hooks.guard(ModelCall)(lambda each: Deny("no"))
    hooks.on(OnComplete)(seen.append)

    await run(agent_of(says()), hooks=[hooks])

    assert [event.llm_calls for event in seen] == [0]


# A hook's span names the call that it judged.


@pytest.mark.parametrize("hook_spans", [True, "events"])
async def test_of_parallel_calls_the_hooks_say_which_they_judged(scene: Scene, hook_spans: Any) -> None:
    rules = Hooks("rules")
    rules.guard(ToolCall, id="guard")(lambda each: Deny("no") if each.tool_call_id == "t3" else None)
    six = [call("find", f"t{number}") for number in range(6)]

    await run(agent_of(calls(*six), says(), tools=[find]), hooks=[scene.tracing(hook_spans=hook_spans), rules])

    spans = [attributes(each) for each in scene.named("hook")]
    events = [
        dict(each.attributes or {}) for span in scene.spans for each in span.events if each.name == "hookline.hook"
    ]
    told = [each for each in [*spans, *events] if each["hookline.hook.type"] == "ToolCall"]
    assert sorted(each["gen_ai.tool.call.id"] for each in told) == [each.tool_call_id for each in six]
    assert [each["gen_ai.tool.call.id"] for each in told if each["hookline.hook.status"] == "denied"] == ["t3"]
