"""What is special about Microsoft Agent Framework: streams, sessions, approvals, sub-agents, other middleware."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from agent_framework import (
    Agent,
    FunctionInvocationContext,
    FunctionMiddleware,
    Message,
    SlidingWindowStrategy,
    TruncationStrategy,
    tool,
)
from msgspec.structs import replace

from hookline import AgentCall, Ask, Continue, Deny, Hooks, ModelCall, Respond, ToolCall
from hookline.adapters.agent_framework import HooklineMiddleware, answers
from hookline.calls import AgentResult, CompactCall, ModelResponse, StepCall, ToolRequest
from hookline.calls import Message as Ours
from hookline.errors import HookDefinitionError, RunStopped, UnsupportedHookError
from hookline.evals.adapter_contract import Scene
from hookline.events import EVENTS, AfterStep, AfterToolCall, BeforeToolCall, OnComplete, OnToolCallError
from hookline.runtime import Approve, InMemoryStore, Reject, interrupt

from .stage import Scripted, agent_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def calls(name: str, call: str = "t1", **args: Any) -> ModelResponse:
    return ModelResponse(tool_calls=[ToolRequest(tool_name=name, args=args, tool_call_id=call)])


DONE = ModelResponse(content="done")
PLAIN = Scene(turns=[calls("add", a=1, b=2), DONE], tools={"add": add})
EVENTS_OF_PLAIN = [
    "beforeStep", "beforeToolCall", "afterToolCall", "afterStep", "beforeStep", "afterStep", "onComplete",
]  # fmt: skip


def listening(*, inherit: bool = False) -> tuple[Hooks, list[Any]]:
    hooks, seen = Hooks("seen", inherit=inherit), list[Any]()
    for event in EVENTS.values():
        hooks.on(event)(seen.append)
    return hooks, seen


def names(seen: list[Any]) -> list[str]:
    return [str(event.hook_type) for event in seen]


def told(response: Any) -> list[str]:
    contents = [each for message in response.messages for each in message.contents]
    return [str(each.result) for each in contents if each.type == "function_result"]


# Streams.


async def test_a_stream_tells_the_same_and_gives_the_agents_updates_as_they_come() -> None:
    hooks, seen = listening()

    stream = agent_of("a", PLAIN, []).run("go", stream=True, middleware=[HooklineMiddleware([hooks])])
    streamed = [[each.type for each in update.contents] async for update in stream]
    response = await stream.get_final_response()
    own = [[each.type for each in update.contents] async for update in agent_of("a", PLAIN, []).run("go", stream=True)]

    assert streamed == own
    assert response.text == "done"
    assert names(seen) == EVENTS_OF_PLAIN


async def test_a_stream_is_not_begun_before_somebody_reads_it() -> None:
    hooks, seen = listening()

    stream = agent_of("a", PLAIN, []).run("go", stream=True, middleware=[HooklineMiddleware([hooks])])
    assert seen == []

    assert (await stream.get_final_response()).text == "done"
    assert names(seen) == EVENTS_OF_PLAIN


async def test_breaking_off_a_stream_interrupts_the_run() -> None:
    hooks, seen = listening()

    stream = agent_of("a", PLAIN, []).run(
        "go", stream=True, middleware=[HooklineMiddleware([hooks], operation_id="off")]
    )
    async for _ in stream:
        break
    await stream.close()

    assert [event.reason for event in seen if isinstance(event, OnComplete)] == ["interrupted"]
    assert not interrupt("off")


async def test_what_a_run_raises_comes_out_of_its_stream() -> None:
    hooks, seen = listening()
    agent = Agent(client=Scripted([DONE], fails=True))

    with pytest.raises(ValueError, match="no summary"):
        _ = [each async for each in agent.run("go", stream=True, middleware=[HooklineMiddleware([hooks])])]
    assert names(seen) == ["beforeStep", "afterStep", "onComplete", "onError"]


@pytest.mark.parametrize("call", [ModelCall, AgentCall])
async def test_a_stream_holds_back_what_a_hook_may_still_change(call: Any) -> None:
    hooks = Hooks("redact")
    redacted: Any = ModelResponse(content="[redacted]") if call is ModelCall else AgentResult(output="[redacted]")
    hooks.after(call)(lambda call, result: redacted if getattr(result, "content", "x") else None)

    stream = agent_of("a", PLAIN, []).run("go", stream=True, middleware=[HooklineMiddleware([hooks])])
    texts = [update.text async for update in stream if update.text]

    assert texts == ["[redacted]"]
    assert (await stream.get_final_response()).messages[-1].text == "[redacted]"


async def test_hooks_of_a_model_call_work_in_a_stream_too() -> None:
    hooks, seen = listening()
    hooks.before(ModelCall)(
        lambda call: replace(call, messages=[Ours(role="user", content="other"), *call.messages[1:]])
    )
    asked: list[str] = []

    await (
        agent_of("a", PLAIN, asked)
        .run("go", stream=True, middleware=[HooklineMiddleware([hooks])])
        .get_final_response()
    )

    assert asked[0].strip() == "other"
    assert names(seen) == EVENTS_OF_PLAIN


# Runs.


async def test_many_streamed_runs_of_one_agent_and_one_middleware_do_not_hear_of_one_another() -> None:
    hooks, seen = listening()
    agent, middleware = agent_of("a", PLAIN, []), HooklineMiddleware([hooks])

    async def play(number: int) -> str:
        return str((await agent.run("go", stream=bool(number % 2), middleware=[middleware]).get_final_response()).text)

    async def plain(number: int) -> str:
        return str((await agent.run("go", middleware=[middleware])).text)

    found = await asyncio.gather(*(play(number) if number % 2 else plain(number) for number in range(30)))

    assert found == ["done"] * 30
    by_operation: dict[str, list[Any]] = {}
    for event in seen:
        by_operation.setdefault(event.operation_id, []).append(event)
    assert [names(events) for events in by_operation.values()] == [EVENTS_OF_PLAIN] * 30


async def test_given_to_the_agent_it_hears_every_run() -> None:
    hooks, seen = listening()
    agent = agent_of("a", PLAIN, [], middleware=[HooklineMiddleware([hooks])])

    await agent.run("go")
    await agent.run("go")

    assert names(seen) == EVENTS_OF_PLAIN * 2


async def test_a_denied_run_raises() -> None:
    hooks = Hooks("guard")
    hooks.guard(AgentCall)(lambda call: Deny("not today"))
    asked: list[str] = []

    with pytest.raises(RunStopped, match="not today"):
        await agent_of("a", PLAIN, asked).run("go", middleware=[HooklineMiddleware([hooks])])
    with pytest.raises(RunStopped, match="not today"):
        await (
            agent_of("a", PLAIN, asked)
            .run("go", stream=True, middleware=[HooklineMiddleware([hooks])])
            .get_final_response()
        )
    assert asked == []


async def test_a_denied_model_call_stops_the_run() -> None:
    hooks, seen = listening()
    hooks.guard(ModelCall)(lambda call: Deny("too long") if call.step_index else None)

    with pytest.raises(RunStopped, match="too long"):
        await agent_of("a", PLAIN, []).run("go", middleware=[HooklineMiddleware([hooks])])
    assert seen[-1].reason == "interrupted"


async def test_a_hook_takes_tools_and_instructions_out_of_a_model_call() -> None:
    hooks, offered, asked = Hooks("fewer"), list[Any](), list[str]()

    @hooks.before(ModelCall)
    def fewer(call: ModelCall) -> ModelCall:
        offered.append([(spec.toolset, spec.name) for spec in call.tools])
        assert [message.role for message in call.messages] == ["system", "user"]
        return replace(call, tools=[], messages=[Ours(role="system", content="be brief"), *call.messages[1:]])

    agent = agent_of("a", Scene(turns=[DONE], tools={"add": add}), asked, instructions="be long")
    await agent.run("go", middleware=[HooklineMiddleware([hooks])])

    assert offered == [[("local", "add")]]
    assert asked == ["be brief\ngo"]


async def test_a_hook_may_have_the_run_go_on() -> None:
    for session in (False, True):
        hooks, seen = listening()
        hooks.after(AgentCall)(lambda call, result: Continue("again") if call.input[-1].content == "go" else None)
        asked: list[str] = []
        agent = agent_of("a", Scene(turns=[DONE, DONE]), asked)

        await agent.run(
            "go", session=agent.create_session() if session else None, middleware=[HooklineMiddleware([hooks])]
        )

        assert asked[-1].endswith("go\ndone\nagain")
        assert names(seen) == ["beforeStep", "afterStep"] * 2 + ["onComplete"]


async def test_a_run_that_a_hook_answered_goes_on_behind_that_answer() -> None:
    hooks, asked = Hooks("answers"), list[str]()
    answers, again = iter([Respond("from a hook"), None]), iter([Continue("again"), None])
    hooks.before(AgentCall)(lambda call: next(answers))
    hooks.after(AgentCall, priority=10)(lambda call, result: next(again))

    response = await agent_of("a", Scene(turns=[DONE, DONE]), asked).run("go", middleware=[HooklineMiddleware([hooks])])

    assert asked == ["\ngo\nfrom a hook\nagain"]
    assert response.text == "done"


async def test_an_interrupt_ends_it() -> None:
    hooks, seen = listening()

    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        assert interrupt("op")
        await asyncio.sleep(60)
        return 0

    agent = agent_of("a", Scene(turns=PLAIN.turns, tools={"add": add}), [])
    with pytest.raises(RunStopped, match="interrupted"):
        await agent.run("go", middleware=[HooklineMiddleware([hooks], operation_id="op")])
    assert seen[-1].reason == "interrupted"


@pytest.mark.parametrize("how", ["cancelled", "interrupted"])
async def test_a_sub_agent_is_over_before_the_run_that_called_it_and_is_broken_off(how: str) -> None:
    hooks, seen = listening(inherit=True)
    begun, both = list[int](), asyncio.Event()

    async def slow() -> None:
        """Take long."""
        begun.append(1)
        if len(begun) == 2:
            both.set()
        try:
            await asyncio.sleep(60)
        finally:
            for _ in range(20):  # what it has begun is undone
                await asyncio.sleep(0)

    child = Scene(turns=[calls("slow"), DONE], tools={"slow": slow})
    asked = ToolRequest(toolset="agent", tool_name="helper", args={"instruction": "help"}, tool_call_id="t2")
    turns = [ModelResponse(tool_calls=[asked, ToolRequest(tool_name="slow", args={}, tool_call_id="t1")])]
    agent = agent_of("a", Scene(turns=turns, tools={"slow": slow}, agents={"helper": child}), [])

    async def play() -> Any:
        return await agent.run("go", middleware=[HooklineMiddleware([hooks], operation_id="op")])

    run = asyncio.create_task(play())
    await both.wait()
    if how == "cancelled":
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    else:
        assert interrupt("op")
        with pytest.raises(RunStopped, match="interrupted"):
            await run

    ends = [(event.operation_id == "op", event.reason) for event in seen if isinstance(event, OnComplete)]
    assert ends == [(False, "interrupted"), (True, "interrupted")]


async def test_hooks_of_steps_are_refused_before_anything_runs() -> None:
    hooks, asked = Hooks("steps"), list[str]()
    hooks.before(StepCall)(lambda call: None)

    with pytest.raises(UnsupportedHookError, match=r"Microsoft Agent Framework cannot drive before\(StepCall\)"):
        await agent_of("a", PLAIN, asked).run("go", middleware=[HooklineMiddleware([hooks])])
    assert asked == []


# Tools.


async def test_a_failing_tool_gives_what_the_framework_makes_of_it() -> None:
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        raise ValueError("broken")

    hooks, seen = listening()
    scene = Scene(turns=PLAIN.turns, tools={"add": add})
    hooked = await agent_of("a", scene, []).run("go", middleware=[HooklineMiddleware([hooks])])
    own = await agent_of("a", scene, []).run("go")

    assert told(hooked) == told(own) == ["Error: Function failed."]
    assert seen[2].error == "broken"


async def test_a_call_that_other_middleware_answers_has_its_events() -> None:
    class Other(FunctionMiddleware):
        async def process(self, context: FunctionInvocationContext, call_next: Any) -> None:
            context.result = "7"

    hooks, seen = listening()
    response = await agent_of("a", PLAIN, []).run("go", middleware=[Other(), HooklineMiddleware([hooks])])

    assert told(response) == ["7"]
    assert [event.content for event in seen if isinstance(event, AfterToolCall)] == ["7"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_of_an_unknown_tool_is_told(stream: bool) -> None:
    hooks, seen = listening()
    agent = agent_of("a", Scene(turns=[calls("nothing", a=1), DONE], tools={"add": add}), [])

    given = {"stream": stream, "middleware": [HooklineMiddleware([hooks])]}
    response = await (agent.run("go", **given).get_final_response() if stream else agent.run("go", **given))

    assert told(response) == ['Error: Requested function "nothing" not found.']
    assert names(seen) == [
        "beforeStep", "beforeToolCall", "onToolCallError", "afterStep", "beforeStep", "afterStep", "onComplete",
    ]  # fmt: skip
    assert [event.error_type for event in seen if isinstance(event, OnToolCallError)] == ["UnknownToolError"]
    (result,) = next(event for event in seen if isinstance(event, AfterStep)).tools_result
    assert (result.tool_call_id, result.success) == ("t1", False)


async def test_a_mock_stands_for_an_unknown_tool_and_a_denial_that_stops_ends_the_run() -> None:
    mock, stop, asked = Hooks("mock"), Hooks("stop"), list[str]()
    mock.on(BeforeToolCall)(lambda event: event.mock("made up") and None)
    stop.guard(ToolCall)(lambda call: Deny("enough", stop=True))
    agent = agent_of("a", Scene(turns=[calls("nothing", a=1), DONE], tools={"add": add}), asked)

    mocked = await agent.run("go", middleware=[HooklineMiddleware([mock])])
    assert (told(mocked), mocked.text) == (["made up"], "done")
    assert "made up" in asked[-1]

    asked.clear()
    with pytest.raises(RunStopped, match="enough"):
        await agent.run("go", middleware=[HooklineMiddleware([stop])])
    assert len(asked) == 1


async def test_arguments_that_do_not_fit_are_told_as_an_error_of_the_tool() -> None:
    hooks, seen = listening()
    scene = Scene(turns=[calls("add", a="x", b=2), DONE], tools={"add": add})

    response = await agent_of("a", scene, []).run("go", middleware=[HooklineMiddleware([hooks])])

    assert told(response) == ["Error: Argument parsing failed."]
    assert names(seen)[1:3] == ["beforeToolCall", "onToolCallError"]


async def test_a_hook_mends_arguments_that_do_not_fit() -> None:
    hooks = Hooks("mend")
    hooks.before(ToolCall)(lambda call: call.with_args(a=1))
    scene = Scene(turns=[calls("add", a="x", b=2), DONE], tools={"add": add})

    assert told(await agent_of("a", scene, []).run("go", middleware=[HooklineMiddleware([hooks])])) == ["3"]


async def test_a_denial_that_stops_raises_after_the_stream_too() -> None:
    hooks, seen = listening()
    hooks.guard(ToolCall)(lambda call: Deny("enough", stop=True))

    for stream in (False, True):
        seen.clear()
        run: Any = agent_of("a", PLAIN, []).run("go", stream=stream, middleware=[HooklineMiddleware([hooks])])
        with pytest.raises(RunStopped, match="enough"):
            await (run.get_final_response() if stream else run)
        assert seen[-1].reason == "interrupted"


# People.


async def test_what_a_person_approved_is_what_runs_and_the_operation_goes_on_by_itself() -> None:
    hooks, seen = listening()
    hooks.before(ToolCall)(lambda call: call.with_args(a=call.args["a"] + 10))
    hooks.guard(ToolCall)(lambda call: Ask("sure?"))
    agent = agent_of("a", PLAIN, [])
    session, middleware = agent.create_session(), HooklineMiddleware([hooks], store=InMemoryStore())
    response = await agent.run("go", session=session, middleware=[middleware])
    assert [(each.args, each.prompt) for each in seen[1].pending_tools] == [({"a": 11, "b": 2}, "sure?")]

    again = await agent.run(answers(response, [Approve("t1")]), session=session, middleware=[middleware])

    assert told(again) == ["13"]
    assert again.messages[-1].text == "done"
    assert len({event.operation_id for event in seen}) == 1


async def test_approvals_work_in_streams() -> None:
    hooks, seen = listening()
    agent = agent_of("a", Scene(turns=PLAIN.turns, tools=PLAIN.tools, approval=frozenset({"add"})), [])
    session, middleware = agent.create_session(), HooklineMiddleware([hooks], store=InMemoryStore())
    response = await agent.run("go", stream=True, session=session, middleware=[middleware]).get_final_response()
    assert names(seen) == ["beforeStep", "beforeHumanIntervention", "afterStep", "onComplete"]

    answer = answers(response, [Approve("t1")])
    again = await agent.run(answer, stream=True, session=session, middleware=[middleware]).get_final_response()

    assert again.messages[-1].text == "done"
    assert len({event.operation_id for event in seen}) == 1


async def test_the_frameworks_own_answer_is_a_decision_too() -> None:
    for approved, action in ((True, "approve"), (False, "rejectAndContinue")):
        hooks, seen = listening()
        agent = agent_of("a", Scene(turns=PLAIN.turns, tools=PLAIN.tools, approval=frozenset({"add"})), [])
        session, middleware = agent.create_session(), HooklineMiddleware([hooks], store=InMemoryStore())
        response = await agent.run("go", session=session, middleware=[middleware])
        answer = Message("user", [response.user_input_requests[0].to_function_approval_response(approved)])

        await agent.run(answer, session=session, middleware=[middleware])

        assert [event.action for event in seen if event.hook_type == "afterHumanIntervention"] == [action]
        assert seen[-1].reason == "done"


async def test_of_two_calls_one_is_approved_and_one_refused() -> None:
    hooks, seen = listening()
    both = ModelResponse(
        tool_calls=[*calls("add", "t1", a=1, b=2).tool_calls, *calls("add", "t2", a=3, b=4).tool_calls]
    )
    scene = Scene(turns=[both, DONE], tools={"add": add}, approval=frozenset({"add"}))
    agent, asked = agent_of("a", scene, []), list[str]()
    session, middleware = agent.create_session(), HooklineMiddleware([hooks], store=InMemoryStore())
    response = await agent.run("go", session=session, middleware=[middleware])
    seen.clear()

    decided = [Reject("t2", "no need", True), Approve("t1")]
    again = await agent.run(answers(response, decided), session=session, middleware=[middleware])

    assert sorted(told(again)) == ["3", "A person refused this call: no need"]
    step = next(event for event in seen if isinstance(event, AfterStep))
    assert {(each.tool_call_id, each.success) for each in step.tools_result} == {("t1", True), ("t2", False)}
    assert asked == []


# Sub-agents.


def asking(name: str, agent: Scene) -> Scene:
    call = ToolRequest(toolset="agent", tool_name=name, args={"instruction": "do it"}, tool_call_id="c1")
    return Scene(turns=[ModelResponse(tool_calls=[call]), DONE], agents={name: agent})


@pytest.mark.parametrize("stream", [False, True])
async def test_while_one_of_two_calls_waits_the_model_is_not_asked(stream: bool) -> None:
    asked: list[str] = []
    both = ModelResponse(
        tool_calls=[*calls("add", "t1", a=1, b=2).tool_calls, *calls("add", "t2", a=3, b=4).tool_calls]
    )
    agent, (hooks, seen) = agent_of("a", Scene(turns=[both, DONE], tools={"add": add}), asked), listening()
    hooks.guard(ToolCall)(lambda call: Ask("sure?"))
    session, middleware = agent.create_session(), [HooklineMiddleware([hooks], store=InMemoryStore())]

    async def run(said: Any) -> Any:
        if not stream:
            return await agent.run(said, session=session, middleware=middleware)
        return await agent.run(said, stream=True, session=session, middleware=middleware).get_final_response()

    first = await run("go")
    second = await run(answers(first, [Approve("t1")]))
    waiting = [each.function_call.call_id for each in second.user_input_requests]
    asked_then = len(asked)
    third = await run(answers(second, [Approve("t2")]))

    assert (waiting, asked_then) == (["t2"], 1)
    assert (third.text, told(third), len(asked)) == ("done", ["7"], 2)
    reasons = [event.reason for event in seen if isinstance(event, OnComplete)]
    assert reasons == ["waiting_for_human", "waiting_for_human", "done"]


@pytest.mark.parametrize("approval", [False, True])
async def test_hooks_of_the_agent_and_of_the_run_both_live_through_an_approval(approval: bool) -> None:
    (of_agent, outside), (of_run, inside) = listening(), listening()
    if not approval:
        of_run.guard(ToolCall)(lambda call: Ask("sure?"))
    scene = Scene(turns=PLAIN.turns, tools=PLAIN.tools, approval={"add"} if approval else set())
    agent = agent_of("a", scene, [], middleware=[HooklineMiddleware([of_agent])])
    session, middleware = agent.create_session(), [HooklineMiddleware([of_run])]

    first = await agent.run("go", session=session, middleware=middleware)
    second = await agent.run(answers(first, [Approve("t1")]), session=session, middleware=middleware)

    assert (second.text, told(second)) == ("done", ["3"])
    for seen in (outside, inside):
        assert [event.reason for event in seen if isinstance(event, OnComplete)] == ["waiting_for_human", "done"]
        assert len({event.operation_id for event in seen}) == 1


async def test_sub_agents_of_sub_agents_name_their_parents() -> None:
    hooks, seen = listening(inherit=True)
    scene = asking("mid", asking("low", Scene(turns=[ModelResponse(content="deep")])))

    await agent_of("a", scene, []).run("go", middleware=[HooklineMiddleware([hooks])])

    ids = {event.agent_id: event.operation_id for event in seen}
    parents = {event.agent_id: event.parent_operation_id for event in seen}
    assert parents == {"a": None, "mid": ids["a"], "low": ids["mid"]}
    assert [event.reason for event in seen if isinstance(event, OnComplete)] == ["done"] * 3


async def test_a_sub_agent_that_fails_is_told_and_the_run_goes_on() -> None:
    hooks, seen = listening(inherit=True)
    child = Agent(client=Scripted([DONE], fails=True), name="child")
    turn = ModelResponse(tool_calls=[ToolRequest(tool_name="child", args={"task": "x"}, tool_call_id="c1")])

    await Agent(client=Scripted([turn, DONE]), name="a", tools=[child.as_tool()]).run(
        "go", middleware=[HooklineMiddleware([hooks])]
    )

    assert [event.error for event in seen if event.hook_type == "onCallAgentError"] == ["no summary"]
    assert [event.agent_id for event in seen if event.hook_type == "onError"] == ["child"]
    assert seen[-1].reason == "done"


async def test_two_calls_of_one_sub_agent_at_once_are_two_operations() -> None:
    hooks, seen = listening(inherit=True)
    both = [ToolRequest(tool_name="child", args={"task": each}, tool_call_id=each) for each in ("x", "y")]
    child = Agent(client=Scripted([ModelResponse(content="ok")]), name="child")
    agent = Agent(client=Scripted([ModelResponse(tool_calls=both), DONE]), name="a", tools=[child.as_tool()])

    await agent.run("go", middleware=[HooklineMiddleware([hooks])])

    ids = Counter(event.operation_id for event in seen if event.agent_id == "child")
    assert sorted(ids.values()) == [3, 3]


async def test_a_sub_agent_runs_alone_as_before() -> None:
    hooks, seen = listening(inherit=True)
    child = agent_of("child", PLAIN, [])
    turn = ModelResponse(tool_calls=[ToolRequest(tool_name="child", args={"task": "x"}, tool_call_id="c1")])
    await Agent(client=Scripted([turn, DONE]), tools=[child.as_tool()]).run(
        "go", middleware=[HooklineMiddleware([hooks])]
    )
    seen.clear()

    assert (await child.run("go")).text == "done"
    assert seen == []


# Compaction.


async def test_a_strategy_that_asks_no_model_is_told_and_can_be_denied() -> None:
    for deny in (False, True):
        hooks, seen = listening()
        if deny:
            hooks.guard(CompactCall)(lambda call: Deny("keep it"))
        asked: list[str] = []
        agent = agent_of("a", PLAIN, asked)

        await agent.run(
            "go",
            compaction_strategy=SlidingWindowStrategy(keep_last_groups=1),
            middleware=[HooklineMiddleware([hooks])],
        )

        assert names(seen)[5:7] == ["beforeCompact", "onCompactError" if deny else "afterCompact"]
        assert ("go" in asked[1]) == deny


async def test_a_strategy_that_has_nothing_to_do_is_silent() -> None:
    hooks, seen = listening()

    await agent_of("a", PLAIN, []).run(
        "go", compaction_strategy=TruncationStrategy(max_n=100, compact_to=50), middleware=[HooklineMiddleware([hooks])]
    )

    assert names(seen) == EVENTS_OF_PLAIN


async def test_the_agents_own_strategy_is_left_as_it_was() -> None:
    hooks = Hooks("canned")
    hooks.before(CompactCall)(lambda call: Respond("canned"))
    agent = agent_of("a", Scene(turns=PLAIN.turns, tools=PLAIN.tools, compact=True), [])
    strategy: Any = agent.compaction_strategy
    client = strategy.client

    await agent.run("go", middleware=[HooklineMiddleware([hooks])])

    assert agent.compaction_strategy is strategy
    assert strategy.client is client
    assert client.asked == []


# The package.


async def test_observers_hear_of_a_tool_that_calls_another_agent_by_itself() -> None:
    theirs, seen = listening()
    child = agent_of("child", PLAIN, [])

    @tool(approval_mode="never_require")
    async def ask() -> str:
        """Ask another agent."""
        return (await child.run("go")).text

    agent = Agent(client=Scripted([calls("ask"), DONE]), name="a", tools=[ask])
    await agent.run("go", middleware=[HooklineMiddleware([theirs])])

    assert names(seen) == EVENTS_OF_PLAIN
    assert {event.agent_id for event in seen} == {"a"}


async def test_a_mock_keeps_the_tool_from_running() -> None:
    ran: list[int] = []

    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        ran.append(a)
        return a + b

    hooks = Hooks("mock")
    hooks.on(BeforeToolCall, tool="local/add")(lambda event: event.mock("42"))
    response = await agent_of("a", Scene(turns=PLAIN.turns, tools={"add": add}), []).run(
        "go", middleware=[HooklineMiddleware([hooks])]
    )

    assert (told(response), ran) == (["42"], [])


async def test_a_bundle_that_is_in_no_list_is_told_how_to_be_given() -> None:
    with pytest.raises(HookDefinitionError, match="give a list of bundles"):
        HooklineMiddleware(Hooks("alone"))  # type: ignore[arg-type]
