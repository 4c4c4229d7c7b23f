"""What hooks withhold, change or see in Pydantic AI: streams, messages with images, arguments, calls that wait."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import (
    ApprovalRequired,
    CallDeferred,
    RetryModelRequest,
    RunCancelled,
    UnexpectedModelBehavior,
)
from pydantic_ai.messages import (
    BinaryContent,
    FilePart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.tools import DeferredToolRequests

from hookline import (
    AgentCall,
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
from hookline import ModelResponse as Answer
from hookline.adapters.pydantic_ai import Hookline
from hookline.errors import HookUsageError, RunStopped
from tests.tables import for_each

from .test_pydantic_ai import adder, agent_that, call, names, watch

pytestmark = pytest.mark.anyio

PICTURE = BinaryContent(b"...", media_type="image/png")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


See = Callable[[str], None]


async def streamed(agent: Agent[Any, Any], hookline: Hookline, see: See) -> None:
    async with agent.run_stream("go", capabilities=[hookline]) as result:
        async for text in result.stream_text(debounce_by=None):
            see(text)
        see(await result.get_output())
    see(str(result.all_messages()))


async def as_events(agent: Agent[Any, Any], hookline: Hookline, see: See) -> None:
    async with agent.run_stream_events("go", capabilities=[hookline]) as events:
        async for event in events:
            see(str(event))


async def by_node(agent: Agent[Any, Any], hookline: Hookline, see: See) -> None:
    async with agent.iter("go", capabilities=[hookline]) as steps:
        async for node in steps:
            if Agent.is_model_request_node(node):
                async with node.stream(steps.ctx) as events:
                    async for event in events:
                        see(str(event))
    assert steps.result is not None
    see(str(steps.result.output))


Way = Callable[[Agent[Any, Any], Hookline, See], Awaitable[None]]
WAYS = pytest.mark.parametrize("way", [streamed, as_events, by_node])


@WAYS
async def test_nothing_is_streamed_of_an_answer_that_a_hook_withholds(way: Way) -> None:
    hooks, seen = Hooks("withholds"), list[str]()
    hooks.after(ModelCall)(lambda call, answer: Deny("confidential") if "secret" in answer.content else None)

    with pytest.raises(RunStopped, match="confidential"):
        await way(agent_that("my secret is out"), Hookline([hooks]), seen.append)
    assert "secret" not in str(seen)


@WAYS
async def test_what_a_hook_makes_of_an_answer_is_what_is_streamed(way: Way) -> None:
    hooks, witness, seen = Hooks("changes"), watch(), list[str]()

    @hooks.after(ModelCall)
    async def redact(call: ModelCall, answer: Answer) -> Answer:
        await asyncio.sleep(0)
        return replace(answer, content=answer.content.replace("secret", "***"))

    agent = agent_that([call("add", a=1, b=2)], "my secret is out")
    agent.tool_plain(lambda a, b: a + b, name="add")
    await way(agent, Hookline([hooks, witness.hooks]), seen.append)

    assert "secret" not in str(seen)
    assert "my *** is out" in seen[-1]
    assert witness.of(OnComplete)[0].last_assistant_content.strip() == "my *** is out"


@WAYS
async def test_a_stream_that_hooks_leave_alone_is_whole(way: Way) -> None:
    hooks, seen, witness = Hooks("looks"), list[str](), watch()
    hooks.after(ModelCall)(lambda call, answer: None)

    await way(adder(), Hookline([hooks, witness.hooks]), seen.append)

    assert "all is done" in seen[-1]
    assert [end.reason for end in witness.of(OnComplete)] == ["done"]
    assert witness.of(OnComplete)[0].llm_calls == 2


@WAYS
async def test_the_stream_of_a_model_that_steps_in_for_another_is_held_back_too(way: Way) -> None:
    hooks, seen = Hooks("withholds"), list[str]()
    hooks.after(ModelCall)(lambda call, answer: Deny("confidential"))

    async def down(messages: list[ModelMessage], info: AgentInfo) -> Any:
        raise ValueError("down")
        yield ""

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> Any:
        yield "my secret "
        await asyncio.sleep(0)
        yield "is out"

    @dataclass
    class StepsIn(AbstractCapability[Any]):
        async def on_model_request_error(self, ctx: Any, *, request_context: Any, error: Exception) -> Any:
            raise RetryModelRequest(FunctionModel(stream_function=stream)) if request_context.attempt == 1 else error

    agent = Agent(FunctionModel(stream_function=down), capabilities=[StepsIn()])
    with pytest.raises(RunStopped, match="confidential"):
        await way(agent, Hookline([hooks]), seen)
    assert "secret" not in str(seen)


def hooks_of_kind(kind: str) -> Hooks:
    hooks = Hooks(kind)
    if kind == "before":
        hooks.before(ModelCall)(lambda call: None)
    elif kind == "guard":
        hooks.guard(ModelCall)(lambda call: None)
    elif kind == "after":
        hooks.after(ModelCall)(lambda call, answer: None)
    elif kind == "around":

        @hooks.around(ModelCall)
        async def around(call: ModelCall, call_next: Any) -> Any:
            return await call_next(call)

    return hooks


class Place(BaseModel):
    city: str


RIGHT = [ToolCallPart("final_result", {"city": "Oslo"}, tool_call_id="o1")]
WRONG = [ToolCallPart("final_result", {"town": "Oslo"}, tool_call_id="o1")]


async def place_of(hooks: list[Hooks], *turns: Any) -> tuple[str, int]:
    """What a streamed run came to, and how often its model was asked."""
    requests: list[Any] = []
    agent = agent_that(*turns, output_type=Place)
    agent.model = Counting(agent.model, requests)
    try:
        async with agent.run_stream("where?", capabilities=[Hookline(hooks)] if hooks else []) as result:
            return str(await result.get_output()), len(requests)
    except UnexpectedModelBehavior as error:
        return str(error), len(requests)


class Counting(WrapperModel):
    def __init__(self, wrapped: Any, requests: list[Any]) -> None:
        super().__init__(wrapped)
        self.requests = requests

    @asynccontextmanager
    async def request_stream(self, *given: Any, **options: Any) -> AsyncGenerator[Any]:
        self.requests.append(given)
        async with super().request_stream(*given, **options) as stream:
            yield stream


@for_each("kind", ["observers", "before", "guard", "after", "around"])
@for_each(
    "turns",
    [("no idea", RIGHT), ("no idea", "still none"), (WRONG,), (RIGHT,)],
    ids=["mended", "text", "wrong", "right"],
)
async def test_a_streamed_answer_is_tried_again_as_without_hooks(kind: str, turns: Any) -> None:
    witness = watch()

    bare = await place_of([], *turns)

    assert await place_of([hooks_of_kind(kind), witness.hooks], *turns) == bare
    assert names(witness).count("beforeStep") == bare[1]
    assert names(witness).count("onComplete") == 1


async def test_an_answer_that_a_hook_made_invalid_is_tried_again_too() -> None:
    hooks, answers = Hooks("breaks"), iter([True, False])
    hooks.after(ModelCall)(
        lambda call, answer: replace(answer, content="no idea", tool_calls=[]) if next(answers) else None
    )

    assert await place_of([hooks], [TextPart("well "), *RIGHT], RIGHT) == ("city='Oslo'", 2)


async def test_a_stream_that_breaks_while_it_is_held_back_raises_what_broke_it() -> None:
    hooks, witness = Hooks("looks"), watch()
    hooks.after(ModelCall)(lambda call, answer: None)

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> Any:
        await asyncio.sleep(0)
        yield "half of "
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await streamed(Agent(FunctionModel(stream_function=stream)), Hookline([hooks, witness.hooks]), print)
    assert [(end.reason, end.error_type) for end in witness.of(OnComplete)] == [("error", "ValueError")]


async def test_an_interrupt_ends_a_stream_that_is_held_back() -> None:
    hooks, witness, begun = Hooks("looks"), watch(), asyncio.Event()
    hooks.after(ModelCall)(lambda call, answer: None)
    before = asyncio.all_tasks()

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> Any:
        await asyncio.sleep(0)
        yield "half of "
        begun.set()
        await asyncio.Event().wait()

    hookline = Hookline([hooks, witness.hooks], operation_id="held-back")
    task = asyncio.create_task(streamed(Agent(FunctionModel(stream_function=stream)), hookline, print))
    await begun.wait()

    assert interrupt("held-back")
    with pytest.raises(RunCancelled):
        await task
    assert [end.reason for end in witness.of(OnComplete)] == ["interrupted"]
    assert asyncio.all_tasks() == before


async def test_an_output_that_run_stream_has_handed_out_is_not_changed_in_silence() -> None:
    hooks = Hooks("changes")
    hooks.after(AgentCall)(lambda call, result: replace(result, output="something else"))

    with pytest.raises(HookUsageError, match="had delivered it"):
        await streamed(adder(), Hookline([hooks]), print)


@for_each("wait", [ApprovalRequired, CallDeferred])
@for_each("deed", ["change", "deny", "nothing"])
async def test_no_hook_makes_an_answer_of_a_call_that_waits(wait: type[Exception], deed: str) -> None:
    hooks, witness = Hooks("changes"), watch()
    agent = agent_that([call("wire", to="x")], "went on", output_type=[str, DeferredToolRequests])
    if deed != "nothing":
        changed = Deny("no") if deed == "deny" else None
        hooks.after(ToolCall)(lambda call, result: changed or replace(result, content="paid", error_type=None))

    @agent.tool_plain
    def wire(to: str) -> str:
        raise wait

    result = await agent.run("go", capabilities=[Hookline([hooks, witness.hooks])])

    assert isinstance(result.output, DeferredToolRequests)
    assert [part.tool_call_id for part in (*result.output.approvals, *result.output.calls)] == ["t1"]
    assert witness.of(OnComplete)[0].reason == "waiting_for_human"
    assert [event.error_type for event in witness.of(OnToolCallError)] == [wait.__name__]
    assert "beforeHumanIntervention" in names(witness)


async def test_a_message_that_a_hook_rewrites_keeps_what_is_no_text() -> None:
    hooks, heard = Hooks("redacts"), list[list[ModelMessage]]()

    @hooks.before(ModelCall)
    def redact(call: ModelCall) -> ModelCall:
        return replace(call, messages=[redacted(message) for message in call.messages])

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        heard.append(messages)
        return ModelResponse(parts=[TextPart("done")])

    history: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart([PICTURE, "my key is 123", PICTURE, TextContent("again 123")])]),
        ModelResponse(parts=[ThinkingPart("123!"), TextPart("It is 123"), FilePart(PICTURE), call("scan", text="x")]),
        ModelRequest(parts=[ToolReturnPart("scan", ["found 123", PICTURE], tool_call_id="t1")]),
        ModelResponse(parts=[TextPart("I see")]),
    ]
    agent = Agent(FunctionModel(answer), instructions="Say 123.")
    await agent.run(["and 123", PICTURE], message_history=history, capabilities=[Hookline([hooks])])

    ((first, second, third, fourth, fifth),) = heard
    told = re.sub(r"datetime\.datetime\([^)]*\)", "", f"{heard[0][:4]}{fifth.parts}")  # a microsecond may be 123, too
    assert "123" not in told
    assert first.parts[0].content == [PICTURE, "my key is ***\nagain ***", PICTURE]
    assert [type(part) for part in second.parts] == [FilePart, ToolCallPart, TextPart]
    assert (third.parts[0].tool_name, third.parts[0].files) == ("scan", [PICTURE])
    assert fourth.parts == history[3].parts
    assert fifth.parts[0].content == ["and ***", PICTURE]


def redacted(message: Message) -> Message:
    return replace(message, content=message.content.replace("123", "***"))


@pytest.mark.parametrize("first", [True, False])
async def test_guards_see_arguments_as_other_capabilities_have_left_them(first: bool) -> None:
    @dataclass
    class Adds(AbstractCapability[Any]):
        async def after_tool_validate(self, ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
            return {**args, "a": args["a"] + 100}

    hooks, witness, judged = Hooks("judges"), watch(), list[Any]()
    hooks.guard(ToolCall)(lambda call: judged.append(dict(call.args)))
    hookline = Hookline([hooks, witness.hooks])
    agent = agent_that([call("add", a=1, b="2")], "done")

    @agent.tool_plain
    def add(a: int, b: int, c: int = 3) -> int:
        return a + b + c

    result = await agent.run("go", capabilities=[hookline, Adds()] if first else [Adds(), hookline])

    assert judged == [{"a": 101, "b": "2"}]
    assert [event.args for event in witness.of(BeforeToolCall)] == judged
    assert "106" in str(result.all_messages())


@pytest.mark.parametrize("kind", ["observers", "after", "around"])
async def test_a_cancelled_tool_cleans_up_undisturbed_while_another_ends_at_once(kind: str) -> None:
    begun, may_end, cleaned_up = asyncio.Event(), asyncio.Event(), list[str]()
    agent: Agent[Any, Any] = Agent(
        FunctionModel(lambda messages, info: ModelResponse([ToolCallPart("careful"), ToolCallPart("quick")]))
    )

    @agent.tool_plain
    async def careful() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            begun.set()
            await may_end.wait()
            cleaned_up.append("careful")

    @agent.tool_plain
    async def quick() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up.append("quick")

    task = asyncio.create_task(agent.run("go", capabilities=[Hookline([hooks_of_kind(kind)])]))
    await begun.wait()
    begun.clear()
    task.cancel()
    await begun.wait()
    for _ in range(100):  # all that the framework does at the end of the other call
        await asyncio.sleep(0)
    may_end.set()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned_up == ["quick", "careful"]
