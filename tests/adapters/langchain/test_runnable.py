"""An agent with hooks is the agent: each public method gives what it gives without hooks, and each run is told."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableLambda
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, GraphOutput, StateSnapshot, StateUpdate
from langgraph.types import interrupt as graph_interrupt
from msgspec.structs import replace

from hookline import (
    AfterHumanIntervention,
    AfterStep,
    AgentCall,
    Ask,
    BeforeStep,
    BeforeToolCall,
    Continue,
    Deny,
    Hooks,
    ModelCall,
    OnComplete,
    ToolCall,
)
from hookline import interrupt as interrupt_operation
from hookline.adapters.langchain import HookedAgent, hooked
from hookline.errors import RunStopped
from hookline.runtime._run import live
from tests.tables import for_each

from .stage import thread
from .test_langchain import GO, TWO_STEPS, Recorder, calls, says, sync_agent, told
from .test_told_truly import speaking

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def saving_agent() -> Any:
    return sync_agent(checkpointer=InMemorySaver(), cache=InMemoryCache(), name="saver")


FRESH = {"run_id", "parent_ids", "metadata", "checkpoint_ns", "langgraph_checkpoint_ns", "id"}
"""Keys of what LangChain makes anew in each run."""


def shown(value: Any) -> Any:
    """Anything that an agent gives, without what differs from run to run."""
    if isinstance(value, BaseMessage):
        return (
            type(value).__name__,
            value.text,
            [(call["name"], call["args"]) for call in getattr(value, "tool_calls", [])],
        )
    if isinstance(value, GraphOutput):
        return "output", shown(value.value), shown(value.interrupts)
    if isinstance(value, StateSnapshot):
        return "state", shown(value.values), value.next
    if isinstance(value, dict):
        return {str(key): shown(each) for key, each in value.items() if key not in FRESH}
    if isinstance(value, list | tuple):
        return [shown(each) for each in value]
    return value if isinstance(value, str | int | float | type(None)) else type(value).__name__


async def all_of(stream: Any) -> list[Any]:
    return [each async for each in stream]


def in_thread(work: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
    return lambda agent: asyncio.to_thread(work, agent)


def awaited(work: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
    async def call(agent: Any) -> Any:
        found = work(agent)
        return await found if asyncio.iscoroutine(found) else found

    return call


async def inputs() -> AsyncIterator[Any]:
    yield GO


async def newest(agent: Any) -> Any:
    run = await agent.astream_events(GO, version="v3")
    messages = [str(await message.text) async for message in run.messages]
    return messages, await run.output()


def newest_sync(agent: Any) -> Any:
    run = agent.stream_events(GO, version="v3")
    messages = [str(message.text) for message in run.messages]
    return messages, run.output


def last_text(state: Any) -> str:
    return str(state["messages"][-1].text)


RUNS: dict[str, tuple[str, Callable[[Any], Awaitable[Any]], int]] = {
    "invoke": ("invoke", in_thread(lambda agent: agent.invoke(GO)), 1),
    "invoke, v2": ("invoke", in_thread(lambda agent: agent.invoke(GO, version="v2")), 1),
    "invoke, updates": ("invoke", in_thread(lambda agent: agent.invoke(GO, stream_mode="updates")), 1),
    "ainvoke": ("ainvoke", lambda agent: agent.ainvoke(GO), 1),
    "ainvoke, v2": ("ainvoke", lambda agent: agent.ainvoke(GO, version="v2"), 1),
    "ainvoke, updates": ("ainvoke", lambda agent: agent.ainvoke(GO, stream_mode="updates"), 1),
    "stream": ("stream", in_thread(lambda agent: list(agent.stream(GO))), 1),
    "stream, messages": ("stream", in_thread(lambda agent: list(agent.stream(GO, stream_mode="messages"))), 1),
    "stream, v2": ("stream", in_thread(lambda agent: list(agent.stream(GO, version="v2", stream_mode="values"))), 1),
    "astream": ("astream", lambda agent: all_of(agent.astream(GO)), 1),
    "astream, messages": ("astream", lambda agent: all_of(agent.astream(GO, stream_mode="messages")), 1),
    "astream, v2": ("astream", lambda agent: all_of(agent.astream(GO, version="v2", stream_mode="values")), 1),
    "astream_events, v1": ("astream_events", lambda agent: all_of(agent.astream_events(GO, version="v1")), 1),
    "astream_events, v2": ("astream_events", lambda agent: all_of(agent.astream_events(GO, version="v2")), 1),
    "astream_events, v3": ("astream_events", newest, 1),
    "stream_events, v3": ("stream_events", in_thread(newest_sync), 1),
    "astream_log": ("astream_log", lambda agent: all_of(agent.astream_log(GO, diff=False)), 1),
    "transform": ("transform", in_thread(lambda agent: list(agent.transform(iter([GO])))), 1),
    "atransform": ("atransform", lambda agent: all_of(agent.atransform(inputs())), 1),
    "batch": ("batch", in_thread(lambda agent: agent.batch([GO, GO, GO])), 3),
    "abatch": ("abatch", lambda agent: agent.abatch([GO, GO, GO]), 3),
    "batch_as_completed": (
        "batch_as_completed", in_thread(lambda agent: sorted(agent.batch_as_completed([GO, GO]), key=lambda each: each[0])), 2,
    ),
    "abatch_as_completed": (
        "abatch_as_completed", awaited(lambda agent: all_of_sorted(agent.abatch_as_completed([GO, GO]))), 2,
    ),
    "bind": ("bind", lambda agent: agent.bind(stream_mode="updates").ainvoke(GO), 1),
    "with_config": ("with_config", lambda agent: agent.with_config(tags=["mine"], recursion_limit=9).ainvoke(GO), 1),
    "copy": ("copy", lambda agent: agent.copy({"name": "copied"}).ainvoke(GO), 1),
    "with_listeners": ("with_listeners", lambda agent: agent.with_listeners(on_end=lambda run: None).ainvoke(GO), 1),
    "with_alisteners": ("with_alisteners", lambda agent: agent.with_alisteners().ainvoke(GO), 1),
    "with_types": ("with_types", lambda agent: agent.with_types(input_type=dict).ainvoke(GO), 1),
    "with_retry": ("with_retry", lambda agent: agent.with_retry(stop_after_attempt=2).ainvoke(GO), 1),
    "with_fallbacks": ("with_fallbacks", lambda agent: agent.with_fallbacks([RunnableLambda(str)]).ainvoke(GO), 1),
    "map": ("map", lambda agent: agent.map().ainvoke([GO, GO]), 2),
    "pipe": ("pipe", lambda agent: agent.pipe(last_text).ainvoke(GO), 1),
    "pick": ("pick", lambda agent: agent.pick("messages").ainvoke(GO), 1),
    "assign": ("assign", lambda agent: agent.assign(said=last_text).ainvoke(GO), 1),
    "as_tool": ("as_tool", lambda agent: agent.as_tool(name="ask", arg_types={"messages": list}).ainvoke({"messages": ["go"]}), 1),
    "|": ("pipe", lambda agent: (agent | last_text).ainvoke(GO), 1),
    "| from the left": ("pipe", lambda agent: (RunnableLambda(lambda text: {"messages": [("user", text)]}) | agent).ainvoke("go"), 1),
    "| streamed": ("pipe", lambda agent: all_of((agent | sorted).astream(GO)), 1),
}  # fmt: skip
"""Ways to run an agent: by which method, how, and how many operations that takes."""


async def all_of_sorted(stream: Any) -> list[Any]:
    return sorted(await all_of(stream), key=lambda each: int(each[0]))


def state_of(agent: Any, config: Any) -> Any:
    return [agent.get_state(config), *agent.get_state_history(config)]


async def astate_of(agent: Any, config: Any) -> Any:
    return [await agent.aget_state(config), *await all_of(agent.aget_state_history(config))]


MORE = {"messages": [("user", "more")]}
READS: dict[str, Callable[[Any, Any], Any]] = {
    "get_state": lambda agent, config: agent.get_state(config),
    "aget_state": lambda agent, config: agent.aget_state(config),
    "get_state_history": lambda agent, config: list(agent.get_state_history(config)),
    "aget_state_history": lambda agent, config: all_of(agent.aget_state_history(config)),
    "update_state": lambda agent, config: (agent.update_state(config, MORE) and None) or state_of(agent, config),
    "aupdate_state": lambda agent, config: then(agent.aupdate_state(config, MORE), astate_of(agent, config)),
    "bulk_update_state": lambda agent, config: (agent.bulk_update_state(config, updates()) and None) or state_of(agent, config),
    "abulk_update_state": lambda agent, config: then(agent.abulk_update_state(config, updates()), astate_of(agent, config)),
    "get_graph": lambda agent, config: agent.get_graph(xray=True).draw_mermaid(),
    "aget_graph": lambda agent, config: then(agent.aget_graph(), None),
    "get_subgraphs": lambda agent, config: list(agent.get_subgraphs()),
    "aget_subgraphs": lambda agent, config: all_of(agent.aget_subgraphs()),
    "get_name": lambda agent, config: agent.get_name(),
    "get_prompts": lambda agent, config: agent.get_prompts(),
    "get_input_schema": lambda agent, config: agent.get_input_schema().model_json_schema(),
    "get_output_schema": lambda agent, config: agent.get_output_schema().model_json_schema(),
    "get_input_jsonschema": lambda agent, config: agent.get_input_jsonschema(),
    "get_output_jsonschema": lambda agent, config: agent.get_output_jsonschema(),
    "get_context_jsonschema": lambda agent, config: agent.get_context_jsonschema(),
    "config_schema": lambda agent, config: agent.config_schema().model_json_schema(),
    "get_config_jsonschema": lambda agent, config: agent.get_config_jsonschema(),
    "clear_cache": lambda agent, config: agent.clear_cache(),
    "aclear_cache": lambda agent, config: agent.aclear_cache(),
    "validate": lambda agent, config: agent.validate().name,
}  # fmt: skip
"""Methods that run nothing, called on an agent that has run in the thread of this config."""

BUILDING = {"attach_branch", "attach_edge", "attach_node"}
"""What `StateGraph.compile` calls while it makes the graph."""


def updates() -> Any:

    return [[StateUpdate(MORE, "model")]]


async def then(first: Awaitable[Any], following: Awaitable[Any] | None) -> Any:
    found = await first
    return found if following is None else await following


# The matrix.


def test_every_public_method_of_an_agent_is_tried_below() -> None:
    kind = type(sync_agent())
    public = {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}

    assert public - BUILDING - set(READS) - {method for method, _, _ in RUNS.values()} == set()


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:.*astream_events version='v1'", "ignore:.*beta.*", "ignore:.*experimental.*"
)
@for_each("way", RUNS)
async def test_a_run_gives_what_it_gives_without_hooks_and_is_an_operation(way: str) -> None:
    _, run, operations = RUNS[way]
    agent, seen = sync_agent(name="tester"), Recorder()

    bare = shown(await run(agent))
    assert shown(await run(hooked(agent, hooks=[seen.hooks]))) == bare

    ids = {event.operation_id for event in seen.events}
    assert len(ids) == operations
    assert [seen.names(each) for each in ids] == [TWO_STEPS] * operations
    assert ids.isdisjoint(live)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*is deprecated")
@for_each("method", READS)
async def test_what_runs_nothing_gives_what_it_gives_without_hooks(method: str) -> None:
    given: list[Any] = []
    agent = saving_agent()
    for with_hooks in (False, True):
        config, seen = thread(), Recorder()
        subject = hooked(agent, hooks=[seen.hooks]) if with_hooks else agent
        await agent.ainvoke(GO, config)
        found = READS[method](subject, config)
        given.append(shown(await found if asyncio.iscoroutine(found) else found))
        assert seen.events == []

    assert given[0] == given[1]


def test_it_is_what_the_agent_is() -> None:
    class Own(CompiledStateGraph[Any, Any, Any, Any]):
        def greet(self) -> str:
            return f"I am {self.name}"

    agent = sync_agent(name="tester")
    agent.__class__ = Own
    given = hooked(agent, hooks=[])

    assert isinstance(given, HookedAgent)
    assert isinstance(given, Own)
    assert isinstance(given, Runnable)
    assert given.greet() == "I am tester"  # type: ignore[attr-defined]
    assert isinstance(given.with_config(tags=["a"]), HookedAgent)
    assert type(agent) is Own


def test_an_attribute_that_is_set_on_one_is_set_on_both() -> None:
    agent, saver = sync_agent(), InMemorySaver()
    given = hooked(agent, hooks=[])

    given.checkpointer = saver
    config: Any = {"configurable": {"thread_id": "1"}}
    given.invoke(GO, config)

    assert agent.checkpointer is saver
    assert told(agent.get_state(config).values) == ["3"]


async def test_hooks_that_are_given_later_are_given_as_well() -> None:
    first, second = Recorder(), Recorder()

    given = hooked(hooked(sync_agent(), hooks=[first.hooks], user_id="ann"), hooks=[second.hooks], tenant_id="acme")
    await given.ainvoke(GO)

    assert first.names() == second.names() == TWO_STEPS
    assert {(each.operation_id, each.user_id, each.tenant_id) for each in first.events} == {
        (each.operation_id, "ann", "acme") for each in second.events
    }


async def test_each_run_of_a_batch_has_its_own_answers_and_counts() -> None:
    mocks, seen = Hooks("mocks"), Recorder()
    mocks.on(BeforeToolCall)(lambda event: event.mock(f"call {event.call_index}") and None)

    results = await hooked(sync_agent(), hooks=[mocks, seen.hooks]).abatch([GO] * 5)

    assert [told(each) for each in results] == [["call 1"]] * 5
    assert len({each.operation_id for each in seen.of(OnComplete)}) == 5


async def test_a_batch_returns_the_exceptions_of_its_runs_where_it_is_asked_to() -> None:
    ending = Ending()

    results = await hooked(breaking_agent(), hooks=[ending.hooks]).abatch([GO, GO], return_exceptions=True)

    assert [str(each) for each in results] == ["half way", "half way"]
    assert ending.reasons == ["error", "error"]


# Streams that nobody reads to their end, or that break.


def events_v3(agent: Any) -> AsyncIterator[Any]:
    async def read() -> AsyncIterator[Any]:
        run = await agent.astream_events(GO, version="v3")
        async for event in run:
            yield event
        await run.output()  # raises what the run raised

    return read()


async def messages_v3(agent: Any) -> AsyncIterator[Any]:
    async for message in (await agent.astream_events(GO, version="v3")).messages:
        async for word in message.text:
            yield word


def events_v3_sync(agent: Any) -> Iterator[Any]:
    run = agent.stream_events(GO, version="v3")
    yield from run
    assert run.output  # raises what the run raised


ASYNC_STREAMS: dict[str, Callable[[Any], AsyncIterator[Any]]] = {
    "astream": lambda agent: agent.astream(GO),
    "astream, messages": lambda agent: agent.astream(GO, stream_mode=["messages", "updates"]),
    "astream_events, v1": lambda agent: agent.astream_events(GO, version="v1"),
    "astream_events, v2": lambda agent: agent.astream_events(GO, version="v2"),
    "astream_events, v3": events_v3,
    "astream_log": lambda agent: agent.astream_log(GO),
    "atransform": lambda agent: agent.atransform(inputs()),
    "of a chain": lambda agent: (RunnableLambda(dict) | agent).astream(GO),
    "of a binding": lambda agent: agent.bind(stream_mode="updates").with_config(tags=["a"]).astream(GO),
    "abatch_as_completed": lambda agent: agent.abatch_as_completed([GO]),
}

RUN_ON = {"astream_events, v1", "astream_log"}
"""Streams that LangChain itself reads to the end of the run, whatever becomes of their reader."""

SYNC_STREAMS: dict[str, Callable[[Any], Iterator[Any]]] = {
    "stream": lambda agent: agent.stream(GO),
    "stream, messages": lambda agent: agent.stream(GO, stream_mode=["messages", "updates"]),
    "stream_events, v3": lambda agent: events_v3_sync(agent),
    "transform": lambda agent: agent.transform(iter([GO])),
    "of a chain": lambda agent: (RunnableLambda(dict) | agent).stream(GO),
    "of a binding": lambda agent: agent.bind(stream_mode="updates").stream(GO),
}

EXPERIMENTAL = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:.*beta.*", "ignore:.*experimental.*", "ignore:.*version='v1'"
)


LEFT_EARLY = [
    (way, how)
    for way in ASYNC_STREAMS
    for how in ("closed", "collected", "collected in a cycle", "cancelled")
    if "batch" not in way and (way, how) != ("astream_events, v2", "collected in a cycle")  # LangChain closes it twice
]


class Ending:
    """Hears how one run ends."""

    def __init__(self) -> None:
        self.over, self.hooks, self.reasons = threading.Event(), Hooks("ending"), list[str]()
        self.hooks.on(OnComplete)(self._end)

    def _end(self, event: OnComplete) -> None:
        self.reasons.append(event.reason)
        self.over.set()

    async def wait(self) -> list[str]:
        assert await asyncio.to_thread(self.over.wait, 20)
        return self.reasons


@EXPERIMENTAL
@for_each(("way", "how"), LEFT_EARLY)
async def test_a_stream_that_is_left_early_ends_its_run(way: str, how: str) -> None:
    ending = Ending()
    stream: Any = ASYNC_STREAMS[way](hooked(sync_agent(), hooks=[ending.hooks]))
    before = asyncio.all_tasks()

    if how == "cancelled":
        begun = asyncio.Event()

        async def read() -> None:
            async for _ in stream:
                begun.set()

        reading = asyncio.ensure_future(read())
        await begun.wait()
        reading.cancel()
        await asyncio.wait([reading])
        assert reading.cancelled()
        del reading, stream  # the traceback of its error holds the stream too
    else:
        await anext(stream)
        if how == "closed":
            await stream.aclose()
        elif how == "collected in a cycle":
            cycle = [stream]
            cycle.append(cycle)
            del cycle
        del stream
    while not ending.reasons:  # a part of it may be let go only when another one is closed
        gc.collect()
        await asyncio.sleep(0.001)

    assert ending.reasons == ["done" if way in RUN_ON else "interrupted"]
    while left := asyncio.all_tasks() - before:
        await asyncio.wait(left)
    assert live == {}


@EXPERIMENTAL
@for_each("way", SYNC_STREAMS)
@for_each("how", ["closed", "collected", "collected in another thread", "collected by the loop of its hooks"])
async def test_a_sync_stream_that_is_left_early_ends_its_run(way: str, how: str) -> None:
    ending, loops, kept = Ending(), list[asyncio.AbstractEventLoop](), list[Any]()
    ending.hooks.on(BeforeStep)(lambda event: loops.append(asyncio.get_running_loop()))

    def read() -> None:
        stream: Any = SYNC_STREAMS[way](hooked(sync_agent(), hooks=[ending.hooks]))
        while not loops:
            next(stream)
        if how == "closed":
            stream.close()
        elif how != "collected":
            kept.append(stream)

    await asyncio.to_thread(read)
    if how == "collected by the loop of its hooks":
        loops[0].call_soon_threadsafe(lambda: kept.clear() or gc.collect())
    else:
        kept.clear()
        await asyncio.to_thread(gc.collect)

    assert await ending.wait() == ["interrupted"]
    while live:
        await asyncio.sleep(0.001)


class Unstable(Exception):
    """A model that is out of order."""


def breaking_agent() -> Any:
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        raise Unstable("half way")

    return sync_agent(calls("add", a=1, b=2), says("done"), tools=(add,))


@EXPERIMENTAL
@for_each("way", [*ASYNC_STREAMS, *(f"sync {each}" for each in SYNC_STREAMS)])
async def test_a_stream_that_fails_half_way_fails_as_without_hooks(way: str) -> None:
    async def read(agent: Any) -> tuple[int, str]:
        count = 0
        try:
            if way.startswith("sync "):
                stream = SYNC_STREAMS[way.removeprefix("sync ")](agent)
                over = object()
                while await asyncio.to_thread(next, stream, over) is not over:
                    count += 1
            else:
                async for _ in ASYNC_STREAMS[way](agent):
                    count += 1
        except Unstable as error:
            return count, str(error)
        return count, "nothing was raised"

    ending = Ending()
    bare = await read(breaking_agent())

    assert await read(hooked(breaking_agent(), hooks=[ending.hooks])) == bare == (bare[0], "half way")
    assert await ending.wait() == ["error"]
    assert live == {}


@pytest.mark.parametrize("streams", [False, True])
async def test_a_sync_run_that_is_interrupted_ends_when_it_comes_to_its_next_hook(streams: bool) -> None:
    ending, asked = Ending(), list[str]()
    ending.hooks.on(BeforeToolCall)(lambda event: interrupt_operation(event.operation_id) and None)
    ending.hooks.before(ModelCall)(lambda call: asked.append("model"))
    run = hooked(sync_agent(), hooks=[ending.hooks])

    with pytest.raises(RunStopped):
        await asyncio.to_thread(lambda: list(run.stream(GO)) if streams else run.invoke(GO))

    assert (asked, ending.reasons, live) == (["model"], ["interrupted"], {})


def test_a_sync_run_is_in_the_thread_of_its_caller_and_stops_with_it() -> None:
    ending, where = Ending(), list[int]()

    def node(state: MessagesState) -> Any:
        where.append(threading.get_ident())
        raise KeyboardInterrupt

    graph: Any = StateGraph(MessagesState)
    graph.add_node("agent", sync_agent())
    graph.add_node("node", node)
    graph.add_edge(START, "agent")
    graph.add_edge("agent", "node")

    with pytest.raises(KeyboardInterrupt):
        hooked(graph.compile(), hooks=[ending.hooks]).invoke(GO)

    assert (where, ending.reasons, live) == ([threading.get_ident()], ["interrupted"], {})


# Within other graphs and chains.


def graph_around(agent: Any, **options: Any) -> Any:
    graph: Any = StateGraph(MessagesState)
    graph.add_node("agent", agent)
    graph.add_edge(START, "agent")
    return graph.compile(**options)


@pytest.mark.parametrize("sync", [False, True])
async def test_it_is_a_node_of_another_graph_as_the_agent_is(sync: bool) -> None:
    agent, seen = sync_agent(name="child"), Recorder()
    bare, outer = graph_around(agent), graph_around(hooked(agent, hooks=[seen.hooks]))

    result = await (asyncio.to_thread(outer.invoke, GO) if sync else outer.ainvoke(GO))

    assert shown(result) == shown(await bare.ainvoke(GO))
    assert (seen.names(), {each.agent_id for each in seen.events}) == (TWO_STEPS, {"child"})
    assert outer.get_graph(xray=True).draw_mermaid() == bare.get_graph(xray=True).draw_mermaid()
    chunks = shown(await all_of(outer.astream(GO, subgraphs=True, stream_mode="updates")))
    assert [each[1] for each in chunks] == [
        each[1] for each in shown(await all_of(bare.astream(GO, subgraphs=True, stream_mode="updates")))
    ]


@for_each("sync", [False, True])
@for_each("by_id", [False, True])
@for_each("decision", ["approve", "reject"])
async def test_a_node_waits_for_a_person_and_goes_on_as_the_same_operation(
    sync: bool, by_id: bool, decision: str
) -> None:
    asks, seen = Hooks("asks"), Recorder()
    asks.guard(ToolCall)(lambda call: Ask("may I?"))
    node = hooked(sync_agent(name="child"), hooks=[asks, seen.hooks])
    outer, config = graph_around(node, checkpointer=InMemorySaver()), thread()

    async def run(given: Any) -> Any:
        return await (asyncio.to_thread(outer.invoke, given, config) if sync else outer.ainvoke(given, config))

    (pause,) = (await run(GO))["__interrupt__"]
    assert [each.reason for each in seen.of(OnComplete)] == ["waiting_for_human"]
    decided = {"decisions": [{"type": decision, "message": "no"}]}
    result = await run(Command(resume={pause.id: decided} if by_id else decided))

    assert told(result) == (["3"] if decision == "approve" else ["A person refused this call: no"])
    assert [each.reason for each in seen.of(OnComplete)] == ["waiting_for_human", "done"]
    assert [each.action for each in seen.of(AfterHumanIntervention)] == [
        "approve" if decision == "approve" else "rejectAndContinue"
    ]
    assert len({each.operation_id for each in seen.events}) == 1


async def test_a_rejection_that_ends_a_node_ends_its_graph_and_answers_no_other_question() -> None:
    asks, seen, answered = Hooks("asks"), Recorder(), list[Any]()
    asks.guard(ToolCall)(lambda call: Ask("may I?"))
    graph: Any = StateGraph(MessagesState)
    graph.add_node("agent", hooked(sync_agent(), hooks=[asks, seen.hooks]))
    graph.add_node("question", lambda state: answered.append(graph_interrupt("and now?")))
    graph.add_edge(START, "agent")
    graph.add_edge("agent", "question")
    outer, config = graph.compile(checkpointer=InMemorySaver()), thread()

    await outer.ainvoke(GO, config)
    stop = {"decisions": [{"type": "reject", "message": "no", "ends_the_run": True}]}
    with pytest.raises(RunStopped, match="no"):
        await outer.ainvoke(Command(resume=stop), config)

    assert [each.reason for each in seen.of(OnComplete)] == ["waiting_for_human", "interrupted"]
    assert answered == []


async def test_a_command_that_decides_nothing_begins_an_operation() -> None:
    seen, config = Recorder(), thread()
    run = hooked(saving_agent(), hooks=[seen.hooks])

    await run.ainvoke(GO, config)
    await run.ainvoke(Command(update={"messages": [("user", "again")]}, goto="model"), config)

    assert len({each.operation_id for each in seen.events}) == 2
    assert "request_human_approve" not in {each.step_type for each in seen.of(AfterStep)}


# What hooks make of a run, in each form.


async def test_a_hook_changes_the_output_of_a_run_in_the_second_version() -> None:
    hooks = Hooks("changes")
    hooks.after(AgentCall)(lambda call, result: replace(result, output="***"))

    result = await hooked(sync_agent(), hooks=[hooks]).ainvoke(GO, version="v2")

    assert isinstance(result, GraphOutput)
    assert result.value["messages"][-1].text == "***"


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_a_denied_run_raises(version: Any) -> None:
    hooks = Hooks("denies")
    hooks.guard(AgentCall)(lambda call: Deny("not today"))

    with pytest.raises(RunStopped, match="not today"):
        await hooked(sync_agent(), hooks=[hooks]).ainvoke(GO, version=version)


async def test_a_run_in_the_second_version_pauses_and_is_continued() -> None:
    asks, more, seen, config = Hooks("asks"), Hooks("more"), Recorder(), thread()
    asks.guard(ToolCall)(lambda call: Ask("may I?"))
    again = iter([Continue("and again"), None])
    more.after(AgentCall)(lambda call, result: next(again))
    run = hooked(saving_agent(), hooks=[asks, more, seen.hooks])

    result = await run.ainvoke(GO, config, version="v2")
    assert [each.reason for each in seen.of(OnComplete)] == ["waiting_for_human"]
    command = Command(resume={result.interrupts[0].id: {"decisions": [{"type": "approve"}]}})
    result = await run.ainvoke(command, config, version="v2")

    assert [each.text for each in result.value["messages"]][-3:] == ["done", "and again", "done"]


@EXPERIMENTAL
@for_each("change", [lambda call, answer: replace(answer, content="***"), lambda *_: Deny("***")])
@for_each("way", [*ASYNC_STREAMS, *(f"sync {each}" for each in SYNC_STREAMS), "messages, v3"])
async def test_what_a_hook_changes_or_withholds_is_in_no_stream(way: str, change: Callable[..., Any]) -> None:
    hooks = Hooks("withholds")
    hooks.after(ModelCall)(change)
    run = hooked(speaking(says("my secret")), hooks=[hooks])

    chunks: list[Any] = []
    stopped: RunStopped | None = None
    try:
        if way.startswith("sync "):
            await asyncio.to_thread(lambda: chunks.extend(SYNC_STREAMS[way.removeprefix("sync ")](run)))
        else:
            async for chunk in messages_v3(run) if way == "messages, v3" else ASYNC_STREAMS[way](run):
                chunks.append(chunk)  # noqa: PERF401  # what came before the stream raises counts
    except RunStopped as error:
        stopped = error

    assert "secret" not in repr(chunks)
    assert "***" in repr([*chunks, stopped])
