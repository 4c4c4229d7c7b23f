"""Misuse, broken stores, bad hooks, many runs at once: clear errors, the same results, and nothing left behind."""

from __future__ import annotations

import gc
import logging
import pickle
import sys
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from ids import without_address

from hookline import (
    AfterStep,
    AfterToolCall,
    Agent,
    Approve,
    BeforeToolCall,
    Compaction,
    Event,
    Hook,
    HookDispatcher,
    Hooks,
    InMemoryStore,
    Message,
    ModelCall,
    ModelResponse,
    OnComplete,
    OnError,
    OperationResult,
    ScriptedModel,
    decode,
    encode,
    exec_agent,
    interrupt,
    resume_agent,
    tool,
)
from hookline.errors import (
    AgentDefinitionError,
    HookDefinitionError,
    HooklineError,
    HookUsageError,
    OperationExistsError,
    OperationFinishedError,
)
from hookline.events import EVENTS
from hookline.runtime import OperationState
from tests.tables import for_each

from .scenes import (
    HangingModel,
    Recorder,
    agent_of,
    ask,
    assert_consistent,
    assert_order,
    call,
    calls,
    says,
    tool_texts,
)

pytestmark = pytest.mark.anyio


@tool
async def work(n: int = 0) -> str:
    return f"worked {n}"


@tool(needs_approval=True)
async def pay() -> str:
    return "paid"


# Misuse.


@for_each(
    "prompt",
    [None, 42, b"bytes", [], (), ["text"], {"role": "user"}, [Message(role="user", content="x"), "y"], object()],
)
async def test_a_prompt_that_is_none_is_refused(prompt: Any) -> None:
    recorder = Recorder()

    with pytest.raises(HookUsageError, match="prompt"):
        await exec_agent(agent_of(says()), prompt, hooks=[recorder.hooks])
    assert recorder.events == []


async def test_a_prompt_of_ten_megabytes_is_carried_whole() -> None:
    prompt = "é" * 5_000_000
    recorder = Recorder()

    result = await exec_agent(agent_of(calls(call("work")), says(), tools=[work]), prompt, hooks=[recorder.hooks])

    assert result.reason == "done"
    assert result.messages[0].content == prompt


async def test_unicode_goes_through_unharmed() -> None:
    text = "Grüße 世界 🌍 \u202e\x00 e\u0301"
    recorder = Recorder()

    @tool
    async def echo(text: str) -> str:
        return text

    agent = agent_of(calls(call("echo", text=text), content=text), says(text), tools=[echo], instructions=text)
    result = await exec_agent(agent, text, hooks=[recorder.hooks])

    assert result.output == text
    assert tool_texts(result) == [text]
    assert recorder.of(AfterToolCall)[0].content == text
    for event in recorder.events:
        assert decode(encode(event)) == event


@for_each("not_an_agent", [None, "agent", object(), ScriptedModel([])])
async def test_only_agents_are_run(not_an_agent: Any) -> None:
    with pytest.raises(HookUsageError, match="Agent"):
        await exec_agent(not_an_agent, "go")
    with pytest.raises(HookUsageError, match="Agent"):
        await resume_agent(not_an_agent, "op", [])


@for_each("given", [{"operation_id": 5}, {"operation_id": ""}, {"user_id": None}, {"tenant_id": 7}], ids=repr)
async def test_ids_that_are_no_text_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(HookUsageError, match=next(iter(given))):
        await exec_agent(agent_of(says()), "go", **given)


@for_each("hooks", [["x"], [None], [lambda event: None], 5, [Hook(id="h", type="nonsense")]])
async def test_bad_hooks_are_refused_before_anything_happens(hooks: Any) -> None:
    store = InMemoryStore()

    with pytest.raises(HookDefinitionError):
        await exec_agent(agent_of(says()), "go", hooks=hooks, operation_id="op", store=store)

    assert await store.load("op") is None
    assert (await exec_agent(agent_of(says()), "go", operation_id="op", store=store)).reason == "done"


@pytest.mark.parametrize("state", ["never entered", "left"])
async def test_a_closed_dispatcher_is_refused_and_the_id_stays_free(state: str) -> None:
    store, dispatcher = InMemoryStore(), HookDispatcher()
    if state == "left":
        async with dispatcher:
            pass

    with pytest.raises(HookUsageError, match="HookDispatcher"):
        await exec_agent(agent_of(says()), "go", operation_id="op", store=store, dispatcher=dispatcher)

    assert await store.load("op") is None
    assert (await exec_agent(agent_of(says()), "go", operation_id="op", store=store)).reason == "done"


async def test_a_live_operation_id_cannot_be_used_again_and_the_first_run_is_not_harmed() -> None:
    model = HangingModel()
    recorder, second = Recorder(), Recorder()
    results: list[OperationResult] = []

    with anyio.fail_after(10):
        async with HookDispatcher() as dispatcher, anyio.create_task_group() as group:

            async def first() -> None:
                results.append(
                    await exec_agent(
                        Agent(id="a", model=model),
                        "go",
                        operation_id="same",
                        dispatcher=dispatcher,
                        hooks=[recorder.hooks],
                    )
                )

            group.start_soon(first)
            await model.hanging.begun.wait()
            for store in (None, InMemoryStore()):
                with pytest.raises(OperationExistsError, match="same"):
                    await exec_agent(
                        agent_of(says()),
                        "go",
                        operation_id="same",
                        dispatcher=dispatcher,
                        store=store,
                        hooks=[second.hooks],
                    )
            assert "same" in dispatcher.operations
            interrupt("same")

    assert results[0].reason == "interrupted"
    assert_order(recorder.events)
    assert second.events == []


async def test_a_waiting_operation_id_cannot_be_used_again() -> None:
    store = InMemoryStore()
    agent = agent_of(calls(call("pay")), says(), tools=[pay])
    await exec_agent(agent, "go", operation_id="op", store=store)

    with pytest.raises(OperationExistsError, match="resume_agent"):
        await exec_agent(agent, "go", operation_id="op", store=store)


BAD_AGENTS: list[dict[str, Any]] = [
    {"id": ""},
    {"id": 5},
    {"model": None},
    {"model": "gpt"},
    {"model": object()},
    {"instructions": None},
    {"max_steps": 0},
    {"max_steps": -1},
    {"max_steps": True},
    {"max_steps": 1.5},
    {"max_steps": None},
    {"max_continues": -1},
    {"max_continues": "x"},
    {"max_continues": None},
    {"cost_limit_usd": 0},
    {"cost_limit_usd": -1.0},
    {"cost_limit_usd": float("nan")},
    {"cost_limit_usd": "much"},
    {"tools": [work, work]},
    {"tools": ["work"]},
    {"tools": [None]},
    {"tools": [lambda x: x]},
    {"tools": None},
    {"sub_agents": ["child"]},
    {"sub_agents": None},
    {"compaction": Compaction(max_tokens=0, summarize=len)},  # type: ignore[arg-type]
    {"compaction": Compaction(max_tokens=5, keep_last=-1, summarize=len)},  # type: ignore[arg-type]
    {"compaction": Compaction(max_tokens="5", summarize=len)},  # type: ignore[arg-type]
    {"compaction": Compaction(max_tokens=5, keep_last=None, summarize=len)},  # type: ignore[arg-type]
    {"compaction": 5000},
    {"compaction": Compaction(max_tokens=5, summarize="short")},  # type: ignore[arg-type]
    {"retry": 3},
]


@for_each("parts", BAD_AGENTS, ids=without_address)
def test_an_agent_that_cannot_work_is_refused_at_its_definition_by_name(parts: dict[str, Any]) -> None:
    good = {"id": "banker", "model": ScriptedModel([])}

    with pytest.raises(AgentDefinitionError) as caught:
        Agent(**{**good, **parts})

    assert "Agent" in str(caught.value) or "tool" in str(caught.value).lower()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_two_sub_agents_of_one_id_are_refused() -> None:
    with pytest.raises(AgentDefinitionError, match="agent/child"):
        agent_of(says(), sub_agents=[agent_of(id="child"), agent_of(id="child")])


def test_an_agent_with_bad_hooks_is_refused_at_its_definition() -> None:
    with pytest.raises(HookDefinitionError):
        agent_of(says(), hooks=["x"])


def test_a_sub_agent_whose_id_would_be_mistaken_cannot_replace_a_tool() -> None:
    @tool(name="child")
    async def named_like_it() -> str:
        return "tool"

    agent = agent_of(says(), tools=[named_like_it], sub_agents=[agent_of(id="child")])

    assert {f"{spec.toolset}/{spec.name}" for spec in agent.specs} == {"local/child", "agent/child"}


# Stores that fail.


class BrokenStore(InMemoryStore):
    """Fails at one of its writes, or from one of them on."""

    def __init__(self, *, at: int, for_good: bool) -> None:
        super().__init__()
        self.at, self.for_good, self.writes = at, for_good, 0

    async def save(self, state: OperationState, *, expected_version: int | None) -> None:
        self.writes += 1
        await anyio.lowlevel.checkpoint()
        if self.writes == self.at or (self.for_good and self.writes > self.at):
            raise ConnectionError("the store is down")
        await super().save(state, expected_version=expected_version)


@for_each("for_good", [True, False])
@for_each("at", [1, 2, 3, 4])
async def test_a_store_that_fails_ends_the_run_with_its_error_and_completion_is_told(at: int, for_good: bool) -> None:
    recorder, heard = Recorder(), []
    late = Hooks("late")

    @late.on(OnComplete)
    async def hear(event: OnComplete) -> None:
        await anyio.lowlevel.checkpoint()
        heard.append(event.reason)

    store = BrokenStore(at=at, for_good=for_good)
    agent = agent_of(calls(call("work", "a")), calls(call("work", "b")), says(), tools=[work])
    async with HookDispatcher() as dispatcher:
        result = await exec_agent(
            agent, "go", operation_id="op", store=store, dispatcher=dispatcher, hooks=[recorder.hooks, late]
        )
        assert not dispatcher.operations

    assert result.reason == "error"
    assert isinstance(result.error, ConnectionError)
    assert_order(recorder.events)
    assert heard == ["error"]
    told = recorder.of(OnError)[0]
    assert (told.error_type, told.error_message) == ("ConnectionError", "the store is down")
    assert_consistent(result.messages)
    assert not interrupt("op")


@for_each("for_good", [True, False])
@for_each("at", [1, 2])
async def test_a_store_that_fails_at_a_pause_or_at_a_resume_leaves_a_consistent_conversation(
    at: int, for_good: bool
) -> None:
    recorder = Recorder()
    store = BrokenStore(at=at + 2, for_good=for_good)
    agent = agent_of(calls(call("work", "a"), call("pay", "b")), says(), tools=[work, pay])
    await exec_agent(agent, "go", operation_id="op", store=store)

    result = await resume_agent(agent, "op", [Approve("b")], store=store, hooks=[recorder.hooks])

    assert result.reason == "error"
    assert_order(recorder.events, resumed=True)
    assert_consistent(result.messages)


async def test_a_pause_that_cannot_be_stored_is_an_error_and_nothing_is_pending() -> None:
    recorder = Recorder()
    store = BrokenStore(at=2, for_good=True)
    agent = agent_of(calls(call("work", "a"), call("pay", "b")), says(), tools=[work, pay])

    result = await exec_agent(agent, "go", operation_id="op", store=store, hooks=[recorder.hooks])

    assert (result.reason, result.pending) == ("error", [])
    assert_consistent(result.messages)


async def test_a_load_that_fails_leaves_the_operation_resumable() -> None:
    class Flaky(InMemoryStore):
        down = False

        async def load(self, operation_id: str) -> OperationState | None:
            if self.down:
                raise ConnectionError("the store is down")
            return await super().load(operation_id)

    store = Flaky()
    agent = agent_of(calls(call("pay")), says(), tools=[pay])
    await exec_agent(agent, "go", operation_id="op", store=store)

    store.down = True
    with pytest.raises(ConnectionError):
        await resume_agent(agent, "op", [Approve("t1")], store=store)
    store.down = False

    assert (await resume_agent(agent, "op", [Approve("t1")], store=store)).reason == "done"


async def test_a_state_that_somebody_else_changed_is_not_overwritten() -> None:
    store = InMemoryStore()

    @tool
    async def steal() -> str:
        state = await store.load("op")
        assert state is not None
        taken = msgspec.structs.replace(state, user_id="thief", version=state.version + 1)
        await store.save(taken, expected_version=state.version)
        return "stolen"

    result = await exec_agent(
        agent_of(calls(call("steal")), says(), tools=[steal]), "go", operation_id="op", store=store
    )

    assert result.reason == "error"
    state = await store.load("op")
    assert state is not None
    assert state.user_id == "thief"


async def test_a_finished_operation_is_remembered_as_finished() -> None:
    store = InMemoryStore()
    agent = agent_of(says())
    await exec_agent(agent, "go", operation_id="op", store=store)

    with pytest.raises(OperationFinishedError, match="done"):
        await resume_agent(agent, "op", [Approve("t1")], store=store)


async def test_every_state_that_is_stored_goes_through_json() -> None:
    states: list[OperationState] = []

    class Keeping(InMemoryStore):
        async def save(self, state: OperationState, *, expected_version: int | None) -> None:
            states.append(state)
            await super().save(state, expected_version=expected_version)

    @tool
    async def give() -> Any:
        return {"deep": [1, {"x": None}]}

    agent = agent_of(
        calls(call("give", "a"), call("pay", "b", amount=1.5, tags=["é"])),
        says(),
        tools=[give, pay],
        instructions="Be kind.",
    )
    await exec_agent(agent, "go", store=Keeping())

    assert len(states) == 2
    for state in states:
        assert msgspec.json.decode(msgspec.json.encode(state), type=OperationState) == state
        assert_consistent(state.messages, [call.tool_call_id for call in state.open_calls])


# Hooks that misbehave.


async def outcome_of(hooks: Sequence[Hooks | Hook], **given: Any) -> tuple[Any, ...]:
    async def summarize(messages: list[Message]) -> str:
        return "short"

    agent = agent_of(
        calls(call("work", "a", n=1), call("nowhere", "b"), tokens=50),
        calls(call("work", "c", n=2), ask("child", "d"), tokens=50),
        calls(call("pay", "e"), tokens=50),
        says("end"),
        tools=[work, pay],
        sub_agents=[agent_of(says("helped"), id="child")],
        compaction=Compaction(max_tokens=10, summarize=summarize),
    )
    store = InMemoryStore()
    first = await exec_agent(agent, "go", hooks=hooks, store=store, **given)
    last = await resume_agent(agent, first.operation_id, [Approve("e")], hooks=hooks, store=store, **given)
    return (
        *(first.reason, first.steps, first.tool_calls, first.usage),
        *(last.reason, last.output, last.messages, last.steps, last.tool_calls, last.usage),
    )


def raising(kind: type[Any]) -> list[Hook]:
    def plain(event: Event) -> None:
        raise ValueError("plain")

    async def at_once(event: Event) -> None:
        raise KeyError("async")

    async def later(event: Event) -> None:
        await anyio.lowlevel.checkpoint()
        raise RuntimeError("later")

    return [Hook(id="bad", type=kind, handler=handler) for handler in (plain, at_once, later)]


def hanging(kind: type[Any]) -> list[Hook]:
    async def hang(event: Event) -> None:
        await anyio.sleep_forever()

    return [Hook(id="hung", type=kind, handler=hang, timeout=0.01)]


def junk(kind: type[Any]) -> list[Hook]:
    return [Hook(id="junk", type=kind, handler=lambda event: ["mock", "me"])]


@for_each("misbehaving", [raising, hanging, junk])
async def test_hooks_that_misbehave_everywhere_do_not_change_the_result(misbehaving: Any) -> None:
    expected = await outcome_of([])
    hooks = [hook for kind in EVENTS.values() for hook in misbehaving(kind)]

    with anyio.fail_after(20):
        assert await outcome_of(hooks) == expected


async def test_a_run_without_hooks_and_one_with_all_come_to_the_same() -> None:
    recorder = Recorder()

    assert await outcome_of([recorder.hooks]) == await outcome_of([])
    assert len({event.hook_type for event in recorder.events}) >= 12


async def test_an_observer_may_run_another_agent() -> None:
    hooks, inner = Hooks("outer"), Recorder()
    done: list[str] = []

    async with HookDispatcher() as dispatcher:

        @hooks.on(AfterToolCall)
        async def react(event: AfterToolCall) -> None:
            result = await exec_agent(
                agent_of(says("inner"), id="inner"), "go", hooks=[inner.hooks], dispatcher=dispatcher
            )
            done.append(result.output)

        agent = agent_of(calls(call("work")), says(), tools=[work])
        with anyio.fail_after(10):
            result = await exec_agent(agent, "go", hooks=[hooks], dispatcher=dispatcher)
        assert not dispatcher.operations

    assert (result.reason, done) == ("done", ["inner"])
    assert_order(inner.events)


async def test_a_run_returns_after_the_drain() -> None:
    hooks, heard = Hooks("slow"), []

    @hooks.on(OnComplete)
    async def hear(event: OnComplete) -> None:
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        heard.append(event.reason)

    await exec_agent(agent_of(says()), "go", hooks=[hooks])

    assert heard == ["done"]


@for_each("drain_timeout", [0.0, 0.02])
@for_each("shared", [True, False])
async def test_the_drain_timeout_bounds_what_hung_observers_may_take(drain_timeout: float, shared: bool) -> None:
    hooks, cancelled = Hooks("hung"), []

    @hooks.on(AfterStep)
    async def hang(event: AfterStep) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append(event.step_index)

    with anyio.fail_after(4):
        async with HookDispatcher() as dispatcher:
            given = {"dispatcher": dispatcher} if shared else {}
            agent = agent_of(calls(call("work")), says(), tools=[work])
            result = await exec_agent(agent, "go", hooks=[hooks], drain_timeout=drain_timeout, **given)
            assert not dispatcher.operations

    assert result.reason == "done"
    assert cancelled in ([0], [])


async def test_a_hung_observer_does_not_delay_the_steps() -> None:
    hooks, ended = Hooks("hung"), anyio.Event()
    order: list[str] = []

    @hooks.on(AfterStep)
    async def hang(event: AfterStep) -> None:
        await ended.wait()
        order.append("observer")

    async def respond(about: ModelCall) -> ModelResponse:
        if len(about.messages) > 20:
            order.append("model")
            ended.set()
            return says()
        return calls(call("work"))

    agent = Agent(id="a", model=ScriptedModel(respond), tools=[work])  # type: ignore[arg-type]
    with anyio.fail_after(10):
        result = await exec_agent(agent, "go", hooks=[hooks])

    assert result.reason == "done"
    assert order[:2] == ["model", "observer"]


# Many at once.


async def test_two_hundred_runs_of_two_tenants_on_one_dispatcher_do_not_hear_each_other() -> None:
    by_tenant = {tenant: Hooks(tenant, tenant_id=tenant) for tenant in ("acme", "globex")}
    heard: dict[str, list[Event]] = {"acme": [], "globex": []}
    for tenant, hooks in by_tenant.items():
        for kind in EVENTS.values():
            hooks.on(kind)(heard[tenant].append)
        hooks.on(BeforeToolCall)(lambda event, tenant=tenant: event.mock(f"{tenant} for {event.operation_id}"))

    async def respond(about: ModelCall) -> ModelResponse:
        await anyio.lowlevel.checkpoint()
        if about.messages[-1].role == "tool":
            return says(f"{about.operation_id}: {about.messages[-1].content}")
        return calls(call("work", "a"))

    agent = Agent(id="shared", model=ScriptedModel(respond), tools=[work])  # type: ignore[arg-type]
    results: dict[str, OperationResult] = {}
    own: dict[str, Recorder] = {}

    with anyio.fail_after(30):
        async with HookDispatcher() as dispatcher, anyio.create_task_group() as group:

            async def run(n: int) -> None:
                name, tenant = f"op-{n}", ("acme", "globex")[n % 2]
                own[name] = Recorder()
                results[name] = await exec_agent(
                    agent,
                    f"prompt {n}",
                    operation_id=name,
                    tenant_id=tenant,
                    user_id=f"user-{n}",
                    hooks=[own[name].hooks, *by_tenant.values()],
                    dispatcher=dispatcher,
                )

            for n in range(200):
                group.start_soon(run, n)
        assert len(results) == 200

    for n in range(200):
        name, tenant = f"op-{n}", ("acme", "globex")[n % 2]
        assert results[name].output == f"{name}: {tenant} for {name}"
        assert results[name].messages[0].content == f"prompt {n}"
        assert_order(own[name].events)
        assert {(event.operation_id, event.tenant_id, event.user_id) for event in own[name].events} == {
            (name, tenant, f"user-{n}")
        }
    for tenant, events in heard.items():
        assert {event.tenant_id for event in events} == {tenant}
        assert len(events) == 100 * 7


async def test_hundreds_of_runs_leave_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "hookline")  # what is logged is kept until the end of the test
    store, hooks = InMemoryStore(remember=10), Hooks("counting")
    completed = 0

    @hooks.on(OnComplete)
    async def count(event: OnComplete) -> None:
        nonlocal completed
        completed += 1

    def respond(about: ModelCall) -> ModelResponse:
        if about.messages[-1].content.startswith("worked"):
            return says()
        if about.messages[-1].content == "fail":
            raise ValueError("model broke")
        return calls(call("work", "a"), call("work", "b"))

    agent = Agent(id="a", model=ScriptedModel(respond), tools=[work])

    async with HookDispatcher() as dispatcher:

        async def many(times: int) -> None:
            for n in range(times):
                prompt = "fail" if n % 10 == 0 else "go"
                await exec_agent(agent, prompt, hooks=[hooks], dispatcher=dispatcher, store=store)

        await many(100)
        gc.collect()
        before = sys.getallocatedblocks()
        await many(500)
        gc.collect()
        left = sys.getallocatedblocks() - before
        assert not dispatcher.operations

    assert completed == 600
    assert left < 50  # whatever is kept is one block of memory at least, so that one object of each run shows
    assert len(anyio.get_running_tasks()) <= 3


async def test_nothing_runs_on_after_a_run_with_a_dispatcher_of_its_own() -> None:
    before = {task.id for task in anyio.get_running_tasks()}
    hooks = Hooks("async")

    @hooks.on(AfterStep)
    async def hear(event: AfterStep) -> None:
        await anyio.lowlevel.checkpoint()

    agent = agent_of(calls(call("work", "a"), call("work", "b")), says(), tools=[work])
    for _ in range(20):
        await exec_agent(Agent(id="a", model=ScriptedModel([says()])), "go", hooks=[hooks])
    await exec_agent(agent, "go", hooks=[hooks])

    assert {task.id for task in anyio.get_running_tasks()} == before


async def test_every_error_of_misuse_is_a_hookline_error() -> None:
    for given in ({"prompt": []}, {"prompt": "x", "operation_id": 5}, {"prompt": "x", "hooks": ["y"]}):
        with pytest.raises(HooklineError):
            await exec_agent(agent_of(says()), **given)  # type: ignore[arg-type]


class ContestedStore(InMemoryStore):
    """At one of its writes somebody else, in another process, is quicker; ours is cut short before it happened."""

    def __init__(self, at: int, how: str) -> None:
        super().__init__()
        self.at, self.how, self.writes = at, how, 0
        self.contested = anyio.Event()

    async def save(self, state: OperationState, *, expected_version: int | None) -> None:
        self.writes += 1
        if self.writes != self.at:
            await super().save(state, expected_version=expected_version)
            return
        theirs = msgspec.structs.replace(state, status="running", user_id="somebody else")
        await super().save(theirs, expected_version=expected_version)
        self.contested.set()
        if self.how == "raises":
            raise ConnectionError("the store is down")
        await anyio.sleep_forever()


@for_each("how", ["raises", "hangs"])
@for_each("resuming", [False, True])
async def test_a_write_that_was_cut_short_does_not_take_over_what_somebody_else_wrote(how: str, resuming: bool) -> None:
    store = ContestedStore(3 if resuming else 1, how)
    agent = agent_of(calls(call("pay")), says(), tools=[pay])
    if resuming:
        await exec_agent(agent, "go", operation_id="op", store=store)

    with anyio.fail_after(10):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def stop() -> None:
                    await store.contested.wait()
                    if how == "hangs":
                        scope.cancel()

                group.start_soon(stop)
                if resuming:
                    await resume_agent(agent, "op", [Approve("t1")], store=store)
                else:
                    await exec_agent(agent, "go", operation_id="op", store=store)

    state = await store.load("op")
    assert state is not None
    assert (state.user_id, state.status) == ("somebody else", "running")
