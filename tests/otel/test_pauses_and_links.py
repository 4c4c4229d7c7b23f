"""Segments of one operation: a pause ends the spans, and what goes on later points back to where it came from."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from opentelemetry import baggage
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

from hookline import AgentSession, Approve, HookDispatcher, ModelCall, Reject, exec_agent, resume_agent, tool
from hookline.runtime import InMemoryStore, OperationState
from tests.otel.scenes import (
    CallbackModel,
    Scene,
    agent_of,
    ask,
    attributes,
    call,
    calls,
    here,
    linked,
    own,
    place,
    resume,
    run,
    says,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def scene() -> Iterator[Scene]:
    with Scene() as scene:
        yield scene


@tool(needs_approval=True)
def pay(amount: int = 1) -> str:
    return "paid"


def payer(*turns: Any, **parts: Any) -> Any:
    return agent_of(*(turns or (calls(call("pay")), says())), tools=[pay], **parts)


class JsonStore:
    """Keeps states as JSON, as a database does."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    async def load(self, operation_id: str) -> OperationState | None:
        data = self.kept.get(operation_id)
        return None if data is None else msgspec.json.decode(data, type=OperationState)

    async def save(self, state: OperationState, *, expected_version: int | None) -> None:
        self.kept[state.operation_id] = msgspec.json.encode(state)

    def edit(self, operation_id: str, **fields: Any) -> None:
        self.kept[operation_id] = msgspec.json.encode({**json.loads(self.kept[operation_id]), **fields})


async def test_a_resumed_segment_is_a_trace_of_its_own_with_a_link_to_the_first(scene: Scene) -> None:
    scene.traces = 2
    tracing, store, agent = scene.tracing(), InMemoryStore(), payer()

    paused = await run(agent, hooks=[tracing], store=store)
    assert not scene.still_open
    await resume(agent, paused.operation_id, Approve("t1"), hooks=[tracing], store=store)

    first, second = scene.named("invoke_agent")
    assert linked(first) == {}
    assert linked(second) == {"first_segment": place(first)}
    assert second.parent is None
    assert own(first, "operation.id", "resumed", "outcome") == (paused.operation_id, None, "waiting_for_human")
    assert own(second, "operation.id", "resumed", "outcome") == (paused.operation_id, True, "done")


async def test_the_moment_of_the_decision_has_the_link_too(scene: Scene) -> None:
    tracing, store, agent = scene.tracing(), InMemoryStore(), payer()

    paused = await run(agent, hooks=[tracing], store=store)
    await resume(agent, paused.operation_id, Approve("t1"), hooks=[tracing], store=store)

    decision = scene.named("human_intervention")[1]
    assert linked(decision) == linked(scene.named("invoke_agent")[1])
    assert decision.start_time == decision.end_time


async def test_after_several_pauses_the_first_and_the_previous_segment_are_linked(scene: Scene) -> None:
    tracing, store = scene.tracing(), InMemoryStore()
    agent = payer(*[calls(call("pay")) for _ in range(4)], says())

    paused = await run(agent, hooks=[tracing], store=store)
    for _ in range(4):
        await resume(agent, paused.operation_id, Approve("t1"), hooks=[tracing], store=store)

    roots = scene.named("invoke_agent")
    first, *later = [place(root) for root in roots]
    assert [linked(root) for root in roots[1:]] == [
        {"first_segment": first},
        *({"first_segment": first, "previous_segment": each} for each in later[:3]),
    ]
    assert len({root.context.trace_id for root in roots}) == 5


async def test_decisions_that_come_one_by_one_are_segments_each_with_its_wait(scene: Scene) -> None:
    tracing, store = scene.tracing(), InMemoryStore()
    agent = payer(calls(call("pay", "t1"), call("pay", "t2")), says())

    paused = await run(agent, hooks=[tracing], store=store)
    await resume(agent, paused.operation_id, Approve("t1"), hooks=[tracing], store=store)
    await resume(agent, paused.operation_id, Reject("t2", and_continue=True), hooks=[tracing], store=store)

    decisions = scene.named("human_intervention")[1:]
    waits = [own(decision, "human.wait.duration")[0] for decision in decisions]
    assert [own(each, "human.decision")[0] for each in decisions] == ["approve", "rejectAndContinue"]
    assert 0 < waits[0] < waits[1]
    assert [own(root, "outcome")[0] for root in scene.named("invoke_agent")] == [
        "waiting_for_human",
        "waiting_for_human",
        "done",
    ]


async def test_several_decisions_at_once_are_a_span_each(scene: Scene) -> None:
    tracing, store = scene.tracing(), InMemoryStore()
    agent = payer(calls(call("pay", "t1"), call("pay", "t2"), call("pay", "t3")), says())

    paused = await run(agent, hooks=[tracing], store=store)
    decisions = [Approve("t1"), Reject("t2"), Approve("t3")]
    await resume(agent, paused.operation_id, *decisions, hooks=[tracing], store=store)

    told = {
        attributes(each)["gen_ai.tool.call.id"]: own(each, "human.decision")[0]
        for each in scene.named("human_intervention")[1:]
    }
    assert told == {"t1": "approve", "t2": "reject", "t3": "approve"}
    assert len(scene.named("human_intervention")) == 4


async def test_another_bundle_finds_the_link_in_a_store_of_json(scene: Scene) -> None:
    store, agent = JsonStore(), payer()

    paused = await run(agent, hooks=[scene.tracing()], store=store)
    with Scene() as later:
        await resume(agent, paused.operation_id, Approve("t1"), hooks=[later.tracing()], store=store)

        assert linked(later.one("invoke_agent")) == {"first_segment": place(scene.one("invoke_agent"))}


SECOND_PROCESS = textwrap.dedent(
    """
    import json, sys
    import anyio, msgspec
    from hookline import Approve
    from hookline.runtime import OperationState
    from tests.otel.scenes import Scene, linked, place, resume
    from tests.otel.test_pauses_and_links import JsonStore, payer

    async def main():
        store = JsonStore()
        store.kept["op"] = sys.stdin.buffer.read()
        with Scene() as scene:
            result = await resume(payer(), "op", Approve("t1"), hooks=[scene.tracing()], store=store)
            root = scene.one("invoke_agent")
            told = {"reason": result.reason, "links": linked(root), "place": place(root)}
        print(json.dumps({**told, "kept": json.loads(store.kept["op"])["traceparents"]}))

    anyio.run(main)
    """
)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # as in the other process
async def test_a_segment_in_another_process_links_to_the_first(scene: Scene) -> None:
    store = JsonStore()
    await run(payer(calls(call("pay")), calls(call("pay"))), hooks=[scene.tracing()], store=store, operation_id="op")

    done = await anyio.run_process(
        [sys.executable, "-c", SECOND_PROCESS],
        input=store.kept["op"],
        cwd=str(Path(__file__).parents[2]),
        stderr=subprocess.PIPE,
        check=False,
    )

    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stdout)
    first = place(scene.one("invoke_agent"))
    assert told["links"] == {"first_segment": first}
    assert told["place"].split("/")[0] != first.split("/")[0]
    assert [kept.split("-")[2] for kept in told["kept"]] == [first.split("/")[1], told["place"].split("/")[1]]


async def test_a_resumed_segment_may_go_on_in_the_same_trace(scene: Scene) -> None:
    scene.traces = 1
    tracing, store, agent = (
        scene.tracing(resume="same_trace"),
        JsonStore(),
        payer(calls(call("pay")), calls(call("pay"))),
    )

    paused = await run(agent, hooks=[tracing], store=store)
    await resume(agent, paused.operation_id, Approve("t1"), hooks=[tracing], store=store)

    first, second = scene.named("invoke_agent")
    assert (second.parent.span_id, second.parent.is_remote) == (first.context.span_id, True)
    assert not second.links


async def test_the_same_trace_wins_over_an_ambient_span_and_keeps_its_baggage(scene: Scene) -> None:
    tracing, store = scene.tracing(resume="same_trace"), InMemoryStore()
    found = []

    async def answer(model_call: ModelCall) -> Any:
        found.append(baggage.get_baggage("customer"))
        return says() if model_call.step_index else calls(call("pay"))

    agent = agent_of(model=CallbackModel(answer), tools=[pay])
    paused = await run(agent, hooks=[tracing], store=store)
    token = attach(baggage.set_baggage("customer", "acme"))
    try:
        with scene.tracer.start_as_current_span("request"):
            await resume(agent, paused.operation_id, Approve("t1"), hooks=[tracing], store=store)
            assert here() == "request"
    finally:
        detach(token)

    first, second = scene.named("invoke_agent")
    assert second.context.trace_id == first.context.trace_id
    assert found == [None, "acme"]


async def test_a_segment_that_is_resumed_inside_of_a_span_is_under_it_and_linked(scene: Scene) -> None:
    tracing, store, agent = scene.tracing(), InMemoryStore(), payer()

    with scene.tracer.start_as_current_span("first request"):
        paused = await run(agent, hooks=[tracing], store=store)
    with scene.tracer.start_as_current_span("second request"):
        await resume(agent, paused.operation_id, Approve("t1"), hooks=[tracing], store=store)

    first, second = scene.named("invoke_agent")
    assert scene.parent(second) is scene.one("second request")
    assert linked(second) == {"first_segment": place(first)}


GARBAGE = [
    "",
    "-",
    "garbage",
    "00-" + "0" * 32 + "-" + "0" * 16 + "-01",
    "00-" + "a" * 32 + "-" + "0" * 16 + "-01",
    "00-" + "0" * 32 + "-" + "b" * 16 + "-01",
    "ff-" + "a" * 32 + "-" + "b" * 16 + "-01",
    "00-" + "a" * 32 + "-" + "b" * 16,
    "00-" + "z" * 32 + "-" + "b" * 16 + "-01",
    "00-" + "a" * 32 + "-" + "b" * 16 + "-01-more",
    "\u0660\u0660-" + "\u0663" * 32 + "-" + "\u0664" * 16 + "-\u0660\u0661",
    "x" * 1_000_000,
    "\x00",
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
@pytest.mark.parametrize("policy", ["link", "same_trace"])
async def test_garbage_in_place_of_a_traceparent_is_no_link_and_no_error(
    scene: Scene, garbage: str, policy: Any
) -> None:
    tracing, store, agent = scene.tracing(resume=policy), JsonStore(), payer()

    paused = await run(agent, hooks=[tracing], store=store)
    store.edit(paused.operation_id, traceparents=[garbage, garbage])
    with scene.tracer.start_as_current_span("request"):
        result = await resume(agent, paused.operation_id, Approve("t1"), hooks=[tracing], store=store)

    second = scene.named("invoke_agent")[1]
    assert result.reason == "done"
    assert not second.links
    assert scene.parent(second) is scene.one("request")


async def test_a_good_traceparent_beside_garbage_is_still_a_link(scene: Scene) -> None:
    tracing, store, agent = scene.tracing(), JsonStore(), payer()

    paused = await run(agent, hooks=[tracing], store=store)
    good = json.loads(store.kept[paused.operation_id])["traceparents"][0]
    store.edit(paused.operation_id, traceparents=["garbage", good.upper()])
    await resume(agent, paused.operation_id, Approve("t1"), hooks=[tracing], store=store)

    first, second = scene.named("invoke_agent")
    assert list(linked(second).values()) == [place(first)]


async def test_one_segment_is_linked_once_however_often_it_is_named(scene: Scene) -> None:
    tracing, store, agent = scene.tracing(), JsonStore(), payer()

    paused = await run(agent, hooks=[tracing], store=store)
    good = json.loads(store.kept[paused.operation_id])["traceparents"][0]
    store.edit(paused.operation_id, traceparents=[good, good])
    await resume(agent, paused.operation_id, Approve("t1"), hooks=[tracing], store=store)

    assert len(scene.named("invoke_agent")[1].links) == 1


@given(
    texts=st.lists(
        st.text(max_size=70) | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", fullmatch=True)
    ),
    policy=st.sampled_from(["link", "same_trace"]),
)
@settings(max_examples=60, deadline=None)
def test_no_list_of_traceparents_breaks_a_resume(texts: list[str], policy: Any) -> None:
    async def main() -> None:
        store, agent = InMemoryStore(), payer()
        with Scene() as scene:
            tracing = scene.tracing(resume=policy)
            paused = await run(agent, hooks=[tracing], store=store)
            store._states[paused.operation_id] = replace(store._states[paused.operation_id], traceparents=texts)
            result = await resume(agent, paused.operation_id, Approve("t1"), hooks=[tracing], store=store)
            assert result.reason == "done"

    anyio.run(main)


async def test_a_state_of_before_traces_were_kept_resumes_without_links(scene: Scene) -> None:
    store, agent = JsonStore(), payer()

    paused = await run(agent, store=store)
    state = json.loads(store.kept[paused.operation_id])
    del state["traceparents"], state["waitingSinceUnixNano"]
    store.kept[paused.operation_id] = msgspec.json.encode(state)
    await resume(agent, paused.operation_id, Approve("t1"), hooks=[scene.tracing()], store=store)

    root = scene.one("invoke_agent")
    assert (linked(root), own(root, "resumed")) == ({}, (True,))
    assert own(scene.one("human_intervention"), "human.wait.duration") == (None,)


async def test_a_segment_that_was_not_traced_keeps_what_earlier_ones_left(scene: Scene) -> None:
    tracing, store = scene.tracing(), InMemoryStore()
    agent = payer(*[calls(call("pay")) for _ in range(3)], says())

    paused = await run(agent, hooks=[tracing], store=store)
    await resume(agent, paused.operation_id, Approve("t1"), store=store)
    await resume(agent, paused.operation_id, Approve("t1"), hooks=[tracing], store=store)

    first, third = scene.named("invoke_agent")
    assert linked(third) == {"first_segment": place(first)}


async def test_a_segment_that_was_sampled_out_can_be_linked_to() -> None:
    store, agent = InMemoryStore(), payer()
    with Scene(sampler=ParentBased(ALWAYS_OFF)) as silent:
        paused = await run(agent, hooks=[silent.tracing()], store=store)
        assert silent.spans == []
    with Scene() as scene:
        await resume(agent, paused.operation_id, Approve("t1"), hooks=[scene.tracing()], store=store)

        assert list(linked(scene.one("invoke_agent"))) == ["first_segment"]


async def test_the_wait_is_measured_from_the_pause_and_never_below_zero(scene: Scene) -> None:
    tracing, store, agent = scene.tracing(), JsonStore(), payer()

    paused = await run(agent, hooks=[tracing], store=store)
    since = json.loads(store.kept[paused.operation_id])["waitingSinceUnixNano"]
    store.edit(paused.operation_id, waitingSinceUnixNano=since - 3_600 * 10**9)
    await resume(agent, paused.operation_id, Approve("t1"), hooks=[tracing], store=store)
    store = JsonStore()
    paused = await run(payer(), hooks=[tracing], store=store)
    store.edit(paused.operation_id, waitingSinceUnixNano=since + 3_600 * 10**9)
    await resume(payer(calls(call("pay")), says()), paused.operation_id, Approve("t1"), hooks=[tracing], store=store)

    waits = [own(each, "human.wait.duration")[0] for each in scene.named("human_intervention")]
    assert waits[0] is waits[2] is None
    assert 3_600 <= waits[1] < 3_700
    assert waits[3] == 0


async def test_a_session_links_the_segments_of_a_task_and_no_others(scene: Scene) -> None:
    agent = payer(says("hello"), calls(call("pay")), says("paid"))
    async with AgentSession(agent, hooks=[scene.tracing()]) as session:
        await session.run("hi")
        await session.run("pay")
        await session.resume([Approve("t1")])

        hello, asked, paid = scene.named("invoke_agent")
        assert [linked(root) for root in (hello, asked, paid)] == [{}, {}, {"first_segment": place(asked)}]
        assert {attributes(root)["gen_ai.conversation.id"] for root in (hello, asked, paid)} == {session.id}


async def test_a_sub_agent_that_paused_is_resumed_in_a_trace_of_its_own(scene: Scene) -> None:
    tracing, store = scene.tracing(), InMemoryStore()
    child = payer(id="child")
    results = []

    async def answer(model_call: ModelCall) -> Any:
        results.extend(message.content for message in model_call.messages if message.role == "tool")
        return says() if model_call.step_index else calls(ask("child"))

    await run(agent_of(model=CallbackModel(answer), sub_agents=[child]), hooks=[tracing], store=store)
    child_id = own(scene.named("invoke_agent")[1], "operation.id")[0]
    await resume(child, child_id, Approve("t1"), hooks=[tracing], store=store)

    _, asked, resumed = scene.named("invoke_agent")
    assert resumed.parent is None
    assert linked(resumed) == {"first_segment": place(asked)}


async def test_a_sub_agent_that_is_resumed_while_its_caller_goes_on_does_not_outlive_a_span_above_it(
    scene: Scene,
) -> None:
    """Nobody waits for it any more, so it belongs to none of the calls that are open by chance."""
    tracing, store = scene.tracing(), InMemoryStore()
    caller_done, busy = anyio.Event(), anyio.Event()

    async def say(model_call: ModelCall) -> Any:
        if model_call.messages[-1].content == "second":
            busy.set()
            await anyio.lowlevel.checkpoint()
            return says()
        if any(message.role == "tool" for message in model_call.messages):
            await caller_done.wait()
            return says()
        return calls(call("pay"))

    child = agent_of(model=CallbackModel(say), tools=[pay], id="child")
    agent = agent_of(
        calls(ask("child", "t1", "first")), calls(ask("child", "t2", "second")), says(), sub_agents=[child]
    )

    async def caller() -> None:
        await exec_agent(agent, "go", hooks=[tracing], store=store)
        caller_done.set()

    async with anyio.create_task_group() as group:
        group.start_soon(caller)
        await busy.wait()
        (paused,) = [each for each in store._states.values() if getattr(each, "status", "") == "waiting_for_human"]
        await resume_agent(child, paused.operation_id, [Approve("t1")], hooks=[tracing], store=store)

    resumed = scene.named("invoke_agent")[-1]
    assert own(resumed, "resumed") == (True,)
    assert scene.parent(resumed) is None
    called = scene.named("call_agent")[1]
    (second,) = [root for root in scene.named("invoke_agent") if scene.parent(root) is called]
    assert own(called, "sub_operation.id") == own(second, "operation.id")


async def test_a_run_in_the_background_does_not_outlive_a_span_of_the_run_that_it_names_as_its_parent(
    scene: Scene,
) -> None:
    tracing, store = scene.tracing(), InMemoryStore()
    caller_done, begun = anyio.Event(), anyio.Event()

    async def slow(model_call: ModelCall) -> Any:
        begun.set()
        await caller_done.wait()
        return says()

    background = agent_of(model=CallbackModel(slow), id="background")

    async def work() -> None:
        await exec_agent(background, "go", hooks=[tracing], store=store, parent_operation_id="op")

    async with anyio.create_task_group() as group:

        @tool
        async def start() -> str:
            await begun.wait()
            return "started"

        async def late() -> None:
            while not tracing.traceparent("op"):
                await anyio.lowlevel.checkpoint()
            await work()

        async def caller() -> None:
            await run(agent_of(calls(call("start")), says(), tools=[start]), hooks=[tracing], operation_id="op")
            caller_done.set()

        group.start_soon(late)
        group.start_soon(caller)

    named = [span for span in scene.spans if span.name == "invoke_agent background"]
    assert [own(root, "parent_operation.id") for root in named] == [("op",)]


async def test_runs_that_share_a_dispatcher_pause_and_go_on_side_by_side(scene: Scene) -> None:
    tracing, store = scene.tracing(), InMemoryStore()

    async def one(operation_id: str, dispatcher: HookDispatcher) -> None:
        agent, given = payer(calls(call("pay")), calls(call("pay")), says()), {"store": store, "dispatcher": dispatcher}
        await exec_agent(agent, "go", hooks=[tracing], operation_id=operation_id, **given)
        for _ in range(2):
            await resume_agent(agent, operation_id, [Approve("t1")], hooks=[tracing], **given)

    async with HookDispatcher() as dispatcher, anyio.create_task_group() as group:
        for at in range(30):
            group.start_soon(one, f"op{at}", dispatcher)

    for at in range(30):
        first, second, third = [span for span in scene.of(f"op{at}") if span.name.startswith("invoke_agent")]
        assert linked(second) == {"first_segment": place(first)}
        assert linked(third) == {"first_segment": place(first), "previous_segment": place(second)}
