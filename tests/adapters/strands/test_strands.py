"""What is special about Strands: streams, threads, interrupts, graphs, other people's middleware, one run at a time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from strands import Agent, ToolContext, tool
from strands.hooks import BeforeToolCallEvent
from strands.middleware import ExecuteToolStage, ToolResultEvent
from strands.multiagent import GraphBuilder, Swarm
from strands.types.exceptions import ConcurrencyException, ContextWindowOverflowException

from hookline import AgentCall, Ask, Continue, Deny, Hooks, ModelCall, Respond, ToolCall
from hookline.adapters.strands import answers, attach, hooked
from hookline.calls import AgentResult, CompactCall, Message, ModelResponse, SubAgentCall, ToolRequest
from hookline.errors import HookDenied, UnsupportedHookError, install_command
from hookline.evals.adapter_contract import Scene
from hookline.events import EVENTS, AfterStep, AfterToolCall, BeforeToolCall, OnComplete
from hookline.runtime import Approve, InMemoryStore, Reject, interrupt

from .stage import Scripted, agent_of, texts

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


# Streams.


async def test_a_stream_tells_the_same_and_gives_the_agents_events_as_they_come() -> None:
    @tool
    async def add(a: int, b: int) -> AsyncIterator[Any]:
        """Add two numbers."""
        yield "adding"
        yield a + b

    hooks, seen = listening()
    agent = agent_of("a", PLAIN, [])
    agent.tool_registry.process_tools([add])
    plain = agent_of("a", PLAIN, [])
    plain.tool_registry.process_tools([add])

    streamed = [event async for event in hooked(agent, hooks=[hooks]).stream_async("go")]
    own = [event async for event in plain.stream_async("go")]

    assert [sorted(event) for event in streamed] == [sorted(event) for event in own]
    assert any(event.get("tool_stream_event", {}).get("data") == "adding" for event in streamed)
    assert texts(streamed[-1]["result"].message) == "done"
    assert names(seen) == EVENTS_OF_PLAIN


async def test_a_stream_holds_back_what_a_hook_may_still_change() -> None:
    for call in (ModelCall, AgentCall):
        hooks = Hooks("redact")
        if call is ModelCall:
            hooks.after(call)(lambda call, answer: ModelResponse(content="[redacted]") if answer.content else None)
        else:
            hooks.after(call)(lambda call, result: AgentResult(output="[redacted]"))
        stream = hooked(agent_of("a", PLAIN, []), hooks=[hooks]).stream_async("go")

        events = [event async for event in stream]

        assert [event["data"] for event in events if "data" in event] == ["[redacted]"]
        assert texts(events[-1]["result"].message) == "[redacted]"


async def test_breaking_off_a_stream_interrupts_the_run_and_frees_the_agent() -> None:
    hooks, seen = listening()
    agent = agent_of("a", PLAIN, [])

    stream = hooked(agent, hooks=[hooks], operation_id="broken-off").stream_async("go")
    async for event in stream:
        if "data" in event or "current_tool_use" in event:
            break
    await stream.aclose()

    assert [event.reason for event in seen if isinstance(event, OnComplete)] == ["interrupted"]
    assert not interrupt("broken-off")
    agent.messages.clear()
    assert texts((await hooked(agent, hooks=[hooks]).invoke_async("go")).message) == "done"


async def test_what_a_run_raises_comes_out_of_its_stream() -> None:
    hooks, seen = listening()
    agent = Agent(model=Scripted([DONE], fails=True), callback_handler=None)

    with pytest.raises(ValueError, match="no summary"):
        _ = [event async for event in hooked(agent, hooks=[hooks]).stream_async("go")]
    assert names(seen) == ["beforeStep", "afterStep", "onComplete", "onError"]


# Threads.


def test_a_plain_call_runs_it_too() -> None:
    hooks, seen = listening()

    result = hooked(agent_of("a", PLAIN, []), hooks=[hooks])("go")

    assert texts(result.message) == "done"
    assert names(seen) == EVENTS_OF_PLAIN


async def test_a_plain_call_inside_of_a_tool_in_a_thread_finds_its_parent() -> None:
    theirs, seen = listening(inherit=True)
    child = agent_of("child", PLAIN, [])

    @tool
    def ask() -> str:
        """Ask another agent."""
        return texts(hooked(child, hooks=[])("go").message)

    agent = Agent(name="a", model=Scripted([calls("ask"), DONE]), tools=[ask], callback_handler=None)
    await hooked(agent, hooks=[theirs], operation_id="parent").invoke_async("go")

    assert Counter(event.agent_id for event in seen) == {"a": 7, "child": 7}
    assert {event.parent_operation_id for event in seen if event.agent_id == "child"} == {"parent"}


# One agent, several runs.


async def test_strands_refuses_a_second_run_of_one_agent_and_hookline_tells_it() -> None:
    hooks, seen = listening()
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        begun.set()
        await go_on.wait()
        return a + b

    agent = agent_of("a", Scene(turns=PLAIN.turns, tools={"add": add}), [])
    first = asyncio.create_task(hooked(agent, hooks=[]).invoke_async("go"))
    await begun.wait()

    with pytest.raises(ConcurrencyException):
        await hooked(agent, hooks=[hooks]).invoke_async("go")
    go_on.set()
    assert texts((await first).message) == "done"
    assert names(seen) == ["onComplete", "onError"]


async def test_fifty_agents_that_share_model_and_tools_run_at_once() -> None:
    model, adding = Scripted(PLAIN.turns), tool(add)

    async def play(number: int) -> tuple[str, list[str]]:
        hooks, seen = listening()
        hooks.on(BeforeToolCall)(lambda event: event.mock(str(number)))
        agent = Agent(model=model, tools=[adding], callback_handler=None)
        await hooked(agent, hooks=[hooks]).invoke_async("go")
        return texts(agent.messages[2]), names(seen)

    found = await asyncio.gather(*(play(number) for number in range(50)))

    assert found == [(str(number), EVENTS_OF_PLAIN) for number in range(50)]


async def test_an_agent_that_was_hooked_runs_as_before_without_hooks() -> None:
    hooks, seen = listening()
    agent = agent_of("a", PLAIN, [])
    await hooked(agent, hooks=[hooks]).invoke_async("go")
    seen.clear()
    agent.messages.clear()

    result = await agent.invoke_async("go")

    assert texts(result.message) == "done"
    assert seen == []


async def test_the_callbacks_are_given_once() -> None:
    hooks, seen = listening()
    agent = agent_of("a", PLAIN, [])
    for _ in range(3):
        attach(agent)
        agent.messages.clear()
        await hooked(agent, hooks=[hooks]).invoke_async("go")

    assert names(seen) == EVENTS_OF_PLAIN * 3


# What the model and the caller are given.


async def test_a_failing_tool_gives_what_strands_makes_of_it() -> None:
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        raise ValueError("broken")

    scene = Scene(turns=PLAIN.turns, tools={"add": add})
    with_hooks, without = agent_of("a", scene, []), agent_of("a", scene, [])
    hooks, seen = listening()
    await hooked(with_hooks, hooks=[hooks]).invoke_async("go")
    await without.invoke_async("go")

    assert with_hooks.messages[2]["content"] == without.messages[2]["content"]
    assert seen[2].error == "broken"


async def test_a_denied_run_raises() -> None:
    hooks = Hooks("guard")
    hooks.guard(AgentCall)(lambda call: Deny("not today"))
    agent = agent_of("a", PLAIN, [])

    with pytest.raises(HookDenied, match="not today"):
        await hooked(agent, hooks=[hooks]).invoke_async("go")
    assert agent.messages == []


async def test_a_denied_model_call_ends_the_turn_with_the_reason() -> None:
    hooks, seen = listening()
    hooks.guard(ModelCall)(lambda call: Deny("too long") if call.step_index else None)

    result = await hooked(agent_of("a", PLAIN, []), hooks=[hooks]).invoke_async("go")

    assert (result.stop_reason, texts(result.message)) == ("end_turn", "too long")
    assert seen[-1].reason == "interrupted"


async def test_a_hook_takes_tools_and_instructions_out_of_a_model_call() -> None:
    hooks, offered = Hooks("fewer"), list[Any]()

    class Watched(Scripted):
        async def stream(self, messages: Any, tool_specs: Any = None, system_prompt: Any = None, **given: Any) -> Any:
            offered.append((tool_specs, system_prompt, messages[0]["content"]))
            async for event in super().stream(messages, tool_specs, system_prompt, **given):
                yield event

    @hooks.before(ModelCall)
    def fewer(call: ModelCall) -> ModelCall:
        from msgspec.structs import replace

        assert [message.role for message in call.messages] == ["system", "user"]
        return replace(call, tools=[], messages=[Message(role="system", content="be brief"), *call.messages[1:]])

    agent = Agent(model=Watched([DONE]), tools=[tool(add)], system_prompt="be long", callback_handler=None)
    await hooked(agent, hooks=[hooks]).invoke_async(
        [{"text": "see"}, {"image": {"format": "png", "source": {"bytes": b""}}}]
    )

    specs, system, first = offered[0]
    assert (specs, system) == (None, "be brief")
    assert "image" in first[1]


async def test_a_hook_may_have_the_run_go_on() -> None:
    hooks, seen = listening()
    hooks.after(AgentCall)(lambda call, result: Continue("again") if call.input[0].content == "go" else None)
    asked: list[str] = []

    await hooked(agent_of("a", Scene(turns=[DONE, DONE]), asked), hooks=[hooks]).invoke_async("go")

    assert asked[-1].endswith("go\ndone\nagain")
    assert names(seen) == ["beforeStep", "afterStep"] * 2 + ["onComplete"]


async def test_limits_of_strands_are_why_it_ends() -> None:
    hooks, seen = listening()

    await hooked(agent_of("a", PLAIN, []), hooks=[hooks]).invoke_async("go", limits={"turns": 1})

    assert seen[-1].reason == "max_steps"


async def test_an_interrupt_ends_it_and_the_caller_gets_a_cancelled_result() -> None:
    hooks, seen = listening()

    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        assert interrupt("op")
        await asyncio.sleep(60)
        return 0

    agent = agent_of("a", Scene(turns=PLAIN.turns, tools={"add": add}), [])
    result = await hooked(agent, hooks=[hooks], operation_id="op").invoke_async("go")

    assert result.stop_reason == "cancelled"
    assert seen[-1].reason == "interrupted"


async def test_hooks_of_steps_are_refused_before_anything_runs() -> None:
    from hookline.calls import StepCall

    hooks, asked = Hooks("steps"), list[str]()
    hooks.before(StepCall)(lambda call: None)

    with pytest.raises(UnsupportedHookError, match=r"Strands cannot drive before\(StepCall\)"):
        await hooked(agent_of("a", PLAIN, asked), hooks=[hooks]).invoke_async("go")
    assert asked == []


# Other people's hooks.


async def _other(context: Any, call_next: Any) -> Any:
    yield ToolResultEvent({"toolUseId": context.tool_use["toolUseId"], "status": "success", "content": [{"text": "7"}]})


async def test_calls_that_other_middleware_answers_are_seen_by_what_was_attached_first() -> None:
    hooks, seen = listening()
    agent = agent_of("a", PLAIN, [])
    attach(agent)
    agent.add_middleware(ExecuteToolStage, _other)

    await hooked(agent, hooks=[hooks]).invoke_async("go")

    assert [event.content for event in seen if isinstance(event, AfterToolCall)] == ["7"]


async def test_a_call_that_another_hook_cancels_has_its_pair_of_events() -> None:
    hooks, seen = listening()
    agent = agent_of("a", PLAIN, [])

    def cancel(event: BeforeToolCallEvent) -> None:
        event.cancel_tool = "closed"

    agent.add_hook(cancel)
    await hooked(agent, hooks=[hooks]).invoke_async("go")

    assert names(seen) == EVENTS_OF_PLAIN
    assert [(event.content, event.success) for event in seen if isinstance(event, AfterToolCall)] == [("closed", False)]


# People.


async def test_a_tool_that_asks_a_person_itself_waits_and_is_called_again() -> None:
    @tool(context=True)
    def delete(tool_context: ToolContext) -> str:
        """Delete."""
        return f"deleted: {tool_context.interrupt('sure', reason='really?')}"

    hooks, seen = listening()
    agent = Agent(model=Scripted([calls("delete"), DONE]), tools=[delete], callback_handler=None)
    run = hooked(agent, hooks=[hooks], store=InMemoryStore())
    result = await run.invoke_async("go")
    assert (result.stop_reason, seen[-1].reason) == ("interrupt", "waiting_for_human")
    operation = seen[-1].operation_id
    seen.clear()

    again = await run.invoke_async(answers(result, [Approve("t1")]))

    assert texts(again.message) == "done"
    assert texts(agent.messages[2]) == "deleted: True"
    assert {event.operation_id for event in seen} == {operation}
    assert names(seen)[:4] == ["beforeStep", "afterHumanIntervention", "beforeToolCall", "afterToolCall"]


async def test_what_a_person_approved_is_what_runs() -> None:
    hooks, seen = listening()
    hooks.before(ToolCall)(lambda call: call.with_args(a=call.args["a"] + 10))
    hooks.guard(ToolCall)(lambda call: Ask("sure?"))
    agent = agent_of("a", PLAIN, [])
    run = hooked(agent, hooks=[hooks], store=InMemoryStore())
    result = await run.invoke_async("go")
    assert [each.args for each in seen[1].pending_tools] == [{"a": 11, "b": 2}]
    assert result.interrupts[0].reason == "sure?"

    await run.invoke_async(answers(result, [Approve("t1")]))

    assert texts(agent.messages[2]) == "13"


async def test_of_two_calls_one_is_approved_and_one_refused() -> None:
    hooks, seen = listening()
    hooks.guard(ToolCall)(lambda call: Ask("sure?"))
    both = ModelResponse(
        tool_calls=[*calls("add", "t1", a=1, b=2).tool_calls, *calls("add", "t2", a=3, b=4).tool_calls]
    )
    agent = agent_of("a", Scene(turns=[both, DONE], tools={"add": add}), [])
    run = hooked(agent, hooks=[hooks], store=InMemoryStore())
    result = await run.invoke_async("go")
    seen.clear()

    await run.invoke_async(answers(result, [Reject("t2", "no need", True), Approve("t1")]))

    assert texts(agent.messages[2]) == "3\nA person refused this call: no need"
    step = next(event for event in seen if isinstance(event, AfterStep))
    assert {(each.tool_call_id, each.success) for each in step.tools_result} == {("t1", True), ("t2", False)}


async def test_a_plain_yes_is_an_approval_and_a_plain_no_lets_the_run_go_on() -> None:
    for response, action in (("yes", "approve"), ("no", "rejectAndContinue")):
        hooks, seen = listening()
        hooks.guard(ToolCall)(lambda call: Ask("sure?"))
        run = hooked(agent_of("a", PLAIN, []), hooks=[hooks], store=InMemoryStore())
        result = await run.invoke_async("go")
        await run.invoke_async([{"interruptResponse": {"interruptId": result.interrupts[0].id, "response": response}}])

        assert [event.action for event in seen if event.hook_type == "afterHumanIntervention"] == [action]
        assert seen[-1].reason == "done"


async def test_a_question_inside_of_a_sub_agent_waits_in_the_agent_around_it() -> None:
    hooks, seen = listening(inherit=True)
    hooks.guard(ToolCall)(lambda call: Ask("sure?"))
    child = ToolRequest(toolset="agent", tool_name="child", args={"instruction": "do it"}, tool_call_id="c1")
    scene = Scene(turns=[ModelResponse(tool_calls=[child]), DONE], agents={"child": PLAIN})
    agent = agent_of("a", scene, [])
    run = hooked(agent, hooks=[hooks], store=InMemoryStore())
    result = await run.invoke_async("go")
    assert result.stop_reason == "interrupt"
    seen.clear()

    again = await run.invoke_async(answers(result, [Approve("c1")]))

    assert texts(again.message) == "done"
    assert [event.content for event in seen if isinstance(event, AfterToolCall)] == ["3"]


# Sub-agents, graphs, swarms.


async def test_sub_agents_of_sub_agents_name_their_parents() -> None:
    hooks, seen = listening(inherit=True)

    def asking(name: str) -> ModelResponse:
        call = ToolRequest(toolset="agent", tool_name=name, args={"instruction": "do it"}, tool_call_id="c1")
        return ModelResponse(tool_calls=[call])

    inner = Scene(turns=[asking("low"), DONE], agents={"low": Scene(turns=[ModelResponse(content="deep")])})
    await hooked(
        agent_of("a", Scene(turns=[asking("mid"), DONE], agents={"mid": inner}), []), hooks=[hooks]
    ).invoke_async("go")

    ids = {event.agent_id: event.operation_id for event in seen}
    parents = {event.agent_id: event.parent_operation_id for event in seen}
    assert parents == {"a": None, "mid": ids["a"], "low": ids["mid"]}
    assert [event.reason for event in seen if isinstance(event, OnComplete)] == ["done"] * 3


async def test_a_sub_agent_that_fails_is_told_and_the_run_goes_on() -> None:
    hooks, seen = listening(inherit=True)
    child = Agent(name="child", model=Scripted([DONE], fails=True), callback_handler=None)
    turn = ModelResponse(tool_calls=[ToolRequest(tool_name="child", args={"input": "x"}, tool_call_id="c1")])
    agent = Agent(name="a", model=Scripted([turn, DONE]), tools=[child.as_tool()], callback_handler=None)

    await hooked(agent, hooks=[hooks]).invoke_async("go")

    assert [event.error for event in seen if event.hook_type == "onCallAgentError"] == ["no summary"]
    assert [(event.agent_id, event.error_type) for event in seen if event.hook_type == "onError"] == [
        ("child", "ValueError")
    ]
    assert seen[-1].reason == "done"


def graph_of(**models: Scripted) -> Any:
    builder = GraphBuilder()
    for name, model in models.items():
        builder.add_node(Agent(name=name, model=model, callback_handler=None), name)
    for before, after in zip(models, list(models)[1:], strict=False):
        builder.add_edge(before, after)
    builder.set_max_node_executions(10)
    return builder.build()


async def test_the_nodes_of_a_graph_are_its_sub_agents() -> None:
    hooks, seen = listening(inherit=True)
    graph = graph_of(one=Scripted([ModelResponse(content="first")]), two=Scripted([ModelResponse(content="second")]))

    await hooked(graph, hooks=[hooks], operation_id="graph").invoke_async("go")

    of_graph = [event for event in seen if event.operation_id == "graph"]
    assert names(of_graph) == ["beforeCallAgent", "afterCallAgent"] * 2 + ["onComplete"]
    assert [event.callee_id for event in of_graph[:-1:2]] == ["one", "two"]
    assert Counter(event.agent_id for event in seen if event.parent_operation_id == "graph") == {"one": 3, "two": 3}


async def test_nodes_that_run_at_once_do_not_hear_of_one_another() -> None:
    hooks, seen = listening(inherit=True)
    builder = GraphBuilder()
    for number in range(8):
        builder.add_node(agent_of(f"n{number}", PLAIN, []), f"n{number}")
    builder.set_max_node_executions(10)

    await hooked(builder.build(), hooks=[hooks]).invoke_async("go")

    for number in range(8):
        assert names([event for event in seen if event.agent_id == f"n{number}"]) == EVENTS_OF_PLAIN


async def test_a_denied_node_fails_the_graph() -> None:
    hooks, seen = listening()
    hooks.guard(SubAgentCall)(lambda call: Deny("closed"))

    with pytest.raises(RuntimeError, match="closed"):
        await hooked(graph_of(one=Scripted([DONE])), hooks=[hooks]).invoke_async("go")
    assert names(seen) == ["beforeCallAgent", "onCallAgentError", "onComplete", "onError"]


async def test_a_failing_node_is_told() -> None:
    hooks, seen = listening()

    with pytest.raises(ValueError, match="no summary"):
        await hooked(graph_of(one=Scripted([DONE], fails=True)), hooks=[hooks]).invoke_async("go")
    assert names(seen) == ["beforeCallAgent", "onCallAgentError", "onComplete", "onError"]


async def test_the_nodes_of_a_swarm_are_its_sub_agents() -> None:
    hooks, seen = listening()
    turn = calls("handoff_to_agent", agent_name="two", message="take over")
    swarm = Swarm(
        [
            Agent(name="one", model=Scripted([turn, DONE]), callback_handler=None),
            Agent(name="two", model=Scripted([ModelResponse(content="second")]), callback_handler=None),
        ]
    )

    await hooked(swarm, hooks=[hooks]).invoke_async("go")

    assert [event.callee_id for event in seen if event.hook_type == "beforeCallAgent"] == ["one", "two"]
    assert names(seen)[-1] == "onComplete"


# Compaction.


class Overflowing(Scripted):
    """Finds the conversation too long until it is shorter."""

    async def stream(self, messages: Any, *args: Any, **given: Any) -> Any:
        if len(messages) > 2 and "summary" not in texts(messages[0]) and "canned" not in texts(messages[0]):
            raise ContextWindowOverflowException("too long")
        async for event in super().stream(messages, *args, **given):
            yield event


def overflowing() -> Agent:
    agent = agent_of("a", Scene(turns=PLAIN.turns, tools={"add": add}, compact=True), [])
    agent.model = Overflowing([*PLAIN.turns])
    return agent


async def test_a_model_that_overflows_is_asked_again_in_the_same_step() -> None:
    hooks, seen = listening()

    result = await hooked(overflowing(), hooks=[hooks]).invoke_async("go")

    assert texts(result.message) == "done"
    assert names(seen)[4:] == ["beforeStep", "beforeCompact", "afterCompact", "afterStep", "onComplete"]
    assert (seen[-1].steps, seen[-1].llm_calls) == (2, 2)


async def test_a_summary_that_a_hook_gives_stands_before_the_last_exchange() -> None:
    hooks, agent = Hooks("canned"), overflowing()
    hooks.before(CompactCall)(lambda call: Respond("canned"))

    await hooked(agent, hooks=[hooks]).invoke_async("go")

    assert [texts(message) for message in agent.messages] == ["canned\ngo", "", "3", "done"]


async def test_a_denied_compaction_leaves_the_overflow() -> None:
    hooks, seen = listening()
    hooks.guard(CompactCall)(lambda call: Deny("keep it"))

    with pytest.raises(ContextWindowOverflowException):
        await hooked(overflowing(), hooks=[hooks]).invoke_async("go")
    assert names(seen)[-3:] == ["afterStep", "onComplete", "onError"]


async def test_a_hook_of_a_compaction_that_waits_says_why_it_cannot() -> None:
    hooks, _ = listening()

    @hooks.around(CompactCall)
    async def slow(call: Any, call_next: Any) -> Any:
        await asyncio.sleep(0.01)
        return await call_next(call)

    with pytest.raises(Exception, match="cannot wait"):
        await hooked(overflowing(), hooks=[hooks]).invoke_async("go")


# The package.


def test_importing_it_imports_no_other_framework() -> None:
    others = "pydantic_ai agents langchain langgraph agent_framework google.adk fastmcp claude_agent_sdk"
    code = f"import sys, hookline.adapters.strands; print([each for each in {others.split()!r} if each in sys.modules])"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_without_strands_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['strands'] = None; import hookline.adapters.strands"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "MissingExtraError" in done.stderr
    assert install_command("strands") in done.stderr
