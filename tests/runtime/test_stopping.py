"""Stopping a run: from inside and outside, in every place where it can hang."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from hookline import (
    AfterCallAgent,
    AfterStep,
    AfterToolCall,
    Agent,
    BeforeToolCall,
    Compaction,
    Event,
    HookDispatcher,
    Hooks,
    InMemoryStore,
    Message,
    ModelCall,
    ModelResponse,
    OnComplete,
    OnToolCallError,
    OperationResult,
    ScriptedModel,
    TransientModelError,
    exec_agent,
    interrupt,
    tool,
)
from hookline.runtime import ModelRetry, OperationState
from tests.tables import for_each

from .scenes import Hanging, HangingModel, Recorder, agent_of, ask, assert_consistent, assert_order, call, calls, says

pytestmark = pytest.mark.anyio

Scene = tuple[Agent, Callable[[], Any], Callable[[], None]]
"""An agent that hangs, how to wait until it does, and how to clean up."""


def hangs_in_the_model() -> Scene:
    model = HangingModel()
    return Agent(id="a", model=model), model.hanging.begun.wait, lambda: None


def hangs_in_an_async_tool() -> Scene:
    hanging = Hanging()

    @tool
    async def hang() -> str:
        await hanging.forever()
        return ""

    return agent_of(calls(call("hang")), says(), tools=[hang]), hanging.begun.wait, lambda: None


def hangs_in_one_of_several_tools() -> Scene:
    hanging = Hanging()

    @tool
    async def hang() -> str:
        await hanging.forever()
        return ""

    @tool
    async def quick() -> str:
        return "quick"

    turn = calls(call("quick", "a"), call("hang", "b"), call("hang", "c"))
    return agent_of(turn, says(), tools=[hang, quick]), hanging.begun.wait, lambda: None


def hangs_in_a_thread() -> Scene:
    begun, release = threading.Event(), threading.Event()

    @tool
    def hang() -> str:
        begun.set()
        release.wait(20)
        return "too late"

    async def wait() -> None:
        while not begun.is_set():
            await anyio.sleep(0.001)

    return agent_of(calls(call("hang")), says(), tools=[hang]), wait, release.set


def hangs_in_a_question_about_approval() -> Scene:
    hanging = Hanging()

    async def judge(about: Any) -> bool:
        await hanging.forever()
        return True

    @tool(needs_approval=judge)
    async def pay() -> str:
        return ""

    @tool
    async def quick() -> str:
        return "quick"

    turn = calls(call("quick", "a"), call("pay", "b"))
    return agent_of(turn, says(), tools=[quick, pay]), hanging.begun.wait, lambda: None


def hangs_in_a_sub_agent() -> Scene:
    model = HangingModel()
    child = Agent(id="child", model=model)
    middle = agent_of(calls(ask("child")), says(), id="middle", sub_agents=[child])
    return agent_of(calls(ask("middle")), says(), sub_agents=[middle]), model.hanging.begun.wait, lambda: None


def hangs_in_parallel_sub_agents() -> Scene:
    model = HangingModel()
    child = Agent(id="child", model=model)
    return (
        agent_of(calls(ask("child", "a"), ask("child", "b")), says(), sub_agents=[child]),
        model.hanging.begun.wait,
        lambda: None,
    )


def hangs_in_parallel_tools_of_parallel_sub_agents() -> Scene:
    hanging = Hanging()

    @tool
    async def hang() -> str:
        await hanging.forever()
        return ""

    def respond(about: ModelCall) -> ModelResponse:
        return calls(call("hang", "x"), call("hang", "y"))

    child = Agent(id="child", model=ScriptedModel(respond), tools=[hang])
    turn = calls(ask("child", "a"), ask("child", "b"))
    return agent_of(turn, says(), sub_agents=[child]), hanging.begun.wait, lambda: None


def hangs_in_the_summary() -> Scene:
    hanging = Hanging()

    async def summarize(messages: list[Message]) -> str:
        await hanging.forever()
        return ""

    @tool
    async def quick() -> str:
        return "quick"

    agent = agent_of(
        calls(call("quick"), tokens=100),
        calls(call("quick"), tokens=100),
        says(),
        tools=[quick],
        compaction=Compaction(max_tokens=10, summarize=summarize),
    )
    return agent, hanging.begun.wait, lambda: None


def hangs_between_attempts() -> Scene:
    begun = anyio.Event()

    def fail(about: ModelCall) -> ModelResponse:
        begun.set()
        raise TransientModelError("later", retry_after=3600.0)

    return Agent(id="a", model=ScriptedModel(fail), retry=ModelRetry(attempts=2)), begun.wait, lambda: None


SCENES = [
    hangs_in_the_model,
    hangs_in_an_async_tool,
    hangs_in_one_of_several_tools,
    hangs_in_a_thread,
    hangs_in_a_question_about_approval,
    hangs_in_a_sub_agent,
    hangs_in_parallel_sub_agents,
    hangs_in_parallel_tools_of_parallel_sub_agents,
    hangs_in_the_summary,
    hangs_between_attempts,
]


def assert_all_in_order(recorder: Recorder) -> None:
    for events in recorder.by_operation().values():
        assert_order(events)
        (end,) = [event for event in events if isinstance(event, OnComplete)]
        assert end.reason == "interrupted"


@for_each("scene", SCENES, ids=lambda scene: scene.__name__)
@for_each("where", ["here", "thread"])
async def test_an_interrupt_ends_whatever_hangs_at_once(scene: Callable[[], Scene], where: str) -> None:
    agent, hangs, release = scene()
    recorder = Recorder()

    async def stop() -> None:
        await hangs()
        assert await anyio.to_thread.run_sync(interrupt, "op") if where == "thread" else interrupt("op")

    try:
        with anyio.fail_after(10):
            async with HookDispatcher() as dispatcher, anyio.create_task_group() as group:
                group.start_soon(stop)
                result = await exec_agent(
                    agent, "go", operation_id="op", store=InMemoryStore(), hooks=[recorder.hooks], dispatcher=dispatcher
                )
                assert not dispatcher.operations
    finally:
        release()

    assert result.reason == "interrupted"
    assert result.error is None
    assert_all_in_order(recorder)
    assert_consistent(result.messages)
    assert not interrupt("op")
    assert await_none_live(recorder)


def await_none_live(recorder: Recorder) -> bool:
    return not any(interrupt(operation_id) for operation_id in recorder.by_operation())


@for_each("scene", SCENES, ids=lambda scene: scene.__name__)
async def test_a_scope_that_cancels_a_run_completes_it_once_and_goes_on(scene: Callable[[], Scene]) -> None:
    agent, hangs, release = scene()
    recorder = Recorder()
    heard: list[str] = []
    late = Hooks("late")

    @late.on(OnComplete)
    async def hear(event: OnComplete) -> None:
        await anyio.lowlevel.checkpoint()
        heard.append(event.reason)

    returned = False
    try:
        with anyio.fail_after(10):
            async with HookDispatcher() as dispatcher:
                with anyio.CancelScope() as scope:
                    async with anyio.create_task_group() as group:

                        async def stop() -> None:
                            await hangs()
                            scope.cancel()

                        group.start_soon(stop)
                        await exec_agent(
                            agent,
                            "go",
                            operation_id="op",
                            store=InMemoryStore(),
                            hooks=[recorder.hooks, late],
                            dispatcher=dispatcher,
                        )
                        returned = True
                assert not dispatcher.operations
    finally:
        release()

    assert scope.cancelled_caught
    assert not returned
    assert heard == ["interrupted"]
    assert_all_in_order(recorder)
    assert await_none_live(recorder)


@for_each("own_dispatcher", [True, False])
@for_each("scene", SCENES, ids=lambda scene: scene.__name__)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancelled_task_completes_its_run_once_and_ends_as_cancelled(
    scene: Callable[[], Scene], own_dispatcher: bool
) -> None:
    agent, hangs, release = scene()
    recorder = Recorder()
    heard: list[str] = []
    late = Hooks("late")

    @late.on(OnComplete)
    async def hear(event: OnComplete) -> None:
        await asyncio.sleep(0)
        heard.append(event.reason)

    try:
        with anyio.fail_after(10):
            async with HookDispatcher() as dispatcher:
                given = {} if own_dispatcher else {"dispatcher": dispatcher}
                task = asyncio.create_task(
                    exec_agent(
                        agent, "go", operation_id="op", store=InMemoryStore(), hooks=[recorder.hooks, late], **given
                    )
                )
                await hangs()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert task.cancelled()
                assert not dispatcher.operations
    finally:
        release()

    assert heard == ["interrupted"]
    assert_all_in_order(recorder)
    assert await_none_live(recorder)


@pytest.mark.parametrize("scene", [hangs_in_an_async_tool, hangs_in_a_thread])
async def test_an_interrupted_tool_keeps_its_pair_of_events(scene: Callable[[], Scene]) -> None:
    agent, hangs, release = scene()
    recorder = Recorder()

    async def stop() -> None:
        await hangs()
        interrupt("op")

    try:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(stop)
                await exec_agent(agent, "go", operation_id="op", store=InMemoryStore(), hooks=[recorder.hooks])
    finally:
        release()

    assert len(recorder.of(BeforeToolCall)) == 1
    assert len(recorder.of(OnToolCallError)) + len(recorder.of(AfterToolCall)) == 1
    (step,) = recorder.of(AfterStep)
    assert step.should_continue is False


async def test_results_that_were_there_before_the_interrupt_are_kept() -> None:
    agent, hangs, _ = hangs_in_one_of_several_tools()

    async def stop() -> None:
        await hangs()
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        interrupt("op")

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(stop)
            result = await exec_agent(agent, "go", operation_id="op", store=InMemoryStore())

    assert result.messages[2].content == "quick"
    assert "interrupted" in result.messages[3].content


async def test_interrupting_a_sub_agent_stops_only_the_sub_agent() -> None:
    model = HangingModel()
    recorder = Recorder()
    child = Agent(id="child", model=model)
    agent = agent_of(calls(ask("child")), says("went on"), sub_agents=[child])

    async def stop() -> None:
        await model.hanging.begun.wait()
        (child_id,) = [each for each in recorder.by_operation() if each != "op"]
        assert interrupt(child_id)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(stop)
            result = await exec_agent(agent, "go", operation_id="op", store=InMemoryStore(), hooks=[recorder.hooks])

    assert (result.reason, result.output) == ("done", "went on")
    (after,) = recorder.of(AfterCallAgent)
    assert after.success is False
    assert recorder.of(OnComplete, after.sub_operation_id)[0].reason == "interrupted"
    for events in recorder.by_operation().values():
        assert_order(events)


@for_each("operation_id", ["", "nowhere", "op_" + "0" * 32])
async def test_interrupting_an_unknown_run_is_false(operation_id: str) -> None:
    assert interrupt(operation_id) is False


async def test_interrupting_a_finished_run_is_false() -> None:
    await exec_agent(agent_of(says()), "go", operation_id="op", store=InMemoryStore())

    assert interrupt("op") is False


async def test_interrupting_twice_ends_the_run_once() -> None:
    agent, hangs, _ = hangs_in_the_model()
    recorder = Recorder()

    async def stop() -> None:
        await hangs()
        assert interrupt("op")
        interrupt("op")

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(stop)
            result = await exec_agent(agent, "go", operation_id="op", store=InMemoryStore(), hooks=[recorder.hooks])

    assert result.reason == "interrupted"
    assert_all_in_order(recorder)


async def test_an_interrupt_stops_only_the_run_that_it_names() -> None:
    models = [HangingModel(), HangingModel()]
    results: dict[str, OperationResult] = {}

    async def run(name: str, model: HangingModel) -> None:
        results[name] = await exec_agent(Agent(id=name, model=model), "go", operation_id=name)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for name, model in zip("ab", models, strict=True):
                group.start_soon(run, name, model)
                await model.hanging.begun.wait()
            interrupt("a")
            while "a" not in results:
                await anyio.lowlevel.checkpoint()
            assert "b" not in results
            interrupt("b")

    assert {result.reason for result in results.values()} == {"interrupted"}


KINDS = ["beforeStep", "beforeToolCall", "afterToolCall", "afterStep", "onComplete", "beforeHumanIntervention"]


@for_each("kind", KINDS)
@for_each("occurrence", [0, 1])
async def test_an_observer_whose_interrupt_was_accepted_gets_an_interrupted_run(kind: str, occurrence: int) -> None:
    recorder = Recorder()
    accepted: list[bool] = []

    @tool
    async def quick() -> str:
        return "quick"

    @tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    def stop(event: Event) -> None:
        if event.hook_type == kind and recorder.names().count(kind) == occurrence + 1:
            accepted.append(interrupt("op"))

    recorder.reactions.append(stop)
    ending = calls(call("pay", "p")) if kind == "beforeHumanIntervention" else says()
    turns = [calls(call("quick", "a")), calls(call("quick", "b")), ending]
    if occurrence and kind == "afterStep":
        turns = [turns[0], says()]

    result = await exec_agent(
        agent_of(*turns, tools=[quick, pay]), "go", operation_id="op", store=InMemoryStore(), hooks=[recorder.hooks]
    )

    if any(accepted):
        assert result.reason == "interrupted"
    assert_order(recorder.events)
    assert_consistent(result.messages, ["p"] if result.reason == "waiting_for_human" else [])


@pytest.mark.parametrize("kind", [AfterToolCall, AfterStep])
async def test_an_interrupt_between_two_steps_lets_no_further_step_begin(kind: type[Event]) -> None:
    recorder = Recorder()
    recorder.reactions.append(lambda event: interrupt("op") if isinstance(event, kind) else None)

    @tool
    async def quick() -> str:
        return "quick"

    agent = agent_of(calls(call("quick", "a")), says(), tools=[quick])
    result = await exec_agent(agent, "go", operation_id="op", store=InMemoryStore(), hooks=[recorder.hooks])

    (step,) = recorder.of(AfterStep)
    assert (result.reason, result.steps, recorder.completion.llm_calls) == ("interrupted", 1, 1)
    assert step.should_continue == (kind is AfterStep)  # nobody had interrupted yet when it was told
    assert_order(recorder.events)


async def test_an_async_observer_may_interrupt_its_run() -> None:
    model = HangingModel()
    hooks = Hooks("guard")

    @hooks.on(AfterToolCall)
    async def stop(event: AfterToolCall) -> None:
        await model.hanging.begun.wait()
        interrupt(event.operation_id)

    @tool
    async def quick() -> str:
        return "quick"

    answered = False

    class First(HangingModel):
        async def respond(self, about: ModelCall) -> ModelResponse:
            nonlocal answered
            if not answered:
                answered = True
                return calls(call("quick"))
            return await model.respond(about)

    with anyio.fail_after(10):
        result = await exec_agent(Agent(id="a", model=First(), tools=[quick]), "go", hooks=[hooks])

    assert result.reason == "interrupted"


async def test_a_tool_may_interrupt_its_own_run_from_its_thread() -> None:
    @tool
    def stop() -> str:
        assert interrupt("op")
        return "stopped"

    recorder = Recorder()
    with anyio.fail_after(10):
        result = await exec_agent(
            agent_of(calls(call("stop")), says(), tools=[stop]),
            "go",
            operation_id="op",
            store=InMemoryStore(),
            hooks=[recorder.hooks],
        )

    assert result.reason == "interrupted"
    assert_all_in_order(recorder)
    assert_consistent(result.messages)


async def test_a_thread_with_an_event_loop_of_its_own_may_interrupt() -> None:
    agent, hangs, _ = hangs_in_the_model()
    accepted: list[bool] = []

    async def elsewhere() -> None:
        accepted.append(interrupt("op"))

    async def stop() -> None:
        await hangs()
        await anyio.to_thread.run_sync(lambda: anyio.run(elsewhere))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(stop)
            result = await exec_agent(agent, "go", operation_id="op", store=InMemoryStore())
            group.cancel_scope.cancel()

    assert accepted == [True]
    assert result.reason == "interrupted"


@pytest.mark.parametrize("how", ["interrupt", "scope"])
async def test_a_tool_that_swallows_its_cancellation_does_not_keep_the_run_alive(how: str) -> None:
    recorder = Recorder()
    begun = anyio.Event()
    asked = 0

    @tool
    async def stubborn() -> str:
        begun.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            return "I go on"
        return ""

    def respond(about: ModelCall) -> ModelResponse:
        nonlocal asked
        asked += 1
        return calls(call("stubborn", f"t{asked}"))

    agent = Agent(id="a", model=ScriptedModel(respond), tools=[stubborn])
    result = None
    with anyio.fail_after(10):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def stop() -> None:
                    await begun.wait()
                    scope.cancel() if how == "scope" else interrupt("op")

                group.start_soon(stop)
                result = await exec_agent(agent, "go", operation_id="op", store=InMemoryStore(), hooks=[recorder.hooks])

    assert (result is None) == (how == "scope")
    assert asked == 1
    assert_all_in_order(recorder)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("at_once", [1, 2])
async def test_a_tool_that_swallows_a_task_cancellation_does_not_keep_the_run_alive(at_once: int) -> None:
    recorder = Recorder()
    begun = asyncio.Event()

    @tool
    async def stubborn() -> str:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return "I go on"
        return ""

    turn = calls(*(call("stubborn", f"t{n}") for n in range(at_once)))
    task = asyncio.create_task(exec_agent(agent_of(turn, says(), tools=[stubborn]), "go", hooks=[recorder.hooks]))
    await begun.wait()
    task.cancel()

    with anyio.fail_after(10), pytest.raises(asyncio.CancelledError):
        await task
    assert_all_in_order(recorder)


async def test_a_model_that_turns_its_cancellation_into_an_error_is_interrupted_all_the_same() -> None:
    begun = anyio.Event()

    class Wrapping(HangingModel):
        async def respond(self, about: ModelCall) -> ModelResponse:
            begun.set()
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                raise ConnectionError("connection closed") from None
            raise AssertionError

    async def stop() -> None:
        await begun.wait()
        assert interrupt("op")

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(stop)
            result = await exec_agent(Agent(id="a", model=Wrapping()), "go", operation_id="op", store=InMemoryStore())

    assert result.reason == "interrupted"


class SlowStore(InMemoryStore):
    """Writes, and then waits for a round trip that never ends, at one of its writes."""

    def __init__(self, hangs_at: int) -> None:
        super().__init__()
        self.hangs_at = hangs_at
        self.writes = 0
        self.hanging = Hanging()
        self.released = anyio.Event()

    async def save(self, state: OperationState, *, expected_version: int | None) -> None:
        await super().save(state, expected_version=expected_version)
        self.writes += 1
        if self.writes == self.hangs_at:
            self.hanging.begun.set()
            await self.released.wait()


@pytest.mark.parametrize("hangs_at", [2, 3])
async def test_an_interrupt_during_a_write_that_had_happened_is_no_error(hangs_at: int) -> None:
    store = SlowStore(hangs_at)
    recorder = Recorder()

    @tool
    async def quick() -> str:
        return "quick"

    agent = agent_of(*(calls(call("quick", f"t{n}")) for n in range(5)), says(), tools=[quick])

    async def stop() -> None:
        await store.hanging.begun.wait()
        assert interrupt("op")
        store.released.set()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(stop)
            result = await exec_agent(agent, "go", operation_id="op", store=store, hooks=[recorder.hooks])

    assert result.reason == "interrupted", result.error
    state = await store.load("op")
    assert state is not None
    assert state.status == "interrupted"


async def test_a_run_cancelled_during_its_last_write_is_announced_as_what_is_stored() -> None:
    store = SlowStore(2)
    recorder = Recorder()

    with anyio.fail_after(10):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def stop() -> None:
                    await store.hanging.begun.wait()
                    scope.cancel()
                    store.released.set()

                group.start_soon(stop)
                await exec_agent(agent_of(says()), "go", operation_id="op", store=store, hooks=[recorder.hooks])

    assert_order(recorder.events)
    state = await store.load("op")
    assert state is not None
    assert state.status == recorder.completion.reason


async def test_a_run_cancelled_while_it_is_being_claimed_is_not_left_running_for_ever() -> None:
    store = SlowStore(1)
    recorder = Recorder()

    with anyio.fail_after(10):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def stop() -> None:
                    await store.hanging.begun.wait()
                    scope.cancel()
                    store.released.set()

                group.start_soon(stop)
                await exec_agent(agent_of(says()), "go", operation_id="op", store=store, hooks=[recorder.hooks])

    state = await store.load("op")
    assert state is None or state.status == "interrupted"
    assert recorder.names() == ["onComplete"]
    assert recorder.completion.reason == "interrupted"
    assert not interrupt("op")


@for_each("backend", ["asyncio", "trio"])
@for_each("form", ["async", "thread", "inline", "beside"])
def test_a_keyboard_interrupt_in_a_tool_ends_the_run_and_goes_on(backend: str, form: str) -> None:
    recorder = Recorder()

    def press() -> str:
        raise KeyboardInterrupt

    async def press_later() -> str:
        await anyio.lowlevel.checkpoint()
        raise KeyboardInterrupt

    @tool
    async def hang() -> str:
        await anyio.sleep_forever()
        return ""

    in_line = form in ("async", "beside")
    pressed = tool(press_later, name="press") if in_line else tool(press, in_thread=form == "thread")
    beside = [call("hang", "b")] if form == "beside" else []
    agent = agent_of(calls(call("press", "a"), *beside), says(), tools=[pressed, hang])

    async def main() -> None:
        with anyio.fail_after(10):
            await exec_agent(agent, "go", operation_id="op", store=InMemoryStore(), hooks=[recorder.hooks])

    with pytest.raises(KeyboardInterrupt):
        anyio.run(main, backend=backend)
    gc.collect()  # asyncio complains about the task that the interrupt tore down; not in the middle of another test
    assert_order(recorder.events)
    assert recorder.completion.reason == "interrupted"
    assert not interrupt("op")


async def test_a_call_whose_mocking_hook_hangs_keeps_its_pair_of_events_when_it_is_interrupted() -> None:
    hanging, recorder, slow = Hanging(), Recorder(), Hooks("slow")

    @slow.on(BeforeToolCall)
    async def think(event: BeforeToolCall) -> None:
        await hanging.forever()

    @tool
    async def quick() -> str:
        raise AssertionError("must not run")

    async def stop() -> None:
        await hanging.begun.wait()
        assert interrupt("op")

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(stop)
            result = await exec_agent(
                agent_of(calls(call("quick")), says(), tools=[quick]),
                "go",
                operation_id="op",
                store=InMemoryStore(),
                hooks=[recorder.hooks, slow],
            )

    assert result.reason == "interrupted"
    assert_all_in_order(recorder)
    assert_consistent(result.messages)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_cancelled_during_a_write_that_had_happened_is_announced_as_interrupted() -> None:
    store, recorder = SlowStore(2), Recorder()

    @tool
    async def quick() -> str:
        return "quick"

    agent = agent_of(calls(call("quick")), says(), tools=[quick])
    task = asyncio.create_task(exec_agent(agent, "go", operation_id="op", store=store, hooks=[recorder.hooks]))

    with anyio.fail_after(10):
        await store.hanging.begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert_all_in_order(recorder)
