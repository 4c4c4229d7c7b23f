"""Log records made inside of a run say which run and which span they are from, and those made outside say nothing."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import logging.handlers
import pickle
import queue
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.to_thread
import pytest
from opentelemetry.sdk._logs import LoggingHandler
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NoOpTracerProvider

from hookline import (
    AfterStep,
    AfterToolCall,
    AgentCall,
    AgentSession,
    Approve,
    BeforeStep,
    BeforeToolCall,
    CompactCall,
    HookDispatcher,
    Hooks,
    ModelCall,
    OnComplete,
    OnToolCallError,
    ScriptedModel,
    StepCall,
    SubAgentCall,
    ToolCall,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.otel import RunContextFilter
from hookline.runtime import Compaction
from tests.otel.capture import Sink, agent_of, asks, call, calls, says
from tests.tables import for_each

pytestmark = pytest.mark.anyio

log = logging.getLogger("tests.application")
FIELDS = ("operation_id", "trace_id", "span_id", "trace_sampled")
OUTSIDE = ("", "", "", False)


class Heard(logging.Handler):
    """A handler with the filter, which keeps the records."""

    def __init__(self) -> None:
        super().__init__()
        self.addFilter(RunContextFilter())
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def of(self, message: str) -> Any:
        (found,) = [record for record in self.records if record.getMessage() == message]
        return found

    def fields(self, message: str) -> tuple[Any, ...]:
        return tuple(getattr(self.of(message), field) for field in FIELDS)


@contextlib.contextmanager
def attached(handler: logging.Handler, name: str = log.name) -> Iterator[None]:
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@pytest.fixture
def heard() -> Iterator[Heard]:
    handler = Heard()
    with attached(handler):
        yield handler


def fields_of(span: Any) -> tuple[Any, ...]:
    """What a record made inside of a span says."""
    ids = (f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}")
    return (span.attributes["hookline.operation.id"], *ids, True)


def assert_from(heard: Heard, sink: Sink, operation_id: str) -> None:
    """Every record is from that operation, and names spans of it that were exported."""
    spans = {fields_of(span) for span in sink.spans if span.attributes["hookline.operation.id"] == operation_id}
    assert heard.records
    for record in heard.records:
        assert tuple(getattr(record, field) for field in FIELDS) in spans, record.getMessage()


async def test_observers_log_as_their_run_wherever_they_are_run(heard):
    sink, hooks = Sink(), Hooks("mine")

    @hooks.on(BeforeStep)
    def now(event):
        log.info("now %s", event.step_index)

    @hooks.on(AfterStep)
    async def later(event):
        await anyio.sleep(0)
        log.info("later %s", event.step_index)

    @hooks.on(BeforeToolCall)
    async def asked(event):
        await anyio.sleep(0)
        log.info("asked")

    @hooks.on(AfterToolCall)
    def told(event):
        log.info("told")

    @hooks.on(OnComplete)
    async def at_the_end(event):
        await anyio.sleep(0)
        log.info("at the end")

    @tool
    async def find() -> str:
        return "found"

    agent = agent_of(calls(call("find")), says(), tools=[find])
    await exec_agent(agent, "go", hooks=[sink.tracing(), hooks], operation_id="it")

    assert len(heard.records) == 7
    assert_from(heard, sink, "it")
    assert heard.fields("told") == fields_of(sink.named("agent_step")[0])
    assert heard.fields("at the end") == fields_of(sink.one("invoke_agent"))


async def test_interceptors_log_as_their_run_on_every_seam(heard):
    sink, hooks = Sink(), Hooks("mine")
    for kind in (AgentCall, StepCall, ModelCall, ToolCall, SubAgentCall, CompactCall):

        @hooks.around(kind)
        async def around(asked, call_next, name=kind.__name__):
            log.info("into %s", name)
            result = await call_next(asked)
            await anyio.sleep(0)
            log.info("out of %s", name)
            return result

        hooks.before(kind)(lambda asked, name=kind.__name__: log.info("before %s", name))
        hooks.guard(kind)(lambda asked, name=kind.__name__: log.info("guard %s", name))
        hooks.after(kind)(lambda asked, result, name=kind.__name__: log.info("after %s", name))

        @hooks.after(kind, wait=False)
        async def unwaited(asked, result, name=kind.__name__):
            await anyio.sleep(0)
            log.info("unwaited %s", name)

    @tool
    async def find() -> str:
        return "found"

    async def summarize(messages):
        return "short"

    agent = agent_of(
        calls(call("find"), asks("child", "t2"), tokens=99),
        says(),
        tools=[find],
        sub_agents=[agent_of(says(), id="child")],
        compaction=Compaction(max_tokens=50, summarize=summarize, keep_last=0),
    )
    await exec_agent(agent, "go", hooks=[hooks, sink.tracing()], operation_id="it")

    assert len({record.getMessage() for record in heard.records}) == 6 * 6
    assert_from(heard, sink, "it")


async def test_models_tools_and_summaries_log_as_their_own_spans(heard):
    sink = Sink()

    class Model(ScriptedModel):
        async def respond(self, asked):
            log.info("model %s", asked.step_index)
            await anyio.sleep(0)
            log.info("model again %s", asked.step_index)
            return await super().respond(asked)

    @tool
    async def waiting() -> str:
        await anyio.sleep(0)
        log.info("async tool")

        async def part() -> None:
            log.info("task of a tool")

        async with anyio.create_task_group() as group:
            group.start_soon(part)
        await anyio.to_thread.run_sync(log.info, "thread of a tool")
        return "waited"

    @tool
    def threaded() -> str:
        log.info("tool in a thread")
        return "done"

    @tool(in_thread=False)
    def direct() -> str:
        log.info("tool on the loop")
        return "done"

    async def summarize(messages):
        log.info("summarize")
        return "short"

    agent = agent_of(
        model=Model([calls(call("waiting"), call("threaded", "t2"), call("direct", "t3"), tokens=99), says()]),
        tools=[waiting, threaded, direct],
        compaction=Compaction(max_tokens=50, summarize=summarize, keep_last=0),
    )
    await exec_agent(agent, "go", hooks=[sink.tracing()])

    assert heard.fields("async tool") == fields_of(sink.one("execute_tool waiting"))
    assert heard.fields("task of a tool") == fields_of(sink.one("execute_tool waiting"))
    assert heard.fields("thread of a tool") == fields_of(sink.one("execute_tool waiting"))
    assert heard.fields("tool in a thread") == fields_of(sink.one("execute_tool threaded"))
    assert heard.fields("tool on the loop") == fields_of(sink.one("execute_tool direct"))
    assert heard.fields("summarize") == fields_of(sink.one("compact_context"))
    for number, span in enumerate(sink.named("chat")):
        assert heard.fields(f"model {number}") == heard.fields(f"model again {number}") == fields_of(span)


async def test_without_chat_spans_a_model_logs_as_its_step(heard):
    sink = Sink()

    async def respond(asked):
        log.info("model")
        return says()

    await exec_agent(agent_of(model=ScriptedModel(respond)), "go", hooks=[sink.tracing(model_spans=False)])

    assert heard.fields("model") == fields_of(sink.one("agent_step"))


async def test_a_sub_agent_logs_as_itself_and_its_caller_as_the_caller(heard):
    sink, hooks = Sink(), Hooks("mine", inherit=True)

    @tool
    async def find() -> str:
        log.info("in the child")
        return "found"

    @hooks.on(AfterToolCall)
    async def later(event):
        log.info("observer of the child")

    @tool
    async def note() -> str:
        log.info("in the caller")
        return "noted"

    child = agent_of(calls(call("find")), says(), id="child", tools=[find])
    caller = agent_of(calls(asks("child")), calls(call("note")), says(), tools=[note], sub_agents=[child])
    mine = Hooks("the caller's")
    mine.before(SubAgentCall)(lambda asked: log.info("before the child"))
    mine.after(SubAgentCall)(lambda asked, result: log.info("after the child"))
    result = await exec_agent(caller, "go", hooks=[sink.tracing(), mine])

    inner = sink.one("invoke_agent child")
    assert heard.fields("in the child") == fields_of(sink.one("execute_tool find"))
    assert heard.of("in the child").operation_id == inner.attributes["hookline.operation.id"] != result.operation_id
    for message in ("in the caller", "before the child", "after the child"):
        assert heard.of(message).operation_id == result.operation_id
    assert heard.fields("in the caller") == fields_of(sink.one("execute_tool note"))
    assert len({record.trace_id for record in heard.records}) == 1


async def test_runs_at_the_same_time_never_mix(heard):
    sink = Sink()
    tracing = sink.tracing()

    @tool
    async def slow(of: str) -> str:
        for _ in range(3):
            log.info("%s", of)
            await anyio.sleep(0)
        return of

    @tool
    def threaded(of: str) -> str:
        log.info("%s", of)
        return of

    hooks = Hooks("mine")

    @hooks.on(AfterToolCall)
    async def later(event):
        await anyio.sleep(0)
        log.info("%s", event.operation_id)

    @hooks.around(ToolCall)
    async def around(asked, call_next):
        await anyio.sleep(0)
        log.info("%s", asked.operation_id)
        return await call_next(asked)

    async def one(name: str) -> None:
        turns = [
            calls(call("slow", "t1", of=name), call("threaded", "t2", of=name), call("slow", "t3", of=name)),
            says(),
        ]
        agent = agent_of(*turns, tools=[slow, threaded])
        await exec_agent(agent, "go", hooks=[tracing, hooks], operation_id=name)

    async with anyio.create_task_group() as group:
        for number in range(12):
            group.start_soon(one, f"run {number}")

    assert len(heard.records) == 12 * (3 + 1 + 3 + 3 + 3)
    traces: dict[str, set[str]] = {}
    spans = {fields_of(span) for span in sink.spans}
    for record in heard.records:
        assert record.operation_id == record.getMessage()
        assert tuple(getattr(record, field) for field in FIELDS) in spans
        traces.setdefault(record.operation_id, set()).add(record.trace_id)
    assert all(len(each) == 1 for each in traces.values())
    assert len(set.union(*traces.values())) == 12


async def test_parallel_tools_of_one_step_log_each_as_itself(heard):
    sink = Sink()
    meeting = anyio.Event()

    @tool
    async def meet(name: str) -> str:
        log.info("%s comes", name)
        if name == "b":
            meeting.set()
        await meeting.wait()
        log.info("%s goes", name)
        return name

    agent = agent_of(calls(call("meet", "a", name="a"), call("meet", "b", name="b")), says(), tools=[meet])
    await exec_agent(agent, "go", hooks=[sink.tracing()])

    by_call = {span.attributes["gen_ai.tool.call.id"]: span for span in sink.named("execute_tool")}
    for name in "ab":
        assert heard.fields(f"{name} comes") == heard.fields(f"{name} goes") == fields_of(by_call[name])


async def test_outside_of_runs_a_record_says_nothing(heard):
    sink = Sink()
    beside, begun = anyio.Event(), anyio.Event()

    @tool
    async def find() -> str:
        begun.set()
        await beside.wait()
        return "found"

    async def neighbour() -> None:
        await begun.wait()
        log.info("beside")
        beside.set()

    log.info("before")
    async with anyio.create_task_group() as group:
        group.start_soon(neighbour)
        await exec_agent(agent_of(calls(call("find")), says(), tools=[find]), "go", hooks=[sink.tracing()])
        log.info("after")
    with pytest.raises(TypeError):
        await exec_agent(agent_of(says()), "go", hooks=[sink.tracing()], unknown=1)
    log.info("after a mistake")
    await exec_agent(agent_of(ValueError("broke")), "go", hooks=[sink.tracing()])
    log.info("after a failure")
    with anyio.move_on_after(0):
        await exec_agent(agent_of(says()), "go", hooks=[sink.tracing()])
    log.info("after a cancellation")

    for message in ("before", "beside", "after", "after a mistake", "after a failure", "after a cancellation"):
        assert heard.fields(message) == OUTSIDE


async def test_a_run_without_tracing_says_nothing(heard):
    sink = Sink()

    @tool
    async def find() -> str:
        log.info("inside")
        return "found"

    await exec_agent(agent_of(calls(call("find")), says(), tools=[find]), "go", hooks=[sink.metrics()])

    assert heard.fields("inside") == OUTSIDE


async def test_a_run_inside_of_a_tool_of_another_run_has_its_own_ids_and_gives_them_back(heard):
    sink = Sink()

    @tool
    async def inner() -> str:
        log.info("inner")
        return "inner"

    @tool
    async def outer() -> str:
        log.info("before")
        agent = agent_of(calls(call("inner")), says(), tools=[inner], id="nested")
        await exec_agent(agent, "go", hooks=[sink.tracing()], operation_id="nested")
        log.info("after")
        return "outer"

    await exec_agent(
        agent_of(calls(call("outer")), says(), tools=[outer]), "go", hooks=[sink.tracing()], operation_id="outer"
    )

    assert heard.fields("inner") == fields_of(sink.one("execute_tool inner"))
    assert heard.of("inner").operation_id == "nested"
    assert heard.fields("before") == heard.fields("after") == fields_of(sink.one("execute_tool outer"))


async def test_a_resumed_segment_logs_as_the_same_operation_in_its_own_trace(heard):
    sink = Sink()

    @tool(needs_approval=True)
    def send() -> str:
        log.info("sent")
        return "sent"

    @tool
    def prepare() -> str:
        log.info("prepared")
        return "prepared"

    agent = agent_of(calls(call("prepare"), call("send", "t2")), says(), tools=[prepare, send])
    paused = await exec_agent(agent, "go", hooks=[sink.tracing()])
    await resume_agent(agent, paused.operation_id, [Approve("t2")], hooks=[sink.tracing()])

    assert heard.of("sent").operation_id == heard.of("prepared").operation_id == paused.operation_id
    assert heard.of("sent").trace_id != heard.of("prepared").trace_id
    assert heard.fields("sent") == fields_of(sink.one("execute_tool send"))


async def test_each_task_of_a_session_logs_as_its_own_operation(heard):
    sink = Sink()

    async def respond(asked):
        log.info("%s", asked.messages[-1].content)
        return says()

    async with AgentSession(agent_of(model=ScriptedModel(respond)), hooks=[sink.tracing()]) as session:
        first = await session.run("first")
        log.info("between")
        second = await session.run("second")

    assert heard.of("first").operation_id == first.operation_id
    assert heard.of("second").operation_id == second.operation_id
    assert heard.fields("between") == OUTSIDE


async def test_a_run_that_is_not_sampled_says_so_and_which_it_is(heard):
    sink = Sink(sampler=ALWAYS_OFF)

    @tool
    def find(where: str) -> str:
        log.info(where)
        return "found"

    child = agent_of(calls(call("find", where="inner")), says(), id="child", tools=[find])
    turns = (calls(asks("child", "t1")), calls(call("find", where="outer")), says())
    agent = agent_of(*turns, tools=[find], sub_agents=[child])
    await exec_agent(agent, "go", hooks=[sink.tracing()], operation_id="it")

    inner, outer = heard.of("inner"), heard.of("outer")
    assert outer.operation_id == "it"
    assert inner.operation_id not in ("it", "")
    assert outer.trace_id == inner.trace_id
    assert len(outer.trace_id) == 32
    assert outer.trace_sampled is False
    assert sink.spans == []


async def test_where_there_is_no_trace_the_operation_is_still_known(heard):
    sink = Sink()

    @tool
    def find() -> str:
        log.info("inside")
        return "found"

    agent = agent_of(calls(call("find")), says(), tools=[find])
    await exec_agent(agent, "go", hooks=[sink.tracing(tracer_provider=NoOpTracerProvider())], operation_id="it")

    assert heard.fields("inside") == ("it", "", "", False)


async def test_what_is_logged_of_a_hook_that_failed_says_which_run_that_was():
    sink, hooks, handler = Sink(), Hooks("mine"), Heard()

    @hooks.on(AfterStep, id="bad")
    async def bad(event):
        raise RuntimeError("broke")

    @hooks.on(BeforeStep, id="worse")
    def worse(event):
        raise RuntimeError("broke")

    hooks.before(ModelCall, on_error="open", id="worst")(lambda asked: 1 / 0)

    with attached(handler, "hookline"):
        await exec_agent(agent_of(says()), "go", hooks=[hooks, sink.tracing()], operation_id="it")

    assert len(handler.records) == 3
    assert_from(handler, sink, "it")


async def test_code_that_runs_in_another_runtimes_span_logs_as_that(heard):
    sink = Sink()
    tracing = sink.tracing()
    tool_call = {"toolset": "local", "tool_name": "find", "args": {}, "call_index": 1, "step_index": 0}
    ids = {"operation_id": "foreign", "agent_id": "other"}

    async with HookDispatcher() as dispatcher:
        dispatcher.register("foreign", [tracing])
        dispatcher.dispatch(BeforeStep(**ids, step_index=0))
        with tracing.activate("foreign"):
            log.info("step")
            await dispatcher.dispatch_before_tool_call(BeforeToolCall(**ids, **tool_call, tool_call_id="t1"))
            with tracing.activate("foreign", "t1"):
                log.info("tool")
            log.info("step again")
        with tracing.activate("unknown"), pytest.raises(KeyError):
            log.info("nowhere")
            with tracing.activate("foreign", "t1"):
                raise KeyError
        log.info("outside")
        ended = {"error": "", "error_type": "KeyError", "mocked": False, "answered_by": None, "metadata": {}}
        dispatcher.dispatch(OnToolCallError(**ids, **tool_call, **ended, tool_call_id="t1", execution_time_ms=1.0))
        tracing.close()

    assert heard.fields("step") == heard.fields("step again") == fields_of(sink.one("agent_step"))
    assert heard.fields("tool") == fields_of(sink.one("execute_tool"))
    assert heard.fields("nowhere") == heard.fields("outside") == OUTSIDE


# Into which form.


async def traced_tool(do: Any, operation_id: str = "it") -> Sink:
    """Run something inside of a tool of a traced run."""
    sink = Sink()

    @tool
    async def act() -> str:
        do()
        return "done"

    await exec_agent(
        agent_of(calls(call("act")), says(), tools=[act]), "go", hooks=[sink.tracing()], operation_id=operation_id
    )
    return sink


@for_each(
    ("style", "form"),
    [
        ("%", "%(operation_id)s %(trace_id)s %(span_id)s %(trace_sampled)s %(message)s"),
        ("{", "{operation_id} {trace_id} {span_id} {trace_sampled} {message}"),
        ("$", "$operation_id $trace_id ${span_id} $trace_sampled $message"),
    ],
)
async def test_any_format_can_name_the_ids_inside_and_outside(style, form):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter(form, style=style))
    handler.addFilter(RunContextFilter())

    with attached(handler):
        log.info("outside")
        sink = await traced_tool(lambda: log.info("inside"))

    outside, inside = stream.getvalue().splitlines()
    assert outside == "   False outside"
    assert inside.split(" ") == [str(field) for field in fields_of(sink.one("execute_tool"))] + ["inside"]


async def test_a_record_keeps_what_it_brings_along(heard):
    await traced_tool(lambda: log.info("mine", extra={"operation_id": "my own", "trace_id": "my trace"}))

    record = heard.of("mine")
    assert (record.operation_id, record.trace_id) == ("my own", "my trace")
    assert record.span_id


async def test_a_record_that_another_thread_writes_is_from_where_it_was_made():
    waiting: queue.Queue[Any] = queue.Queue()
    front = logging.handlers.QueueHandler(waiting)
    front.addFilter(RunContextFilter())
    back = Heard()
    listener = logging.handlers.QueueListener(waiting, back)

    listener.start()
    try:
        with attached(front):
            sink = await traced_tool(lambda: log.info("inside"))
    finally:
        listener.stop()

    assert back.fields("inside") == fields_of(sink.one("execute_tool"))


async def test_a_record_can_be_pickled_and_written_as_json(heard):
    await traced_tool(lambda: log.info("inside"))

    found = heard.of("inside").__dict__
    assert pickle.loads(pickle.dumps(found)) == found
    json.dumps({field: found[field] for field in FIELDS})


async def test_the_filter_on_a_logger_completes_the_records_of_that_logger(heard):
    seen: list[Any] = []
    plain = logging.Handler()
    plain.emit = seen.append  # type: ignore[method-assign]
    watcher = RunContextFilter()
    log.addFilter(watcher)
    try:
        with attached(plain):
            await traced_tool(lambda: log.info("inside"))
    finally:
        log.removeFilter(watcher)

    assert seen[0].operation_id == "it"


async def test_the_sdks_handler_exports_a_record_with_the_ids_of_its_span():
    exported = Sink()
    with pytest.warns(DeprecationWarning, match="LoggingHandler"):
        handler = LoggingHandler(logger_provider=exported.logger_provider)
    handler.addFilter(RunContextFilter())

    with attached(handler):
        sink = await traced_tool(lambda: log.warning("inside"))
        log.warning("outside")

    inside, outside = exported.logs
    span = sink.one("execute_tool")
    assert (inside.trace_id, inside.span_id) == (span.context.trace_id, span.context.span_id)
    assert inside.attributes["operation_id"] == "it"
    assert outside.trace_id in (0, None)
    assert outside.attributes["operation_id"] == ""
    assert exported.exported_logs()


@pytest.mark.parametrize(
    "operation_id",
    ["half \ud800", "o" * 10**6, "zero\x00", "emoji 👩‍👩‍👧‍👦"],
    ids=["half of a pair", "a megabyte", "zero byte", "emoji"],
)
async def test_a_hostile_id_is_the_same_in_the_log_as_in_the_trace_and_can_be_written(
    operation_id, tmp_path, capsys, heard
):
    handler = logging.FileHandler(tmp_path / "log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(operation_id)s %(message)s"))
    handler.addFilter(RunContextFilter())

    with attached(handler):
        sink = await traced_tool(lambda: log.info("inside"), operation_id)
    handler.close()

    assert heard.of("inside").operation_id == sink.one("execute_tool").attributes["hookline.operation.id"]
    assert (tmp_path / "log").read_text(encoding="utf-8").endswith(" inside\n")
    assert "Logging error" not in capsys.readouterr().err
