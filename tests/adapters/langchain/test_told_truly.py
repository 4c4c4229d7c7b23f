"""What streams, spans, metrics and hooks are told of a LangChain run is what the run has come to."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessageChunk, ToolMessage
from langchain_core.outputs import ChatGenerationChunk
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command
from msgspec.structs import replace
from opentelemetry import trace
from pydantic import BaseModel

from hookline import (
    AfterStep,
    AgentCall,
    CompactCall,
    Deny,
    Hooks,
    ModelCall,
    ModelResponse,
    OnComplete,
    OnToolCallError,
    ToolCall,
)
from hookline.adapters.langchain import HooklineMiddleware, HooklineSummarization, hooked
from hookline.errors import RunStopped
from tests.otel.capture import Sink
from tests.tables import for_each

from .stage import Script, thread
from .test_langchain import GO, Recorder, add, calls, says, sync_agent, told, tool_of


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Speaking(Script):
    """Tells its words to callbacks, as the chat models of providers do."""

    model_name: str = "gpt-test"

    def _stream(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> Any:
        turn = self.turn(messages)
        for word in turn.text.split(" "):
            chunk = ChatGenerationChunk(message=AIMessageChunk(word))
            if run_manager:
                run_manager.on_llm_new_token(word, chunk=chunk)
            yield chunk
        if turn.tool_calls:
            yield ChatGenerationChunk(message=AIMessageChunk("", tool_calls=turn.tool_calls))


def speaking(*turns: ModelResponse, tools: Any = (add,), **options: Any) -> Any:
    given = {"middleware": [HooklineMiddleware()], **options}
    return create_agent(Speaking(turns=list(turns)), [tool_of(made) for made in tools], **given)


def tagged() -> Any:
    """A graph of one's own, whose model has tags of its own."""
    model = HooklineMiddleware().model(Speaking(turns=[says("my secret")]).with_config(tags=["mine"]))
    graph = StateGraph(MessagesState)
    graph.add_node("ask", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_edge(START, "ask")
    # `hooked` asks for a part that hears hooks.
    graph.add_node("tools", HooklineMiddleware().tool_node([tool_of(add)]))
    return graph.compile()


# Streams.


@pytest.mark.anyio
@for_each("mode", ["messages", "updates", "values", "debug"])
@for_each("change", [lambda call, answer: replace(answer, content="***"), lambda *_: Deny("***")])
@for_each("sync", [False, True])
async def test_what_a_hook_changes_or_withholds_is_in_no_stream(
    mode: Any, change: Callable[..., Any], sync: bool
) -> None:
    hooks = Hooks("withholds")
    hooks.after(ModelCall)(change)
    run = hooked(speaking(says("my secret")), hooks=[hooks])

    chunks: list[Any] = []
    with pytest.raises(RunStopped) if isinstance(change(None, ModelResponse()), Deny) else nullcontext():
        if sync:
            await asyncio.to_thread(lambda: chunks.extend(run.stream(GO, stream_mode=mode)))
        else:
            async for chunk in run.astream(GO, stream_mode=mode):
                chunks.append(chunk)  # noqa: PERF401  # what came before the stream raises counts

    assert ("***" in repr(chunks), "secret" in repr(chunks)) == (True, False)


@pytest.mark.anyio
async def test_what_a_hook_withholds_is_in_no_event_of_langchain() -> None:
    hooks = Hooks("withholds")
    hooks.after(ModelCall)(lambda call, answer: replace(answer, content="***"))

    events = [each async for each in hooked(speaking(says("my secret")), hooks=[hooks]).astream_events(GO)]

    assert ("***" in repr(events), "secret" in repr(events)) == (True, False)
    assert [each["event"] for each in events if "chat" in each["event"]] == ["on_chat_model_start", "on_chat_model_end"]


@pytest.mark.anyio
async def test_a_model_with_tags_of_its_own_is_held_back_too() -> None:
    hooks = Hooks("withholds")
    hooks.after(ModelCall)(lambda call, answer: replace(answer, content="***"))

    run = hooked(tagged(), hooks=[hooks])
    chunks = [chunk async for chunk in run.astream(GO, stream_mode="messages")]

    assert ("***" in repr(chunks), "secret" in repr(chunks)) == (True, False)


@pytest.mark.anyio
@pytest.mark.parametrize("sync", [False, True])
async def test_hooks_that_only_come_before_leave_the_words_in_the_stream(sync: bool) -> None:
    hooks = Hooks("before")
    hooks.before(ModelCall)(lambda call: None)
    run, given = hooked(speaking(says("one two")), hooks=[hooks]), {"stream_mode": "messages"}

    if sync:
        chunks = await asyncio.to_thread(lambda: list(run.stream(GO, **given)))
    else:
        chunks = [chunk async for chunk in run.astream(GO, **given)]

    assert [message.text for message, _ in chunks if message.text] == ["one", "two"]


@pytest.mark.anyio
async def test_a_summary_that_a_hook_withholds_is_in_no_stream() -> None:
    hooks = Hooks("withholds")
    hooks.after(CompactCall)(lambda call, result: replace(result, summary="***"))
    summary = Speaking(turns=[says("my secret")])
    compacting = HooklineSummarization(summary, trigger=("messages", 3), keep=("messages", 2))
    agent = speaking(calls("add", a=1, b=2), says("done"), middleware=[HooklineMiddleware(), compacting])

    chunks = [chunk async for chunk in hooked(agent, hooks=[hooks]).astream(GO, stream_mode="messages")]

    assert ("***" in repr(chunks), "secret" in repr(chunks)) == (True, False)


@pytest.mark.anyio
async def test_a_stream_of_states_has_what_the_agent_said_whatever_hooks_make_of_the_whole_run() -> None:
    hooks = Hooks("changes")
    hooks.after(AgentCall)(lambda call, result: replace(result, output="***"))
    agent = speaking(says("said"))

    states = [state async for state in hooked(agent, hooks=[hooks]).astream(GO, stream_mode="values")]
    result = await hooked(agent, hooks=[hooks]).ainvoke(GO)

    assert (states[-1]["messages"][-1].text, result["messages"][-1].text) == ("said", "***")


# Spans and metrics.


def within() -> str:
    """Say in which span it is."""
    span: Any = trace.get_current_span()
    return str(span.name)


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["ainvoke", "invoke", "stream"])
async def test_the_span_of_a_tool_is_the_current_one_inside_of_it(how: str) -> None:
    sink, seen = Sink(), Recorder()
    run = hooked(sync_agent(calls("within"), says("done"), tools=(within,)), hooks=[sink.tracing(), seen.hooks])

    if how == "ainvoke":
        await run.ainvoke(GO)
    elif how == "invoke":
        await asyncio.to_thread(run.invoke, GO)
    else:
        await asyncio.to_thread(lambda: list(run.stream(GO)))

    assert [result.content for each in seen.of(AfterStep) for result in each.tools_result] == ["execute_tool within"]


@pytest.mark.anyio
@pytest.mark.parametrize("sync", [False, True])
async def test_a_tool_that_the_model_has_made_up_is_no_value_of_a_metric(sync: bool) -> None:
    sink, seen = Sink(), Recorder()
    agent = sync_agent(calls("nosuch", a=1), says("done"))
    run = hooked(agent, hooks=[sink.metrics(), seen.hooks])

    bare = await agent.ainvoke(GO)
    result = await (asyncio.to_thread(run.invoke, GO) if sync else run.ainvoke(GO))

    (point,) = sink.points("gen_ai.execute_tool.duration")
    assert (point.attributes["gen_ai.tool.name"], point.attributes["error.type"]) == ("_OTHER", "UnknownToolError")
    assert [each.error_type for each in seen.of(OnToolCallError)] == ["UnknownToolError"]
    assert told(result) == told(bare) == ["Error: nosuch is not a valid tool, try one of [add]."]


@pytest.mark.anyio
@pytest.mark.parametrize("sync", [False, True])
async def test_arguments_that_do_not_fit_are_an_error_of_the_call(sync: bool) -> None:
    seen = Recorder()
    agent = sync_agent(calls("add", a="many", b=2), says("done"))
    run = hooked(agent, hooks=[seen.hooks])

    bare = await agent.ainvoke(GO)
    result = await (asyncio.to_thread(run.invoke, GO) if sync else run.ainvoke(GO))

    assert told(result) == told(bare)
    (error,) = seen.of(OnToolCallError)
    assert (error.error_type, error.args) == ("ToolArgumentsError", {"a": "many", "b": 2})
    assert error.error.startswith("Invalid arguments for add: a: Input should be a valid integer")
    assert [result.success for each in seen.of(AfterStep) for result in each.tools_result] == [False]


@pytest.mark.anyio
async def test_arguments_that_a_hook_changed_and_that_do_not_fit_are_an_error_of_the_call() -> None:
    hooks, seen = Hooks("breaks"), Recorder()
    hooks.before(ToolCall)(lambda call: call.with_args(b="{error}"))

    result = await hooked(sync_agent(), hooks=[hooks, seen.hooks]).ainvoke(GO)

    assert "valid integer" in told(result)[0]
    assert [each.error_type for each in seen.of(OnToolCallError)] == ["ToolArgumentsError"]


@pytest.mark.anyio
async def test_text_of_a_tool_that_looks_like_such_an_error_is_what_the_tool_said() -> None:
    seen = Recorder()

    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return "Error invoking tool 'add' with kwargs {} with error:\n no\n Please fix the error and try again."

    await hooked(sync_agent(tools=(add,)), hooks=[seen.hooks]).ainvoke(GO)

    assert seen.of(OnToolCallError) == []


@pytest.mark.anyio
async def test_a_hook_may_say_more_of_a_tool_that_the_model_has_made_up() -> None:
    hooks = Hooks("says")
    hooks.after(ToolCall)(lambda call, result: replace(result, content="Call add instead."))

    result = await hooked(sync_agent(calls("nosuch"), says("done")), hooks=[hooks]).ainvoke(GO)

    assert told(result) == ["UnknownToolError: Call add instead."]


@pytest.mark.anyio
async def test_a_tool_that_a_middleware_runs_for_the_graph_is_not_made_up() -> None:
    seen = Recorder()

    class Runs(AgentMiddleware[Any, Any, Any]):
        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            return ToolMessage("not today", tool_call_id=request.tool_call["id"], status="error")

    agent = speaking(calls("hidden"), says("done"), middleware=[HooklineMiddleware(), Runs()])
    result = await hooked(agent, hooks=[seen.hooks]).ainvoke(GO)

    assert told(result) == ["not today"]
    assert "UnknownToolError" not in {each.error_type for each in seen.of(OnToolCallError)}


@pytest.mark.anyio
@pytest.mark.parametrize(("given", "name"), [({}, "gpt-test"), ({"model": "ours"}, "ours")])
async def test_the_model_is_called_as_it_calls_itself(given: Any, name: str) -> None:
    sink, asked = Sink(), list[str]()
    hooks = Hooks("asks")
    hooks.before(ModelCall)(lambda call: asked.append(call.model))

    await hooked(speaking(says("done")), hooks=[sink.tracing(), hooks], **given).ainvoke(GO)

    assert asked == [name]
    assert [span.attributes["gen_ai.request.model"] for span in sink.named("chat")] == [name]


@pytest.mark.anyio
async def test_the_model_of_a_sub_agent_is_called_as_it_calls_itself() -> None:
    asked, hooks = list[str](), Hooks("asks", inherit=True)
    hooks.before(ModelCall)(lambda call: asked.append(call.model))
    child = speaking(says("done"))

    async def ask_child(instruction: str) -> str:
        """Ask the child."""
        return str((await child.ainvoke({"messages": [("user", instruction)]}))["messages"][-1].text)

    line = HooklineMiddleware(sub_agents={"ask_child": "child"})
    turns = [calls("ask_child", instruction="go"), says("over")]
    agent = create_agent(Script(turns=turns), [tool_of(ask_child)], middleware=[line])
    await hooked(agent, hooks=[hooks]).ainvoke(GO)

    assert asked == ["", "gpt-test", ""]


# Structured output.


class Place(BaseModel):
    city: str


PLACE = '{"city": "Bonn"}'


@pytest.mark.anyio
async def test_a_structured_response_by_a_call_is_what_the_model_said() -> None:
    seen, hooks, outputs = Recorder(), Hooks("sees"), list[str]()
    hooks.after(AgentCall)(lambda call, result: outputs.append(result.output))
    agent = speaking(calls("Place", city="Bonn"), response_format=ToolStrategy(Place))

    result = await hooked(agent, hooks=[seen.hooks]).ainvoke(GO)
    await hooked(agent, hooks=[hooks]).ainvoke(GO)

    assert result["structured_response"] == Place(city="Bonn")
    (step,) = seen.of(AfterStep)
    assert (step.step_type, step.content, list(step.tools_calling)) == ("call_llm", PLACE, [])
    assert [each.last_assistant_content for each in seen.of(OnComplete)] == outputs == [PLACE]


@pytest.mark.anyio
async def test_a_structured_response_that_a_hook_changes_is_not_given_unchanged() -> None:
    hooks, agent = Hooks("changes"), speaking(calls("Place", city="Bonn"), response_format=ToolStrategy(Place))
    hooks.after(ModelCall)(lambda call, answer: replace(answer, content="***"))
    thinks = Hooks("thinks")
    thinks.after(ModelCall)(lambda call, answer: replace(answer, reasoning="none"))

    changed = await hooked(agent, hooks=[hooks]).ainvoke(GO)
    same = await hooked(agent, hooks=[thinks]).ainvoke(GO)

    assert (changed["messages"][-1].text, "Bonn" in repr(changed)) == ("***", False)
    assert same["structured_response"] == Place(city="Bonn")
    assert [each.text for each in same["messages"][:2]] == ["go", ""]


# People.


@pytest.mark.anyio
@pytest.mark.skipif(
    "interrupt_mode" not in inspect.signature(HumanInTheLoopMiddleware).parameters,
    reason="this version of LangChain asks about all calls of an answer at once",
)
@pytest.mark.parametrize(("first", "answer"), [(True, "too much"), (False, "99")])
async def test_hooks_judge_an_edit_of_one_call_whose_middleware_comes_before(first: bool, answer: str) -> None:
    hooks, config = Hooks("limits"), thread()
    hooks.guard(ToolCall)(lambda call: Deny("too much") if call.args["a"] > 30 else None)
    asks = HumanInTheLoopMiddleware({"add": True}, interrupt_mode="per_call", edit_notice=False)
    middleware = [asks, HooklineMiddleware()] if first else [HooklineMiddleware(), asks]
    agent = speaking(calls("add", a=1, b=2), says("done"), middleware=middleware, checkpointer=InMemorySaver())
    run = hooked(agent, hooks=[hooks])

    (pause,) = (await run.ainvoke(GO, config))["__interrupt__"]
    edited = {"type": "edit", "edited_action": {"name": "add", "args": {"a": 99, "b": 0}}}
    result = await run.ainvoke(Command(resume={pause.id: edited}), config)

    assert told(result) == [answer]
