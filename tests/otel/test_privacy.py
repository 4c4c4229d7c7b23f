"""With content off, nothing that anybody said leaves the process, wherever it was said: every place has its secret."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from hookline import (
    AfterCallAgent,
    AfterCompact,
    AfterHumanIntervention,
    AfterStep,
    AfterToolCall,
    Agent,
    AgentCall,
    AgentSession,
    Approve,
    Ask,
    BeforeCallAgent,
    BeforeCompact,
    BeforeHumanIntervention,
    BeforeStep,
    BeforeToolCall,
    CompactCall,
    Continue,
    Deny,
    HookDispatcher,
    Hooks,
    Message,
    ModelCall,
    ModelResponse,
    OnCallAgentError,
    OnCompactError,
    OnComplete,
    OnError,
    OnStopByHumanIntervention,
    OnToolCallError,
    OperationResult,
    Reject,
    Respond,
    StepCall,
    SubAgentCall,
    ToolCall,
    ToolRequest,
    ToolResult,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.errors import TransientModelError
from hookline.events import EVENTS, PendingTool, ToolOutcome
from hookline.runtime import Compaction, InMemoryStore
from hookline.signals import hook_executed
from tests.otel.capture import Sink, agent_of, asks, call, calls, says
from tests.tables import for_each

pytestmark = pytest.mark.anyio

SECRET = "xyzzy4711plugh"
NEEDLE = b"xyzzy47"
"""A part of it, so that one that was cut is found as well."""

Place = Callable[["Scene"], Awaitable[object]]
PLACES: dict[str, Place] = {}
RECORDED: set[str] = set()
"""Those whose secret is content, and so must be there when content is on."""


def place(function: Place) -> Place:
    PLACES[function.__name__] = function
    RECORDED.add(function.__name__)
    return function


def never_recorded(function: Place) -> Place:
    """A place whose secret no setting for content brings out."""
    PLACES[function.__name__] = function
    return function


class Scene:
    """Runs agents with every kind of telemetry at once, and knows whether the secret was really said.

    Args:
        telemetry: The bundles that watch.
    """

    def __init__(self, telemetry: Sequence[Hooks]) -> None:
        self.telemetry = telemetry
        self.said: list[str] = []
        self.witness = Hooks("witness", inherit=True)
        for kind in EVENTS.values():
            self.witness.on(kind)(lambda event: self.said.append(repr(event)))

    def __enter__(self) -> Scene:
        hook_executed.connect(self._executed)
        return self

    def __exit__(self, *raised: object) -> None:
        hook_executed.disconnect(self._executed)
        assert SECRET in "".join(self.said), "the secret was never said: the scene proves nothing"

    def _executed(self, sender: object, *, execution: Any) -> None:
        self.said.append(repr(execution))

    def all(self, *hooks: Hooks) -> list[Hooks]:
        return [*hooks, *self.telemetry, self.witness]

    async def run(self, agent: Agent, prompt: Any = "go", *hooks: Hooks, **options: Any) -> OperationResult:
        return self._heard(await exec_agent(agent, prompt, hooks=self.all(*hooks), **options))

    async def resume(
        self, agent: Agent, operation_id: str, *decisions: Any, hooks: Sequence[Hooks] = ()
    ) -> OperationResult:
        return self._heard(await resume_agent(agent, operation_id, decisions, hooks=self.all(*hooks)))

    def _heard(self, result: OperationResult) -> OperationResult:
        self.said.append(repr((result, result.messages, result.output, result.error, result.denied)))
        return result


@tool
def echo(text: str = "") -> str:
    """Say it again."""
    return text


@tool
def quiet(text: str = "") -> str:
    """Take note."""
    return "noted"


async def summarize(messages: Any) -> str:
    return "short"


def everything() -> Agent:
    """An agent whose run makes every kind of call: model, tool, sub-agent, compaction."""
    return agent_of(
        calls(call("quiet"), asks("child", "t2"), tokens=99),
        says(),
        tools=[quiet],
        sub_agents=[agent_of(says(), id="child")],
        compaction=Compaction(max_tokens=50, summarize=summarize, keep_last=0),
    )


# What is said to a run, and what it says.


@place
async def prompt(scene):
    await scene.run(agent_of(says()), SECRET)


@place
async def conversation(scene):
    before = [
        Message(role="user", content=SECRET),
        Message(role="assistant", content=SECRET, tool_calls=[call("echo", text=SECRET)]),
        Message(role="tool", content=SECRET, tool_call_id="t1"),
        Message(role="user", content="go"),
    ]
    await scene.run(agent_of(says(), tools=[echo]), before)


@place
async def instructions(scene):
    await scene.run(agent_of(says(), instructions=SECRET))


@place
async def answer_of_the_model(scene):
    await scene.run(agent_of(says(SECRET)))


@place
async def words_beside_a_tool_call(scene):
    await scene.run(agent_of(calls(call("quiet"), content=SECRET), says(), tools=[quiet]))


@place
async def reasoning(scene):
    await scene.run(agent_of(says(reasoning=SECRET)))


@never_recorded
async def user(scene):
    await scene.run(agent_of(says()), user_id=SECRET)


@never_recorded
async def settings_of_the_model(scene):
    hooks = Hooks("mine")

    @hooks.before(ModelCall)
    def tuned(asked):
        scene.said.append(SECRET)
        return replace(asked, settings={"system_prompt": SECRET, "metadata": {"it": SECRET}, "temperature": 0.5})

    await scene.run(agent_of(says()), "go", hooks)


# Tools.


@place
async def arguments_of_a_tool(scene):
    await scene.run(agent_of(calls(call("quiet", text=SECRET)), says(), tools=[quiet]))


@place
async def arguments_that_are_no_json(scene):
    raw = ToolRequest(tool_name="quiet", args=f"{{{SECRET}", tool_call_id="t1")
    await scene.run(agent_of(calls(raw), says(), tools=[quiet]))


@place
async def arguments_that_the_tool_does_not_take(scene):
    await scene.run(agent_of(calls(call("quiet", **{SECRET: 1})), says(), tools=[quiet]))


@place
async def result_of_a_tool(scene):
    @tool
    def find() -> str:
        return SECRET

    await scene.run(agent_of(calls(call("find")), says(), tools=[find]))


@place
async def result_of_a_tool_that_failed(scene):
    @tool
    def find() -> ToolResult:
        return ToolResult(content=SECRET, success=False)

    await scene.run(agent_of(calls(call("find")), says(), tools=[find]))


@never_recorded
async def metadata_of_a_result(scene):
    @tool
    def find() -> ToolResult:
        return ToolResult(content="it", metadata={"it": SECRET, SECRET: 1})

    await scene.run(agent_of(calls(call("find")), says(), tools=[find]))


def raising(error: BaseException) -> Any:
    """An exception as it really is: with a cause, a context, a note and a traceback full of it."""
    error.add_note(SECRET)
    try:
        try:
            raise KeyError(SECRET)
        except KeyError as first:
            raise error from first
    except BaseException as found:
        return found


@place
async def exception_of_a_tool(scene):
    @tool
    def find() -> str:
        raise raising(ValueError(SECRET))

    await scene.run(agent_of(calls(call("find")), says(), tools=[find]))


@place
async def exception_of_a_tool_that_looks_like_a_type(scene):
    @tool
    def find() -> str:
        raise RuntimeError(f"{SECRET}: {SECRET}")

    await scene.run(agent_of(calls(call("find")), says(), tools=[find]))


@place
async def exceptions_in_a_group(scene):
    @tool
    def find() -> str:
        raise ExceptionGroup(SECRET, [ValueError(SECRET), ExceptionGroup(SECRET, [OSError(SECRET)])])

    await scene.run(agent_of(calls(call("find")), ExceptionGroup(SECRET, [ValueError(SECRET)]), tools=[find]))


@place
async def value_that_is_no_result(scene):
    class Odd:
        def __repr__(self):
            return SECRET

    @tool
    def find():
        raise TypeError(repr(Odd()))

    await scene.run(agent_of(calls(call("find")), says(), tools=[find]))


@place
async def arguments_that_wait_for_a_person(scene):
    @tool(needs_approval=True)
    def send(text: str) -> str:
        return text

    agent = agent_of(calls(call("send", text=SECRET)), says(), tools=[send])
    paused = await scene.run(agent)
    await scene.resume(agent, paused.operation_id, Approve("t1"))


@place
async def arguments_in_an_unfinished_run(scene):
    @tool(needs_approval=True)
    def send(text: str) -> str:
        return text

    agent = agent_of(calls(call("send", text=SECRET), call("echo", "t2", text=SECRET)), tools=[send, echo])
    await scene.run(agent, SECRET)


# Models.


@place
async def exception_of_a_model(scene):
    await scene.run(agent_of(raising(ValueError(SECRET))))


@place
async def exception_of_a_model_that_was_asked_again(scene):
    await scene.run(agent_of(*[TransientModelError(SECRET)] * 4))


@place
async def answer_that_is_none(scene):
    class Model:
        name, provider = "odd", "tests"

        async def respond(self, asked):
            return {SECRET: SECRET}

    await scene.run(agent_of(model=Model()))


# Sub-agents.


@place
async def instruction_of_a_sub_agent(scene):
    child = agent_of(says(), id="child")
    await scene.run(agent_of(calls(asks("child", instruction=SECRET)), says(), sub_agents=[child]))


@place
async def instruction_that_is_none(scene):
    child = agent_of(says(), id="child")
    wrong = ToolRequest(toolset="agent", tool_name="child", args=f"[{SECRET}", tool_call_id="t1")
    await scene.run(agent_of(calls(wrong), says(), sub_agents=[child]))


@place
async def answer_of_a_sub_agent(scene):
    child = agent_of(says(SECRET), id="child")
    await scene.run(agent_of(calls(asks("child")), says(), sub_agents=[child]))


@place
async def exception_of_a_sub_agent(scene):
    child = agent_of(raising(ValueError(SECRET)), id="child")
    await scene.run(agent_of(calls(asks("child")), says(), sub_agents=[child]))


@place
async def tool_of_a_sub_agent(scene):
    @tool
    def find(text: str) -> str:
        raise ValueError(text)

    child = agent_of(calls(call("find", text=SECRET)), says(), id="child", tools=[find])
    await scene.run(agent_of(calls(asks("child")), says(), sub_agents=[child]))


# Compaction.


def compacting(summarizer: Any) -> Agent:
    compaction = Compaction(max_tokens=50, summarize=summarizer, keep_last=0)
    return agent_of(calls(call("quiet"), tokens=99), says(), tools=[quiet], compaction=compaction)


@place
async def summary(scene):
    async def summarize(messages):
        return SECRET

    await scene.run(compacting(summarize))


@place
async def exception_of_summarize(scene):
    async def summarize(messages):
        raise raising(OSError(SECRET))

    await scene.run(compacting(summarize))


@place
async def summary_that_is_none(scene):
    async def summarize(messages):
        return [SECRET]

    await scene.run(compacting(summarize))


# People.


@tool(needs_approval=True)
def pay() -> str:
    """Pay."""
    return "paid"


@place
async def reason_of_a_rejection(scene):
    agent = agent_of(calls(call("pay")), says(), tools=[pay])
    paused = await scene.run(agent)
    await scene.resume(agent, paused.operation_id, Reject("t1", reason=SECRET))


@place
async def reason_of_a_rejection_after_which_the_run_goes_on(scene):
    agent = agent_of(calls(call("pay")), says(), tools=[pay])
    paused = await scene.run(agent)
    await scene.resume(agent, paused.operation_id, Reject("t1", reason=SECRET, and_continue=True))


# Hooks.


@place
async def mock(scene):
    hooks = Hooks("mine")
    hooks.on(BeforeToolCall)(lambda event: event.mock(ToolResult(content=SECRET, metadata={"it": SECRET})) and None)
    await scene.run(agent_of(calls(call("quiet")), says(), tools=[quiet]), "go", hooks)


@place
async def mocked_exception(scene):
    hooks = Hooks("mine")
    hooks.on(BeforeToolCall)(lambda event: event.mock(ValueError(SECRET)) and None)
    await scene.run(agent_of(calls(call("quiet")), says(), tools=[quiet]), "go", hooks)


@place
async def answer_of_a_hook_to_a_tool_call(scene):
    hooks = Hooks("mine")
    hooks.before(ToolCall)(lambda asked: Respond(SECRET))
    await scene.run(agent_of(calls(call("quiet")), says(), tools=[quiet]), "go", hooks)


@place
async def exception_as_the_answer_of_a_hook(scene):
    hooks = Hooks("mine")
    hooks.before(ToolCall)(lambda asked: Respond(ValueError(SECRET)))
    hooks.before(SubAgentCall)(lambda asked: Respond(ValueError(SECRET)))
    hooks.before(CompactCall)(lambda asked: Respond(ValueError(SECRET)))
    await scene.run(everything(), "go", hooks)


@place
async def answers_of_hooks_to_other_calls(scene):
    hooks = Hooks("mine")
    hooks.before(SubAgentCall)(lambda asked: Respond(SECRET))
    hooks.before(CompactCall)(lambda asked: Respond(SECRET))
    await scene.run(everything(), "go", hooks)


@place
async def question_of_a_hook(scene):
    hooks = Hooks("mine")
    hooks.before(ToolCall)(lambda asked: Ask(SECRET))
    agent = agent_of(calls(call("quiet")), says(), tools=[quiet])
    paused = await scene.run(agent, "go", hooks)
    await scene.resume(agent, paused.operation_id, Approve("t1"), hooks=[hooks])


@place
async def question_that_nobody_can_answer(scene):
    hooks = Hooks("mine")
    hooks.before(ModelCall)(lambda asked: Ask(SECRET))
    await scene.run(agent_of(says()), "go", hooks)


@place
async def further_input(scene):
    hooks = Hooks("mine")
    hooks.after(AgentCall)(lambda asked, result: Continue(SECRET))
    await scene.run(agent_of(says(), says(), says(), says()), "go", hooks)


@never_recorded
async def metadata_of_calls(scene):
    hooks = Hooks("mine")

    def note(asked):
        asked.metadata[SECRET] = SECRET
        scene.said.append(repr(asked))

    for kind in (AgentCall, StepCall, ModelCall, ToolCall, SubAgentCall, CompactCall):
        hooks.before(kind)(note)
    await scene.run(everything(), "go", hooks)


@place
async def exceptions_of_observers(scene):
    hooks = Hooks("mine", inherit=True)

    async def later(event):
        raise RuntimeError(SECRET)

    def now(event):
        raise RuntimeError(SECRET)

    for kind in EVENTS.values():
        hooks.on(kind)(later)
        hooks.on(kind)(now)
    await scene.run(everything(), "go", hooks)


@place
async def exception_of_a_hook_that_nobody_waits_for(scene):
    hooks = Hooks("mine")

    async def later(*given):
        raise RuntimeError(SECRET)

    for kind in (StepCall, ModelCall, ToolCall):
        hooks.before(kind, wait=False)(later)
        hooks.after(kind, wait=False)(later)
    await scene.run(everything(), "go", hooks)


KINDS = {"before": 1, "guard": 1, "after": 2, "around": 2}
CALLS = (AgentCall, StepCall, ModelCall, ToolCall, SubAgentCall, CompactCall)


def plant_in_hooks(kind: str, asked: type[Any], way: str) -> None:
    """One place for each way in which an interceptor can say something."""

    async def planted(scene):
        hooks = Hooks("mine")

        def handler(*given):
            scene.said.append(SECRET)
            if way == "denies":
                return Deny(SECRET)
            if way == "stops":
                return Deny(SECRET, stop=True)
            if way == "answers nonsense":
                return SECRET
            raise raising(ValueError(SECRET))

        async def around(given, call_next):
            result = await call_next(given)
            handler()
            return Deny(SECRET) if way in ("denies", "stops") else result

        policy = "open" if way == "fails open" else "closed"
        getattr(hooks, kind)(asked, on_error=policy)(around if kind == "around" else handler)
        await scene.run(everything(), "go", hooks)

    PLACES[f"{kind} {asked.__name__} {way}"] = planted
    if way in ("denies", "fails closed"):
        RECORDED.add(f"{kind} {asked.__name__} {way}")


for kind in KINDS:
    for asked in CALLS:
        for way in ("denies", "fails closed", "fails open", "answers nonsense"):
            plant_in_hooks(kind, asked, way)
plant_in_hooks("guard", ToolCall, "stops")
plant_in_hooks("after", ToolCall, "stops")
plant_in_hooks("guard", SubAgentCall, "stops")


# Around the run.


@place
async def exception_of_a_store(scene):
    class Store(InMemoryStore):
        saves = 0

        async def save(self, state, *, expected_version):
            self.saves += 1
            if self.saves == 2:
                raise OSError(SECRET)
            await super().save(state, expected_version=expected_version)

    await scene.run(agent_of(calls(call("quiet")), says(), tools=[quiet]), store=Store())


@place
async def session(scene):
    hooks = Hooks("mine")

    @hooks.on_phase(None, None)
    def moved(transition):
        raise RuntimeError(SECRET)

    agent = agent_of(says(SECRET), says(SECRET), ValueError(SECRET), instructions=SECRET)
    async with AgentSession(agent, hooks=scene.all(hooks)) as talk:
        for _ in range(3):
            await talk.run(SECRET)


# Other runtimes.


@place
async def events_of_another_runtime(scene):
    args, ids = {"it": SECRET, SECRET: [SECRET]}, {"operation_id": "foreign", "agent_id": "other"}
    called = {"toolset": "local", "tool_name": "find", "args": args, "call_index": 1, "step_index": 0}
    calling = ToolRequest(tool_name="find", args=args, tool_call_id="t1")
    outcome = ToolOutcome(toolset="local", tool_name="find", tool_call_id="t1", content=SECRET, success=False)
    numbers = {"execution_time_ms": 1.0, "elapsed_ms": 1.0, "step_cost_usd": 0.0, "total_cost_usd": 0.0}
    totals = {"total_input_tokens": 1, "total_output_tokens": 1, "total_steps": 1, "total_tool_calls": 1}
    pending = PendingTool(toolset="local", tool_name="find", tool_call_id="t3", args=args, prompt=SECRET)
    async with HookDispatcher() as dispatcher:
        dispatcher.register("foreign", scene.all())
        dispatcher.dispatch(BeforeStep(**ids, step_index=0))
        dispatcher.dispatch(BeforeCompact(**ids, step_index=0, message_count=9, token_count=9))
        dispatcher.dispatch(
            AfterCompact(**ids, step_index=0, group_id=SECRET, messages_before=9, messages_after=1, summary=SECRET)
        )
        dispatcher.dispatch(BeforeCompact(**ids, step_index=0, message_count=9, token_count=9))
        dispatcher.dispatch(OnCompactError(**ids, step_index=0, token_count=9, error=SECRET))
        for tool_call_id in ("t1", "t2"):
            await dispatcher.dispatch_before_tool_call(BeforeToolCall(**ids, **called, tool_call_id=tool_call_id))
        told = {**ids, **called, "mocked": False, "answered_by": None, "metadata": args, "execution_time_ms": 1.0}
        dispatcher.dispatch(AfterToolCall(**told, tool_call_id="t1", content=SECRET, success=False))
        dispatcher.dispatch(OnToolCallError(**told, tool_call_id="t2", error=SECRET, error_type="ValueError"))
        for ended in (
            AfterCallAgent(**ids, callee_id="child", sub_operation_id="sub", thread_id=SECRET, success=True),
            OnCallAgentError(**ids, callee_id="child", error=SECRET),
        ):
            dispatcher.dispatch(BeforeCallAgent(**ids, callee_id="child", instruction=SECRET))
            dispatcher.dispatch(ended)
        dispatcher.dispatch(BeforeHumanIntervention(**ids, step_index=0, pending_tools=[pending]))
        dispatcher.dispatch(AfterHumanIntervention(**ids, action="reject", tool_call_id="t3", rejection_reason=SECRET))
        dispatcher.dispatch(OnStopByHumanIntervention(**ids, tool_call_id="t3", rejection_reason=SECRET))
        dispatcher.dispatch(
            AfterStep(
                **ids,
                step_index=0,
                step_type="call_tool",
                content=SECRET,
                reasoning=SECRET,
                tools_calling=[calling],
                tools_result=[outcome],
                should_continue=False,
                **numbers,
                **totals,
            )
        )
        dispatcher.dispatch(
            OnComplete(
                **ids,
                reason="error",
                steps=1,
                llm_calls=1,
                tool_calls=1,
                total_tokens=1,
                cost_usd=0.0,
                duration_ms=1.0,
                last_assistant_content=SECRET,
                error_type="ValueError",
                error_message=SECRET,
            )
        )
        dispatcher.dispatch(
            OnError(**ids, error_message=SECRET, error_type="ValueError", error_detail=SECRET, step_index=0)
        )


FEWER = [where for where in PLACES if " " not in where or "ToolCall" in where]
"""Without all the ways in which interceptors of other calls can say the same."""


def telemetry(sink: Sink, capture_content: bool | str) -> list[Hooks]:
    """Every way in which a run can be shown, at the same time."""
    return [
        sink.tracing(id="plain", capture_content=capture_content, openinference=True, aggregate_usage="gen_ai"),
        sink.tracing(id="spans", capture_content=capture_content, hook_spans=True),
        sink.tracing(id="events", capture_content=capture_content, hook_spans="events", conversation_id="talk"),
        sink.metrics(),
    ]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@for_each("where", PLACES)
async def test_with_content_off_a_secret_is_in_nothing_exported(where, caplog):
    await check_nothing_exported(where)


@pytest.mark.parametrize("anyio_backend", ["trio"])
@for_each("where", FEWER)
async def test_with_content_off_a_secret_is_in_nothing_exported_on_trio(where, caplog):
    await check_nothing_exported(where)


async def check_nothing_exported(where):
    sink = Sink()

    with Scene(telemetry(sink, False)) as scene:
        await PLACES[where](scene)

    assert len(sink.named("invoke_agent")) >= 3
    assert sink.points("gen_ai.invoke_agent.duration")
    assert NEEDLE not in sink.exported()
    assert sink.losses() == {}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@for_each("where", sorted(RECORDED))
async def test_with_content_on_the_same_secret_is_there(where, caplog):
    sink = Sink()

    with Scene(telemetry(sink, "SPAN_AND_EVENT")) as scene:
        await PLACES[where](scene)

    assert NEEDLE in sink.exported()
    assert sink.losses() == {}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@for_each("where", FEWER)
async def test_with_content_on_events_only_it_is_in_no_span_and_no_metric(where, caplog):
    sink = Sink()

    with Scene(telemetry(sink, "EVENT_ONLY")) as scene:
        await PLACES[where](scene)

    assert NEEDLE not in sink.exported_spans()
    assert NEEDLE not in sink.exported_metrics()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@for_each("where", FEWER)
async def test_with_content_on_spans_only_it_is_in_no_event_and_no_metric(where, caplog):
    sink = Sink()

    with Scene(telemetry(sink, "SPAN_ONLY")) as scene:
        await PLACES[where](scene)

    assert NEEDLE not in sink.exported_logs()
    assert NEEDLE not in sink.exported_metrics()


async def test_a_user_is_named_only_where_that_was_asked_for():
    quiet_sink, sink = Sink(), Sink()

    await exec_agent(agent_of(says()), "go", user_id=SECRET, hooks=[quiet_sink.tracing(capture_content=True)])
    await exec_agent(agent_of(says()), "go", user_id=SECRET, hooks=[sink.tracing(user_ids=True)])

    assert NEEDLE not in quiet_sink.exported()
    assert sink.one("invoke_agent").attributes["user.id"] == SECRET


async def test_what_is_told_of_a_denial_with_content_off_is_who_and_how():
    sink, hooks = Sink(), Hooks("mine")

    @hooks.guard(ToolCall, id="judge")
    def judge(asked):
        return Deny(SECRET)

    await exec_agent(agent_of(calls(call("quiet")), says(), tools=[quiet]), "go", hooks=[hooks, sink.tracing()])

    attributes = sink.one("execute_tool").attributes
    assert attributes["hookline.denial.hook_id"] == "judge"
    assert attributes["hookline.denial.cause"] == "decision"
    assert attributes["hookline.tool.outcome"] == "denied"
    assert "hookline.denial.reason" not in attributes


async def test_the_type_of_an_error_is_told_also_with_content_off():
    sink = Sink()

    @tool
    def find() -> str:
        raise LookupError(SECRET)

    await exec_agent(agent_of(calls(call("find")), ValueError(SECRET), tools=[find]), "go", hooks=[sink.tracing()])

    assert sink.one("execute_tool").attributes["error.type"] == "LookupError"
    assert sink.one("invoke_agent").attributes["error.type"] == "ValueError"
    assert sink.named("chat")[1].attributes["error.type"] == "ValueError"


async def test_no_answer_of_a_model_is_told_by_its_finish_reason_alone():
    sink = Sink()

    await exec_agent(agent_of(ModelResponse(content=SECRET, finish_reason="length")), "go", hooks=[sink.tracing()])

    assert sink.one("chat").attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert NEEDLE not in sink.exported()
