"""Spans of parallel calls and of many runs at once: each under its own, whatever thread, loop or task it is made in."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest
from msgspec.structs import replace
from opentelemetry import baggage
from opentelemetry.context import attach, detach, get_current
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from opentelemetry.trace import NoOpTracer, get_current_span, set_span_in_context

from hookline import (
    AfterStep,
    BeforeStep,
    BeforeToolCall,
    HookDispatcher,
    Hooks,
    ModelCall,
    OnComplete,
    ScriptedModel,
    ToolCall,
    exec_agent,
    tool,
)
from hookline.otel import TracingHooks
from hookline.runtime import Compaction, InMemoryStore
from tests.otel.scenes import (
    CallbackModel,
    Scene,
    agent_of,
    ask,
    attributes,
    call,
    calls,
    here,
    id_of,
    own,
    run,
    says,
    unordered,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def scene() -> Iterator[Scene]:
    with Scene() as scene:
        yield scene


@tool
async def noop() -> str:
    return "x"


# Where the current span is.


async def test_code_of_models_and_tools_finds_its_own_span_current(scene: Scene) -> None:
    found: dict[str, str] = {}

    async def answer(model_call: ModelCall) -> Any:
        found[f"model {model_call.step_index}"] = here()
        if model_call.step_index:
            return says()
        return calls(call("on_the_loop", "t1"), call("in_a_thread", "t2"), call("at_once", "t3"), call("own", "t4"))

    @tool
    async def on_the_loop() -> str:
        found["on_the_loop"] = here()
        await anyio.lowlevel.checkpoint()
        assert found["on_the_loop"] == here()
        return ""

    @tool
    def in_a_thread() -> str:
        found["in_a_thread"] = here()
        return ""

    @tool(in_thread=False)
    def at_once() -> str:
        found["at_once"] = here()
        return ""

    @tool
    async def own() -> str:
        def work() -> None:
            found["thread of a tool"] = here()

        async def task() -> None:
            found["task of a tool"] = here()

        await anyio.to_thread.run_sync(work)
        async with anyio.create_task_group() as group:
            group.start_soon(task)
        return ""

    agent = agent_of(model=CallbackModel(answer), tools=[on_the_loop, in_a_thread, at_once, own])
    await run(agent, hooks=[scene.tracing()])

    assert found == {
        "model 0": "chat callback",
        "model 1": "chat callback",
        "on_the_loop": "execute_tool on_the_loop",
        "in_a_thread": "execute_tool in_a_thread",
        "at_once": "execute_tool at_once",
        "thread of a tool": "execute_tool own",
        "task of a tool": "execute_tool own",
    }


async def test_summaries_and_sub_agents_find_their_own_span_current(scene: Scene) -> None:
    found: list[str] = []

    async def short(messages: Any) -> str:
        found.append(here())
        return "short"

    async def answer(model_call: ModelCall) -> Any:
        found.append(f"{here()} in {scene_parent(scene)}")
        return says()

    turns = calls(call("noop"), tokens=99), calls(ask("child"), tokens=99), says()
    agent = agent_of(
        *turns,
        tools=[noop],
        sub_agents=[agent_of(model=CallbackModel(answer), id="child")],
        compaction=Compaction(max_tokens=10, summarize=short),
    )
    await run(agent, hooks=[scene.tracing()])

    assert found == ["chat callback in agent_step", "compact_context"]


def scene_parent(scene: Scene) -> str:
    """Name of the span above the latest that was begun."""
    latest = scene.begun.spans[-1]
    return next(span.name for span in scene.begun.spans if id_of(span) == latest.parent.span_id)


async def test_hooks_find_the_span_current_that_they_stand_in(scene: Scene) -> None:
    found: dict[str, set[str]] = {}
    hooks = Hooks("seen")

    def note(where: str) -> None:
        found.setdefault(where, set()).add(here())

    for event in (BeforeStep, BeforeToolCall, AfterStep, OnComplete):
        hooks.on(event)(lambda event: note(str(event.hook_type)))

    @hooks.on(BeforeToolCall)
    async def queued(event: BeforeToolCall) -> None:
        note("queued")

    @hooks.guard(ToolCall)
    async def guard(tool_call: ToolCall) -> None:
        note("guard")

    @hooks.around(ToolCall)
    async def around(tool_call: ToolCall, call_next: Any) -> Any:
        note("around in")
        result = await call_next(tool_call)
        note("around out")
        return result

    @hooks.around(ModelCall)
    async def model(model_call: ModelCall, call_next: Any) -> Any:
        note("around a model")
        return await call_next(model_call)

    await run(agent_of(calls(call("noop")), says(), tools=[noop]), hooks=[scene.tracing(), hooks])

    root = {"invoke_agent tester"}
    assert found.pop("beforeStep") | found.pop("afterStep") | found.pop("onComplete") == root
    assert set(found) == {"beforeToolCall", "queued", "guard", "around in", "around out", "around a model"}
    assert all(names == {"agent_step"} for names in found.values())


async def test_spans_of_hooks_nest_where_the_hook_stands(scene: Scene) -> None:
    hooks = Hooks("instrumented")

    @hooks.around(ToolCall)
    async def around(tool_call: ToolCall, call_next: Any) -> Any:
        with scene.tracer.start_as_current_span("policy"):
            await anyio.lowlevel.checkpoint()
            return await call_next(tool_call)

    @tool
    async def working() -> str:
        with scene.tracer.start_as_current_span("sql"):
            return here()

    await run(agent_of(calls(call("working")), says(), tools=[working]), hooks=[hooks, scene.tracing()])

    assert scene.tree()[1] == (
        "agent_step",
        ("chat scripted",),
        ("policy",),
        ("execute_tool working", ("sql",)),
    )


async def test_a_run_in_a_tool_stands_under_the_tool(scene: Scene) -> None:
    scene.traces = 1
    tracing, inner = scene.tracing(), agent_of(says(), id="inner")

    @tool
    async def direct() -> str:
        return (await run(inner, hooks=[tracing])).output

    @tool
    def in_a_thread() -> str:
        return anyio.from_thread.run(lambda: exec_agent(agent_of(says(), id="inner"), "go", hooks=[tracing])).output

    agent = agent_of(calls(call("direct")), calls(call("in_a_thread")), says(), tools=[direct, in_a_thread])
    await run(agent, hooks=[tracing])

    nested = ("invoke_agent inner", ("agent_step", ("chat scripted",)))
    assert scene.tree()[1][2] == ("execute_tool direct", nested)
    assert scene.tree()[2][2] == ("execute_tool in_a_thread", nested)


async def test_the_callers_baggage_reaches_models_and_tools(scene: Scene) -> None:
    found = []

    @tool
    def look() -> str:
        found.append(baggage.get_baggage("customer"))
        return ""

    async def answer(model_call: ModelCall) -> Any:
        found.append(baggage.get_baggage("customer"))
        return says() if model_call.step_index else calls(call("look"))

    token = attach(baggage.set_baggage("customer", "acme"))
    try:
        await run(agent_of(model=CallbackModel(answer), tools=[look]), hooks=[scene.tracing()])
    finally:
        detach(token)

    assert found == ["acme", "acme", "acme"]


async def test_a_tool_that_leaves_its_own_span_current_spoils_nothing(scene: Scene) -> None:
    stray = scene.tracer.start_span("stray")

    @tool(in_thread=False)
    def careless() -> str:
        attach(set_span_in_context(stray))
        return ""

    await run(
        agent_of(calls(call("careless")), calls(call("careless")), says(), tools=[careless]), hooks=[scene.tracing()]
    )
    stray.end()

    steps = ("agent_step", ("chat scripted",), ("execute_tool careless",))
    assert scene.trees() == [("stray",), ("invoke_agent tester", steps, steps, ("agent_step", ("chat scripted",)))]


async def test_the_current_span_is_the_callers_again_when_a_run_ends_in_a_generator_that_is_closed(
    scene: Scene,
) -> None:
    tracing = scene.tracing()

    async def stream() -> Any:
        try:
            yield 1
        finally:
            await exec_agent(agent_of(says()), "clean up", hooks=[tracing])

    with scene.tracer.start_as_current_span("request"):
        generator = stream()
        await anext(generator)
        await generator.aclose()

        assert here() == "request"
    assert scene.tree() == ("request", ("invoke_agent tester", ("agent_step", ("chat scripted",))))


async def test_the_current_span_is_the_callers_again_when_a_run_is_part_of_handling_an_error(scene: Scene) -> None:
    for error in (GeneratorExit(), LookupError(), KeyboardInterrupt()):
        try:
            raise error
        except BaseException:
            await run(agent_of(calls(call("noop")), says(), tools=[noop]), hooks=[scene.tracing()])

    assert here() == ""


# Parallel calls.


async def test_parallel_tools_stand_side_by_side_in_whatever_order_they_end(scene: Scene) -> None:
    gates = [anyio.Event() for _ in range(8)]

    @tool
    async def wait(at: int) -> str:
        with scene.tracer.start_as_current_span(f"work {at}"):
            if at + 1 < len(gates):
                await gates[at + 1].wait()
            gates[at].set()
            return here()

    asked = [call("wait", f"t{at}", at=at) for at in range(len(gates))]
    await run(agent_of(calls(*asked), says(), tools=[wait]), hooks=[scene.tracing()])

    (chat, *tools) = scene.tree()[1][1:]
    assert chat == ("chat scripted",)
    assert sorted(tools) == [("execute_tool wait", (f"work {at}",)) for at in range(len(gates))]
    ended = [
        attributes(span)["gen_ai.tool.call.id"]
        for span in scene.exporter.get_finished_spans()
        if "execute" in span.name
    ]
    assert ended == [f"t{at}" for at in reversed(range(len(gates)))]


async def test_tools_in_threads_overlap_and_stand_side_by_side(scene: Scene) -> None:
    barrier = threading.Barrier(4)

    @tool
    def meet(at: int) -> str:
        with scene.tracer.start_as_current_span(f"work {at}"):
            barrier.wait(10)
            return here()

    asked = [call("meet", f"t{at}", at=at) for at in range(4)]
    await run(agent_of(calls(*asked), says(), tools=[meet]), hooks=[scene.tracing()])

    assert set(scene.tree()[1][2:]) == {("execute_tool meet", (f"work {at}",)) for at in range(4)}


async def test_the_same_call_id_in_every_step_is_another_call_each_time(scene: Scene) -> None:
    agent = agent_of(*[calls(call("noop", "same"), call("noop", "same")) for _ in range(3)], says(), tools=[noop])

    await run(agent, hooks=[scene.tracing()])

    step = ("agent_step", ("chat scripted",), ("execute_tool noop",), ("execute_tool noop",))
    assert scene.tree() == ("invoke_agent tester", step, step, step, ("agent_step", ("chat scripted",)))


async def test_parallel_calls_that_hooks_give_one_id_leave_no_span_open(scene: Scene) -> None:
    hooks = Hooks("careless")

    @hooks.before(ToolCall)
    def same(tool_call: ToolCall) -> ToolCall:
        return replace(tool_call, tool_call_id="one")

    @tool
    async def look() -> str:
        await anyio.lowlevel.checkpoint()
        return here()

    agent = agent_of(calls(call("look", "t1"), call("look", "t2"), call("look", "t3")), says(), tools=[look])
    await run(agent, hooks=[scene.tracing(), hooks])

    assert len(scene.named("agent_step")) == 2


# Many runs.


@pytest.mark.parametrize("shared", [True, False], ids=["shared dispatcher", "own dispatchers"])
async def test_runs_at_the_same_time_do_not_mix(scene: Scene, shared: bool) -> None:
    tracing, store = scene.tracing(), InMemoryStore()

    async def answer(model_call: ModelCall) -> Any:
        await anyio.lowlevel.checkpoint()
        if model_call.step_index == 3:
            return says()
        return calls(
            *(call("noop", f"{model_call.operation_id}/{model_call.step_index}/{at}") for at in range(2)),
            ask("child", "c"),
        )

    child = agent_of(model=ScriptedModel(lambda model_call: says()), id="child")
    agent = agent_of(model=CallbackModel(answer), tools=[noop], sub_agents=[child])
    async with contextlib.AsyncExitStack() as stack:
        dispatcher = await stack.enter_async_context(HookDispatcher()) if shared else None
        async with anyio.create_task_group() as group:
            for at in range(60):
                group.start_soon(one, agent, f"op{at}", tracing, dispatcher, store)

    trees = scene.trees()
    assert len(trees) == 60
    assert len(set(map(unordered, trees))) == 1
    assert_tools_in_place(scene)


async def one(
    agent: Any, operation_id: str, tracing: TracingHooks, dispatcher: HookDispatcher | None, store: InMemoryStore
) -> None:
    before = get_current()
    result = await exec_agent(
        agent, "go", hooks=[tracing], operation_id=operation_id, dispatcher=dispatcher, store=store
    )
    assert result.reason == "done"
    assert get_current() == before


def assert_tools_in_place(scene: Scene) -> None:
    """Each tool call's id says where it belongs: `operation/step/number`."""
    by_id = {id_of(span): span for span in scene.exporter.get_finished_spans()}
    for span in by_id.values():
        if span.name.startswith("execute_tool"):
            operation_id, step_index, _ = attributes(span)["gen_ai.tool.call.id"].split("/")
            step = by_id[span.parent.span_id]
            assert own(step, "operation.id", "step.index") == (operation_id, int(step_index))
            assert own(by_id[step.parent.span_id], "operation.id") == own(span, "operation.id") == (operation_id,)


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """It would walk again and again through all that the exporter keeps, which takes half of the test's time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def test_hundreds_of_runs_of_ten_steps_leave_every_span_in_its_place(anyio_backend: str) -> None:
    runs, steps = (400, 10) if anyio_backend == "asyncio" else (100, 10)

    def answer(model_call: ModelCall) -> Any:
        if model_call.step_index == steps - 1:
            return says()
        return calls(call("noop", f"{model_call.operation_id}/{model_call.step_index}/0"))

    agent = agent_of(model=ScriptedModel(answer), tools=[noop], max_steps=steps)
    with Scene() as scene, without_collector():
        tracing, store = scene.tracing(), InMemoryStore()
        async with HookDispatcher() as dispatcher, anyio.create_task_group() as group:
            for at in range(runs):
                group.start_soon(one, agent, f"op{at}", tracing, dispatcher, store)

        assert not tracing.open_kinds()
        assert Counter(span.name for span in scene.exporter.get_finished_spans()) == {
            "invoke_agent tester": runs,
            "agent_step": runs * steps,
            "chat scripted": runs * steps,
            "execute_tool noop": runs * (steps - 1),
        }
        assert_tools_in_place(scene)
        scene.traces = runs


def test_two_event_loops_in_two_threads_may_share_a_bundle() -> None:
    with Scene() as scene:
        tracing, failures = scene.tracing(), []

        def loop(backend: str) -> None:
            async def main() -> None:
                store = InMemoryStore()

                def answer(model_call: ModelCall) -> Any:
                    if model_call.step_index == 4:
                        return says()
                    at = f"{model_call.operation_id}/{model_call.step_index}"
                    return calls(call("noop", f"{at}/0"), call("noop", f"{at}/1"))

                agent = agent_of(model=ScriptedModel(answer), tools=[noop])
                async with HookDispatcher() as dispatcher, anyio.create_task_group() as group:
                    for at in range(40):
                        group.start_soon(one, agent, f"{backend}{at}", tracing, dispatcher, store)

            try:
                anyio.run(main, backend=backend)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=loop, args=(backend,)) for backend in ("asyncio", "trio")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert not failures
        assert len(scene.trees()) == 80
        assert len(set(map(unordered, scene.trees()))) == 1
        assert_tools_in_place(scene)
        scene.traces = 80


# Sampling.


async def test_what_is_sampled_out_is_out_as_a_whole_and_costs_its_run_nothing_of_the_context() -> None:
    with Scene(sampler=ParentBased(ALWAYS_OFF)) as scene:
        found = []

        @tool
        def look() -> str:
            found.append(get_current_span().get_span_context())
            return ""

        child = agent_of(calls(call("look")), says(), id="child", tools=[look])
        agent = agent_of(calls(call("look"), ask("child", "t2")), says(), tools=[look], sub_agents=[child])
        await run(agent, hooks=[scene.tracing()])

        assert scene.spans == []
        assert [(each.is_valid, each.trace_flags.sampled) for each in found] == [(True, False)] * 2
        assert len({each.trace_id for each in found}) == 1


async def test_sampling_by_ratio_keeps_whole_trees_only() -> None:
    with Scene(sampler=ParentBased(TraceIdRatioBased(0.5))) as scene:
        child = agent_of(model=ScriptedModel(lambda _: says()), id="child")

        def answer(model_call: ModelCall) -> Any:
            return says() if model_call.step_index else calls(ask("child"), call("noop", "t2"))

        agent = agent_of(model=ScriptedModel(answer), tools=[noop], sub_agents=[child])
        tracing = scene.tracing()
        for _ in range(64):
            await run(agent, hooks=[tracing])

        assert 0 < len(scene.trees()) < 64
        assert len(set(map(unordered, scene.trees()))) == 1


# `activate`, for runtimes that are not ours.


async def test_activate_makes_a_call_current_and_puts_the_callers_span_back(scene: Scene) -> None:
    tracing = scene.tracing()
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [tracing])
        with scene.tracer.start_as_current_span("request"):
            dispatcher.dispatch(BeforeStep(operation_id="op", step_index=0))
            await dispatcher.dispatch_before_tool_call(
                BeforeToolCall(
                    operation_id="op", step_index=0, tool_call_id="t1", toolset="local", tool_name="add", args={},
                    call_index=1,
                )
            )  # fmt: skip

            with tracing.activate("op"):
                assert here() == "agent_step"
                with tracing.activate("op", "t1"), scene.tracer.start_as_current_span("http"):
                    assert here() == "http"
                assert here() == "agent_step"
            with tracing.activate("op", "no such call"):
                assert here() == "agent_step"
            with tracing.activate("nobody"):
                assert here() == "request"
            assert here() == "request"
            tracing.close()

    assert scene.tree() == ("request", ("invoke_agent", ("agent_step", ("execute_tool add", ("http",)))))


async def test_activate_works_in_other_threads_while_the_operation_goes_on(scene: Scene) -> None:
    tracing = scene.tracing()
    found: list[str] = []

    def elsewhere(operation_id: str, call_id: str) -> None:
        assert here() == ""
        with tracing.activate(operation_id, call_id):
            found.append(here())
        assert here() == ""

    @tool
    async def fork() -> str:
        threads = [threading.Thread(target=elsewhere, args=("op", f"t{at}")) for at in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await anyio.to_thread.run_sync(thread.join)
        return ""

    await run(agent_of(calls(call("fork", "t1")), says(), tools=[fork]), hooks=[tracing], operation_id="op")

    assert sorted(found) == ["agent_step", "execute_tool fork"]
    with tracing.activate("op"):
        assert here() == ""


async def test_traceparent_is_that_of_the_root_while_the_segment_lasts(scene: Scene) -> None:
    tracing = scene.tracing()
    found: list[str | None] = []

    @tool
    def look() -> str:
        found.append(tracing.traceparent("op"))
        return ""

    await run(agent_of(calls(call("look")), says(), tools=[look]), hooks=[tracing], operation_id="op")

    context = scene.one("invoke_agent").context
    assert len(found) == 1
    assert (found[0] or "").startswith(f"00-{context.trace_id:032x}-{context.span_id:016x}-")
    assert tracing.traceparent("op") is None


async def test_a_run_in_a_tool_is_under_it_in_both_back_ends_where_a_library_has_none(scene: Scene) -> None:
    with Scene() as other:
        hooks = [scene.tracing(), other.tracing(id="other")]

        @tool
        async def nest() -> str:
            with NoOpTracer().start_as_current_span("library"):  # a stand-in for what is current
                await run(agent_of(says(), id="inner"), hooks=hooks)
            return "done"

        await run(agent_of(calls(call("nest")), says(), tools=[nest]), hooks=hooks)

        assert other.trees() == scene.trees()
        for each in (scene, other):
            parent = each.parent(each.one("invoke_agent inner"))
            assert parent is not None
            assert parent.name == "execute_tool nest"
