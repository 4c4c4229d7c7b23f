"""What is special about Pydantic AI: its ways of running, its other capabilities, its tools and their failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import RunCancelled, ToolFailed, UnexpectedModelBehavior, UsageLimitExceeded
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults
from pydantic_ai.usage import UsageLimits
from pydantic_core import PydanticSerializationError

from hookline import (
    AfterStep,
    AfterToolCall,
    AgentCall,
    Approve,
    Ask,
    BeforeToolCall,
    Deny,
    Hooks,
    Message,
    ModelCall,
    OnComplete,
    OnToolCallError,
    ToolCall,
    interrupt,
)
from hookline.adapters.pydantic_ai import Hookline, agent_tool, answers, hooked
from hookline.errors import HookDefinitionError, HookUsageError, RunStopped
from hookline.evals.adapter_contract import Witness

from .stage import PydanticAIStage

pytestmark = pytest.mark.anyio

PLAIN = [
    "beforeStep",
    "beforeToolCall",
    "afterToolCall",
    "afterStep",
    "beforeStep",
    "afterStep",
    "onComplete",
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def watch(*, inherit: bool = False) -> Witness:
    return Witness(PydanticAIStage(), inherit=inherit)


def names(witness: Witness, of: str | None = None) -> list[str]:
    return [str(event.hook_type) for event in witness.events if of is None or event.operation_id == of]


def agent_that(*turns: list[Any] | str, **given: Any) -> Agent[Any, Any]:
    """An agent whose model plays these turns: parts, or text."""

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await asyncio.sleep(0)  # here and below: as whoever asks a server waits
        turn = turns[sum(isinstance(message, ModelResponse) for message in messages)]
        return ModelResponse(parts=[TextPart(turn)] if isinstance(turn, str) else turn)

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> Any:
        for part in (await answer(messages, info)).parts:
            if isinstance(part, TextPart):
                for word in part.content.split(" "):
                    yield word + " "
                    await asyncio.sleep(0)
            elif isinstance(part, ToolCallPart):
                yield {0: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)}
                await asyncio.sleep(0)

    return Agent(FunctionModel(answer, stream_function=stream, model_name="scripted"), name="tester", **given)


def call(name: str, tool_call_id: str = "t1", /, **args: Any) -> ToolCallPart:
    return ToolCallPart(name, args, tool_call_id=tool_call_id)


def adder(**given: Any) -> Agent[Any, Any]:
    agent = agent_that([call("add", a=1, b=2)], "all is done", **given)

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        return a + b

    return agent


async def run(agent: Agent[Any, Any], hookline: Hookline) -> str:
    return str((await agent.run("go", capabilities=[hookline])).output)


async def streamed(agent: Agent[Any, Any], hookline: Hookline) -> str:
    async with agent.run_stream("go", capabilities=[hookline]) as result:
        return [text async for text in result.stream_text(debounce_by=None)][-1].strip()


async def as_events(agent: Agent[Any, Any], hookline: Hookline) -> str:
    async with agent.run_stream_events("go", capabilities=[hookline]) as events:
        return str([event async for event in events][-1].result.output).strip()


async def iterated(agent: Agent[Any, Any], hookline: Hookline) -> str:
    async with agent.iter("go", capabilities=[hookline]) as steps:
        async for _ in steps:
            pass
    assert steps.result is not None
    return str(steps.result.output)


async def in_sync(agent: Agent[Any, Any], hookline: Hookline) -> str:
    def run_sync() -> str:
        with asyncio.Runner() as runner:  # else the framework makes a loop for this thread, and leaves it open
            asyncio.set_event_loop(runner.get_loop())
            return str(agent.run_sync("go", capabilities=[hookline]).output)

    return await asyncio.to_thread(run_sync)


@pytest.mark.parametrize("way", [run, streamed, as_events, iterated, in_sync])
async def test_every_way_of_running_tells_the_same(
    way: Callable[[Agent[Any, Any], Hookline], Awaitable[str]],
) -> None:
    witness = watch()

    assert await way(adder(), Hookline([witness.hooks])) == "all is done"
    assert names(witness) == PLAIN
    assert witness.of(OnComplete)[0].reason == "done"
    assert witness.of(OnComplete)[0].last_assistant_content.strip() == "all is done"


async def test_breaking_off_a_stream_ends_the_operation() -> None:
    witness = watch()

    async with adder().iter("go", capabilities=[Hookline([witness.hooks], operation_id="broken-off")]) as steps:
        async for _ in steps:
            if "afterToolCall" in names(witness):
                break

    assert names(witness) == [*PLAIN[:4], "onComplete"]
    assert not interrupt("broken-off")


async def test_hooks_of_the_agent_and_of_the_run_belong_to_one_operation() -> None:
    theirs, own = watch(), watch()
    agent = adder(capabilities=[Hookline([theirs.hooks], user_id="ann")])

    await agent.run("go", capabilities=[Hookline([own.hooks], operation_id="both")])

    assert names(theirs) == names(own) == PLAIN
    assert {(event.operation_id, event.user_id) for event in [*theirs.events, *own.events]} == {("both", "ann")}


@dataclass
class Answers(AbstractCapability[Any]):
    """Another capability, which answers tool calls itself."""

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        return "from elsewhere"


async def test_a_call_that_another_capability_answers_is_told() -> None:
    witness = watch()

    await adder().run("go", capabilities=[Answers(), Hookline([witness.hooks])])

    assert [event.content for event in witness.of(AfterToolCall)] == ["from elsewhere"]


async def test_the_framework_notices_nothing_of_hooks_that_change_nothing() -> None:
    bare = await adder().run("go")
    hooked = await adder().run("go", capabilities=[Hookline([watch().hooks, passing()])])

    def kept(message: ModelMessage) -> list[tuple[str, object]]:
        return [(part.part_kind, getattr(part, "content", getattr(part, "args", None))) for part in message.parts]

    assert [kept(message) for message in hooked.all_messages()] == [kept(message) for message in bare.all_messages()]
    assert hooked.usage.requests == bare.usage.requests
    assert hooked.usage.tool_calls == bare.usage.tool_calls == 1


def passing() -> Hooks:
    hooks = Hooks("passing")
    for kind in (ToolCall, ModelCall):
        hooks.before(kind)(lambda call: None)
        hooks.guard(kind)(lambda call: None)
        hooks.after(kind)(lambda call, result: None)
    return hooks


async def test_a_value_that_the_model_is_not_shown_reaches_the_framework() -> None:
    witness, agent = watch(), agent_that([call("chart")], "done")

    @agent.tool_plain
    def chart() -> ToolReturn:
        return ToolReturn("a chart", metadata={"for": "the application"})

    result = await agent.run("go", capabilities=[Hookline([witness.hooks, passing()])])

    (part,) = [part for each in result.all_messages() for part in each.parts if isinstance(part, ToolReturnPart)]
    assert (part.content, part.metadata) == ("a chart", {"for": "the application"})
    assert witness.of(AfterToolCall)[0].content == "a chart"


async def test_every_attempt_of_a_tool_that_asks_for_another_one_is_told() -> None:
    witness, agent = watch(), agent_that([call("guess", n=1)], [call("guess", "t2", n=2)], "done")

    @agent.tool_plain(retries=2)
    def guess(n: int) -> str:
        if n == 1:
            raise ModelRetry("higher")
        return "right"

    result = await agent.run("go", capabilities=[Hookline([witness.hooks])])

    assert [(event.error, event.error_type) for event in witness.of(OnToolCallError)] == [("higher", "ModelRetry")]
    assert [event.call_index for event in witness.of(AfterToolCall)] == [2]
    assert "Fix the errors and try again." in str(result.all_messages()) or "higher" in str(result.all_messages())


async def test_what_a_tool_raises_keeps_its_cause() -> None:
    witness, agent = watch(), agent_that([call("read")], "done")

    @agent.tool_plain
    def read() -> str:
        try:
            raise KeyError("row 7")
        except KeyError as error:
            raise ValueError("no such row") from error

    with pytest.raises(ValueError, match="no such row") as raised:
        await agent.run("go", capabilities=[Hookline([witness.hooks])])

    assert repr(raised.value.__cause__) == repr(raised.value.__context__) == "KeyError('row 7')"


async def test_a_value_that_no_model_can_be_shown_is_an_error_of_the_tool() -> None:
    class Handle: ...

    witness, agent = watch(), agent_that([call("open")], "done")

    @agent.tool_plain(name="open")
    def give_handle() -> Any:
        return Handle()

    with pytest.raises(PydanticSerializationError, match="Handle"):
        await agent.run("go", capabilities=[Hookline([witness.hooks])])

    assert [event.error_type for event in witness.of(OnToolCallError)] == ["PydanticSerializationError"]


async def test_a_failure_that_the_tool_admits_does_not_end_the_run() -> None:
    witness, agent = watch(), agent_that([call("find")], "done")

    @agent.tool_plain
    def find() -> str:
        raise ToolFailed("nothing there")

    assert (await agent.run("go", capabilities=[Hookline([witness.hooks])])).output == "done"
    assert [event.error for event in witness.of(OnToolCallError)] == ["nothing there"]


async def test_arguments_that_a_hook_changes_are_validated_like_those_of_the_model() -> None:
    hooks, witness, agent = Hooks("later"), watch(), agent_that([call("book", day="2026-01-02")], "done")
    hooks.before(ToolCall)(lambda call: call.with_args(day="2026-01-03"))
    seen: list[date] = []

    @agent.tool_plain
    def book(day: date) -> str:
        seen.append(day)
        return "booked"

    await agent.run("go", capabilities=[Hookline([hooks, witness.hooks])])

    assert seen == [date(2026, 1, 3)]
    assert witness.of(BeforeToolCall)[0].args == {"day": "2026-01-03"}


async def test_a_validator_of_the_tool_judges_what_a_hook_has_changed() -> None:
    hooks, witness, agent = Hooks("later"), watch(), agent_that([call("pay", amount=10)], "done")
    hooks.before(ToolCall)(lambda call: call.with_args(amount=99))

    def small(ctx: RunContext[Any], amount: int) -> None:
        if amount > 50:
            raise ModelRetry("too much")

    @agent.tool_plain(args_validator=small)
    def pay(amount: int) -> str:
        raise AssertionError

    await agent.run("go", capabilities=[Hookline([hooks, witness.hooks])])

    assert [event.error for event in witness.of(OnToolCallError)] == ["too much"]


class Day(BaseModel, strict=True):
    day: date


async def test_arguments_that_came_as_text_are_validated_once_and_by_the_framework() -> None:
    @dataclass
    class Later(AbstractCapability[Any]):
        async def after_tool_validate(self, ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
            return {**args, "times": args["times"] + 1}

    text = ToolCallPart("book", '{"on": {"day": "2026-01-02"}, "times": 1, "price": NaN}', tool_call_id="t1")
    witness, agent = watch(), agent_that([text], "done", capabilities=[Later()])

    @agent.tool_plain
    def book(on: Day, times: int, price: float) -> str:
        return f"{on.day} {times} {price}"

    await agent.run("go", capabilities=[Hookline([witness.hooks])])

    assert [event.content for event in witness.of(AfterToolCall)] == ["2026-01-02 2 nan"]


@pytest.mark.parametrize("text", ['{"a": 1', "[1]"])
async def test_arguments_that_are_no_object_count_as_a_retry_of_the_framework(text: str) -> None:
    witness, agent = watch(), agent_that([ToolCallPart("add", text)], [ToolCallPart("add", text)], "done", retries=1)

    @agent.tool_plain
    def add(a: int) -> int:
        raise AssertionError

    with pytest.raises(UnexpectedModelBehavior, match="max retries"):
        await agent.run("go", capabilities=[Hookline([witness.hooks])])
    assert [(event.args, event.error_type) for event in witness.of(OnToolCallError)] == [({}, "ValidationError")] * 2


async def test_a_denied_call_is_a_failed_one_to_the_model() -> None:
    hooks = Hooks("guard")
    hooks.guard(ToolCall)(lambda call: Deny("not that"))

    result = await adder().run("go", capabilities=[Hookline([hooks])])

    (part,) = [part for each in result.all_messages() for part in each.parts if isinstance(part, ToolReturnPart)]
    assert part.outcome == "failed"
    assert "not that" in part.model_response_str()


async def test_a_denied_model_call_raises_who_denied_it() -> None:
    hooks, witness = Hooks("guard"), watch()
    hooks.guard(ModelCall, id="budget")(lambda call: Deny("too dear"))

    with pytest.raises(RunStopped, match="too dear"):
        await adder().run("go", capabilities=[Hookline([hooks, witness.hooks])])
    assert witness.of(OnComplete)[0].reason == "interrupted"


class City(BaseModel):
    name: str


async def test_a_structured_answer_is_what_the_run_said_last_and_no_tool_call() -> None:
    witness = watch()
    agent = agent_that([call("final_result", name="Bonn")], output_type=City)

    result = await agent.run("go", capabilities=[Hookline([witness.hooks])])

    assert result.output == City(name="Bonn")
    assert names(witness) == ["beforeStep", "afterStep", "onComplete"]
    assert witness.of(AfterStep)[0].step_type == "call_llm"
    assert witness.of(OnComplete)[0].last_assistant_content == '{"name":"Bonn"}'


async def test_a_hook_may_change_a_structured_answer() -> None:
    hooks = Hooks("move")
    hooks.after(ModelCall)(lambda call, answer: replace(answer, content=answer.content.replace("Bonn", "Ulm")))
    agent = agent_that([ThinkingPart("which?"), call("final_result", name="Bonn")], output_type=City)

    assert (await agent.run("go", capabilities=[Hookline([hooks])])).output == City(name="Ulm")


async def test_an_error_of_the_framework_is_told_and_raised() -> None:
    witness = watch()

    with pytest.raises(UsageLimitExceeded):
        await adder().run("go", usage_limits=UsageLimits(request_limit=1), capabilities=[Hookline([witness.hooks])])
    assert names(witness)[-2:] == ["onComplete", "onError"]
    assert witness.of(OnComplete)[0].error_type == "UsageLimitExceeded"


async def test_a_run_inside_of_an_ordinary_tool_is_a_sub_agent() -> None:
    witness, inner = watch(inherit=True), agent_that("answer")
    inner.name = "expert"
    outer = agent_that([call("consult")], "done")

    @outer.tool_plain
    async def consult() -> str:
        return str((await inner.run("how?", capabilities=[Hookline()])).output)

    await outer.run("go", capabilities=[Hookline([witness.hooks], operation_id="outer")])

    assert names(witness, "outer") == [
        "beforeStep",
        "beforeToolCall",
        "beforeCallAgent",
        "afterCallAgent",
        "afterToolCall",
        *PLAIN[3:],
    ]
    (child,) = {event.operation_id for event in witness.events} - {"outer"}
    assert names(witness, child) == ["beforeStep", "afterStep", "onComplete"]
    assert {event.agent_id for event in witness.events if event.operation_id == child} == {"expert"}


async def test_runs_at_once_keep_their_children_apart() -> None:
    inner = agent_that("answer")
    inner.name = "expert"
    outer = agent_that([call("expert", instruction="how?")], "done", tools=[agent_tool(inner)])
    witnesses = [watch(inherit=True) for _ in range(20)]

    await asyncio.gather(
        *(
            outer.run("go", capabilities=[Hookline([witness.hooks], operation_id=f"outer-{number}")])
            for number, witness in enumerate(witnesses)
        )
    )

    for number, witness in enumerate(witnesses):
        (child,) = {event.operation_id for event in witness.events} - {f"outer-{number}"}
        assert {event.parent_operation_id for event in witness.events if event.operation_id == child} == {
            f"outer-{number}"
        }


async def test_an_interrupt_ends_a_hanging_tool_in_the_way_of_the_framework() -> None:
    witness, agent, begun = watch(), agent_that([call("hang")]), asyncio.Event()

    @agent.tool_plain
    async def hang() -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    task = asyncio.create_task(agent.run("go", capabilities=[Hookline([witness.hooks], operation_id="hanging")]))
    await begun.wait()

    assert interrupt("hanging")
    with pytest.raises(RunCancelled):
        await task
    assert names(witness) == ["beforeStep", "beforeToolCall", "onToolCallError", "afterStep", "onComplete"]
    assert witness.of(OnComplete)[0].reason == "interrupted"


async def test_a_run_that_the_application_cancels_itself_raises_the_frameworks_error() -> None:
    agent = Agent(TestModel())

    @agent.tool
    async def stop(ctx: RunContext[None]) -> None:
        ctx.cancel()
        await asyncio.sleep(60)

    with pytest.raises(RunCancelled):
        await hooked(agent, [watch().hooks]).run("go")


async def test_a_paused_run_goes_on_as_the_same_operation_after_its_messages_were_stored() -> None:
    hooks, witness = Hooks("asks"), watch()
    hooks.guard(ToolCall)(lambda call: Ask("may I?"))
    agent = agent_that([call("add", a=1, b=1)], "done", tools=[add], output_type=[str, DeferredToolRequests])
    run = hooked(agent, [hooks, witness.hooks])

    paused = await run.run("go")
    stored = ModelMessagesTypeAdapter.validate_json(paused.all_messages_json())
    assert stored[-1].metadata == paused.all_messages()[-1].metadata
    result = await run.resume(paused, [Approve("t1")])

    assert result.output == "done"
    assert len({event.operation_id for event in witness.events}) == 1


async def test_a_cancelled_model_call_ends_the_operation_once() -> None:
    witness, begun = watch(), asyncio.Event()

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    task = asyncio.create_task(Agent(FunctionModel(answer)).run("go", capabilities=[Hookline([witness.hooks])]))
    await begun.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert names(witness) == ["beforeStep", "afterStep", "onComplete"]


async def test_tools_of_an_mcp_server_carry_its_name() -> None:
    fastmcp = pytest.importorskip("fastmcp")
    from pydantic_ai.mcp import MCPToolset

    server, witness = fastmcp.FastMCP("weather-server"), watch()

    @server.tool
    def weather(city: str) -> str:
        return f"sun in {city}"

    agent = agent_that([call("weather", city="Bonn")], "done", toolsets=[MCPToolset(server)])
    await agent.run("go", capabilities=[Hookline([witness.hooks])])

    assert [(event.toolset, event.content) for event in witness.of(AfterToolCall)] == [
        ("weather-server", "sun in Bonn")
    ]


async def test_a_sync_tool_is_hooked_like_an_async_one() -> None:
    hooks, agent = Hooks("mocks"), agent_that([call("who")], "done")
    hooks.on(BeforeToolCall)(lambda event: event.mock("nobody"))

    @agent.tool
    def who(ctx: RunContext[None]) -> str:
        raise AssertionError

    result = await agent.run("go", capabilities=[Hookline([hooks])])

    assert "nobody" in str(result.all_messages())


async def test_wrong_arguments_are_an_attempt_that_is_told() -> None:
    witness, agent = watch(), agent_that([call("add", a="one", b=2)], [call("add", "t2", a=1, b=2)], "done")

    @agent.tool_plain(retries=2)
    def add(a: int, b: int) -> int:
        return a + b

    result = await agent.run("go", capabilities=[Hookline([witness.hooks])])

    assert result.output == "done"
    assert [(event.tool_call_id, event.error_type) for event in witness.of(OnToolCallError)] == [
        ("t1", "ValidationError")
    ]
    assert [(event.tool_call_id, event.call_index) for event in witness.of(AfterToolCall)] == [("t2", 2)]


async def test_wrong_arguments_may_be_answered_by_a_mock_or_denied() -> None:
    for deed, expected in (("mock", "canned"), ("deny", "not that")):
        hooks, agent = Hooks("answers"), agent_that([call("add", a="one")], "done")
        if deed == "mock":
            hooks.on(BeforeToolCall)(lambda event: event.mock("canned"))
        else:
            hooks.guard(ToolCall)(lambda call: Deny("not that"))

        @agent.tool_plain
        def add(a: int) -> int:
            raise AssertionError

        result = await agent.run("go", capabilities=[Hookline([hooks])])

        (part,) = [part for each in result.all_messages() for part in each.parts if isinstance(part, ToolReturnPart)]
        assert expected in part.model_response_str()


async def test_a_call_of_an_unknown_tool_is_told() -> None:
    witness, agent = watch(), agent_that([call("nothing")], "done", tools=[add])

    await agent.run("go", capabilities=[Hookline([witness.hooks])])

    assert [event.error_type for event in witness.of(OnToolCallError)] == ["UnknownToolError"]


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def test_one_capability_object_serves_many_runs_at_once() -> None:
    witness = watch()
    shared = Hookline([witness.hooks])
    agent = adder(capabilities=[shared])

    await asyncio.gather(*(agent.run("go") for _ in range(50)))
    await agent.run("go", capabilities=[shared])

    by_operation: dict[str, list[str]] = {}
    for event in witness.events:
        by_operation.setdefault(event.operation_id, []).append(str(event.hook_type))
    assert list(by_operation.values()) == [PLAIN] * 51


async def test_an_id_of_a_run_may_be_used_again() -> None:
    first, second = watch(), watch()

    await adder().run("go", run_id="same", capabilities=[Hookline([first.hooks])])
    await adder().run("go", run_id="same", capabilities=[Hookline([second.hooks])])

    assert names(first) == names(second) == PLAIN


async def test_a_structured_output_is_not_replaced_by_text() -> None:
    hooks, agent = Hooks("changes"), agent_that([call("final_result", name="Bonn")], output_type=City)
    hooks.after(AgentCall)(lambda call, result: replace(result, output="Berlin"))

    with pytest.raises(HookUsageError, match="output is a City"):
        await agent.run("go", capabilities=[Hookline([hooks])])


async def test_a_run_that_outlives_the_tool_that_started_it_is_nobodys_child() -> None:
    witness, late, tasks = watch(inherit=True), watch(), list[asyncio.Task[Any]]()
    ended, agent = asyncio.Event(), agent_that([call("start")], "done")

    @agent.tool_plain
    async def start() -> str:
        async def afterwards() -> None:
            await ended.wait()
            await adder().run("go", capabilities=[Hookline([late.hooks])])

        tasks.append(asyncio.create_task(afterwards()))
        return "started"

    await agent.run("go", capabilities=[Hookline([witness.hooks])])
    ended.set()
    await tasks[0]

    assert names(witness) == names(late) == PLAIN
    assert {event.parent_operation_id for event in late.events} == {None}


async def test_a_failing_sub_agent_is_told_on_the_operation_that_calls_it() -> None:
    witness, inner = watch(), agent_that()
    inner.name = "expert"
    outer = agent_that([call("expert", instruction="how?")], "done", tools=[agent_tool(inner)])

    with pytest.raises(IndexError):
        await outer.run("go", capabilities=[Hookline([witness.hooks])])
    assert names(witness) == ["beforeStep", "beforeCallAgent", "onCallAgentError", "afterStep", "onComplete", "onError"]


async def test_a_person_may_decide_in_a_run_that_nobody_hooked_before() -> None:
    witness, agent = watch(), adder(output_type=[str, DeferredToolRequests])
    hooks = Hooks("asks")
    hooks.guard(ToolCall)(lambda call: Ask("may I?"))
    paused = await agent.run("go", capabilities=[Hookline([hooks])])

    result = await agent.run(
        message_history=paused.all_messages(),
        deferred_tool_results=DeferredToolResults(approvals={"t1": True}),
        capabilities=[Hookline([witness.hooks])],
    )

    assert result.output == "all is done"
    assert names(witness) == ["beforeStep", "afterHumanIntervention", *PLAIN[1:]]


async def test_one_call_of_several_waits_and_the_others_run() -> None:
    hooks, witness = Hooks("asks"), watch()
    hooks.guard(ToolCall)(lambda call: Ask("may I?") if call.args["a"] == 1 else None)
    agent = agent_that(
        [call("add", a=1, b=1), call("add", "t2", a=2, b=2)],
        "done",
        tools=[add],
        output_type=[str, DeferredToolRequests],
    )
    hookline = Hookline([hooks, witness.hooks], operation_id="one-of-two")
    paused = await agent.run("go", capabilities=[hookline])
    assert [event.tool_call_id for event in witness.of(AfterToolCall)] == ["t2"]

    result = await agent.run(
        message_history=paused.all_messages(),
        deferred_tool_results=answers(paused, [Approve("t1")]),
        capabilities=[hookline],
    )

    assert result.output == "done"
    assert [(event.tool_call_id, event.content) for event in witness.of(AfterToolCall)] == [("t2", "4"), ("t1", "2")]
    assert [end.reason for end in witness.of(OnComplete)] == ["waiting_for_human", "done"]


async def test_a_hook_that_rewrites_the_conversation_keeps_what_it_leaves_alone() -> None:
    hooks, heard = Hooks("redacts"), list[list[ModelMessage]]()
    hooks.before(ModelCall)(lambda call: replace(call, messages=[*call.messages[:-1], redacted(call.messages[-1])]))

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        heard.append(messages)
        return ModelResponse(parts=[TextPart("done")])

    agent = Agent(FunctionModel(answer), instructions="Be brief.")
    picture = BinaryContent(b"...", media_type="image/png")
    history = [
        ModelRequest(parts=[UserPromptPart(["look", picture])]),
        ModelResponse(parts=[ThinkingPart("hm", signature="s"), TextPart("I see")]),
    ]
    await agent.run("my key is 123", message_history=history, capabilities=[Hookline([hooks])])

    ((first, second, third),) = heard
    assert first.parts[0].content == ["look", picture]
    assert second.parts == history[1].parts
    assert [part.content for part in third.parts] == ["my key is ***"]


def redacted(message: Message) -> Message:
    return replace(message, content=message.content.replace("123", "***"))


async def test_a_bundle_that_is_in_no_list_is_told_how_to_be_given() -> None:
    with pytest.raises(HookDefinitionError, match="give a list of bundles"):
        Hookline(Hooks("alone"))  # type: ignore[arg-type]
