"""What is special in LangChain: sync runs, streams, interrupts and resumes, sub-agents, graphs of one's own."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain.agents.structured_output import ToolStrategy
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import tools_condition
from langgraph.types import Command, interrupt
from msgspec.structs import replace
from pydantic import BaseModel

from hookline import (
    AfterCallAgent,
    AfterHumanIntervention,
    AgentCall,
    Approve,
    Ask,
    BeforeHumanIntervention,
    BeforeToolCall,
    CompactCall,
    Continue,
    Deny,
    Hooks,
    ModelCall,
    ModelResponse,
    OnComplete,
    OnToolCallError,
    Reject,
    Respond,
    ToolCall,
    ToolRequest,
)
from hookline import interrupt as interrupt_operation
from hookline.adapters.langchain import (
    HooklineMiddleware,
    HooklineSummarization,
    answers,
    hooked,
)
from hookline.dispatcher import HookDispatcher
from hookline.errors import HookDefinitionError, HookUsageError, RunStopped
from hookline.evals.adapter_contract import Scene
from hookline.evals.adapter_contract._scenes import PLAIN
from hookline.events import EVENTS
from hookline.runtime._run import live

from .stage import Script, agent_of, thread

GO = {"messages": [("user", "go")]}
TWO_STEPS = [
    "beforeStep", "beforeToolCall", "afterToolCall", "afterStep", "beforeStep", "afterStep", "onComplete",
]  # fmt: skip


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Recorder:
    def __init__(self, *, inherit: bool = False) -> None:
        self.events: list[Any] = []
        self.hooks = Hooks("recorder", inherit=inherit)
        for event in EVENTS.values():
            self.hooks.on(event)(self.events.append)

    def names(self, operation_id: str | None = None) -> list[str]:
        return [str(e.hook_type) for e in self.events if operation_id in (None, e.operation_id)]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def calls(name: str, call_id: str = "t1", **args: Any) -> ModelResponse:
    return ModelResponse(tool_calls=[ToolRequest(tool_name=name, args=args, tool_call_id=call_id)])


def says(content: str) -> ModelResponse:
    return ModelResponse(content=content)


@functools.lru_cache(maxsize=4)  # LangChain makes a schema from the signature, which takes half as long as an agent
def tool_of(made: Callable[..., Any]) -> StructuredTool:
    coroutine = made if asyncio.iscoroutinefunction(made) else None
    return StructuredTool.from_function(func=None if coroutine else made, coroutine=coroutine)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def told(result: Any) -> list[str]:
    return [message.text for message in result["messages"] if isinstance(message, ToolMessage)]


def sync_agent(*turns: ModelResponse, tools: Any = (add,), **options: Any) -> Any:
    model = Script(turns=list(turns) or [calls("add", a=1, b=2), says("done")])
    return create_agent(model, [tool_of(made) for made in tools], middleware=[HooklineMiddleware()], **options)


# Sync.


def test_a_sync_run_tells_the_same() -> None:
    seen = Recorder()

    result = hooked(sync_agent(), hooks=[seen.hooks]).invoke(GO)

    assert (result["messages"][-1].text, told(result), seen.names()) == ("done", ["3"], TWO_STEPS)


def test_a_sync_run_without_hooks_is_not_an_operation() -> None:
    seen: list[list[str]] = []

    def look() -> str:
        """Look around."""
        seen.append(list(live))
        return "looked"

    run = hooked(sync_agent(calls("look"), says("done"), tools=(look,)), hooks=[])
    result, chunks = run.invoke(GO), list(run.stream(GO))

    assert (told(result), len(chunks), seen) == (["looked"], 3, [[], []])


def test_hooks_stand_in_the_way_of_a_sync_run_too() -> None:
    hooks = Hooks("all")
    hooks.before(ToolCall)(lambda call: call.with_args(a=40))
    hooks.after(ToolCall)(lambda call, result: replace(result, content=result.content + "!"))
    hooks.after(ModelCall)(lambda call, answer: replace(answer, content="well " + answer.content))

    result = hooked(sync_agent(), hooks=[hooks]).invoke(GO)

    assert (result["messages"][-1].text, told(result)) == ("well done", ["42!"])


def test_sync_runs_of_one_agent_in_many_threads_do_not_hear_of_one_another() -> None:
    agent, seen = sync_agent(), [Recorder() for _ in range(8)]
    results: dict[int, list[str]] = {}

    def run(number: int) -> None:
        hooks = Hooks("mock")
        hooks.on(BeforeToolCall)(lambda event: event.mock(f"answer {number}"))
        results[number] = told(hooked(agent, hooks=[hooks, seen[number].hooks]).invoke(GO))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert results == {number: [f"answer {number}"] for number in range(8)}
    assert all(each.names() == TWO_STEPS for each in seen)


def test_an_error_of_a_sync_run_is_its_own() -> None:
    seen = Recorder()

    def fail() -> str:
        """Fail."""
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        hooked(sync_agent(calls("fail"), tools=(fail,)), hooks=[seen.hooks]).invoke(GO)

    assert [(each.reason, each.error_message) for each in seen.of(OnComplete)] == [("error", "broken")]


def test_a_sync_stream_tells_the_same_and_ends_with_its_consumer() -> None:
    seen, left = Recorder(), Recorder()

    chunks = list(hooked(sync_agent(), hooks=[seen.hooks]).stream(GO, stream_mode="updates"))
    for _ in hooked(sync_agent(), hooks=[left.hooks]).stream(GO, stream_mode="updates"):
        break

    assert [next(iter(chunk)) for chunk in chunks] == ["model", "tools", "model"]
    assert seen.names() == TWO_STEPS
    assert [each.reason for each in left.of(OnComplete)] == ["interrupted"]


def test_a_sync_run_takes_no_dispatcher_of_another_loop() -> None:
    with pytest.raises(HookUsageError, match="ainvoke"):
        hooked(sync_agent(), hooks=[], dispatcher=HookDispatcher()).invoke(GO)


# Streams.


@pytest.mark.anyio
async def test_a_stream_tells_the_same_and_is_consumed_as_ever() -> None:
    seen, words = Recorder(), list[str]()

    async for message, _ in hooked(agent_of(PLAIN), hooks=[seen.hooks]).astream(GO, thread(), stream_mode="messages"):
        words.append(message.text)

    assert "".join(words) == "let me see3done"
    assert seen.names() == TWO_STEPS
    assert [each.last_assistant_content for each in seen.of(OnComplete)] == ["done"]


@pytest.mark.anyio
async def test_a_stream_that_is_closed_early_ends_the_run() -> None:
    seen = Recorder()

    stream = hooked(agent_of(PLAIN), hooks=[seen.hooks]).astream(GO, thread())
    async for _ in stream:
        break
    await stream.aclose()

    assert [each.reason for each in seen.of(OnComplete)] == ["interrupted"]


@pytest.mark.anyio
async def test_a_streamed_run_pauses_and_goes_on() -> None:
    seen, config = Recorder(), thread()
    agent = agent_of(replace(PLAIN, approval=frozenset({"add"})))

    chunks = [each async for each in hooked(agent, hooks=[seen.hooks]).astream(GO, config, stream_mode="values")]
    assert [each.reason for each in seen.of(OnComplete)] == ["waiting_for_human"]
    command = answers({**chunks[-1], "__interrupt__": chunks[-1]["__interrupt__"]}, [Approve("t1")])
    async for _ in hooked(agent, hooks=[seen.hooks]).astream(command, config):
        pass

    assert [each.reason for each in seen.of(OnComplete)] == ["waiting_for_human", "done"]
    assert len({each.operation_id for each in seen.events}) == 1


# People.


@pytest.mark.anyio
async def test_a_run_goes_on_as_one_operation_without_being_told_its_id() -> None:
    seen, config = Recorder(), thread()
    agent = agent_of(replace(PLAIN, approval=frozenset({"add"})))

    await hooked(agent, hooks=[seen.hooks]).ainvoke(GO, config)
    command = Command(resume={"decisions": [{"type": "reject", "message": "not today"}]})
    result = await hooked(agent, hooks=[seen.hooks]).ainvoke(command, config)

    assert told(result)[0].endswith("not today")
    (decision,) = [each for each in seen.events if each.hook_type == "afterHumanIntervention"]
    assert (decision.action, decision.rejection_reason) == ("rejectAndContinue", "not today")
    assert len({each.operation_id for each in seen.events}) == 1


@pytest.mark.anyio
async def test_a_person_may_edit_a_call_about_which_a_hook_asks() -> None:
    hooks, seen, config = Hooks("asks"), Recorder(), thread()
    hooks.guard(ToolCall)(lambda call: Ask("may I?") if call.args["a"] == 1 else None)
    agent = agent_of(PLAIN)

    result = await hooked(agent, hooks=[hooks, seen.hooks]).ainvoke(GO, config)
    (pause,) = result["__interrupt__"]
    assert pause.value["action_requests"][0]["description"] == "may I?"
    edited = {"type": "edit", "edited_action": {"name": "add", "args": {"a": 40, "b": 2}}}
    command = Command(resume={pause.id: {"decisions": [edited]}})
    result = await hooked(agent, hooks=[hooks, seen.hooks]).ainvoke(command, config)

    assert told(result) == ["42"]


@pytest.mark.anyio
@pytest.mark.skipif(
    "edit_notice" not in inspect.signature(HumanInTheLoopMiddleware).parameters,
    reason="this version of LangChain puts edits in place before the call",
)
@pytest.mark.parametrize("amount", [20, 40])
@pytest.mark.parametrize("first", [True, False])
async def test_hooks_judge_and_change_what_a_person_has_edited(first: bool, amount: int) -> None:
    hooks, seen, config = Hooks("limits"), Recorder(), thread()
    hooks.before(ToolCall)(lambda call: call.with_args(b=call.args["b"] + 1))
    hooks.guard(ToolCall)(lambda call: Deny("too much") if call.args["a"] > 30 else None)
    script = Script(turns=[calls("add", a=1, b=2), says("done")])
    middleware: list[Any] = [HooklineMiddleware(), HumanInTheLoopMiddleware({"add": True}, edit_notice=False)]
    ordered = middleware if first else middleware[::-1]
    agent = create_agent(script, [tool_of(add)], middleware=ordered, checkpointer=InMemorySaver())
    run = hooked(agent, hooks=[hooks, seen.hooks])

    await run.ainvoke(GO, config)
    edited = {"type": "edit", "edited_action": {"name": "add", "args": {"a": amount, "b": 0}}}
    result = await run.ainvoke(Command(resume={"decisions": [edited]}), config)

    assert told(result) == (["21"] if amount == 20 else ["too much"])
    assert [event.args for event in seen.of(BeforeToolCall)] == [{"a": amount, "b": 1}]


@pytest.mark.anyio
async def test_a_call_that_a_person_refused_does_not_run_and_one_beside_it_does() -> None:
    hooks, seen, config = Hooks("asks"), Recorder(), thread()
    hooks.guard(ToolCall)(lambda call: Ask("may I?") if call.args["a"] == 1 else None)
    both = ModelResponse(tool_calls=[*calls("add", a=1, b=2).tool_calls, *calls("add", "t2", a=3, b=4).tool_calls])
    agent = agent_of(Scene(turns=[both, says("done")], tools=PLAIN.tools))

    result = await hooked(agent, hooks=[hooks, seen.hooks]).ainvoke(GO, config)
    assert [call.tool_call_id for each in seen.of(BeforeHumanIntervention) for call in each.pending_tools] == ["t1"]
    command = answers(result, [Reject("t1", reason="no", and_continue=True)])
    result = await hooked(agent, hooks=[hooks, seen.hooks]).ainvoke(command, config)

    assert told(result) == ["A person refused this call: no", "7"]
    assert [each.tool_call_id for each in seen.of(BeforeToolCall)] == ["t2"]


@pytest.mark.anyio
async def test_an_interrupt_of_ones_own_is_told_and_answered() -> None:
    seen, config = Recorder(), thread()

    async def question() -> str:
        """Ask the user."""
        return f"the user said {interrupt('which one?')}"

    agent = agent_of(Scene(turns=[calls("question"), says("done")], tools={"question": question}))
    result = await hooked(agent, hooks=[seen.hooks]).ainvoke(GO, config)
    (pending,) = [call for each in seen.of(BeforeHumanIntervention) for call in each.pending_tools]
    assert (pending.tool_name, pending.prompt) == ("interrupt", "which one?")
    result = await hooked(agent, hooks=[seen.hooks]).ainvoke(Command(resume="the red one"), config)

    assert told(result) == ["the user said the red one"]
    assert [each.reason for each in seen.of(OnComplete)] == ["waiting_for_human", "done"]


@pytest.mark.anyio
async def test_a_decision_that_is_missing_is_asked_for() -> None:
    agent = agent_of(replace(PLAIN, approval=frozenset({"add"})))
    result = await hooked(agent, hooks=[]).ainvoke(GO, thread())

    with pytest.raises(HookUsageError, match="'t1'"):
        answers(result, [Approve("t9")])


def test_a_sync_run_pauses_and_goes_on() -> None:
    seen, config = Recorder(), thread()
    model = Script(turns=[calls("add", a=1, b=2), says("done")])
    middleware = [HooklineMiddleware(), HumanInTheLoopMiddleware(interrupt_on={"add": True})]
    agent = create_agent(model, [tool_of(add)], middleware=middleware, checkpointer=InMemorySaver())

    result = hooked(agent, hooks=[seen.hooks]).invoke(GO, config)
    result = hooked(agent, hooks=[seen.hooks]).invoke(answers(result, [Approve("t1")]), config)

    assert told(result) == ["3"]
    assert [each.reason for each in seen.of(OnComplete)] == ["waiting_for_human", "done"]


# Agents in agents.


@pytest.mark.anyio
async def test_an_agent_that_a_tool_calls_unannounced_stays_out_of_the_run() -> None:
    seen, child = Recorder(), agent_of(PLAIN, name="child")

    async def nested() -> str:
        """Run another agent."""
        return str((await child.ainvoke(GO))["messages"][-1].text)

    agent = agent_of(Scene(turns=[calls("nested"), says("over")], tools={"nested": nested}))
    result = await hooked(agent, hooks=[seen.hooks]).ainvoke(GO, thread())

    assert (told(result), seen.names()) == (["done"], TWO_STEPS)


@pytest.mark.anyio
async def test_a_hooked_run_inside_of_a_tool_finds_its_parent() -> None:
    inheriting, child = Recorder(inherit=True), agent_of(PLAIN, name="child")

    async def nested() -> str:
        """Run another agent, with hooks."""
        return str((await hooked(child, hooks=[]).ainvoke(GO))["messages"][-1].text)

    agent = agent_of(Scene(turns=[calls("nested"), says("over")], tools={"nested": nested}))
    await hooked(agent, hooks=[inheriting.hooks], operation_id="outer").ainvoke(GO, thread())

    ends = {each.agent_id: each.parent_operation_id for each in inheriting.of(OnComplete)}
    assert ends == {"child": "outer", "tester": None}


@pytest.mark.anyio
async def test_a_sub_agent_is_led_through_the_hooks_that_go_along() -> None:
    hooks, inheriting = Hooks("all", inherit=True), Recorder(inherit=True)
    hooks.after(AgentCall)(lambda call, result: replace(result, output=f"<{result.output}>"))
    ask = ModelResponse(
        tool_calls=[ToolRequest(toolset="agent", tool_name="child", args={"instruction": "do it"}, tool_call_id="t1")]
    )
    agent = agent_of(Scene(turns=[ask, says("over")], agents={"child": PLAIN}))

    result = await hooked(agent, hooks=[hooks, inheriting.hooks]).ainvoke(GO, thread())

    assert (told(result), result["messages"][-1].text) == (["<done>"], "<over>")
    (called,) = inheriting.of(AfterCallAgent)
    assert inheriting.names(called.sub_operation_id) == TWO_STEPS


# The whole run.


@pytest.mark.anyio
@pytest.mark.parametrize("wraps", [lambda agent: agent, lambda agent: agent.with_retry(), lambda agent: None])
async def test_what_has_no_middleware_is_refused(wraps: Callable[[Any], Any]) -> None:
    with pytest.raises(HookUsageError, match="HooklineMiddleware"):
        hooked(wraps(create_agent(Script(turns=[]), [])), hooks=[])


@pytest.mark.anyio
async def test_a_middleware_without_tools_leaves_the_graph_of_an_agent_without_tools_as_it_is() -> None:
    class Jumps(AgentMiddleware[Any, Any, Any]):
        """Wants to go back to the model, which it has not declared: LangChain heeds that in agents with tools alone."""

        def after_model(self, state: Any, runtime: Any) -> dict[str, Any]:
            return {"jump_to": "model"}

    seen = Recorder()
    bare = create_agent(Script(turns=[says("done")]), middleware=[Jumps()])
    agent = create_agent(Script(turns=[says("done")]), middleware=[HooklineMiddleware(tools=False), Jumps()])
    run = hooked(agent, hooks=[seen.hooks])

    assert run.get_graph().draw_mermaid() == bare.get_graph().draw_mermaid()
    assert (await run.ainvoke(GO))["messages"][-1].text == "done"
    assert seen.names() == ["beforeStep", "afterStep", "onComplete"]


def test_a_middleware_without_tools_lets_langchain_refuse_tools_that_nobody_runs() -> None:
    class Offers(AgentMiddleware[Any, Any, Any]):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            return handler(request.override(tools=[tool_of(add)]))

    agent = create_agent(Script(turns=[says("done")]), middleware=[HooklineMiddleware(tools=False), Offers()])

    with pytest.raises(ValueError, match="add"):
        hooked(agent, hooks=[]).invoke(GO)


def test_an_agent_whose_tools_nobody_hears_of_is_refused() -> None:
    model = Script(turns=[says("done")])
    agent = create_agent(model, [tool_of(add)], middleware=[HooklineMiddleware(tools=False)])

    with pytest.raises(HookUsageError, match=r"HooklineMiddleware\(\)"):
        hooked(agent, hooks=[])


def test_a_middleware_without_tools_makes_no_node_for_tools() -> None:
    with pytest.raises(HookUsageError, match="does not wrap tool calls"):
        HooklineMiddleware(tools=False).tool_node([tool_of(add)])


def test_a_cancellation_that_a_tool_of_a_sync_run_raises_is_no_interruption() -> None:
    seen = Recorder()

    def gives_up() -> str:
        """Give up."""
        raise asyncio.CancelledError("enough")

    with pytest.raises(BaseException) as bare:
        sync_agent(calls("gives_up"), tools=(gives_up,)).invoke(GO)
    with pytest.raises(BaseException) as given:
        hooked(sync_agent(calls("gives_up"), tools=(gives_up,)), hooks=[seen.hooks]).invoke(GO)

    assert not isinstance(given.value, RunStopped)
    assert "Cancelled" in type(bare.value).__name__
    assert [each.error_type for each in seen.of(OnToolCallError)] == ["CancelledError"]


@pytest.mark.anyio
async def test_without_hooks_the_middleware_does_nothing() -> None:
    assert told(await agent_of(PLAIN).ainvoke(GO, thread())) == ["3"]
    assert told(await asyncio.to_thread(sync_agent().invoke, GO)) == ["3"]


@pytest.mark.anyio
async def test_a_hook_may_let_the_run_go_on() -> None:
    hooks, seen = Hooks("more"), Recorder()
    again = iter([Continue("and again"), None])
    hooks.after(AgentCall)(lambda call, result: next(again))

    agent = agent_of(Scene(turns=[says("done")]))
    result = await hooked(agent, hooks=[hooks, seen.hooks]).ainvoke(GO, thread())

    assert [each.text for each in result["messages"]] == ["go", "done", "and again", "done"]
    assert seen.names() == ["beforeStep", "afterStep", "beforeStep", "afterStep", "onComplete"]


@pytest.mark.anyio
async def test_a_run_that_a_hook_answered_goes_on_behind_that_answer() -> None:
    hooks, seen = Hooks("answers"), Recorder()
    answers, again = iter([Respond("from a hook"), None]), iter([Continue("and again"), None])
    hooks.before(AgentCall)(lambda call: next(answers))
    hooks.after(AgentCall, priority=10)(lambda call, result: next(again))

    agent = agent_of(Scene(turns=[says("done")]))
    result = await hooked(agent, hooks=[hooks, seen.hooks]).ainvoke(GO, thread())

    assert [each.text for each in result["messages"]] == ["go", "from a hook", "and again", "done"]
    assert seen.names() == ["beforeStep", "afterStep", "onComplete"]


@pytest.mark.anyio
async def test_an_answer_of_a_hook_to_a_continued_run_stands_behind_the_conversation() -> None:
    hooks = Hooks("answers")
    answers, again = iter([None, Respond("from a hook")]), iter([Continue("and again"), None])
    hooks.before(AgentCall)(lambda call: next(answers))
    hooks.after(AgentCall, priority=10)(lambda call, result: next(again))

    result = await hooked(agent_of(Scene(turns=[says("done")])), hooks=[hooks]).ainvoke(GO, thread())

    assert [each.text for each in result["messages"]] == ["go", "done", "and again", "from a hook"]


@pytest.mark.anyio
async def test_a_denied_call_that_stops_ends_the_run() -> None:
    hooks, seen = Hooks("guard"), Recorder()
    hooks.guard(ToolCall)(lambda call: Deny("enough", stop=True))

    with pytest.raises(RunStopped, match="enough"):
        await hooked(agent_of(PLAIN), hooks=[hooks, seen.hooks]).ainvoke(GO, thread())
    assert [(each.reason, each.llm_calls) for each in seen.of(OnComplete)] == [("interrupted", 1)]


@pytest.mark.anyio
async def test_an_interrupted_run_says_so() -> None:
    hooks, seen = Hooks("stop"), Recorder()
    hooks.on(BeforeToolCall)(lambda event: interrupt_operation(event.operation_id) and None)

    async def hang() -> str:
        """Hang."""
        await asyncio.Event().wait()
        return "never"

    agent = agent_of(Scene(turns=[calls("hang")], tools={"hang": hang}))
    with pytest.raises(RunStopped):
        await hooked(agent, hooks=[hooks, seen.hooks]).ainvoke(GO, thread())

    assert [each.reason for each in seen.of(OnComplete)] == ["interrupted"]


@pytest.mark.anyio
@pytest.mark.parametrize("streams", [False, True])
async def test_an_interrupt_ends_the_tools_that_are_running_before_the_run_is_over(streams: bool) -> None:
    seen, running, begun, ends = Recorder(), asyncio.Event(), list[str](), list[str]()

    async def hang() -> str:
        """Hang."""
        begun.append("tool")
        if len(begun) == 2:
            running.set()
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("tool")
        return "never"

    both = ModelResponse(tool_calls=[*calls("hang").tool_calls, *calls("hang", "t2").tool_calls])

    async def play() -> None:
        agent = hooked(agent_of(Scene(turns=[both], tools={"hang": hang})), hooks=[seen.hooks])
        try:
            if streams:
                assert [chunk async for chunk in agent.astream(GO, thread())] == []
            else:
                await agent.ainvoke(GO, thread())
        finally:
            ends.append("run")

    work = asyncio.ensure_future(play())
    await running.wait()
    interrupt_operation(seen.events[0].operation_id)
    with pytest.raises(RunStopped):
        await work

    assert ends == ["tool", "tool", "run"]
    assert seen.names()[3:] == ["onToolCallError", "onToolCallError", "afterStep", "onComplete"]


@pytest.mark.anyio
async def test_whatever_events_tell_can_be_encoded() -> None:
    seen = Recorder()
    await hooked(agent_of(PLAIN), hooks=[seen.hooks]).ainvoke(GO, thread())

    assert [str(each.hook_type) for each in seen.events if not msgspec.json.encode(each)] == []
    assert {type(each.content) for each in seen.events if hasattr(each, "content")} == {str}


@pytest.mark.anyio
async def test_a_hook_may_change_what_the_model_is_offered_and_told() -> None:
    hooks, shown = Hooks("offer"), list[Any]()

    class Looking(Script):
        def bind_tools(self, tools: Any, **options: Any) -> Script:
            shown.append([tool.name for tool in tools])
            return self

    def change(call: ModelCall) -> ModelCall:
        system = replace(call.messages[0], content="be brief")
        return replace(call, messages=[system, *call.messages[1:]], tools=[])

    asked: list[str] = []
    hooks.before(ModelCall)(change)
    model = Looking(turns=[says("done")], asked=asked)
    agent = create_agent(model, [tool_of(add)], system_prompt="be long", middleware=[HooklineMiddleware()])
    await hooked(agent, hooks=[hooks]).ainvoke(GO)

    assert (asked, shown) == (["be brief\ngo"], [])


async def changed(answer: AIMessage, **change: Any) -> AIMessage:
    """An answer of the model, as it is after a hook has changed it."""
    hooks = Hooks("changes")
    hooks.after(ModelCall)(lambda call, given: replace(given, **change))
    model = GenericFakeChatModel(messages=iter([answer]))
    agent = create_agent(model, middleware=[HooklineMiddleware()])
    last: AIMessage = (await hooked(agent, hooks=[hooks]).ainvoke(GO))["messages"][-1]
    return last


@pytest.mark.anyio
async def test_what_a_hook_leaves_alone_of_an_answer_stays_as_the_model_gave_it() -> None:
    thought, text = {"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "my secret"}
    used = UsageMetadata(input_tokens=1, output_tokens=2, total_tokens=3)
    given: dict[str, Any] = {"id": "m1", "usage_metadata": used, "response_metadata": {"model_name": "m"}}

    plain = await changed(AIMessage("my secret", **given), content="***")
    assert plain == AIMessage("***", **given)
    made = await changed(AIMessage([thought, text], **given), content="***")
    assert made == AIMessage([thought, {"type": "text", "text": "***"}], **given)
    silent = await changed(AIMessage([thought, text], **given), reasoning="")
    assert silent == AIMessage([text], **given)


class Place(BaseModel):
    city: str


@pytest.mark.anyio
async def test_a_structured_response_outlives_a_change_of_the_text_beside_it() -> None:
    hooks = Hooks("changes")
    hooks.after(ModelCall)(lambda call, given: replace(given, content="***"))
    script = Script(turns=[replace(calls("Place", city="Bonn"), content="my secret")])
    agent = create_agent(script, middleware=[HooklineMiddleware()], response_format=ToolStrategy(Place))

    result = await hooked(agent, hooks=[hooks]).ainvoke(GO, {"recursion_limit": 6})

    assert result["structured_response"] == Place(city="Bonn")
    assert result["messages"][1].text == "***"


def test_a_sync_compaction_is_led_through_the_hooks_and_a_denied_one_changes_nothing() -> None:
    hooks, seen = Hooks("guard"), Recorder()
    hooks.guard(CompactCall)(lambda call: Deny("keep it"))
    summary = Script(turns=[says("summary")])
    compacting = HooklineSummarization(summary, trigger=("messages", 3), keep=("messages", 2))
    model = Script(turns=[calls("add", a=1, b=2), says("done")])
    agent = create_agent(model, [tool_of(add)], middleware=[HooklineMiddleware(), compacting])

    short = hooked(agent, hooks=[seen.hooks]).invoke(GO)
    long = hooked(agent, hooks=[hooks, seen.hooks]).invoke(GO)

    assert "summary" in short["messages"][0].text
    assert [each.text for each in long["messages"]] == ["go", "", "3", "done"]
    assert [name for name in seen.names() if "ompact" in name] == [
        "beforeCompact", "afterCompact", "beforeCompact", "onCompactError",
    ]  # fmt: skip


@pytest.mark.anyio
async def test_a_graph_of_ones_own_has_hooks_in_its_model_and_its_tool_node() -> None:
    hooks, seen = Hooks("all"), Recorder()
    hooks.on(BeforeToolCall, tool="local/add")(lambda event: event.mock("42"))
    hooks.before(ModelCall)(lambda call: Respond(says("canned")) if len(call.messages) > 1 else None)
    line = HooklineMiddleware()
    asking = line.model(Script(turns=[calls("add", a=1, b=2), says("done")]), [tool_of(add)])

    async def ask(state: MessagesState) -> Any:
        return {"messages": [await asking.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_node("tools", line.tool_node([tool_of(add)]))
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", tools_condition)
    graph.add_edge("tools", "ask")
    result = await hooked(graph.compile(), hooks=[hooks, seen.hooks]).ainvoke({"messages": [HumanMessage("go")]})

    assert (told(result), result["messages"][-1].text) == (["42"], "canned")
    assert seen.names() == TWO_STEPS


@pytest.mark.anyio
async def test_an_agent_within_a_graph_of_ones_own_has_hooks() -> None:
    graph: Any = StateGraph(MessagesState)
    graph.add_node("agent", sync_agent())
    graph.add_edge(START, "agent")
    seen = Recorder()

    result = await hooked(graph.compile(), hooks=[seen.hooks]).ainvoke(GO)

    assert (seen.names(), told(result)) == (TWO_STEPS, ["3"])


def test_a_bundle_that_is_in_no_list_is_told_how_to_be_given() -> None:
    with pytest.raises(HookDefinitionError, match="give a list of bundles"):
        hooked(agent_of(PLAIN), hooks=Hooks("alone"))  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_decisions_about_calls_for_which_a_hook_asks_may_come_one_by_one() -> None:
    hooks, seen, config = Hooks("asks"), Recorder(), thread()
    hooks.guard(ToolCall)(lambda call: Ask("may I?"))
    both = ModelResponse(tool_calls=[*calls("add", a=1, b=2).tool_calls, *calls("add", "t2", a=3, b=4).tool_calls])
    agent = agent_of(Scene(turns=[both, says("done")], tools=PLAIN.tools))

    result = await hooked(agent, hooks=[hooks, seen.hooks]).ainvoke(GO, config)
    result = await hooked(agent, hooks=[hooks, seen.hooks]).ainvoke(answers(result, [Approve("t1")]), config)
    assert [(each.tool_call_id, each.action) for each in seen.of(AfterHumanIntervention)] == [("t1", "approve")]
    command = answers(result, [Reject("t2", reason="no", and_continue=True)])
    result = await hooked(agent, hooks=[hooks, seen.hooks]).ainvoke(command, config)

    assert told(result) == ["3", "A person refused this call: no"]
    assert [each.tool_call_id for each in seen.of(AfterHumanIntervention)] == ["t1", "t2"]


@pytest.mark.anyio
async def test_a_cancellation_that_a_tool_raises_itself_fails_the_run_as_ever() -> None:
    seen = Recorder()

    async def gives_up() -> str:
        """Give up."""
        raise asyncio.CancelledError("enough")

    agent = agent_of(Scene(turns=[calls("gives_up"), says("done")], tools={"gives_up": gives_up}))
    with pytest.raises(Exception) as bare:
        await agent.ainvoke(GO, thread())
    with pytest.raises(type(bare.value), match="tools"):
        await hooked(agent, hooks=[seen.hooks]).ainvoke(GO, thread())

    assert [each.error_type for each in seen.of(OnToolCallError)] == ["CancelledError"]
    assert [each.reason for each in seen.of(OnComplete)] == ["error"]


@pytest.mark.anyio
async def test_the_events_of_langchain_are_streamed_through_the_hooks() -> None:
    seen = Recorder()

    kinds = [each["event"] async for each in hooked(agent_of(PLAIN), hooks=[seen.hooks]).astream_events(GO, thread())]

    assert {"on_chat_model_start", "on_tool_start", "on_tool_end", "on_chain_end"} <= set(kinds)
    assert seen.names() == TWO_STEPS


@pytest.mark.anyio
@pytest.mark.parametrize("apart", [5, pytest.param(1, marks=pytest.mark.soak)])
async def test_a_stream_that_is_cancelled_is_over_in_all_its_parts(apart: int) -> None:
    ask = ModelResponse(
        tool_calls=[ToolRequest(toolset="agent", tool_name="child", args={"instruction": "do it"}, tool_call_id="k1")]
    )
    scene = Scene(turns=[ask, says("over")], agents={"child": PLAIN})

    async def consume(seen: Recorder) -> None:
        agent = agent_of(scene)
        async for _ in hooked(agent, hooks=[seen.hooks]).astream(GO, thread(), stream_mode=["updates", "messages"]):
            pass

    for turns in range(1, 400, apart):
        seen, before = Recorder(inherit=True), asyncio.all_tasks()
        consuming = asyncio.ensure_future(consume(seen))
        for _ in range(turns):
            await asyncio.sleep(0)
        if consuming.done():
            break
        consuming.cancel()
        await asyncio.wait([consuming])
        await asyncio.sleep(0)

        begun = {each.operation_id for each in seen.events}
        assert [each.operation_id in begun for each in seen.of(OnComplete)] == [True] * len(begun)
        assert asyncio.all_tasks() - before == set()
    assert turns > 50
