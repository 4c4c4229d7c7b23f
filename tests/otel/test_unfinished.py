"""Runs that end in the middle of something: cancelled, crashed, thrown away, forgotten. No span stays open."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
import time
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.context import get_current

from hookline import (
    AfterToolCall,
    AgentCall,
    AgentSession,
    Approve,
    Ask,
    BeforeStep,
    BeforeToolCall,
    CompactCall,
    Deny,
    HookDispatcher,
    Hooks,
    ModelCall,
    OnComplete,
    Reject,
    ScriptedModel,
    StepCall,
    SubAgentCall,
    ToolCall,
    exec_agent,
    interrupt,
    tool,
)
from hookline.errors import HookDefinitionError, OperationExistsError
from hookline.runtime import Compaction, InMemoryStore
from tests.otel.scenes import (
    CallbackModel,
    Scene,
    agent_of,
    ask,
    attributes,
    call,
    calls,
    failed,
    here,
    own,
    resume,
    run,
    says,
)
from tests.tables import for_each

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


async def test_a_store_that_is_down_ends_the_run_and_its_root_with_an_error(scene: Scene) -> None:
    class Store(InMemoryStore):
        async def save(self, state: Any, *, expected_version: int | None) -> None:
            raise OSError("disk full")

    await run(agent_of(says()), hooks=[scene.tracing()], store=Store())

    assert scene.tree() == ("invoke_agent tester",)
    assert (own(scene.one("invoke_agent"), "outcome"), failed(scene.one("invoke_agent"))) == (("error",), True)


async def test_a_run_whose_id_is_taken_leaves_the_one_that_has_it_alone(scene: Scene) -> None:
    tracing = scene.tracing()

    @tool
    async def again() -> str:
        with pytest.raises(OperationExistsError):
            await exec_agent(agent_of(says()), "go", hooks=[tracing], operation_id="op")
        return here()

    result = await run(agent_of(calls(call("again")), says(), tools=[again]), hooks=[tracing], operation_id="op")

    assert [message.content for message in result.messages if message.role == "tool"] == ["execute_tool again"]
    step = ("agent_step", ("chat scripted",))
    assert scene.tree() == ("invoke_agent tester", (*step, ("execute_tool again",)), step)


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


@for_each("running", [True, False], ids=["in the loop", "after the loop"])
@for_each("where", ["model", "tool", "sub-agent"])
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
    assert [span.name for span in scene.spans].count("invoke_agent tester") == 1


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
                operation_id="op", step_index=0, tool_call_id="t", toolset="local", tool_name="x", args={},
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


class Chaos:
    """An agent, its sub-agent, their tools and hooks, all of which do anything at all.

    Args:
        chance: Decides what.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.harm = chance.choice([0.0, 0.05, 0.2])
        self.hooks = Hooks("chaos", inherit=chance.random() < 0.5)
        for point in (AgentCall, StepCall, ModelCall, ToolCall, SubAgentCall, CompactCall):
            self.hooks.guard(point)(self.guard)
            self.hooks.around(point)(self.around)
        self.hooks.on(BeforeToolCall)(lambda event: event.mock("mock") if chance.random() < self.harm else None)
        self.asked = 0

    async def wait(self) -> None:
        for _ in range(self.chance.randrange(3)):
            await anyio.lowlevel.checkpoint()

    async def guard(self, given: Any) -> Any:
        await self.wait()
        return self.verdict()

    async def around(self, given: Any, call_next: Any) -> Any:
        verdict = self.verdict()
        if verdict is not None:
            return verdict
        result = await call_next(given)
        await self.wait()
        verdict = self.verdict()
        return verdict if isinstance(verdict, Deny) else result

    def verdict(self) -> Any:
        if self.chance.random() >= self.harm:
            return None
        verdict = self.chance.choice([Deny("no"), Ask("may I?"), LookupError("broken")])
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    def answer(self, model_call: ModelCall) -> Any:
        self.asked += 1
        if self.asked > 9 or self.chance.random() < 0.2:
            return says(tokens=self.chance.choice([0, 99]))
        if self.chance.random() < self.harm:
            raise LookupError
        names = ["work", "fail", "pay", "stop", "unknown", "child", "child"]
        asked = [self.chance.choice(names) for _ in range(self.chance.randrange(1, 4))]
        return calls(
            *(ask("child", f"t{at}") if name == "child" else call(name, f"t{at}") for at, name in enumerate(asked)),
            tokens=self.chance.choice([0, 99]),
        )

    async def short(self, messages: Any) -> str:
        await self.wait()
        if self.chance.random() < 0.3:
            raise LookupError
        return "short"

    def agent(self) -> Any:
        @tool
        async def work() -> str:
            await self.wait()
            return here()

        @tool
        async def fail() -> str:
            await self.wait()
            raise LookupError

        @tool(needs_approval=True)
        async def pay() -> str:
            return "paid"

        @tool
        async def stop() -> str:
            if self.chance.random() < 0.3:
                interrupt("op")
            await self.wait()
            return ""

        parts = {
            "model": ScriptedModel(self.answer),
            "compaction": Compaction(max_tokens=50, summarize=self.short),
            "tools": [work, fail, pay, stop],
        }
        return agent_of(**parts, sub_agents=[agent_of(**parts, id="child")])


@given(chance=st.randoms())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_whatever_a_run_comes_to_its_spans_are_sound_and_none_is_cut(chance: random.Random) -> None:
    async def main() -> None:
        with Scene() as scene:
            chaos, store = Chaos(chance), InMemoryStore()
            tracing = scene.tracing(hook_spans=chance.choice([False, True, "events"]))
            agent = chaos.agent()
            options: dict[str, Any] = {"hooks": [tracing, chaos.hooks], "store": store}
            result = await run(agent, operation_id="op", **options)
            while result.pending:
                decisions = [chance.choice([Approve, Reject])(pending.tool_call_id) for pending in result.pending]
                result = await resume(agent, "op", *decisions, **options)

            assert not tracing.open_kinds()
            assert not truncated(scene)

    logging.getLogger("hookline").disabled = True  # of each hook that fails
    try:
        anyio.run(main)
    finally:
        logging.getLogger("hookline").disabled = False
