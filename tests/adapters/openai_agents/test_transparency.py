"""Programs of the OpenAI Agents SDK end with hooks as they do without: each runs bare and attached, and is compared."""

from __future__ import annotations

import asyncio
import copy
import functools
import gc
import importlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from agents import (
    Agent,
    FunctionTool,
    GuardrailFunctionOutput,
    Model,
    ModelBehaviorError,
    ModelProvider,
    ModelResponse,
    ModelSettings,
    ModelTimeoutError,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Runner,
    RunState,
    SQLiteSession,
    Usage,
    function_tool,
    handoff,
    output_guardrail,
)
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from agents.run import AgentRunner
from agents.tool_context import ToolContext
from agents.util._error_tracing import get_current_task_model_timeout_error
from anyio.lowlevel import checkpoint
from openai import AsyncOpenAI
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseErrorEvent,
    ResponseFailedEvent,
    ResponseIncompleteEvent,
    ResponseTextDeltaEvent,
)

from hookline import AfterToolCall, AgentCall, Deny, Hooks, ModelCall, OnComplete, ToolCall, interrupt
from hookline.adapters.openai_agents import HooklineRunner, _patches
from hookline.errors import HookUsageError, RunStopped
from hookline.evals.adapter_contract._scenes import PLAIN
from hookline.events import EVENTS
from tests.otel.capture import Sink
from tests.tables import for_each

from .stage import QUIET, Script, agent_of, items_of
from .test_openai_agents import Recorder, calls, says

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def nothing() -> list[Any]:
    return []


def observers() -> list[Any]:
    hooks = Hooks("observers", inherit=True)
    for event in EVENTS.values():
        hooks.on(event)(lambda event: None)
    return [hooks]


def interceptors() -> list[Any]:
    hooks = Hooks("interceptors", inherit=True)
    for call in (ToolCall, ModelCall, AgentCall):
        hooks.before(call)(lambda call: None)
        hooks.guard(call)(lambda call: None)
        hooks.after(call)(lambda call, result: None)
    return [hooks]


def guards() -> list[Any]:
    hooks = Hooks("guards", inherit=True)
    for call in (ToolCall, ModelCall):
        hooks.guard(call)(lambda call: None)
    return [hooks]


def telemetry() -> list[Any]:
    return [Sink().tracing()]


ATTACHED = [nothing, observers, guards, interceptors, telemetry]


class Plainly:
    """Runs agents by `Runner` itself, or with hooks, awaited or streamed."""

    def __init__(self, runner: Any, *, streams: bool = False) -> None:
        self.runner, self.streams = runner, streams

    async def run(self, agent: Agent[Any], given: Any, **options: Any) -> Any:
        options.setdefault("run_config", QUIET)
        if not self.streams:
            return await self.runner.run(agent, given, **options)
        result = self.runner.run_streamed(agent, given, **options)
        async for _ in result.stream_events():
            pass
        return result


Program = Callable[[Plainly], Awaitable[object]]
PROGRAMS: list[Program] = []


def program(written: Program) -> Program:
    PROGRAMS.append(written)
    return written


def fails_once(turns: list[Any]) -> Script:
    """A model that cannot be reached once a tool has run, the first time."""

    class Unreliable(Script):
        failed = False

        def turn(self, given: Any) -> Any:
            if not self.failed and isinstance(given, list) and any("output" in item for item in given):
                self.failed = True
                raise RuntimeError("503")
            return super().turn(given)

    return Unreliable(turns)


async def _pays(runs: Plainly, *, text: bool) -> object:
    paid: list[int] = []

    @function_tool(needs_approval=True)
    async def pay(amount: int) -> str:
        await checkpoint()
        paid.append(amount)
        return "paid"

    agent = Agent(name="payer", model=fails_once([calls("pay", "p1", amount=5), says("ok")]), tools=[pay])
    state = (await Runner.run(agent, "go", run_config=QUIET)).to_state()
    if text:
        state = await RunState.from_string(agent, state.to_string())
    state.approve(state.get_interruptions()[0])
    said: list[object] = []
    for _ in range(2):
        try:
            said.append((await runs.run(agent, state)).final_output)
        except RuntimeError as error:
            said.append(str(error))
    return paid, said, len(state.get_interruptions())


@program
async def an_approved_tool_runs_once_when_a_state_from_text_is_tried_again(runs: Plainly) -> object:
    return await _pays(runs, text=True)


@program
async def an_approved_tool_runs_once_when_a_state_of_a_bare_run_is_tried_again(runs: Plainly) -> object:
    return await _pays(runs, text=False)


@program
async def output_that_a_guardrail_blocked_leaves_the_state_of_the_caller(runs: Plainly) -> object:
    @output_guardrail
    async def no(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    @function_tool(needs_approval=True)
    async def look() -> str:
        return "seen"

    turns = [calls("look", "l1"), says("the secret")]
    agent = Agent(name="t", model=Script(turns), tools=[look], output_guardrails=[no])
    state = (await Runner.run(agent, "go", run_config=QUIET)).to_state()
    state = await RunState.from_string(agent, state.to_string())
    state.approve(state.get_interruptions()[0])
    try:
        await runs.run(agent, state)
    except Exception as error:
        return type(error).__name__, state.to_json(), len(state._model_responses)
    return None


@program
async def tools_that_are_added_while_the_agent_runs_are_seen(runs: Plainly) -> object:
    @function_tool
    async def second() -> str:
        return "two"

    @function_tool
    async def first() -> str:
        agent.tools.append(second)
        return "one"

    agent = Agent(name="t", model=Script([calls("first", "a"), calls("second", "b"), says("ok")]), tools=[first])
    result = await runs.run(agent, "go")
    return [item.output for item in result.new_items if item.type == "tool_call_output_item"], len(agent.tools)


@program
async def a_tool_that_is_replaced_while_it_is_enabled_is_the_one_that_runs(runs: Plainly) -> object:
    @function_tool(name_override="which")
    async def new() -> str:
        return "new"

    def replace(context: Any, agent: Any) -> bool:
        agent.tools[1:] = [new]
        return True

    @function_tool(is_enabled=replace)
    async def first() -> str:
        return "one"

    @function_tool(name_override="which")
    async def old() -> str:
        return "old"

    agent = Agent(name="t", model=Script([calls("which"), says("ok")]), tools=[first, old])
    result = await runs.run(agent, "go")
    return [item.output for item in result.new_items if item.type == "tool_call_output_item"]


@program
async def the_agents_and_tools_that_are_seen_are_those_that_were_given(runs: Plainly) -> object:
    seen: list[bool] = []

    @function_tool
    async def look(context: ToolContext[Any]) -> str:
        seen.append(context.agent is worker)
        return "seen"

    class Own(RunHooks[Any]):
        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            seen.append(agent is worker and tool is agent.tools[0] and tool is look)

        async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
            seen.append(from_agent is triage and to_agent is worker)

        async def on_agent_start(self, context: Any, agent: Any) -> None:
            seen.append(agent in (triage, worker) and any(agent is each for each in (triage, worker)))

    worker = Agent(name="worker", model=Script([calls("look"), says("done")]), tools=[look])
    triage = Agent(name="triage", model=Script([calls("transfer_to_worker", "h")]), handoffs=[worker])
    result = await runs.run(triage, "go", hooks=Own())
    seen.append(result.last_agent is worker and result.last_agent == worker)
    seen.extend(item.agent in (triage, worker) for item in result.new_items)
    return seen


@program
async def a_result_can_be_copied(runs: Plainly) -> object:
    model = Script([calls("add", a=1, b=2), says("done")])
    agent = Agent(name="t", model=model, tools=[function_tool(PLAIN.tools["add"])])
    result = await runs.run(agent, "go")
    if runs.streams:  # the SDK's own streams hold tasks, which nobody copies
        return copy.deepcopy(result.new_items[0].raw_item)
    return copy.deepcopy(result).final_output, copy.deepcopy(result.last_agent).name


@program
async def a_handoff_may_copy_what_it_hands_over(runs: Plainly) -> object:
    worker = Agent(name="worker", model=Script([says("hi")]))
    turns = [calls("transfer_to_worker", "h")]
    triage = Agent(name="triage", model=Script(turns), handoffs=[handoff(worker, input_filter=copy.deepcopy)])
    result = await runs.run(triage, "go")
    return result.final_output, result.last_agent is worker


@program
async def a_model_of_the_sdk_is_recognised(runs: Plainly) -> object:
    @output_guardrail
    async def fine(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

    class Chat(OpenAIChatCompletionsModel):
        async def get_response(self, *given: Any, **options: Any) -> ModelResponse:
            await checkpoint()
            return ModelResponse(output=items_of(says("hi")), usage=Usage(), response_id=None)

        async def stream_response(self, *given: Any, **options: Any) -> AsyncIterator[Any]:
            await checkpoint()
            yield _completed("hi")

    model = Chat(model="m", openai_client=AsyncOpenAI(api_key="none"))
    agent = Agent(name="t", model=model, output_guardrails=[fine])
    return (await runs.run(agent, "go", previous_response_id="r0")).final_output


@program
async def a_provider_is_asked_for_names_alone_and_the_settings_are_those_of_the_agent(runs: Plainly) -> object:
    asked: list[object] = []

    class Seeing(Script):
        async def get_response(self, *given: Any, **options: Any) -> ModelResponse:
            asked.append((len(given), sorted(options), options["model_settings"].temperature))
            return await super().get_response(**options)

        async def stream_response(self, *given: Any, **options: Any) -> AsyncIterator[Any]:
            asked.append((len(given), sorted(options), given[2].temperature))
            async for event in super().stream_response(*given, **options):
                yield event

    class Provider(ModelProvider):
        def get_model(self, model_name: str | None) -> Model:
            asked.append(model_name)
            return Seeing([says("by name")])

    config = RunConfig(tracing_disabled=True, model_provider=Provider())
    settings = ModelSettings(temperature=0.25)
    named = Agent(name="t", model="mine", model_settings=settings)
    given = Agent(name="t", model=Seeing([says("given")]), model_settings=settings)
    said = [(await runs.run(agent, "go", run_config=config)).final_output for agent in (named, given)]
    return said, asked


@program
async def a_tool_is_given_the_context_that_it_declares(runs: Plainly) -> object:
    seen: list[str] = []

    async def invoke(ctx: RunContextWrapper[Any], text: str) -> str:
        seen.append(type(ctx).__name__)
        return "ok"

    schema: dict[str, Any] = {"type": "object", "properties": {}}
    tool = FunctionTool("raw", "", schema, invoke, strict_json_schema=False)
    agent = Agent(name="t", model=Script([calls("raw"), says("done")]), tools=[tool])
    await runs.run(agent, "go", context={"kept": True})
    return seen


@program
async def the_conversation_of_a_session_is_the_same(runs: Plainly) -> object:
    session = SQLiteSession("s")
    agent = agent_of(PLAIN)
    await runs.run(agent, "go", session=session)
    return [(item.get("type"), item.get("role"), item.get("output")) for item in await session.get_items()]


@program
async def an_agent_that_is_a_tool_pauses_and_goes_on(runs: Plainly) -> object:
    paid: list[int] = []

    @function_tool(needs_approval=True)
    async def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    child = Agent(name="child", model=Script([calls("pay", "p1", amount=1), says("child done")]), tools=[pay])
    turns = [calls("child", "c1", "agent", instruction="do it"), says("all done")]
    parent = Agent(name="parent", model=Script(turns), tools=[child.as_tool("child", "Ask.")])
    result = await runs.run(parent, "go")
    state = result.to_state()
    state.approve(state.get_interruptions()[0])
    result = await runs.run(parent, state)
    return result.final_output, paid, result.last_agent is parent


@program
async def the_usage_of_a_run_is_the_same(runs: Plainly) -> object:
    result = await runs.run(agent_of(PLAIN), "go")
    usage = result.context_wrapper.usage
    return usage.requests, usage.input_tokens, usage.output_tokens, len(result.raw_responses)


@program
async def a_tool_that_fails_the_run_fails_it_with_the_same_words(runs: Plainly) -> object:
    async def fail() -> str:
        """Fail."""
        await checkpoint()
        raise ValueError("broken")

    told = []
    for options in ({}, {"failure_error_function": None}):
        tool = function_tool(fail, **options)  # type: ignore[call-overload]
        agent = Agent(name="t", model=Script([calls("fail"), says("done")]), tools=[tool])
        try:
            result = await runs.run(agent, "go")
            told.append(str(result.to_input_list()))
        except Exception as error:
            told.append(f"{type(error).__name__}: {error}")
    return told


@for_each("streams", [False, True], ids=["run", "stream"])
@for_each("written", PROGRAMS, ids=lambda each: each.__name__)
async def test_a_program_ends_as_it_does_without_hooks(written: Program, *, streams: bool) -> None:
    bare = await written(Plainly(Runner, streams=streams))

    for hooks in ATTACHED:
        assert await written(Plainly(HooklineRunner(hooks()), streams=streams)) == bare, hooks.__name__


def _response(text: str = "") -> Response:
    return Response(
        id="r1", created_at=0, model="m", object="response", output=items_of(says(text)) if text else [],
        parallel_tool_calls=True, tool_choice="auto", tools=[],
    )  # fmt: skip


def _completed(text: str) -> ResponseCompletedEvent:
    return ResponseCompletedEvent(response=_response(text), sequence_number=9, type="response.completed")


def _delta(text: str) -> ResponseTextDeltaEvent:
    return ResponseTextDeltaEvent(
        content_index=0, delta=text, item_id="m", logprobs=[], output_index=0, sequence_number=1,
        type="response.output_text.delta",
    )  # fmt: skip


HALF = "Take 10 mg, but ne"
ENDS = {
    "failed": [ResponseFailedEvent(response=_response(HALF), sequence_number=2, type="response.failed")],
    "incomplete": [ResponseIncompleteEvent(response=_response(HALF), sequence_number=2, type="response.incomplete")],
    "error": [ResponseErrorEvent(code="e", message="lost", param=None, sequence_number=2, type="error")],
    "nothing": [],
    "raises": [ConnectionError("reset")],
}


class Cut(Script):
    """A model whose stream does not come to its end."""

    def __init__(self, ends: list[Any]) -> None:
        super().__init__([])
        self.ends = ends

    async def stream_response(self, *given: Any, **options: Any) -> AsyncIterator[Any]:
        await checkpoint()
        yield _delta(HALF)
        await checkpoint()
        for event in self.ends:
            if isinstance(event, Exception):
                raise event
            yield event


async def cut(runner: Any, ends: list[Any]) -> tuple[str, list[str]]:
    """What is raised, and what was shown before."""
    shown: list[str] = []
    result = runner.run_streamed(Agent(name="t", model=Cut(ends)), "go", run_config=QUIET)
    try:
        async for event in result.stream_events():
            shown.append(getattr(getattr(event, "data", None), "type", event.type))  # noqa: PERF401
    except Exception as error:
        return f"{type(error).__name__}: {error}", shown
    return str(result.final_output), shown


@for_each("ends", ENDS.values(), ids=ENDS)
@for_each("hooks", [nothing, observers, guards, telemetry], ids=lambda each: each.__name__)
async def test_a_stream_that_fails_stays_failed(ends: list[Any], hooks: Callable[[], list[Any]]) -> None:
    seen = Recorder()

    assert await cut(HooklineRunner([*hooks(), seen.hooks]), ends) == await cut(Runner, ends)

    assert [each.reason for each in seen.of(OnComplete)] == ["error"]


@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
async def test_half_an_answer_that_no_hook_could_judge_is_not_shown(ends: list[Any]) -> None:
    hooks, shown = Hooks("judge"), list[Any]()
    hooks.after(ModelCall)(lambda call, result: None)
    result = HooklineRunner([hooks]).run_streamed(Agent(name="t", model=Cut(ends)), "go", run_config=QUIET)

    with pytest.raises((ModelBehaviorError, ConnectionError)):
        async for event in result.stream_events():
            shown.append(event)

    assert HALF not in str(shown)
    assert result.final_output is None


@pytest.mark.parametrize("hooks", ATTACHED, ids=lambda each: each.__name__)
async def test_the_stream_of_a_model_is_closed_before_the_run_has_failed(hooks: Callable[[], list[Any]]) -> None:
    closed: list[bool] = []

    class Closed(Cut):
        async def stream_response(self, *given: Any, **options: Any) -> AsyncIterator[Any]:
            try:
                async for event in super().stream_response(*given, **options):
                    yield event
            finally:
                closed.append(True)

    agent = Agent(name="t", model=Closed(ENDS["failed"]))
    result = HooklineRunner(hooks()).run_streamed(agent, "go", run_config=QUIET)

    with pytest.raises(ModelBehaviorError):
        async for _ in result.stream_events():
            pass
    assert closed == [True]


async def test_a_hook_may_answer_where_a_stream_failed() -> None:
    hooks = Hooks("fallback")

    @hooks.around(ModelCall)
    async def fallback(call: ModelCall, call_next: Any) -> Any:
        try:
            return await call_next(call)
        except ModelBehaviorError:
            return says("Ask a doctor.")

    result = HooklineRunner([hooks]).run_streamed(Agent(name="t", model=Cut(ENDS["failed"])), "go", run_config=QUIET)
    async for _ in result.stream_events():
        pass

    assert result.final_output == "Ask a doctor."


@pytest.mark.parametrize("hooks", ATTACHED, ids=lambda each: each.__name__)
async def test_a_model_that_is_timed_out_knows_it_as_without_hooks(hooks: Callable[[], list[Any]]) -> None:
    known: list[object] = []

    class Hanging(Script):
        async def stream_response(self, *given: Any, **options: Any) -> AsyncIterator[Any]:
            yield _delta("Take")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                known.append(type(get_current_task_model_timeout_error()).__name__)
                raise

    agent = Agent(name="t", model=Hanging([]), model_settings=ModelSettings(timeout=0.05))
    result = HooklineRunner(hooks()).run_streamed(agent, "go", run_config=QUIET)

    with pytest.raises(ModelTimeoutError):
        async for _ in result.stream_events():
            pass
    assert known == ["ModelTimeoutError"]


async def test_a_hook_that_asks_twice_shows_the_answer_that_it_takes_alone() -> None:
    hooks, shown = Hooks("twice"), list[str]()

    @hooks.around(ModelCall)
    async def twice(call: ModelCall, call_next: Any) -> Any:
        await call_next(call)
        return await call_next(call)

    agent = Agent(name="t", model=Script([says("well said")]))
    result = HooklineRunner([hooks]).run_streamed(agent, "go", run_config=QUIET)
    async for event in result.stream_events():
        if event.type == "raw_response_event":
            shown.append(event.data.type)

    assert shown == ["response.output_text.delta", "response.output_text.delta", "response.completed"]
    assert result.final_output == "well said"


class Slow(Script):
    """A model that answers when it is let."""

    def __init__(self) -> None:
        super().__init__([says("done")])
        self.go, self.asked_for = asyncio.Event(), asyncio.Event()

    async def stream_response(self, *given: Any, **options: Any) -> AsyncIterator[Any]:
        self.asked_for.set()
        await self.go.wait()
        async for event in super().stream_response(*given, **options):
            yield event


async def test_a_stream_that_nobody_reads_ends_by_itself() -> None:
    seen, model = Recorder(), Slow()
    model.go.set()

    result = HooklineRunner([seen.hooks]).run_streamed(Agent(name="t", model=model), "go", run_config=QUIET)
    assert result.run_loop_task is not None
    await result.run_loop_task

    assert (result.final_output, [each.reason for each in seen.of(OnComplete)]) == ("done", ["done"])


async def test_a_stream_whose_result_nobody_has_any_more_ends_too() -> None:
    seen, model = Recorder(), Slow()

    result = HooklineRunner([seen.hooks]).run_streamed(Agent(name="t", model=model), "go", run_config=QUIET)
    events = result.stream_events()
    await anext(events)
    task = result.run_loop_task
    await model.asked_for.wait()
    del result, events
    gc.collect()
    model.go.set()
    assert task is not None
    await asyncio.wait([task])

    assert [each.reason for each in seen.of(OnComplete)] == ["done"]


@pytest.mark.parametrize("mode", ["immediate", "after_turn"])
async def test_a_stream_that_is_cancelled_is_interrupted_once(mode: Any) -> None:
    seen, model = Recorder(), Slow()
    turns = [calls("add", a=1, b=2), says("done")]
    model.turns = turns
    agent = Agent(name="t", model=model, tools=[function_tool(PLAIN.tools["add"])])

    result = HooklineRunner([seen.hooks]).run_streamed(agent, "go", run_config=QUIET)
    await model.asked_for.wait()
    result.cancel(mode=mode)
    model.go.set()
    async for _ in result.stream_events():
        pass

    assert [each.reason for each in seen.of(OnComplete)] == ["interrupted"]
    assert result.run_loop_task is not None
    assert result.run_loop_task.done()


async def test_what_a_hook_ends_a_stream_with_is_raised_by_its_events() -> None:
    seen, hooks, model = Recorder(), Hooks("no"), Slow()
    hooks.guard(AgentCall, id="no")(lambda call: Deny("not now"))

    denied = HooklineRunner([hooks, seen.hooks]).run_streamed(agent_of(PLAIN), "go", run_config=QUIET)
    with pytest.raises(RunStopped, match="not now"):
        _ = [event async for event in denied.stream_events()]
    runner = HooklineRunner([seen.hooks], operation_id="from outside")
    stopped = runner.run_streamed(Agent(name="t", model=model), "go", run_config=QUIET)
    await model.asked_for.wait()
    assert interrupt("from outside")
    with pytest.raises(RunStopped, match="interrupted"):
        _ = [event async for event in stopped.stream_events()]

    assert [each.reason for each in seen.of(OnComplete)] == ["interrupted", "interrupted"]


async def test_hooked_and_bare_runs_of_one_agent_at_the_same_time_are_told_apart() -> None:
    heard = [Recorder(inherit=True), Recorder(inherit=True)]
    worker = Agent(name="worker", model=Script([calls("add", "w1", a=2, b=2), says("handed")]))
    worker.tools = [function_tool(PLAIN.tools["add"])]
    asks = [calls("add", a=1, b=2), calls("transfer_to_worker", "h1")]
    agent = Agent(name="t", model=Script(asks), tools=worker.tools, handoffs=[worker])
    runners: list[Any] = [HooklineRunner([each.hooks]) for each in heard]

    plain = [Plainly(each, streams=streams) for each in (Runner, *runners, Runner) for streams in (False, True)]
    results = await asyncio.gather(*(each.run(agent, "go") for each in plain))

    assert {each.final_output for each in results} == {"handed"}
    for each in heard:
        ends = {end.operation_id for end in each.of(OnComplete)}
        assert len(ends) == 4
        assert sorted(told.content for told in each.of(AfterToolCall)) == ["3", "3", "4", "4"]


async def test_a_runner_of_ones_own_inside_of_a_tool_is_a_run_of_its_own() -> None:
    inheriting, alone = Recorder(inherit=True), Recorder()
    inner = agent_of(PLAIN, name="inner")

    async def nested() -> str:
        """Run another agent with a runner that is not the default one."""
        return str((await AgentRunner().run(inner, "go", run_config=QUIET)).final_output)

    agent = Agent(name="outer", model=Script([calls("nested"), says("over")]), tools=[function_tool(nested)])
    await HooklineRunner([inheriting.hooks, alone.hooks]).run(agent, "go", run_config=QUIET)

    assert [each.agent_id for each in inheriting.of(OnComplete)] == ["inner", "outer"]
    assert [(each.steps, each.tool_calls) for each in alone.of(OnComplete)] == [(2, 1)]


async def test_a_run_that_outlives_the_one_in_which_it_began_is_bare() -> None:
    seen, left = Recorder(inherit=True), list[asyncio.Task[Any]]()
    go = asyncio.Event()

    async def later() -> object:
        await go.wait()
        return (await Runner.run(agent_of(PLAIN), "go", run_config=QUIET)).final_output

    @function_tool
    async def leave() -> str:
        left.append(asyncio.ensure_future(later()))
        return "left"

    agent = Agent(name="t", model=Script([calls("leave"), says("over")]), tools=[leave])
    await HooklineRunner([seen.hooks]).run(agent, "go", run_config=QUIET)
    told = len(seen.events)
    go.set()

    assert await left[0] == "done"
    assert len(seen.events) == told


async def test_a_rewritten_instruction_reaches_the_model_and_leaves_the_agent() -> None:
    read: list[object] = []

    class Reading(Script):
        async def get_response(self, system_instructions: Any, **options: Any) -> ModelResponse:  # type: ignore[override]
            read.append(system_instructions)
            return await super().get_response(system_instructions, **options)

    def shorter(call: AgentCall) -> AgentCall:
        return type(call)(**{name: getattr(call, name) for name in call.__struct_fields__} | {"instructions": "brief"})

    hooks = Hooks("short")
    hooks.before(AgentCall)(shorter)
    worker = Agent(name="worker", instructions="worker's", model=Reading([says("done")]))
    agent = Agent(name="t", instructions="long", model=Reading([calls("transfer_to_worker", "h")]), handoffs=[worker])
    result = await HooklineRunner([hooks]).run(agent, "go", run_config=QUIET)

    assert (read, agent.instructions, result.last_agent is worker) == (["brief", "worker's"], "long", True)


@pytest.mark.parametrize(
    ("seam", "problem"),
    [
        (("agents.run_internal.run_loop:find_model", ("agent",)), "is missing"),
        (("agents.run_internal.gone:get_model", ("agent",)), "is missing"),
        (("agents.run_internal.run_loop:get_model", ("agent", "weather")), "no parameter weather"),
    ],
)
def test_a_version_of_the_sdk_that_is_not_known_is_refused_and_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, seam: Any, problem: str
) -> None:
    monkeypatch.setattr(_patches, "_originals", {})
    monkeypatch.setattr(_patches, "PATCHED_FUNCTIONS", {**_patches.PATCHED_FUNCTIONS, "get_model": seam})
    before = AgentRunner.run

    with pytest.raises(HookUsageError, match=f"(?s)openai-agents .*{problem}.*Upgrade hookline"):
        HooklineRunner()

    assert AgentRunner.run is before


def test_the_functions_of_the_sdk_are_wrapped_once() -> None:
    HooklineRunner()
    before = AgentRunner.run

    HooklineRunner()

    assert AgentRunner.run is before


def test_what_stands_in_for_an_object_is_of_its_class_and_shares_its_attributes() -> None:
    model = Slow()
    found: Any = _patches.Substitute(model, turns=["own"])
    found.noted = 1

    assert isinstance(found, Slow)
    assert (found == model, hash(found) == hash(model), repr(found) == repr(model)) == (True, True, True)
    assert (found.turns, model.noted, found.asked is model.asked) == (["own"], 1, True)  # type: ignore[attr-defined]
    del found.noted
    assert not hasattr(model, "noted")


def test_runners_that_are_made_in_many_threads_at_once_wrap_the_sdk_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in map(_place, _patches.PATCHED_FUNCTIONS):
        monkeypatch.setattr(owner, name, inspect.unwrap(getattr(owner, name)))
    bare = AgentRunner.run
    monkeypatch.setattr(_patches, "_originals", {})

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: HooklineRunner(), range(64)))

    assert vars(AgentRunner.run)["__wrapped__"] is bare
    assert "__wrapped__" not in vars(bare)


def _place(seam: str) -> tuple[Any, str]:
    module, _, path = _patches.PATCHED_FUNCTIONS[seam][0].partition(":")
    *parents, name = path.split(".")
    return functools.reduce(getattr, parents, importlib.import_module(module)), name
