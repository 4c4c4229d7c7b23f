"""`AgentSession`: tasks that go on with one conversation, hooks at three levels, memory, and a clean way out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from hookline import (
    Agent,
    AgentCall,
    AgentSession,
    Approve,
    BeforeCompact,
    BeforeStep,
    Compaction,
    Deny,
    HookDispatcher,
    Hooks,
    InMemoryStore,
    MemoryCall,
    Message,
    ModelCall,
    OnComplete,
    Reject,
    Respond,
    StepCall,
    ToolCall,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.errors import (
    DecisionError,
    HookDefinitionError,
    HooklineError,
    HookUsageError,
    OperationExistsError,
)
from hookline.phases import Phase
from hookline.runtime import OperationState
from tests.tables import for_each

from .interception import (
    Answering,
    JsonStore,
    World,
    after,
    around,
    before,
    contents,
    guard,
    pay,
    paying,
    replace,
    session_of,
    turns,
)
from .scenes import Hanging, HangingModel, Recorder, agent_of, assert_consistent, assert_order, call, calls, says

pytestmark = pytest.mark.anyio


def listening(*answers: str, **parts: Any) -> tuple[Agent, list[list[str]]]:
    """An agent that says these, and what its model was asked."""
    asked: list[list[str]] = []
    left = list(answers)

    async def answer(made: ModelCall) -> Any:
        assert_consistent(made.messages)
        asked.append([f"{message.role}: {message.content}" for message in made.messages])
        return says(left.pop(0))

    return Agent(id="listener", model=Answering(answer), **parts), asked


class Shelf:
    """A memory that checks how it is used, yields, and may fail."""

    def __init__(self, kept: dict[str, Any] | None = None) -> None:
        self.kept: dict[str, Any] = kept or {}
        self.saves = 0
        self.fail: BaseException | None = None
        self.hang: Hanging | None = None

    async def load(self, key: str) -> Sequence[Message] | None:
        await anyio.lowlevel.checkpoint()
        if self.fail is not None:
            raise self.fail
        return self.kept.get(key)

    async def save(self, key: str, messages: Sequence[Message]) -> None:
        await anyio.lowlevel.checkpoint()
        if self.hang is not None:
            await self.hang.forever()
        if self.fail is not None:
            raise self.fail
        self.saves += 1
        self.kept[key] = list(messages)


# The conversation.


async def test_a_task_goes_on_with_the_conversation_of_those_before_it_and_the_instructions_are_there_once() -> None:
    agent, asked = listening("one", "two", "three", instructions="be kind")

    async with session_of(agent) as session:
        results = [await session.run(prompt) for prompt in ("a", "b", "c")]

    assert asked == [
        ["system: be kind", "user: a"],
        ["system: be kind", "user: a", "assistant: one", "user: b"],
        ["system: be kind", "user: a", "assistant: one", "user: b", "assistant: two", "user: c"],
    ]
    assert [result.output for result in results] == ["one", "two", "three"]
    assert contents(session.history) == ["a", "one", "b", "two", "c", "three"]
    assert len({result.operation_id for result in results}) == 3


async def test_tool_calls_and_their_results_are_part_of_the_conversation() -> None:
    paid: list[Any] = []

    async with session_of(paying(paid, calls(pay()), says("one"), says("two"))) as session:
        await session.run("a")
        result = await session.run("b")

    assert contents(result.messages) == ["a", "", "paid 5", "one", "b", "two"]
    assert_consistent(result.messages)


async def test_counters_belong_to_each_task() -> None:
    async with session_of(paying([], calls(pay(), tokens=1), says(), calls(pay(), tokens=2), says())) as session:
        first = await session.run("a")
        second = await session.run("b")

    assert (first.steps, first.tool_calls, first.usage.input_tokens) == (2, 1, 1)
    assert (second.steps, second.tool_calls, second.usage.input_tokens) == (2, 1, 2)


async def test_a_prompt_may_be_messages_and_a_second_system_message_of_the_same_words_is_no_second_one() -> None:
    agent, asked = listening("one", "two", instructions="be kind")
    given = [Message(role="system", content="be kind"), Message(role="user", content="a")]

    async with session_of(agent) as session:
        await session.run(given)
        await session.run([Message(role="user", content="b"), Message(role="user", content="c")])

    assert asked[0] == ["system: be kind", "user: a"]
    assert asked[1] == ["system: be kind", "user: a", "assistant: one", "user: b", "user: c"]


async def test_instructions_that_a_hook_changed_for_one_task_are_the_agents_again_in_the_next() -> None:
    agent, asked = listening("one", "two", instructions="be kind")

    async with session_of(agent) as session:
        await session.run("a", hooks=[before(AgentCall, lambda c: replace(c, instructions="be brief"))])
        await session.run("b")

    assert asked[0][0] == "system: be brief"
    assert asked[1] == ["system: be kind", "user: a", "assistant: one", "user: b"]


async def test_a_hook_of_the_run_sees_only_the_new_input_and_not_the_history() -> None:
    seen: list[list[str]] = []
    agent, _ = listening("one", "two", instructions="be kind")

    async with session_of(agent, hooks=[before(AgentCall, lambda c: seen.append(contents(c.input)))]) as session:
        await session.run("a")
        await session.run("b")

    assert seen == [["a"], ["b"]]


async def test_a_rewritten_input_is_what_is_remembered() -> None:
    agent, asked = listening("one", "two")
    redacting = before(AgentCall, lambda c: replace(c, input=[Message(role="user", content="[redacted]")]))

    async with session_of(agent) as session:
        await session.run("my password", hooks=[redacting])
        await session.run("b")

    assert asked[1] == ["user: [redacted]", "assistant: one", "user: b"]


async def test_a_compaction_in_one_task_shortens_the_conversation_of_the_next() -> None:
    async with session_of(World(parallel=1, children=0).agent) as session:
        await session.run("go")
        history = list(session.history)

    assert any("summed up" in text for text in contents(history))
    assert not [message for message in history if message.role in ("tool", "system")]


async def test_what_the_last_task_reported_counts_for_the_next() -> None:
    recorder = Recorder()

    async def summarize(messages: list[Message]) -> str:
        return "summed up"

    compaction = Compaction(max_tokens=100, summarize=summarize)
    agent = agent_of(*(says(tokens=tokens) for tokens in (500, 20, 20)), compaction=compaction)
    async with AgentSession(agent, hooks=[recorder.hooks]) as session:
        for prompt in ("one", "two", "three"):
            await session.run(prompt)

    assert [event.token_count for event in recorder.of(BeforeCompact)] == [500]
    assert len({event.operation_id for event in recorder.of(BeforeCompact)} | {recorder.events[0].operation_id}) == 2


@for_each("end", ["denied model", "denied run", "interrupted", "rejected"])
async def test_a_task_that_did_not_finish_leaves_a_conversation_that_the_next_can_go_on_with(end: str) -> None:
    asked: list[Any] = []

    async def answer(made: ModelCall) -> Any:
        assert_consistent(made.messages)
        asked.append(contents(made.messages))
        return calls(pay()) if len(asked) == 1 and end in ("interrupted", "rejected") else says("fine")

    @tool(needs_approval=end == "rejected")
    async def pay_it(amount: int) -> str:
        assert session.interrupt()
        await anyio.sleep_forever()
        raise AssertionError

    entry = replace(pay_it, name="pay")
    agent = Agent(id="a", model=Answering(answer), tools=[entry])
    hooks = {
        "denied model": [guard(ModelCall, lambda c: Deny("no"))],
        "denied run": [guard(AgentCall, lambda c: Deny("no"))],
    }
    async with session_of(agent) as session:
        first = await session.run("first", hooks=hooks.get(end, []))
        if end == "rejected":
            first = await session.resume([Reject("p1", "no")])
        assert first.reason == "interrupted"

        second = await session.run("second")

    assert second.reason == "done"
    assert asked[-1][0] == ("second" if end == "denied run" else "first"), "what was refused is read by nobody"
    assert asked[-1][-1] == "second"


async def test_what_a_hook_says_in_place_of_a_denied_answer_does_not_overwrite_the_task_before() -> None:
    agent, _ = listening("the capital is Paris", "never")
    hooks = [guard(ModelCall, lambda c: Deny("no")), after(AgentCall, lambda c, r: replace(r, output="Sorry."))]

    async with session_of(agent) as session:
        await session.run("a")
        await session.run("b", hooks=hooks)

    assert contents(session.history)[:2] == ["a", "the capital is Paris"]


async def test_a_paused_task_that_a_hook_answers_on_resume_does_not_lose_the_history() -> None:
    async def cached(made: Any, call_next: Any) -> Any:
        return Respond("cached")

    async with session_of(paying([], says("one"), calls(pay()), says(), needs_approval=True)) as session:
        await session.run("a")
        await session.run("b")
        await session.resume([Approve("p1")], hooks=[around(AgentCall, cached)])

    assert contents(session.history)[:3] == ["a", "one", "b"]
    assert_consistent(session.history)


# Hooks at three levels.


async def test_hooks_of_agent_session_and_task_run_in_that_order() -> None:
    log: list[str] = []

    def level(name: str) -> Hooks:
        hooks = Hooks(name)
        hooks.before(ModelCall)(lambda c: log.append(f"{name} before"))
        hooks.guard(ModelCall)(lambda c: log.append(f"{name} guard"))
        hooks.after(ModelCall)(lambda c, r: log.append(f"{name} after"))
        hooks.on(BeforeStep)(lambda e: log.append(f"{name} beforeStep"))
        hooks.on_phase(Phase.IDLE, Phase.PROCESSING_USER_INPUT)(lambda m: log.append(f"{name} phase"))
        return hooks

    async with session_of(agent_of(says(), hooks=[level("agent")]), hooks=[level("session")]) as session:
        await session.run("go", hooks=[level("task")])

    names = ["agent", "session", "task"]
    assert log == [
        *(f"{name} phase" for name in names),
        *(f"{name} beforeStep" for name in names),
        *(f"{name} before" for name in names),
        *(f"{name} guard" for name in names),
        *(f"{name} after" for name in reversed(names)),
    ]


async def test_the_hooks_of_a_task_are_gone_with_it() -> None:
    log: list[str] = []
    own = Hooks("own")
    own.before(ModelCall)(lambda c: log.append("before"))
    own.on(BeforeStep)(lambda e: log.append("beforeStep"))
    own.on_phase(None, Phase.IDLE)(lambda m: log.append("idle"))

    async with session_of(agent_of(says(), says())) as session:
        await session.run("a", hooks=[own])
        first = list(log)
        await session.run("b")

    assert first == log
    assert sorted(log) == ["before", "beforeStep", "idle"]


async def test_what_is_added_to_the_sessions_own_bundle_counts_from_the_next_task_on() -> None:
    log: list[str] = []

    async with session_of(agent_of(says(), says(), says())) as session:

        def add(made: ModelCall) -> None:
            session.hooks.before(ModelCall)(lambda c: log.append("before"))
            session.hooks.on(BeforeStep)(lambda e: log.append("beforeStep"))
            session.hooks.on_phase(None, Phase.EXECUTING_TOOL)(lambda m: log.append("never"))
            session.hooks.on_phase(None, Phase.ANALYZING_LLM_RESPONSE)(lambda m: log.append("phase"))

        await session.run("a", hooks=[before(ModelCall, add, priority=0)])
        assert log == []
        await session.run("b")
        assert log == ["beforeStep", "before", "phase"]
        await session.run("c")

    assert log == ["beforeStep", "before", "phase"] * 2


async def test_the_sessions_own_bundle_runs_between_those_of_the_session_and_of_the_task() -> None:
    log: list[str] = []

    def noting(name: str) -> Any:
        return before(ModelCall, lambda c: log.append(name))

    async with session_of(agent_of(says()), hooks=[noting("given")]) as session:
        session.hooks.before(ModelCall)(lambda c: log.append("own"))
        await session.run("go", hooks=[noting("task")])

    assert log == ["given", "own", "task"]


async def test_a_wrong_hook_changes_nothing() -> None:
    async with session_of(agent_of(says())) as session:
        with pytest.raises(HookDefinitionError):
            await session.run("go", hooks=[object()])  # type: ignore[list-item]

        assert session.phase is Phase.IDLE
        assert (await session.run("go")).reason == "done"


# One task at a time.


async def test_outside_of_async_with_nothing_runs() -> None:
    session = AgentSession(agent_of(says()))

    with pytest.raises(HookUsageError, match="async with"):
        await session.run("too early")
    with pytest.raises(HookUsageError, match="async with"):
        await session.resume([Approve("p1")])
    async with session:
        pass
    with pytest.raises(HookUsageError, match="async with"):
        await session.run("too late")
    assert session.phase is Phase.SHUTDOWN_COMPLETE


async def test_two_tasks_at_once_are_refused_and_the_first_is_not_disturbed() -> None:
    world = World()
    world.hang = "model"

    async with session_of(world.agent) as session, anyio.create_task_group() as group:
        results: list[Any] = []

        async def run() -> None:
            results.append(await session.run("go"))

        group.start_soon(run)
        await world.begun.wait()
        with pytest.raises(HookUsageError, match="one task at a time"):
            await session.run("me too")
        with pytest.raises(HookUsageError):
            await session.resume([Approve("p1")])
        assert session.phase is Phase.AWAITING_LLM_RESPONSE
        assert session.interrupt()
        group.cancel_scope.deadline = anyio.current_time() + 4

    assert results[0].reason == "interrupted"


async def test_of_two_tasks_started_in_the_same_moment_one_is_refused() -> None:
    outcomes: list[str] = []

    async with session_of(agent_of(says(), says())) as session:

        async def run() -> None:
            try:
                outcomes.append((await session.run("go")).reason)
            except HookUsageError:
                outcomes.append("refused")

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            group.start_soon(run)

    assert sorted(outcomes) == ["done", "refused"]


class YieldingStore(JsonStore):
    """A store behind a network: every access gives up its turn."""

    async def load(self, operation_id: str) -> OperationState | None:
        await turns(3)
        return await super().load(operation_id)

    async def save(self, state: OperationState, *, expected_version: int | None) -> None:
        await turns(3)
        await super().save(state, expected_version=expected_version)


async def test_of_two_resumes_started_in_the_same_moment_one_is_refused_and_the_other_is_not_disturbed() -> None:
    outcomes: list[Any] = []
    paid: list[Any] = []
    agent = paying(paid, calls(pay()), says(), says("next"), needs_approval=True)

    async with session_of(agent, store=YieldingStore()) as session:
        await session.run("go")

        async def resume() -> None:
            try:
                result = await session.resume([Approve("p1")])
            except HooklineError as error:
                outcomes.append(type(error).__name__)
            else:
                outcomes.append((result.reason, result.error))

        async with anyio.create_task_group() as group:
            group.start_soon(resume)
            group.start_soon(resume)
        assert session.phase is Phase.IDLE
        assert session.pending is None
        assert (await session.run("next")).reason == "done"

    assert ("done", None) in outcomes
    assert paid == [5]


async def test_a_task_and_a_resume_started_in_the_same_moment_do_not_disturb_each_other() -> None:
    outcomes: list[Any] = []
    agent = paying([], calls(pay()), says(), says("next"), needs_approval=True)

    async with session_of(agent, store=YieldingStore()) as session:
        await session.run("go")

        async def note(work: Any) -> None:
            try:
                outcomes.append((await work).reason)
            except HookUsageError:
                outcomes.append("refused")

        async with anyio.create_task_group() as group:
            group.start_soon(note, session.resume([Approve("p1")]))
            group.start_soon(note, session.run("other"))

    assert sorted(outcomes) == ["done", "refused"]


async def test_a_task_that_starts_one_of_its_own_session_is_refused_and_not_stuck() -> None:
    refused: list[str] = []

    @tool
    async def again() -> str:
        try:
            await session.run("inner")
        except HookUsageError as error:
            refused.append(str(error))
        return "ok"

    async with session_of(agent_of(calls(call("again")), says(), tools=[again])) as session:
        result = await session.run("outer")

    assert result.reason == "done"
    assert len(refused) == 1


async def test_two_sessions_of_two_tenants_work_at_once_on_one_dispatcher_without_seeing_each_other() -> None:
    log: list[tuple[str, str]] = []
    meeting: list[str] = []
    met = anyio.Event()

    async def answer(made: ModelCall) -> Any:
        meeting.append(made.tenant_id)
        if len(meeting) == 2:
            met.set()
        await met.wait()
        return says(f"hello {made.tenant_id}")

    def of(tenant: str) -> Hooks:
        hooks = Hooks(f"of {tenant}", tenant_id=tenant)
        hooks.before(ModelCall)(lambda c: log.append((tenant, c.tenant_id)))
        hooks.on(OnComplete)(lambda e: log.append((tenant, e.tenant_id)))
        hooks.on_phase(None, Phase.IDLE)(lambda m: log.append((tenant, tenant)))
        return hooks

    agent = Agent(id="a", model=Answering(answer), hooks=[of("acme"), of("zeta")])
    memory = Shelf()
    with anyio.fail_after(5):
        async with (
            HookDispatcher() as dispatcher,
            AgentSession(agent, tenant_id="acme", dispatcher=dispatcher, memory=memory) as one,
            AgentSession(agent, tenant_id="zeta", dispatcher=dispatcher, memory=memory) as two,
        ):
            one.hooks.before(ModelCall)(lambda c: log.append(("acme", c.tenant_id)))
            results: dict[str, Any] = {}

            async def run(name: str, session: AgentSession) -> None:
                results[name] = await session.run("go")

            async with anyio.create_task_group() as group:
                group.start_soon(run, "acme", one)
                group.start_soon(run, "zeta", two)
            assert not dispatcher.operations

    assert {name: result.output for name, result in results.items()} == {"acme": "hello acme", "zeta": "hello zeta"}
    assert all(owner == seen for owner, seen in log)
    assert log.count(("acme", "acme")) == 5
    assert log.count(("zeta", "zeta")) == 4
    assert contents(memory.kept[one.id]) == ["go", "hello acme"]


# Pausing.


async def test_a_task_that_waits_for_a_person_is_resumed_by_the_session() -> None:
    paid: list[Any] = []
    agent = paying(paid, calls(pay(1, "a"), pay(2, "b")), says("bought"), says("next"), needs_approval=True)

    async with session_of(agent, store=JsonStore()) as session:
        paused = await session.run("buy")
        assert (paused.reason, session.pending) == ("waiting_for_human", paused.operation_id)
        half = await session.resume([Approve("b")])
        assert (half.reason, session.pending) == ("waiting_for_human", paused.operation_id)
        result = await session.resume([Reject("a", "no", and_continue=True)])

        assert (result.reason, result.operation_id) == ("done", paused.operation_id)
        assert session.pending is None
        assert paid == [2]
        await session.run("go on")

    assert contents(session.history)[0] == "buy"
    assert contents(session.history)[-3:] == ["bought", "go on", "next"]


async def test_while_a_task_waits_for_a_person_no_other_starts() -> None:
    agent = paying([], calls(pay()), says(), says(), needs_approval=True)

    async with session_of(agent) as session:
        await session.run("buy")
        with pytest.raises(HookUsageError, match="waits for a person"):
            await session.run("something else")
        with pytest.raises(DecisionError):
            await session.resume([Approve("unknown")])
        with pytest.raises(DecisionError):
            await session.resume([])
        assert session.phase is Phase.IDLE
        assert (await session.resume([Approve("p1")])).reason == "done"
        with pytest.raises(HookUsageError, match="waits for a person"):
            await session.resume([Approve("p1")])


async def test_the_pause_outlives_the_session_that_was_left_and_entered_again() -> None:
    paid: list[Any] = []
    agent = paying(paid, says("hello"), calls(pay()), says("bought"), needs_approval=True)
    session = AgentSession(agent, store=JsonStore())

    async with session:
        await session.run("hi")
        await session.run("buy")
    async with session:
        result = await session.resume([Approve("p1")])

    assert result.reason == "done"
    assert paid == [5]
    assert contents(session.history)[:3] == ["hi", "hello", "buy"]


async def test_a_resume_that_was_cancelled_does_not_block_the_session_for_ever() -> None:
    hanging = Hanging()

    @tool(needs_approval=True)
    async def pay_it() -> str:
        await hanging.forever()
        return ""

    agent = agent_of(calls(call("pay_it")), says("next"), tools=[pay_it])
    async with session_of(agent) as session:
        await session.run("buy")
        async with anyio.create_task_group() as group:
            group.start_soon(session.resume, [Approve("t1")])
            await hanging.begun.wait()
            group.cancel_scope.cancel()

        assert session.phase is Phase.IDLE
        result = await session.run("something else")

    assert result.reason == "done"
    assert_consistent(result.messages)


async def test_an_operation_that_somebody_else_has_finished_does_not_block_the_session_for_ever() -> None:
    store = JsonStore()
    agent = paying([], calls(pay()), says("elsewhere"), says("next"), needs_approval=True)

    async with session_of(agent, store=store) as session:
        paused = await session.run("buy")
        await resume_agent(agent, paused.operation_id, [Approve("p1")], store=store)
        with pytest.raises(HooklineError):
            await session.resume([Approve("p1")])

        result = await session.run("something else")

    assert result.reason == "done"


async def test_a_resume_that_is_cancelled_before_it_has_begun_leaves_the_task_waiting() -> None:
    class Claiming(JsonStore):
        hanging: Hanging | None = None

        async def save(self, state: OperationState, *, expected_version: int | None) -> None:
            if self.hanging is not None and state.status == "running":
                await self.hanging.forever()
            await super().save(state, expected_version=expected_version)

    store = Claiming()
    agent = paying([], calls(pay()), says("bought"), needs_approval=True)
    async with session_of(agent, store=store) as session:
        await session.run("buy")
        store.hanging = Hanging()
        async with anyio.create_task_group() as group:
            group.start_soon(session.resume, [Approve("p1")])
            await store.hanging.begun.wait()
            group.cancel_scope.cancel()
        store.hanging = None
        assert session.phase is Phase.IDLE
        assert session.pending is not None

        result = await session.resume([Approve("p1")])

    assert (result.reason, result.output) == ("done", "bought")


async def test_a_pause_is_not_forgotten_when_its_task_is_cancelled_on_its_way_to_idle() -> None:
    begun = anyio.Event()
    slow = Hooks("slow")

    @slow.on_phase(None, Phase.IDLE)
    async def hanging(move: Any) -> None:
        begun.set()
        await anyio.sleep_forever()

    store = JsonStore()
    async with session_of(paying([], calls(pay()), says(), needs_approval=True), store=store) as session:
        async with anyio.create_task_group() as group:

            async def run() -> None:
                await session.run("buy", operation_id="op", hooks=[slow])

            group.start_soon(run)
            await begun.wait()
            group.cancel_scope.cancel()
        state = await store.load("op")
        assert state is not None
        waits = state.status == "waiting_for_human"

        assert (session.pending == "op") == waits


async def test_events_of_a_sessions_task_keep_their_order_over_pause_and_resume() -> None:
    recorder = Recorder()
    agent = paying([], calls(pay()), says(), needs_approval=True)

    async with session_of(agent, hooks=[recorder.hooks]) as session:
        await session.run("buy")
        first = len(recorder.events)
        await session.resume([Approve("p1")])

    assert_order(recorder.events[:first])
    assert_order(recorder.events[first:], resumed=True)


# Memory.


async def test_a_hook_that_redacts_what_is_remembered_changes_what_the_next_task_sees_and_what_is_kept() -> None:
    agent, asked = listening("your card is 4242", "two")
    memory = Shelf()

    def redact(made: MemoryCall) -> MemoryCall:
        return replace(made, value=[replace(m, content=m.content.replace("4242", "****")) for m in made.value])

    async with session_of(agent, hooks=[before(MemoryCall, redact)], memory=memory) as session:
        result = await session.run("a")
        await session.run("b")

    assert result.output == "your card is 4242"
    assert asked[1] == ["user: a", "assistant: your card is ****", "user: b"]
    assert "4242" not in str(memory.kept[session.id])


@pytest.mark.parametrize("kind", ["guard", "before"])
async def test_a_denied_write_keeps_the_old_conversation(kind: str) -> None:
    agent, asked = listening("one", "two", "three")
    memory = Shelf()
    make = {"guard": guard, "before": before}[kind]

    async with session_of(agent, memory=memory) as session:
        await session.run("a")
        result = await session.run("b", hooks=[make(MemoryCall, lambda c: Deny("forget it"))])
        assert result.reason == "done"
        await session.run("c")

    assert asked[2] == ["user: a", "assistant: one", "user: c"]
    assert contents(memory.kept[session.id]) == ["a", "one", "c", "three"]


async def test_a_hook_that_answers_the_write_decides_whether_it_counts() -> None:
    agent, asked = listening("one", "two")
    memory = Shelf()

    async with session_of(agent, memory=memory) as session:
        await session.run("a", hooks=[before(MemoryCall, lambda c: Respond({"stored": False}))])
        await session.run("b")

    assert asked[1] == ["user: b"]
    assert memory.saves == 1


async def test_a_memory_that_fails_to_save_is_the_tasks_error_and_the_session_goes_on() -> None:
    agent, asked = listening("one", "two", "three")
    memory, recorder = Shelf(), Recorder()

    async with session_of(agent, memory=memory, hooks=[recorder.hooks]) as session:
        await session.run("a")
        memory.fail = OSError("disk full")
        result = await session.run("b")
        assert (result.reason, str(result.error)) == ("error", "disk full")
        assert session.phase is Phase.IDLE
        memory.fail = None
        result = await session.run("c")

    assert result.reason == "done"
    assert asked[2] == ["user: a", "assistant: one", "user: c"]
    assert [event.reason for event in recorder.of(OnComplete)] == ["done", "error", "done"]


async def test_a_memory_that_fails_to_load_is_the_sessions_error_and_is_raised() -> None:
    memory = Shelf()
    memory.fail = OSError("no disk")
    session = AgentSession(agent_of(says()), memory=memory)

    with pytest.raises(OSError, match="no disk"):
        async with session:
            raise AssertionError("never entered")

    assert session.phase is Phase.ERROR
    with pytest.raises(HookUsageError):
        await session.run("go")
    memory.fail = None
    async with session:
        assert (await session.run("go")).reason == "done"


async def test_a_session_of_another_process_goes_on_with_what_memory_keeps() -> None:
    memory = Shelf()
    first, _ = listening("one", instructions="be kind")
    second, asked = listening("two", instructions="be kind")

    async with session_of(first, session_id="s", memory=memory) as session:
        await session.run("a")
    async with session_of(second, session_id="s", memory=memory) as session:
        await session.run("b")

    assert asked == [["system: be kind", "user: a", "assistant: one", "user: b"]]


async def test_what_memory_keeps_cannot_be_edited_through_the_history_or_the_result() -> None:
    agent, asked = listening("one", "two")

    async with session_of(agent) as session:
        result = await session.run("a")
        result.messages.clear()
        await session.run("b")

    assert asked[1] == ["user: a", "assistant: one", "user: b"]


async def test_hooks_of_the_memory_know_the_session_the_operation_and_the_tenant() -> None:
    seen: list[MemoryCall] = []

    async with session_of(
        agent_of(says()), hooks=[before(MemoryCall, seen.append)], session_id="s", tenant_id="acme"
    ) as session:
        await session.run("go", operation_id="op")

    assert [(made.key, made.operation_id, made.tenant_id) for made in seen] == [("s", "op", "acme")]


async def test_a_plain_run_writes_no_memory() -> None:
    seen: list[Any] = []

    await exec_agent(agent_of(says()), "go", hooks=[before(MemoryCall, seen.append)])

    assert seen == []


# Ends of all kinds.


async def test_leaving_while_a_task_hangs_in_another_task_interrupts_it() -> None:
    model = HangingModel()
    results: list[Any] = []

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group, AgentSession(Agent(id="a", model=model)) as session:

            async def run() -> None:
                results.append(await session.run("go"))

            group.start_soon(run)
            await model.hanging.begun.wait()

    assert results[0].reason == "interrupted"
    assert session.phase is Phase.SHUTDOWN_COMPLETE


async def test_leaving_while_a_task_is_only_being_started_interrupts_it_too() -> None:
    """`interrupt` knows an operation only once it is live; the session must not wait for a task that nobody stopped."""
    model = HangingModel()
    starting = anyio.Event()
    hooks = Hooks("slow")

    @hooks.on_phase(Phase.IDLE, Phase.PROCESSING_USER_INPUT)
    async def slow(move: Any) -> None:
        starting.set()
        await turns(20)

    results: list[Any] = []
    with anyio.fail_after(20):
        async with (
            anyio.create_task_group() as group,
            AgentSession(Agent(id="a", model=model), hooks=[hooks]) as session,
        ):

            async def run() -> None:
                results.append(await session.run("go"))

            group.start_soon(run)
            await starting.wait()

    assert results[0].reason == "interrupted"
    assert session.phase is Phase.SHUTDOWN_COMPLETE


async def test_leaving_while_memory_hangs_does_not_wait_for_it_for_ever() -> None:
    memory = Shelf()
    memory.hang = Hanging()

    with anyio.fail_after(4):
        async with anyio.create_task_group() as group, AgentSession(agent_of(says()), memory=memory) as session:
            group.start_soon(session.run, "go")
            await memory.hang.begun.wait()

    assert session.phase is Phase.SHUTDOWN_COMPLETE


async def test_a_cancelled_task_leaves_the_session_idle_and_the_conversation_whole() -> None:
    world = World()
    world.hang = "tool"

    async with session_of(world.agent) as session:
        async with anyio.create_task_group() as group:
            group.start_soon(session.run, "go")
            await world.begun.wait()
            group.cancel_scope.cancel()
        assert session.phase is Phase.IDLE
        assert_consistent(session.history)
        assert contents(session.history)[0] == "go"
        world.hang = ""
        assert (await session.run("again")).reason == "done"


async def test_a_session_that_is_cancelled_shuts_down_cleanly() -> None:
    model = HangingModel()
    moves: list[str] = []
    hooks = Hooks("phases")
    hooks.on_phase(None, None)(lambda m: moves.append(str(m.target)))
    session = AgentSession(Agent(id="a", model=model), hooks=[hooks])

    async def live() -> None:
        async with session:
            await session.run("go")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(live)
            await model.hanging.begun.wait()
            group.cancel_scope.cancel()

    assert session.phase is Phase.SHUTDOWN_COMPLETE
    assert moves[-3:] == ["idle", "shutting_down", "shutdown_complete"]


async def test_a_session_that_is_cancelled_while_its_last_phase_hook_hangs_is_over_all_the_same() -> None:
    """Left without an error, then cancelled inside of the way out: phase, dispatcher and tasks must not be left."""
    hooks = Hooks("slow")
    begun = anyio.Event()

    @hooks.on_phase(None, Phase.SHUTTING_DOWN)
    async def slow(move: Any) -> None:
        begun.set()
        await anyio.sleep_forever()

    session = AgentSession(agent_of(says(), says()), hooks=[hooks])

    async def live() -> None:
        async with session:
            await session.run("go")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(live)
            await begun.wait()
            group.cancel_scope.cancel()

    assert session.phase is Phase.SHUTDOWN_COMPLETE
    with pytest.raises(HookUsageError):
        await session.run("go")


async def test_an_error_in_the_body_shuts_the_session_down_and_goes_on() -> None:
    session = AgentSession(agent_of(says()))

    with pytest.raises(KeyError):
        async with session:
            await session.run("go")
            raise KeyError("mine")

    assert session.phase is Phase.SHUTDOWN_COMPLETE


async def test_a_session_cannot_be_entered_twice_at_once_but_again_after_it_was_left() -> None:
    agent, asked = listening("one", "two")
    session = AgentSession(agent)

    async with session:
        with pytest.raises(HookUsageError, match="already open"):
            await session.__aenter__()
        await session.run("a")
    async with session:
        await session.run("b")

    assert asked[1] == ["user: a", "assistant: one", "user: b"]


async def test_a_taken_operation_id_is_refused_and_the_session_goes_on() -> None:
    store = JsonStore()

    async with session_of(agent_of(says(), says(), says()), store=store) as session:
        await session.run("a", operation_id="op")
        with pytest.raises(OperationExistsError):
            await session.run("b", operation_id="op")
        assert session.phase is Phase.IDLE
        assert (await session.run("c")).reason == "done"

    assert "b" not in contents(session.history)


@for_each("prompt", ["", [], [object()], 7, None])
async def test_a_prompt_that_is_none_is_refused_and_nothing_moves(prompt: Any) -> None:
    moves: list[Any] = []
    hooks = Hooks("phases")
    hooks.on_phase(None, None)(moves.append)

    async with session_of(agent_of(says()), hooks=[hooks]) as session:
        moves.clear()
        if prompt == "":
            assert (await session.run(prompt)).reason == "done"
            return
        with pytest.raises(HookUsageError):
            await session.run(prompt)
        assert moves == []
        assert session.phase is Phase.IDLE


async def test_nothing_is_left_of_the_tasks_of_a_session() -> None:
    async with HookDispatcher() as dispatcher:
        async with AgentSession(
            World().agent, dispatcher=dispatcher, store=InMemoryStore(), hooks=[guard(StepCall, lambda c: None)]
        ) as session:
            for _ in range(3):
                await session.run("go")
                assert not dispatcher.operations
            assert not session.interrupt()
        dispatcher.register("mine", [])  # the shared dispatcher is still open
        await dispatcher.unregister("mine")


async def test_a_shared_dispatcher_that_is_not_open_is_said_so() -> None:
    async with AgentSession(agent_of(says()), dispatcher=HookDispatcher()) as session:
        with pytest.raises(HookUsageError):
            await session.run("go")
        assert session.phase is Phase.IDLE


async def test_a_hook_that_hangs_in_the_background_does_not_outlive_its_task() -> None:
    ended: list[str] = []

    async def hanging(*given: Any) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("cancelled")

    async with session_of(agent_of(says()), drain_timeout=0.02) as session:
        await session.run("go", hooks=[before(ToolCall, hanging), before(ModelCall, hanging, wait=False)])

        assert ended == ["cancelled"]
