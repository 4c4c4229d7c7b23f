"""The span tree of runs of other frameworks: what their adapters lead through a `AdapterRun`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest

from hookline import (
    AgentResult,
    BeforeToolCall,
    Deny,
    HookDispatcher,
    Hooks,
    Respond,
    SubAgentCall,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from hookline.runtime import KINDS, AdapterRun, Capabilities, ModelCallRecord
from tests.otel.capture import Sink
from tests.otel.scenes import Scene, call, error_type, own, says, status

DRIVES = Capabilities(framework="Tests", calls={SubAgentCall: KINDS, ToolCall: KINDS})

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def scene() -> Iterator[Scene]:
    with Scene() as found:
        found.traces = 1
        yield found


def run_of(*hooks: Any, agent_id: str = "tester", **options: Any) -> AdapterRun:
    return AdapterRun(hooks, DRIVES, agent_id=agent_id, **options)


async def call_child(parent: AdapterRun, work: Callable[[AdapterRun], Awaitable[str]]) -> str:
    """Call the agent `child`, whose own run is under that of the caller."""

    async def child(instruction: str, operation_id: str) -> str:
        async with run_of(agent_id="child", operation_id=operation_id, parent=parent) as run:
            run.begin_step()
            return await work(run)
        return "interrupted"

    return (await parent.call_agent("child", "go", child)).output


async def test_of_two_calls_of_one_agent_the_one_that_fails_ends_its_own_span(scene: Scene) -> None:
    both, failed = asyncio.Barrier(2), asyncio.Event()

    async def works(run: AdapterRun) -> str:
        await both.wait()
        await failed.wait()
        return "done"

    async def fails(run: AdapterRun) -> str:
        await both.wait()
        raise LookupError

    async def calls(parent: AdapterRun) -> None:
        with pytest.raises(LookupError):
            await call_child(parent, fails)
        failed.set()

    async with run_of(scene.tracing()) as run:
        run.begin_step()
        await asyncio.gather(call_child(run, works), calls(run))

    assert not scene.measured("hookline.tracer.truncated_spans")
    assert [
        (status(span), error_type(span), own(span, "outcome"), own(scene.parent(span), "sub_operation.id"))
        for span in scene.named("invoke_agent child")
    ] == [
        ("UNSET", None, ("done",), own(scene.named("invoke_agent child")[0], "operation.id")),
        ("ERROR", "LookupError", ("error",), own(scene.named("invoke_agent child")[1], "operation.id")),
    ]
    assert [(status(span), error_type(span)) for span in scene.named("call_agent")] == [
        ("UNSET", None),
        ("ERROR", "LookupError"),
    ]


async def test_calls_of_one_agent_that_are_cancelled_together_are_interrupted_each_with_its_run(scene: Scene) -> None:
    began = asyncio.Barrier(3)

    def works(pause: int) -> Callable[[AdapterRun], Awaitable[str]]:
        async def work(run: AdapterRun) -> str:
            await began.wait()
            try:
                await asyncio.sleep(60)
            finally:
                for _ in range(pause):
                    await asyncio.sleep(0)
            return ""

        return work

    async def main() -> None:
        async with run_of(scene.tracing()) as run:
            run.begin_step()
            await asyncio.gather(call_child(run, works(9)), call_child(run, works(0)))

    task = asyncio.ensure_future(main())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.01)

    assert not scene.measured("hookline.tracer.truncated_spans")
    found = [*scene.named("call_agent"), *scene.named("invoke_agent")]
    assert {(status(span), *own(span, "outcome")) for span in found} == {("UNSET", "interrupted")}


@pytest.mark.parametrize("last", ["agents", "parent"])
async def test_a_step_whose_sub_agents_run_on_ends_with_the_last_of_them(scene: Scene, last: str) -> None:
    began, first, second = asyncio.Barrier(3), asyncio.Event(), asyncio.Event()

    def works(until: asyncio.Event) -> Callable[[AdapterRun], Awaitable[str]]:
        async def work(run: AdapterRun) -> str:
            await began.wait()
            await until.wait()
            await call_tool(run)
            return ""

        return work

    async with HookDispatcher() as dispatcher:
        async with run_of(scene.tracing(), dispatcher=dispatcher) as run:
            run.begin_step()
            agents = [asyncio.ensure_future(call_child(run, works(until))) for until in (first, second)]
            await began.wait()
            run.end_step(should_continue=True)
            run.begin_step()
            await call_tool(run)
            first.set()
            await agents[0]
            assert "agent_step" in scene.still_open
            if last == "agents":
                second.set()
                await agents[1]
            run.end_step(should_continue=False)
        second.set()
        await asyncio.gather(*agents)

    tool = ("agent_step", ("execute_tool find",))
    whole = ("call_agent child", ("invoke_agent child", tool))
    cut = ("call_agent child", ("invoke_agent child", ("agent_step",)))
    assert scene.tree() == (
        "invoke_agent tester",
        ("agent_step", whole, whole if last == "agents" else cut),
        tool,
    )
    step = scene.named("agent_step")[0]
    assert own(step, "step.should_continue", "step.type") == (True, "call_llm")
    cut_short = [own(span, "span.truncated") for span in scene.spans if own(span, "span.truncated") != (None,)]
    assert bool(cut_short) == (last == "parent")


async def call_tool(run: AdapterRun) -> None:
    async def find(_: Any) -> ToolResult:
        return ToolResult(content="found")

    await run.call_tool(call("find"), find)


@pytest.mark.parametrize("reason", ["interrupted", "max_steps", "cost_limit", "waiting_for_human"])
async def test_a_sub_agent_that_stops_without_an_error_makes_none_of_its_call(scene: Scene, reason: Any) -> None:
    async def stops(run: AdapterRun) -> str:
        run.finish(reason)
        raise RuntimeError("as the framework says it")

    async with run_of(scene.tracing()) as run:
        run.begin_step()
        with pytest.raises(RuntimeError):
            await call_child(run, stops)

    call = scene.one("call_agent")
    assert (status(call), error_type(call), own(call, "outcome")) == ("UNSET", None, (reason,))
    assert own(call, "sub_operation.id") == own(scene.one("invoke_agent child"), "operation.id")


async def test_a_call_that_fails_after_its_sub_agent_was_done_has_failed(scene: Scene) -> None:
    async def child(instruction: str, operation_id: str) -> str:
        async with run_of(agent_id="child", operation_id=operation_id, parent=run):
            pass
        raise LookupError

    async with run_of(scene.tracing()) as run:
        run.begin_step()
        with pytest.raises(LookupError):
            await run.call_agent("child", "go", child)

    call = scene.one("call_agent")
    assert (status(call), error_type(call)) == ("ERROR", "LookupError")


@pytest.mark.parametrize("answer", [Deny("no"), Respond(AgentResult(output="canned"))])
async def test_a_call_in_whose_place_a_hook_speaks_while_another_begins_is_the_one_that_ends(
    scene: Scene, answer: Any
) -> None:
    begun, spoken = asyncio.Event(), asyncio.Event()
    hooks = Hooks("hooks")
    hooks.before(SubAgentCall, id="speak")(lambda call: answer if call.instruction == "not" else None)

    async def child(instruction: str, operation_id: str) -> str:
        begun.set()
        await spoken.wait()
        async with run_of(agent_id="child", operation_id=operation_id, parent=run):
            return "done"
        return "interrupted"

    async def unrun() -> None:
        await begun.wait()
        assert not (await run.call_agent("child", "not", child)).ran
        spoken.set()

    async with run_of(scene.tracing(), hooks) as run:
        run.begin_step()
        await asyncio.gather(run.call_agent("child", "go", child), unrun())

    first, second = scene.named("call_agent")
    assert scene.parent(scene.one("invoke_agent child")) is first
    assert own(first, "denial.hook_id", "outcome") == (None, "done")
    denied_by = "speak" if isinstance(answer, Deny) else None
    assert own(second, "denial.hook_id", "outcome", "sub_operation.id") == (denied_by, None, None)


async def test_a_step_whose_model_is_asked_again_after_a_failure_has_not_failed() -> None:
    sink = Sink()
    answers = iter([LookupError(), says("done")])

    async def ask(call: Any) -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with run_of(sink.metrics()) as run:
        run.begin_step()
        with pytest.raises(LookupError):
            await run.ask_model([], ask)
        await run.ask_model([], ask)

    (point,) = sink.points("hookline.step.duration")
    assert "error.type" not in point.attributes


async def test_tools_that_a_model_is_offered_are_known_by_name_and_description() -> None:
    sink, hooks = Sink(), Hooks("hooks")
    hooks.on(BeforeToolCall)(lambda event: event.mock("canned"))

    async def ask(call: Any) -> Any:
        return says("done")

    async def work(args: Any) -> Any:
        raise AssertionError

    async with run_of(sink.tracing(), sink.metrics(), hooks) as run:
        run.begin_step()
        await run.ask_model([], ask, tools=[ToolSpec(toolset="local", name="add", description="Add numbers.")])
        for name in ("add", "made_up"):
            await run.call_tool(call(name, name), work)

    described = {span.name: span.attributes.get("gen_ai.tool.description") for span in sink.named("execute_tool")}
    assert described == {"execute_tool add": "Add numbers.", "execute_tool made_up": None}
    points = sink.points("gen_ai.execute_tool.duration")
    assert sorted(point.attributes["gen_ai.tool.name"] for point in points) == ["_OTHER", "add"]


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ("done", (None, None)),
        ("error", ("LookupError", None)),
        ("interrupted", (None, "interrupted")),
        ("denied", (None, None)),
    ],
)
async def test_a_step_that_does_not_come_to_its_end_says_why(ends: str, expected: tuple[Any, Any]) -> None:
    sink, hooks = Sink(), Hooks("hooks")
    if ends == "denied":
        hooks.guard(ToolCall)(lambda call: Deny("no", stop=True))

    async def work(args: Any) -> Any:
        return ToolResult(content="")

    async def play() -> None:
        async with run_of(sink.tracing(), hooks) as run:
            run.begin_step()
            if ends == "error":
                raise LookupError
            if ends == "interrupted":
                raise asyncio.CancelledError
            await run.call_tool(call("add", "add"), work)

    with contextlib.suppress(LookupError, asyncio.CancelledError):
        await play()

    (step,) = sink.named("agent_step")
    assert (error_type(step), step.attributes.get("hookline.outcome")) == expected


LATE = ModelCallRecord(
    step_index=0,
    provider="anthropic",
    model="claude-opus-5",
    start_unix_nano=1,
    duration_ms=1500.0,
    input_tokens=10,
    output_tokens=5,
    cost_usd=0.25,
)


@pytest.mark.parametrize("bundles", ["both", "tracing", "metrics"])
async def test_a_model_call_that_is_reported_late_is_traced_and_measured_once(bundles: str) -> None:
    sink = Sink()
    hooks = {"both": [sink.tracing(), sink.metrics()], "tracing": [sink.tracing()], "metrics": [sink.metrics()]}
    async with run_of(*hooks[bundles]) as run:
        run.begin_step()
        begun = msgspec.structs.replace(LATE, start_unix_nano=time.time_ns())
        run.report_model_call(begun)
        run.end_step(should_continue=False)
        run.report_model_call(LATE)  # from before the run, as clocks differ

    assert sink.losses() == {}
    if bundles != "metrics":
        chats = sink.named("chat claude-opus-5")
        assert [
            (span.attributes["gen_ai.usage.input_tokens"], span.attributes["gen_ai.usage.output_tokens"])
            for span in chats
        ] == [(10, 5), (10, 5)]
        assert {span.attributes["gen_ai.provider.name"] for span in chats} == {"anthropic"}
        assert [sink.parent(span).name for span in chats] == ["agent_step", "invoke_agent tester"]
        for span in chats:
            assert sink.parent(span).start_time <= span.start_time <= span.end_time <= sink.parent(span).end_time
    if bundles != "tracing":
        points = {
            point.attributes["gen_ai.token.type"]: (point.count, point.sum)
            for point in sink.points("gen_ai.client.token.usage")
        }
        assert points == {"input": (2, 20), "output": (2, 10)}
        [duration] = sink.points("gen_ai.client.operation.duration")
        assert (duration.count, duration.sum) == (2, 3.0)
        assert duration.attributes["gen_ai.provider.name"] == "anthropic"
