"""Runs that end in the middle of something: cancelled, crashed, thrown away, forgotten. No span stays open."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio.testing
from opentelemetry.context import get_current

from hookline import (
    AfterToolCall,
    AgentSession,
    BeforeStep,
    BeforeToolCall,
    HookDispatcher,
    Hooks,
    ModelCall,
    OnComplete,
    ToolCall,
    exec_agent,
    interrupt,
    tool,
)
from hookline.errors import HookDefinitionError, OperationExistsError
from hookline.runtime import Compaction, InMemoryStore
from tests.otel.scenes import CallbackModel, Scene, agent_of, ask, attributes, call, calls, failed, here, own, run, says

pytestmark = pytest.mark.anyio

DAY = 86_400 * 10**9


@pytest.fixture
def scene() -> Iterator[Scene]:
    with Scene() as scene:
        yield scene


def truncated(scene: Scene) -> list[tuple[str, Any]]:
    return [(span.name, own(span, "span.truncated")[0]) for span in scene.spans if own(span, "span.truncated")[0]]


class Countdown:
    """Hooks, models, tools, a store and a summary that all wait a moment, and something that happens at the nth wait."""

    def __init__(self, at: int, action: Any) -> None:
        self.left = at
        self.action = action
        self.told: dict[str, str] = {}
        self.hooks = Hooks("waits", inherit=True)
        for kind in (ModelCall, ToolCall):
            self.hooks.around(kind)(self.around)
        self.hooks.on(BeforeToolCall)(self.observe)
        self.hooks.on(OnComplete)(lambda event: self.told.update({event.operation_id: event.reason}))

    async def wait(self) -> None:
        self.left -= 1
        if self.left == 0:
            await self.action()
        await anyio.lowlevel.checkpoint()

    async def around(self, given: Any, call_next: Any) -> Any:
        await self.wait()
        result = await call_next(given)
        await self.wait()
        return result

    async def observe(self, event: BeforeToolCall) -> None:
        await self.wait()

    async def answer(self, model_call: ModelCall) -> Any:
        await self.wait()
        if model_call.step_index == 2 or model_call.messages[-1].content == "child":
            return says()
        return calls(call("work", "t1"), call("work", "t2"), ask("child", "t3", "child"), tokens=99)

    async def short(self, messages: Any) -> str:
        await self.wait()
        return "short"

    def agent(self) -> Any:
        @tool
        async def work() -> str:
            await self.wait()
            return ""

        model = CallbackModel(self.answer)
        child = agent_of(model=model, id="child")
        compaction = Compaction(max_tokens=10, summarize=self.short)
        return agent_of(model=model, tools=[work], sub_agents=[child], compaction=compaction)

    @property
    def store(self) -> InMemoryStore:
        wait = self.wait

        class Store(InMemoryStore):
            async def save(self, state: Any, *, expected_version: int | None) -> None:
                await wait()
                await super().save(state, expected_version=expected_version)

        return Store()


async def waits(scene: Scene) -> int:
    """How often such a run waits, if nothing happens."""
    countdown = Countdown(0, None)
    await run(countdown.agent(), hooks=[scene.tracing(), countdown.hooks], store=countdown.store)
    scene.forget()
    return -countdown.left


async def test_a_run_may_be_cancelled_at_every_await(scene: Scene) -> None:
    tracing = scene.tracing()
    for at in range(1, await waits(scene) + 1):
        with anyio.CancelScope() as scope:

            async def cancel(scope: anyio.CancelScope = scope) -> None:
                scope.cancel()

            countdown = Countdown(at, cancel)
            await run(countdown.agent(), hooks=[tracing, countdown.hooks], store=countdown.store)

        assert here() == ""
        assert not tracing.open_kinds()
        scene.assert_sound()
        outcomes = {own(root, "operation.id")[0]: own(root, "outcome")[0] for root in scene.named("invoke_agent")}
        assert outcomes == countdown.told
        assert len(scene.trees()) <= 1
        assert not [span.name for span in scene.spans if failed(span)], at
        scene.forget()


async def test_a_run_may_be_interrupted_at_every_await(scene: Scene) -> None:
    tracing = scene.tracing()

    async def stop() -> None:
        interrupt("op")

    for at in range(1, await waits(scene) + 1):
        countdown = Countdown(at, stop)
        result = await run(
            countdown.agent(), hooks=[tracing, countdown.hooks], store=countdown.store, operation_id="op"
        )

        assert not tracing.open_kinds()
        scene.assert_sound()
        assert own(scene.named("invoke_agent")[0], "outcome") == (result.reason,)
        assert not [span.name for span in scene.spans if failed(span)], at
        assert not truncated(scene), at
        scene.forget()


class Crash(BaseException):
    pass


async def test_a_run_may_crash_at_every_await(scene: Scene) -> None:
    tracing = scene.tracing()

    async def crash() -> None:
        raise Crash

    for at in range(1, await waits(scene) + 1):
        countdown = Countdown(at, crash)
        try:
            await run(countdown.agent(), hooks=[tracing, countdown.hooks], store=countdown.store)
        except BaseException as error:
            leaves = error.exceptions if isinstance(error, BaseExceptionGroup) else [error]
            assert any(isinstance(leaf, Crash) for leaf in leaves)

        assert here() == ""
        assert not tracing.open_kinds()
        scene.assert_sound()
        scene.forget()


async def test_a_run_that_is_cancelled_from_outside_is_interrupted_and_no_error(scene: Scene) -> None:
    begun = anyio.Event()

    @tool
    async def hang() -> str:
        begun.set()
        await anyio.sleep_forever()
        return ""

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: exec_agent(agent_of(calls(call("hang")), tools=[hang]), "go", hooks=[scene.tracing()]))
        await begun.wait()
        group.cancel_scope.cancel()

    assert scene.tree() == ("invoke_agent tester", ("agent_step", ("chat scripted",), ("execute_tool hang",)))
    assert own(scene.one("invoke_agent"), "outcome") == ("interrupted",)
    assert own(scene.one("execute_tool"), "tool.outcome") == ("interrupted",)
    assert not truncated(scene)


async def test_a_run_that_never_began_leaves_nothing_open(scene: Scene) -> None:
    tracing = scene.tracing()
    broken = Hooks("broken")
    broken.on(BeforeStep, timeout=1.0)(lambda event: None)

    class Store(InMemoryStore):
        async def save(self, state: Any, *, expected_version: int | None) -> None:
            raise OSError("disk full")

    result = await run(agent_of(says()), hooks=[tracing], store=Store())
    with pytest.raises(OperationExistsError):

        @tool
        async def again() -> str:
            await exec_agent(agent_of(says()), "go", hooks=[tracing], operation_id="op")
            return ""

        async def raised() -> None:
            agent = agent_of(calls(call("again")), says(), tools=[again])
            told = await exec_agent(agent, "go", hooks=[tracing], operation_id="op")
            assert "OperationExistsError" in told.messages[-2].content
            raise OperationExistsError("op")

        await raised()

    assert result.reason == "error"
    assert not tracing.open_kinds()


async def test_hooks_that_cannot_be_registered_leave_nothing_open(scene: Scene) -> None:
    tracing = scene.tracing()

    class Dispatcher(HookDispatcher):
        def register(self, operation_id: str, hooks: Any) -> Any:
            raise HookDefinitionError("no", "it is none")

    async with Dispatcher() as dispatcher:
        before = get_current()
        with pytest.raises(HookDefinitionError):
            await exec_agent(agent_of(says()), "go", hooks=[tracing], dispatcher=dispatcher)
        assert get_current() == before

    assert not tracing.open_kinds()


# Coroutines that are thrown away.


@pytest.mark.parametrize("running", [True, False], ids=["in the loop", "after the loop"])
@pytest.mark.parametrize("where", ["model", "tool", "sub-agent"])
def test_a_run_that_is_closed_in_another_context_leaves_no_span_and_no_noise(where: str, running: bool) -> None:
    """As the garbage collector does with what nobody awaits any more."""

    async def hang(*_: Any) -> Any:
        hanging.append(here())
        await asyncio.get_running_loop().create_future()

    @tool
    async def hanging_tool() -> str:
        return await hang()

    hanging: list[str] = []
    child = agent_of(model=CallbackModel(hang), id="child")
    agent = {
        "model": agent_of(model=CallbackModel(hang)),
        "tool": agent_of(calls(call("hanging_tool")), tools=[hanging_tool]),
        "sub-agent": agent_of(calls(ask("child")), sub_agents=[child]),
    }[where]

    with Scene() as scene:
        tracing = scene.tracing()

        async def main() -> Any:
            task = asyncio.ensure_future(exec_agent(agent, "go", hooks=[tracing]))
            while not hanging:
                await asyncio.sleep(0)
            task._log_destroy_pending = False
            if running:
                contextvars.Context().run(close, task.get_coro())
            return task

        loop = asyncio.new_event_loop()
        try:
            task = loop.run_until_complete(main())
            contextvars.Context().run(close, task.get_coro())
        finally:
            loop.close()

        assert not tracing.open_kinds()
        assert not scene.still_open
        assert here() == ""


def close(coroutine: Any) -> None:
    """Close a coroutine, also one that awaits something while it cleans up."""
    for _ in range(10):
        try:
            coroutine.close()
        except RuntimeError:
            continue
        return


def test_close_ends_what_an_abandoned_loop_has_left_open() -> None:
    with Scene() as scene:
        tracing, hanging = scene.tracing(), []

        async def hang(model_call: ModelCall) -> Any:
            hanging.append(model_call)
            await asyncio.get_running_loop().create_future()

        async def main() -> Any:
            task = asyncio.ensure_future(exec_agent(agent_of(model=CallbackModel(hang)), "go", hooks=[tracing]))
            while not hanging:
                await asyncio.sleep(0)
            task._log_destroy_pending = False
            return task

        loop = asyncio.new_event_loop()
        task = loop.run_until_complete(main())
        loop.close()
        tracing.close()

        assert not scene.still_open
        assert {why for _, why in truncated(scene)} == {"shutdown"}
        contextvars.Context().run(close, task.get_coro())


def test_a_run_that_a_trio_loop_abandons_leaves_nothing_open() -> None:
    with Scene() as scene:
        tracing = scene.tracing()

        async def hang(model_call: ModelCall) -> Any:
            await trio.sleep_forever()

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: exec_agent(agent_of(model=CallbackModel(hang)), "go", hooks=[tracing]))
                await trio.testing.wait_all_tasks_blocked()
                raise Crash

        with pytest.raises(BaseExceptionGroup):
            trio.run(main)

        assert own(scene.one("invoke_agent"), "outcome") == ("interrupted",)


async def test_a_generator_that_runs_agents_may_be_closed_at_any_item(scene: Scene) -> None:
    tracing = scene.tracing()

    async def stream() -> Any:
        for at in range(3):
            yield (await exec_agent(agent_of(says(str(at))), "go", hooks=[tracing])).output

    for stop in ("0", "1", "2"):
        generator = stream()
        async for item in generator:
            if item == stop:
                break
        await generator.aclose()
        assert here() == ""


# Closing, and age.


async def test_close_ends_what_is_open_and_may_be_called_again(scene: Scene) -> None:
    tracing = scene.tracing()
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [tracing])
        dispatcher.dispatch(BeforeStep(operation_id="op", step_index=0))

        tracing.close()
        tracing.close()

        assert scene.tree() == ("invoke_agent", ("agent_step",))
        assert truncated(scene) == [("invoke_agent", "shutdown"), ("agent_step", "shutdown")]
        assert scene.measured("hookline.tracer.truncated_spans") == {"shutdown": 2}


async def test_close_with_a_time_ends_no_span_before_it_began(scene: Scene) -> None:
    tracing = scene.tracing()
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [tracing])
        dispatcher.dispatch(BeforeStep(operation_id="op", step_index=0, time_unix_nano=10 * DAY))

        tracing.close(at=5)

    assert {span.end_time for span in scene.spans} == {10 * DAY}


@pytest.mark.parametrize("where", ["model", "tool", "sub-agent", "hook"])
async def test_close_in_the_middle_of_a_run_leaves_a_sound_tree_and_the_run_alone(scene: Scene, where: str) -> None:
    tracing = scene.tracing()

    async def answer(model_call: ModelCall) -> Any:
        if where == "model" or (where == "sub-agent" and model_call.messages[-1].content == "child"):
            tracing.close()
        if model_call.step_index == 2 or model_call.messages[-1].content == "child":
            return says()
        return calls(call("work", "t1"), ask("child", "t2", "child"))

    hooks = Hooks("closer")

    @hooks.around(ToolCall)
    async def around(tool_call: ToolCall, call_next: Any) -> Any:
        if where == "hook":
            tracing.close()
        return await call_next(tool_call)

    @tool
    async def work() -> str:
        if where == "tool":
            tracing.close()
        return ""

    model = CallbackModel(answer)
    child = agent_of(model=model, id="child")
    result = await run(agent_of(model=model, tools=[work], sub_agents=[child]), hooks=[tracing, hooks])

    assert result.reason == "done"
    assert not tracing.open_kinds()
    assert not scene.still_open


async def test_a_foreign_segment_that_nobody_ends_expires(scene: Scene) -> None:
    tracing = scene.tracing(max_span_age=1e-9)
    async with HookDispatcher() as dispatcher:
        for operation_id in ("forgotten", "other"):
            dispatcher.register(operation_id, [tracing])
        dispatcher.dispatch(BeforeStep(operation_id="forgotten", step_index=0, time_unix_nano=time.time_ns() - 2 * DAY))
        dispatcher.dispatch(BeforeStep(operation_id="other", step_index=0))

        assert [name for name, why in truncated(scene) if why == "expired"] == ["invoke_agent", "agent_step"]
        tracing.close()


async def test_replayed_events_are_not_taken_for_old_ones(scene: Scene) -> None:
    """A recording of last week is as young as its replay."""
    tracing, then = scene.tracing(), time.time_ns() - 7 * DAY
    async with HookDispatcher() as dispatcher:
        dispatcher.register("recorded", [tracing])
        dispatcher.dispatch(BeforeStep(operation_id="recorded", step_index=0, time_unix_nano=then))
        await run(agent_of(says()), hooks=[tracing])
        dispatcher.dispatch(
            OnComplete(
                operation_id="recorded", time_unix_nano=then + 5, reason="done", steps=1, llm_calls=1, tool_calls=0,
                total_tokens=0, cost_usd=0.0, duration_ms=0.0, last_assistant_content="", error_type=None,
                error_message=None,
            )
        )  # fmt: skip

    root, _ = scene.of("recorded")
    assert (root.start_time, root.end_time) == (then, then + 5)
    assert own(root, "outcome", "span.truncated") == ("done", None)


async def test_the_clock_of_another_machine_does_not_end_the_runs_of_this_one(scene: Scene) -> None:
    tracing = scene.tracing()
    async with HookDispatcher() as dispatcher:
        dispatcher.register("ahead", [tracing])

        @tool
        async def receive() -> str:
            event = BeforeStep(operation_id="ahead", step_index=0, time_unix_nano=time.time_ns() + 3 * DAY)
            contextvars.Context().run(dispatcher.dispatch, event)
            return ""

        await run(agent_of(calls(call("receive")), says(), tools=[receive]), hooks=[tracing])

    step = ("agent_step", ("chat scripted",))
    assert ("invoke_agent tester", (*step, ("execute_tool receive",)), step) in scene.trees()
    assert not [span for span in scene.named("invoke_agent tester") if own(span, "span.truncated")[0]]


async def test_a_parent_is_not_too_old_while_its_sub_agent_works(scene: Scene) -> None:
    tracing = scene.tracing(max_span_age=1e-9)
    third = agent_of(says(), id="third")
    second = agent_of(calls(ask("third")), says(), id="second", sub_agents=[third])

    async def answer(model_call: ModelCall) -> Any:
        return says() if model_call.step_index else calls(ask("second"))

    await run(agent_of(model=CallbackModel(answer), sub_agents=[second]), hooks=[tracing])

    assert not truncated(scene)


# Operations that other runtimes leave behind.


async def test_unregistering_ends_what_a_foreign_runtime_left_open(scene: Scene) -> None:
    tracing = scene.tracing()
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [tracing])
        dispatcher.dispatch(BeforeStep(operation_id="op", step_index=0))
        await dispatcher.unregister("op")

        assert scene.tree() == ("invoke_agent", ("agent_step",))
        assert truncated(scene) == [("invoke_agent", "unregistered"), ("agent_step", "unregistered")]


async def test_leaving_the_dispatcher_ends_what_foreign_runtimes_left_open(scene: Scene) -> None:
    tracing = scene.tracing()
    async with HookDispatcher() as dispatcher:
        for at in range(5):
            dispatcher.register(f"op{at}", [tracing])
            dispatcher.dispatch(BeforeStep(operation_id=f"op{at}", step_index=0))

    assert not tracing.open_kinds()
    assert len(scene.trees()) == 5


async def test_a_used_operation_id_begins_a_new_segment(scene: Scene) -> None:
    tracing = scene.tracing()
    for _ in range(3):
        await run(agent_of(says()), hooks=[tracing], operation_id="op")

    roots = scene.named("invoke_agent")
    assert len({root.context.trace_id for root in roots}) == 3
    assert [own(root, "resumed") for root in roots] == [(None,)] * 3
    assert not [link for root in roots for link in root.links]


async def test_an_operation_that_begins_again_ends_the_one_before(scene: Scene) -> None:
    """As where a process of another runtime crashed, and a new one took up its operation."""
    tracing = scene.tracing()
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [tracing])
        dispatcher.dispatch(BeforeStep(operation_id="op", step_index=0))
    await run(agent_of(says()), hooks=[tracing], operation_id="op")

    assert len(scene.trees()) == 2


async def test_events_without_a_beginning_leave_nothing_open(scene: Scene) -> None:
    tracing = scene.tracing()
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [tracing])
        dispatcher.dispatch(
            AfterToolCall(
                operation_id="op", step_index=0, tool_call_id="t", identifier="local", api_name="x", args={},
                call_index=1, content="", success=True, mocked=False, answered_by=None, metadata={},
                execution_time_ms=0.0,
            )
        )  # fmt: skip

        assert not tracing.open_kinds()


# What runs after the end.


async def test_a_run_that_an_observer_of_the_end_starts_is_not_under_what_has_ended(scene: Scene) -> None:
    tracing, hooks = scene.tracing(), Hooks("critic")

    @hooks.on(OnComplete)
    async def judge(event: OnComplete) -> None:
        await exec_agent(agent_of(says(), id="critic"), "judge", hooks=[tracing])

    await run(agent_of(says()), hooks=[tracing, hooks])

    assert sorted(tree[0] for tree in scene.trees()) == ["invoke_agent critic", "invoke_agent tester"]


async def test_a_session_that_is_left_in_the_middle_of_a_task_leaves_nothing_open(scene: Scene) -> None:
    begun = anyio.Event()

    async def hang(model_call: ModelCall) -> Any:
        begun.set()
        await anyio.sleep_forever()

    session = AgentSession(agent_of(model=CallbackModel(hang)), hooks=[scene.tracing()])
    async with anyio.create_task_group() as group, session:
        group.start_soon(session.run, "go")
        await begun.wait()

    assert own(scene.one("invoke_agent"), "outcome") == ("interrupted",)
    assert attributes(scene.one("invoke_agent"))["gen_ai.conversation.id"] == session.id


async def test_an_activation_that_is_thrown_away_elsewhere_makes_no_noise(scene: Scene) -> None:
    tracing = scene.tracing()

    def generator() -> Iterator[str]:
        with tracing.activate("op"):
            yield here()

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [tracing])
        dispatcher.dispatch(BeforeStep(operation_id="op", step_index=0))
        for end in (lambda left: left.close(), list):
            left = generator()
            assert contextvars.Context().run(next, left) == "agent_step"
            contextvars.Context().run(end, left)

    assert here() == ""
