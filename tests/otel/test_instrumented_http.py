"""Instrumented HTTP clients nest where they are used: httpx as OpenTelemetry instruments it, and a real server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import httpx
import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import attach, detach
from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from hookline import (
    AfterToolCall,
    Agent,
    AgentSession,
    Approve,
    BeforeStep,
    BeforeToolCall,
    Compaction,
    HookDispatcher,
    Hooks,
    InMemoryStore,
    Message,
    ModelCall,
    ModelResponse,
    OnComplete,
    Phase,
    ScriptedModel,
    StepCall,
    SubAgentCall,
    ToolCall,
    ToolResult,
    TransientModelError,
    exec_agent,
    interrupt,
    resume_agent,
    tool,
)
from hookline.otel import MetricsHooks, TracingHooks
from hookline.runtime import ModelRetry

from .capture import RESOURCE
from .receiver import Answer, Request, Server, ask, call, calls, says

pytestmark = pytest.mark.anyio


class Web:
    """A server, a client that is instrumented, and what both have seen of each call; a call is known by its path."""

    def __init__(self) -> None:
        self.kept = InMemorySpanExporter()
        self.provider = TracerProvider(resource=RESOURCE, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.kept))
        self.server = Server(lambda request: Answer(body=request.path.encode()))

    def tracing(self, **options: Any) -> TracingHooks:
        return TracingHooks(self.provider, **options)

    def get(self, path: str) -> str:
        with httpx.Client(verify=False) as client:
            return client.get(f"{self.server.url}/{path}").text

    async def aget(self, path: str) -> str:
        async with httpx.AsyncClient(verify=False) as client:
            return (await client.get(f"{self.server.url}/{path}")).text

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.kept.get_finished_spans())

    def request(self, path: str) -> Request:
        (request,) = [request for request in self.server.requests if request.path == f"/{path}"]
        return request

    def client_span(self, path: str) -> ReadableSpan:
        """The client's span of a call; the server was told of exactly that one."""
        (span,) = [each for each in self.spans if url_of(each) == f"{self.server.url}/{path}"]
        context = span.context
        assert context is not None
        assert span.kind is trace.SpanKind.CLIENT
        traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        assert self.request(path).headers["traceparent"] == traceparent
        return span

    def above(self, path: str) -> ReadableSpan:
        """The span under which a call was made."""
        return self.parent(self.client_span(path))

    def parent(self, span: ReadableSpan) -> ReadableSpan:
        assert span.parent is not None, f"{span.name} is a root"
        return next(each for each in self.spans if each.context.span_id == span.parent.span_id)

    def operation_above(self, path: str) -> Any:
        return dict(self.above(path).attributes or {})["hookline.operation.id"]


def url_of(span: ReadableSpan) -> Any:
    attributes = dict(span.attributes or {})
    return attributes.get("url.full") or attributes.get("http.url")


def is_instrumented() -> bool:
    return hasattr(httpx.HTTPTransport.handle_request, "__wrapped__")


@pytest.fixture
def web() -> Iterator[Web]:
    web, instrumentor = Web(), HTTPXClientInstrumentor()
    instrumentor.instrument(tracer_provider=web.provider)
    try:
        with web.server:
            yield web
    finally:
        instrumentor.uninstrument()
        assert not is_instrumented()


def agent_of(*turns: Any, id: str = "caller", **parts: Any) -> Agent:  # noqa: A002
    return Agent(id=id, model=ScriptedModel(turns), **parts)


# Tools.


@pytest.mark.parametrize("kind", ["async", "in a thread", "on the loop"])
async def test_a_call_of_a_tool_is_under_the_span_of_that_tool(web: Web, kind: str) -> None:
    async def fetch() -> str:
        return await web.aget("page")

    def fetch_now() -> str:
        return web.get("page")

    fetching = (
        tool(fetch, name="fetch") if kind == "async" else tool(fetch_now, name="fetch", in_thread=kind != "on the loop")
    )

    await exec_agent(agent_of(calls(call("fetch")), says(), tools=[fetching]), "go", hooks=[web.tracing()])

    assert web.above("page").name == "execute_tool fetch"


async def test_calls_of_parallel_tools_are_each_under_their_own_tool_call(web: Web) -> None:
    met = [anyio.Event() for _ in range(4)]

    @tool
    async def fetch(at: int) -> str:
        """All of them are in flight at the same time, and they end in the opposite order."""
        met[at].set()
        for event in met:
            await event.wait()
        return await web.aget(f"page-{at}")

    @tool
    def fetch_in_thread(at: int) -> str:
        return web.get(f"threaded-{at}")

    step = calls(
        *(call("fetch", f"a{at}", at=at) for at in range(4)),
        *(call("fetch_in_thread", f"b{at}", at=at) for at in range(4)),
    )

    await exec_agent(agent_of(step, says(), tools=[fetch, fetch_in_thread]), "go", hooks=[web.tracing()])

    for at in range(4):
        for path, call_id in ((f"page-{at}", f"a{at}"), (f"threaded-{at}", f"b{at}")):
            assert dict(web.above(path).attributes or {})["gen_ai.tool.call.id"] == call_id


async def test_calls_of_many_runs_at_once_are_each_in_the_trace_of_their_own_run(web: Web) -> None:
    tracing = web.tracing()

    @tool
    async def fetch(path: str) -> str:
        return await web.aget(path)

    async def run(at: int) -> None:
        agent = agent_of(calls(call("fetch", path=f"page-{at}")), says(), tools=[fetch])
        await exec_agent(agent, "go", hooks=[tracing], operation_id=f"op-{at}")

    async with anyio.create_task_group() as group:
        for at in range(12):
            group.start_soon(run, at)

    assert [web.operation_above(f"page-{at}") for at in range(12)] == [f"op-{at}" for at in range(12)]
    assert len({web.client_span(f"page-{at}").context.trace_id for at in range(12)}) == 12


async def test_a_call_of_a_tool_that_a_person_has_approved_is_in_the_trace_of_the_resumed_segment(web: Web) -> None:
    @tool(needs_approval=True)
    async def fetch() -> str:
        return await web.aget("page")

    agent, store = agent_of(calls(call("fetch")), says(), tools=[fetch]), InMemoryStore()

    paused = await exec_agent(agent, "go", hooks=[web.tracing()], store=store)
    await resume_agent(agent, paused.operation_id, [Approve("t1")], hooks=[web.tracing()], store=store)

    above = web.above("page")
    root = web.parent(web.parent(above))
    assert above.name == "execute_tool fetch"
    assert dict(root.attributes or {})["hookline.resumed"] is True


async def test_a_call_that_an_interrupt_cuts_short_is_still_under_its_tool(web: Web) -> None:
    web.server.hold()

    @tool
    async def fetch() -> str:
        return await web.aget("page")

    async def stop() -> None:
        await anyio.to_thread.run_sync(web.server.arrived.wait, 30)
        assert interrupt("op")

    agent = agent_of(calls(call("fetch")), says(), tools=[fetch])
    async with anyio.create_task_group() as group:
        group.start_soon(stop)
        result = await exec_agent(agent, "go", hooks=[web.tracing()], operation_id="op")

    assert result.reason == "interrupted"
    assert web.above("page").name == "execute_tool fetch"


# Models, compaction and sub-agents.


class RemoteModel:
    """A model that is asked over HTTP."""

    name, provider = "remote", "elsewhere"

    def __init__(self, web: Web, path: str, *turns: ModelResponse | Exception) -> None:
        self.web, self.path, self.turns, self.asked = web, path, list(turns), 0

    async def respond(self, call: ModelCall) -> ModelResponse:
        self.asked += 1
        await self.web.aget(f"{self.path}-{self.asked}")
        turn = self.turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        return turn


async def test_a_call_of_a_model_is_under_its_chat_span(web: Web) -> None:
    agent = Agent(id="caller", model=RemoteModel(web, "ask", calls(call("none")), says()))

    await exec_agent(agent, "go", hooks=[web.tracing()])

    first, second = web.above("ask-1"), web.above("ask-2")
    assert first.name == second.name == "chat remote"
    assert first.context.span_id != second.context.span_id


async def test_every_attempt_of_a_model_is_under_the_one_chat_span(web: Web) -> None:
    model = RemoteModel(web, "ask", TransientModelError("busy"), says())

    await exec_agent(Agent(id="caller", model=model, retry=ModelRetry(first_wait=0.0)), "go", hooks=[web.tracing()])

    assert web.above("ask-1").context.span_id == web.above("ask-2").context.span_id


async def test_without_chat_spans_a_call_of_a_model_is_under_the_step(web: Web) -> None:
    agent = Agent(id="caller", model=RemoteModel(web, "ask", says()))

    await exec_agent(agent, "go", hooks=[web.tracing(model_spans=False)])

    assert web.above("ask-1").name == "agent_step"


async def test_a_call_of_the_code_that_summarizes_is_under_the_compaction(web: Web) -> None:
    async def summarize(messages: list[Message]) -> str:
        return await web.aget("summary")

    @tool
    def noop() -> str:
        return "x" * 400

    turns = calls(call("noop", "t1"), read=1), calls(call("noop", "t2"), read=900), says()
    agent = agent_of(*turns, tools=[noop], compaction=Compaction(max_tokens=100, summarize=summarize))

    await exec_agent(agent, "go", hooks=[web.tracing()])

    assert web.above("summary").name == "compact_context"


async def test_calls_of_sub_agents_that_run_at_the_same_time_are_in_their_own_segments(web: Web) -> None:
    @tool
    async def fetch(path: str) -> str:
        return await web.aget(path)

    def helper(name: str) -> Agent:
        model = RemoteModel(web, f"{name}-asks", calls(call("fetch", path=f"{name}-page")), says())
        return Agent(id=name, tools=[fetch], model=model)

    agent = agent_of(calls(ask("ann", "t1"), ask("bob", "t2")), says(), sub_agents=[helper("ann"), helper("bob")])

    await exec_agent(agent, "go", hooks=[web.tracing()])

    for name in ("ann", "bob"):
        in_tool, in_model = web.above(f"{name}-page"), web.above(f"{name}-asks-1")
        assert (in_tool.name, in_model.name) == ("execute_tool fetch", "chat remote")
        root = web.parent(web.parent(in_tool))
        assert root.name == f"invoke_agent {name}"
        assert web.parent(root).name == f"call_agent {name}"
        assert web.parent(web.parent(in_model)) is not None
    assert len({span.context.trace_id for span in web.spans}) == 1


# Hooks.


async def test_calls_of_observers_are_under_the_span_that_is_present_when_they_are_told(web: Web) -> None:
    hooks = Hooks("calling")

    @hooks.on(BeforeStep)
    async def starting(event: BeforeStep) -> None:
        await web.aget(f"before-step-{event.step_index}")

    @hooks.on(BeforeToolCall)
    async def before(event: BeforeToolCall) -> None:
        await web.aget("before-tool")

    @hooks.on(AfterToolCall)
    def after(event: AfterToolCall) -> None:
        web.get("after-tool")

    @hooks.on(AfterToolCall)
    async def after_queued(event: AfterToolCall) -> None:
        await web.aget("after-tool-queued")

    @hooks.on(OnComplete)
    async def complete(event: OnComplete) -> None:
        await web.aget("complete")

    @tool
    async def noop() -> str:
        return "x"

    await exec_agent(agent_of(calls(call("noop")), says(), tools=[noop]), "go", hooks=[web.tracing(), hooks])

    assert web.above("before-step-0").name == "invoke_agent caller"
    assert [web.above(path).name for path in ("before-tool", "after-tool", "after-tool-queued")] == ["agent_step"] * 3
    assert len({web.above(path).context.span_id for path in ("before-tool", "after-tool", "after-tool-queued")}) == 1
    assert web.above("complete").name == "invoke_agent caller"


async def test_calls_of_interceptors_are_under_the_step_that_they_stand_in(web: Web) -> None:
    hooks = Hooks("calling")

    @hooks.guard(StepCall)
    async def guard_step(call: StepCall) -> None:
        if call.step_index == 0:
            await web.aget("guard-step")

    @hooks.around(ModelCall)
    async def around_model(call: ModelCall, call_next: Callable[[ModelCall], Awaitable[Any]]) -> Any:
        if call.step_index:
            return await call_next(call)
        await web.aget("before-model")
        answer = await call_next(call)
        await web.aget("after-model")
        return answer

    @hooks.guard(ToolCall)
    async def guard_tool(call: ToolCall) -> None:
        await web.aget("guard-tool")

    @hooks.after(ToolCall)
    def after_tool(call: ToolCall, result: ToolResult) -> None:
        web.get("after-tool")

    @hooks.before(SubAgentCall)
    async def before_agent(call: SubAgentCall) -> None:
        await web.aget("before-agent")

    @tool
    async def noop() -> str:
        return "x"

    agent = agent_of(
        calls(call("noop", "t1"), ask("helper", "t2")), says(), tools=[noop], sub_agents=[agent_of(says(), id="helper")]
    )

    await exec_agent(agent, "go", hooks=[web.tracing(), hooks])

    paths = ["guard-step", "before-model", "after-model", "guard-tool", "after-tool", "before-agent"]
    assert {web.above(path).name for path in paths} == {"agent_step"}
    assert len({web.above(path).context.span_id for path in paths}) == 1


async def test_calls_of_phase_hooks_are_in_the_trace_of_the_task(web: Web) -> None:
    hooks, seen = Hooks("phases"), []

    @hooks.on_phase(None, Phase.EXECUTING_TOOL)
    async def executing(transition: Any) -> None:
        seen.append(transition)
        await web.aget(f"executing-{len(seen)}")

    @tool
    async def noop() -> str:
        return "x"

    turns = calls(call("noop")), says(), calls(call("noop")), says()
    async with AgentSession(agent_of(*turns, tools=[noop]), hooks=[web.tracing(), hooks]) as session:
        results = [await session.run("one"), await session.run("two")]

    assert [web.operation_above("executing-1"), web.operation_above("executing-2")] == [
        result.operation_id for result in results
    ]
    assert web.above("executing-1").name == "agent_step"


async def test_what_a_hook_puts_into_the_context_around_a_call_is_there_inside_of_it(web: Web) -> None:
    hooks, seen = Hooks("baggage"), {}

    def note(where: str) -> None:
        seen[where] = baggage.get_baggage("order")

    def around(kind: type[Any], key: str) -> None:
        async def put(given: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
            token = attach(baggage.set_baggage("order", f"{baggage.get_baggage('order') or ''}{key}"))
            try:
                return await call_next(given)
            finally:
                detach(token)

        hooks.around(kind, id=key)(put)

    around(StepCall, "s")
    around(ModelCall, "m")
    around(ToolCall, "t")
    around(SubAgentCall, "a")

    @tool
    async def look() -> str:
        note("tool")
        return "x"

    @tool
    def look_in_thread() -> str:
        note("thread")
        return "x"

    def answers(where: str, *turns: ModelResponse) -> ScriptedModel:
        left = list(turns)

        def answer(call: ModelCall) -> ModelResponse:
            note(where)
            return left.pop(0)

        return ScriptedModel(answer)

    helper = Agent(id="helper", model=answers("helper", says()))
    step = calls(call("look", "t1"), call("look_in_thread", "t2"), ask("helper", "t3"))
    agent = Agent(id="caller", tools=[look, look_in_thread], sub_agents=[helper], model=answers("model", step, says()))

    await exec_agent(agent, "go", hooks=[hooks])
    without, seen = dict(seen), {}
    agent = Agent(
        id="caller",
        tools=[look, look_in_thread],
        sub_agents=[Agent(id="helper", model=answers("helper", says()))],
        model=answers("model", step, says()),
    )
    await exec_agent(agent, "go", hooks=[web.tracing(), hooks])

    assert without == {"model": "sm", "tool": "st", "thread": "st", "helper": "sa"}
    assert seen == without


@pytest.mark.parametrize("named", [False, True], ids=["without its parent's id", "with its parent's id"])
async def test_a_run_that_a_tool_starts_is_under_the_span_of_that_tool(web: Web, named: bool) -> None:
    tracing = web.tracing()

    @tool
    async def fetch() -> str:
        return await web.aget("inner")

    @tool
    async def delegate() -> str:
        inner = agent_of(calls(call("fetch")), says(), id="inner", tools=[fetch])
        await exec_agent(inner, "go", hooks=[tracing], parent_operation_id="outer" if named else None)
        return await web.aget("outer")

    agent = agent_of(calls(call("delegate")), says(), tools=[delegate])
    await exec_agent(agent, "go", hooks=[tracing], operation_id="outer")

    assert web.above("inner").name == "execute_tool fetch"
    inner = web.parent(web.parent(web.above("inner")))
    assert inner.name == "invoke_agent inner"
    assert web.parent(inner).name == "execute_tool delegate"
    assert web.above("outer").name == "execute_tool delegate"


async def test_a_run_that_a_queued_observer_starts_when_its_run_is_over_is_no_child_of_a_span_that_has_ended(
    web: Web,
) -> None:
    tracing, hooks, over = web.tracing(), Hooks("following"), anyio.Event()

    @hooks.on(OnComplete)
    async def follow(event: OnComplete) -> None:
        await anyio.wait_all_tasks_blocked()
        await exec_agent(Agent(id="next", model=RemoteModel(web, "next", says())), "go", hooks=[tracing])
        over.set()

    await exec_agent(agent_of(says()), "go", hooks=[tracing, hooks])
    await over.wait()

    (first,) = [span for span in web.spans if span.name == "invoke_agent caller"]
    (second,) = [span for span in web.spans if span.name == "invoke_agent next"]
    assert second.start_time is not None
    assert first.end_time is not None
    assert second.start_time >= first.end_time
    assert second.parent is None
    assert [link.context for link in second.links] == [first.context]
    assert web.above("next-1").name == "chat remote"


# The caller.


async def test_a_run_is_under_the_callers_span_and_leaves_that_current(web: Web) -> None:
    tracer = web.provider.get_tracer("app")

    @tool
    async def fetch() -> str:
        return await web.aget("inside")

    with tracer.start_as_current_span("request") as request:
        await exec_agent(agent_of(calls(call("fetch")), says(), tools=[fetch]), "go", hooks=[web.tracing()])
        assert trace.get_current_span() is request
        await web.aget("afterwards")

    (root,) = [span for span in web.spans if span.name == "invoke_agent caller"]
    assert web.parent(root).name == "request"
    assert web.above("afterwards").name == "request"


@pytest.mark.parametrize("ending", ["done", "error", "cancelled"])
async def test_nothing_is_current_after_a_run_whatever_becomes_of_it(web: Web, ending: str) -> None:
    @tool
    async def hang() -> str:
        scope.cancel()
        await anyio.sleep_forever()
        return ""

    turns = {"done": [says()], "error": [ValueError("x")], "cancelled": [calls(call("hang"))]}[ending]
    with anyio.CancelScope() as scope:
        await exec_agent(agent_of(*turns, tools=[hang]), "go", hooks=[web.tracing()])

    assert not trace.get_current_span().get_span_context().is_valid
    await web.aget("afterwards")
    assert web.client_span("afterwards").parent is None


async def test_of_a_run_that_is_not_sampled_clients_send_on_that_decision(web: Web) -> None:
    tracing = TracingHooks(TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False))

    @tool
    async def fetch() -> str:
        return await web.aget("page")

    await exec_agent(agent_of(calls(call("fetch")), says(), tools=[fetch]), "go", hooks=[tracing])

    assert web.spans == []
    flags = web.request("page").headers["traceparent"].rpartition("-")[2]
    assert int(flags, 16) & 1 == 0


async def test_metrics_alone_change_nothing_about_where_a_call_is(web: Web) -> None:
    @tool
    async def fetch() -> str:
        return await web.aget("page")

    await exec_agent(agent_of(calls(call("fetch")), says(), tools=[fetch]), "go", hooks=[MetricsHooks()])

    assert web.client_span("page").parent is None


@pytest.mark.parametrize("swapped", [False, True])
async def test_with_two_tracers_a_call_is_under_a_tool_span_of_one_of_them(web: Web, swapped: bool) -> None:
    other = TracerProvider(shutdown_on_exit=False)
    other.add_span_processor(SimpleSpanProcessor(web.kept))
    bundles: list[Hooks] = [web.tracing(), TracingHooks(other, id="other")]

    @tool
    async def fetch() -> str:
        return await web.aget("page")

    agent = agent_of(calls(call("fetch")), says(), tools=[fetch])
    await exec_agent(agent, "go", hooks=bundles[::-1] if swapped else bundles)

    assert web.above("page").name == "execute_tool fetch"
    assert not trace.get_current_span().get_span_context().is_valid


# Other runtimes.


async def test_another_runtime_nests_a_call_by_activating_the_tool_call(web: Web) -> None:
    tracing, ids = web.tracing(), {"operation_id": "op", "agent_id": "foreign"}

    def before(call_id: str) -> BeforeToolCall:
        return BeforeToolCall(
            **ids, toolset="local", tool_name="fetch", args={}, call_index=1, step_index=0, tool_call_id=call_id
        )

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [tracing])
        dispatcher.dispatch(BeforeStep(**ids, step_index=0))
        await dispatcher.dispatch_before_tool_call(before("t1"))
        await dispatcher.dispatch_before_tool_call(before("t2"))
        with tracing.activate("op", "t1"):
            await web.aget("in-tool")
        token = attach(baggage.set_baggage("order", "7"))
        with tracing.activate("op"):
            assert baggage.get_baggage("order") == "7"
            await web.aget("in-step")
        detach(token)
        with tracing.activate("unknown"):
            await web.aget("nowhere")
        await dispatcher.unregister("op")

    assert dict(web.above("in-tool").attributes or {})["gen_ai.tool.call.id"] == "t1"
    assert web.above("in-step").name == "agent_step"
    assert web.client_span("nowhere").parent is None


def test_no_test_leaves_the_client_instrumented() -> None:
    assert not is_instrumented()
