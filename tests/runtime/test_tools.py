"""Tools: what the model is shown of a function, what the function gets, and what the model reads of its result."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import threading
from typing import Any, Literal

import anyio
import anyio.lowlevel
import msgspec
import pytest

from hookline import (
    AfterStep,
    AfterToolCall,
    BeforeToolCall,
    HooklineError,
    OnToolCallError,
    ToolCall,
    ToolResult,
    exec_agent,
    tool,
)
from hookline.errors import AgentDefinitionError
from hookline.runtime import Tool
from tests.tables import for_each

from .scenes import Recorder, agent_of, assert_consistent, assert_order, call, calls, raw_call, says, tool_texts

pytestmark = pytest.mark.anyio


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


async def run_one(fn: Any, asked: Any, recorder: Recorder | None = None) -> str:
    """What the model is told of one call."""
    recorder = recorder or Recorder()
    result = await exec_agent(agent_of(calls(asked), says(), tools=[fn]), "go", hooks=[recorder.hooks])
    assert result.reason == "done", result.error
    assert_order(recorder.events)
    assert_consistent(result.messages)
    (text,) = tool_texts(result)
    return text


def test_name_and_description_come_from_the_function() -> None:
    @tool
    def look_up(word: str) -> str:
        """Find a word.

        In every book.

        Args:
            word: What to find.
        """
        return word

    assert look_up.name == "look_up"
    assert look_up.toolset == "local"
    assert look_up.description == "Find a word.\n\nIn every book."


def test_a_given_name_wins() -> None:
    assert tool(lambda: "x", name="constant").name == "constant"


def test_the_schema_comes_from_annotations_and_docstring() -> None:
    @tool
    def paint(
        colour: Colour,
        count: int,
        mode: Literal["dry", "wet"],
        at: Point,
        names: list[str] | None = None,
        scale: float = 1.5,
    ) -> None:
        """Paint.

        Args:
            colour (Colour): Which colour,
                of two.
            count: How often.
        """

    schema = paint.schema
    properties = schema["properties"]

    assert schema["type"] == "object"
    assert set(schema["required"]) == {"colour", "count", "mode", "at"}
    assert schema["additionalProperties"] is False
    assert properties["count"] == {"type": "integer", "description": "How often."}
    assert properties["colour"]["description"] == "Which colour, of two."
    assert sorted(properties["mode"]["enum"]) == ["dry", "wet"]
    assert set(properties) == {"colour", "count", "mode", "at", "names", "scale"}
    assert "Point" in schema["$defs"]
    msgspec.json.encode(schema)


def test_param_fields_describe_parameters_too() -> None:
    @tool
    def find(word: str) -> str:
        """Find.

        :param word: The word.
        """
        return word

    assert find.schema["properties"]["word"]["description"] == "The word."
    assert find.description == "Find."


def test_a_tool_can_still_be_called_as_a_function() -> None:
    @tool(needs_approval=True)
    def double(x: int) -> int:
        return 2 * x

    assert double(4) == 8


@pytest.mark.parametrize(
    "fn",
    [
        lambda: "no name",
        42,
        "text",
        tool(lambda: "x", name="already"),
    ],
)
def test_what_is_no_named_function_is_no_tool(fn: Any) -> None:
    with pytest.raises(AgentDefinitionError):
        tool(fn)


def test_parameters_that_no_model_can_give_are_refused_at_definition() -> None:
    def positional(a: int, /) -> None: ...
    def stars(*args: int) -> None: ...
    def keywords(**kwargs: int) -> None: ...
    def strange(a: threading.Lock) -> None: ...
    def unresolved(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    for fn in (positional, stars, keywords, strange, unresolved):
        with pytest.raises(AgentDefinitionError, match=fn.__name__):
            tool(fn)


async def test_arguments_are_coerced_to_the_annotations() -> None:
    seen: list[Any] = []

    @tool
    async def take(number: int, flag: bool, share: float, colour: Colour, at: Point, many: list[int]) -> str:
        seen.extend([number, flag, share, colour, at, many])
        return "ok"

    asked = call("take", number="5", flag="true", share="0.5", colour="red", at={"x": "1"}, many=["1", 2])

    assert await run_one(take, asked) == "ok"
    assert seen == [5, True, 0.5, Colour.RED, Point(1, 0), [1, 2]]


async def test_a_parameter_that_the_model_leaves_out_has_the_functions_own_default() -> None:
    marker = object()
    seen: list[Any] = []

    @tool
    async def take(text: str = "x", other: Any = marker, number: int = 7) -> str:
        seen.extend([text, other, number])
        return "ok"

    await run_one(take, call("take"))

    assert seen == ["x", marker, 7]


@for_each(
    ("args", "word"),
    [
        ({}, "number"),
        ({"number": "many"}, "number"),
        ({"number": 1, "extra": 2}, "extra"),
        ({"number": None}, "number"),
    ],
)
async def test_arguments_that_do_not_fit_are_told_to_the_model_by_name(args: dict[str, Any], word: str) -> None:
    recorder = Recorder()

    @tool
    async def take(number: int) -> str:
        raise AssertionError("must not run")

    text = await run_one(take, call("take", **args), recorder)

    assert word in text
    (error,) = recorder.of(OnToolCallError)
    assert error.error_type == "ToolArgumentsError"
    assert recorder.of(BeforeToolCall)[0].args == args


@for_each("text", ["{broken", "[1, 2]", "5", "null", '"text"', "true", "NaN", "{}{}", "[" * 100_000])
async def test_arguments_that_are_no_json_object_are_empty_in_events_and_told_to_the_model(text: str) -> None:
    recorder = Recorder()

    @tool
    async def take(number: int = 1) -> str:
        raise AssertionError("must not run")

    told = await run_one(take, raw_call("take", text), recorder)

    assert "ToolArgumentsError" in told
    assert recorder.of(BeforeToolCall)[0].args == {}
    assert recorder.of(OnToolCallError)[0].args == {}
    assert recorder.of(AfterStep)[0].tools_calling[0].args == text
    assert not recorder.of(AfterStep)[0].tools_result[0].success


async def test_arguments_as_a_json_text_are_parsed() -> None:
    recorder = Recorder()

    @tool
    async def take(number: int, name: str) -> str:
        return f"{number}{name}"

    asked = raw_call("take", '{"number": 3, "name": "é\\u4e16"}')

    assert await run_one(take, asked, recorder) == "3é世"
    assert recorder.of(BeforeToolCall)[0].args == {"number": 3, "name": "é世"}
    assert recorder.of(AfterStep)[0].tools_calling == [asked]


async def test_a_text_with_half_a_surrogate_pair_does_not_break_the_run() -> None:
    recorder = Recorder()

    @tool
    async def take(name: str = "") -> str:
        return "ok"

    await run_one(take, raw_call("take", '{"name": "\ud800"}'), recorder)

    assert len(recorder.of(AfterToolCall)) + len(recorder.of(OnToolCallError)) == 1


@for_each("args", [None, [1], 5, {1: 2}])
async def test_arguments_of_a_wrong_python_type_do_not_break_the_run(args: Any) -> None:
    @tool
    async def take(number: int = 1) -> str:
        raise AssertionError("must not run")

    result = await exec_agent(agent_of(calls(raw_call("take", args)), says(), tools=[take]), "go")

    assert result.reason == "error" or not tool_texts(result)[0].startswith("ok")
    assert_consistent(result.messages)


@for_each(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("", ""),
        ("世界 🌍 é", "世界 🌍 é"),
        (ToolResult(content="own"), "own"),
        (None, "null"),
        (42, "42"),
        ({"a": [1, True, None]}, '{"a":[1,true,null]}'),
        (Point(1, 2), '{"x":1,"y":2}'),
        (Colour.RED, '"red"'),
        ([], "[]"),
    ],
)
async def test_a_str_is_the_content_a_tool_result_is_itself_and_anything_else_is_json(value: Any, text: str) -> None:
    @tool
    async def give() -> Any:
        return value

    assert await run_one(give, call("give")) == text


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def loop_of_lists() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


@for_each(
    "value",
    [
        object(),
        Unspeakable(),
        loop_of_lists(),
        {1: {2, 3}, "x": object()},
        ToolResult(content=None),  # type: ignore[arg-type]
        ToolResult(content="x", metadata=None),  # type: ignore[arg-type]
        ToolResult(content="x", metadata=[1]),  # type: ignore[arg-type]
        ToolResult(content="x", success="yes"),  # type: ignore[arg-type]
        ToolResult(content="x", error_type=5),  # type: ignore[arg-type]
        (each for each in "ab"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_result_of_a_wrong_type_is_told_to_the_model_whoever_listens(value: Any) -> None:
    recorder = Recorder()

    @tool
    async def give() -> Any:
        return value

    result = await exec_agent(agent_of(calls(call("give")), says(), tools=[give]), "go", hooks=[recorder.hooks])

    assert result.reason == "done"
    (error,) = recorder.of(OnToolCallError)
    assert error.error_type == "ToolResultError"
    assert "give" in error.error
    assert_order(recorder.events)


async def test_success_false_is_an_after_tool_call() -> None:
    recorder = Recorder()

    @tool
    async def give() -> ToolResult:
        return ToolResult(content="nothing there", success=False, metadata={"rule": 7})

    assert await run_one(give, call("give"), recorder) == "nothing there"
    (after,) = recorder.of(AfterToolCall)
    assert (after.success, after.content, after.mocked, after.metadata) == (False, "nothing there", False, {"rule": 7})
    assert recorder.of(AfterStep)[0].tools_result[0].success is False


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@for_each(
    "error",
    [ValueError("boom"), Mute(), ExceptionGroup("two", [ValueError(), KeyError()]), KeyError("k"), StopIteration()],
)
@for_each("form", ["async", "thread", "inline"])
async def test_an_exception_of_a_tool_is_told_to_the_model_and_the_run_goes_on(error: Exception, form: str) -> None:
    recorder = Recorder()

    def fail() -> str:
        raise error

    async def fail_later() -> str:
        await anyio.lowlevel.checkpoint()
        raise error

    made = tool(fail_later, name="fail") if form == "async" else tool(fail, in_thread=form == "thread")

    await run_one(made, call("fail"), recorder)

    (event,) = recorder.of(OnToolCallError)
    assert not recorder.of(AfterToolCall)
    assert isinstance(event.error, str)
    assert event.error_type in (type(error).__name__, "RuntimeError")
    assert recorder.of(AfterStep)[0].tools_result[0].success is False


async def test_an_unknown_tool_is_told_to_the_model_with_those_that_exist() -> None:
    recorder = Recorder()

    @tool
    async def real() -> str:
        return "x"

    text = await run_one(real, call("unreal", toolset="server"), recorder)

    assert "server/unreal" in text
    assert "local/real" in text
    assert recorder.of(BeforeToolCall)[0].toolset == "server"


async def test_a_plain_function_runs_in_a_thread_and_does_not_block_the_loop() -> None:
    here = threading.get_ident()
    go_on = threading.Event()
    threads: list[int] = []

    @tool
    def work() -> str:
        threads.append(threading.get_ident())
        assert go_on.wait(10), "the loop was blocked"
        return "worked"

    async def other() -> None:
        while not threads:
            await anyio.sleep(0.001)
        go_on.set()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(other)
            assert await run_one(work, call("work")) == "worked"

    assert threads != [here]


async def test_in_thread_false_runs_on_the_event_loop() -> None:
    threads: list[int] = []

    @tool(in_thread=False)
    def work() -> str:
        threads.append(threading.get_ident())
        return "worked"

    await run_one(work, call("work"))

    assert threads == [threading.get_ident()]


async def test_methods_partials_and_callable_objects_are_tools() -> None:
    class Desk:
        def __init__(self, owner: str) -> None:
            self.owner = owner

        async def note(self, text: str) -> str:
            return f"{self.owner}: {text}"

        async def __call__(self, text: str) -> str:
            return f"called {text}"

    async def join(left: str, right: str) -> str:
        return left + right

    assert await run_one(tool(Desk("Ada").note), call("note", text="hi")) == "Ada: hi"
    assert await run_one(tool(Desk("Ada"), name="desk"), call("desk", text="hi")) == "called hi"
    assert await run_one(tool(functools.partial(join, "a"), name="join"), call("join", right="b")) == "ab"


async def test_a_tool_cannot_change_what_the_events_and_the_model_saw() -> None:
    recorder = Recorder()

    @tool
    async def spoil(items: list[int]) -> str:
        items.append(99)
        return "ok"

    await run_one(spoil, call("spoil", items=[1]), recorder)

    assert recorder.of(BeforeToolCall)[0].args == {"items": [1]}
    assert recorder.of(AfterToolCall)[0].args == {"items": [1]}
    assert recorder.of(AfterStep)[0].tools_calling[0].args == {"items": [1]}


async def test_an_observer_cannot_change_what_the_model_reads_of_its_own_calls() -> None:
    recorder = Recorder()

    def spoil(event: Any) -> None:
        if isinstance(event, AfterStep) and event.tools_calling:
            event.tools_calling[0].args["word"] = "changed"

    recorder.reactions.append(spoil)

    @tool
    async def say(word: str) -> str:
        return word

    result = await exec_agent(
        agent_of(calls(call("say", word="kept")), says(), tools=[say]), "go", hooks=[recorder.hooks]
    )

    assert result.messages[1].tool_calls[0].args == {"word": "kept"}


async def test_parallel_calls_overlap_and_their_results_keep_the_models_order() -> None:
    recorder = Recorder()
    arrived = {name: anyio.Event() for name in "abc"}
    finished: list[str] = []

    @tool
    async def meet(name: str) -> str:
        arrived[name].set()
        for event in arrived.values():
            await event.wait()
        while name != "c" and chr(ord(name) + 1) not in finished:
            await anyio.lowlevel.checkpoint()
        finished.append(name)
        return name

    agent = agent_of(calls(*(call("meet", f"t{name}", name=name) for name in "abc")), says(), tools=[meet])
    with anyio.fail_after(10):
        result = await exec_agent(agent, "go", hooks=[recorder.hooks])

    assert finished == ["c", "b", "a"]
    assert tool_texts(result) == ["a", "b", "c"]
    assert [outcome.content for outcome in recorder.of(AfterStep)[0].tools_result] == ["a", "b", "c"]
    assert [event.args["name"] for event in recorder.of(AfterToolCall)] == ["c", "b", "a"]
    assert sorted(event.call_index for event in recorder.of(BeforeToolCall)) == [1, 2, 3]
    assert_order(recorder.events)


async def test_call_indices_count_per_tool_from_one_over_the_steps() -> None:
    recorder = Recorder()

    @tool
    async def one() -> str:
        return ""

    @tool
    async def two() -> str:
        return ""

    turns = [
        calls(call("one", "a"), call("two", "b"), call("one", "c")),
        calls(call("one", "d"), call("two", "e")),
        says(),
    ]
    result = await exec_agent(agent_of(*turns, tools=[one, two]), "go", hooks=[recorder.hooks])

    indices = {event.tool_call_id: event.call_index for event in recorder.of(BeforeToolCall)}
    assert indices == {"a": 1, "b": 1, "c": 2, "d": 3, "e": 2}
    assert result.tool_calls == 5


async def test_a_hundred_calls_in_one_answer_all_run() -> None:
    ran: list[int] = []

    @tool
    def work(n: int) -> str:
        ran.append(n)
        return str(n)

    result = await exec_agent(
        agent_of(calls(*(call("work", f"t{n}", n=n) for n in range(100))), says(), tools=[work]), "go"
    )

    assert sorted(ran) == list(range(100))
    assert tool_texts(result) == [str(n) for n in range(100)]
    assert result.tool_calls == 100


async def test_calls_without_an_id_or_with_the_same_one_are_told_apart() -> None:
    @tool
    async def say(word: str) -> str:
        return word

    asked = [
        call("say", name, word=word) for name, word in [("x", "a"), ("x", "b"), ("", "c"), ("x_1", "d"), ("", "e")]
    ]
    result = await exec_agent(agent_of(calls(*asked), says(), tools=[say]), "go")

    assert tool_texts(result) == ["a", "b", "c", "d", "e"]
    ids = [message.tool_call_id for message in result.messages if message.role == "tool"]
    assert len(set(ids)) == 5
    assert_consistent(result.messages)


async def test_a_mocked_call_does_not_run_the_tool_and_says_who_answered() -> None:
    recorder = Recorder()

    @recorder.hooks.on(BeforeToolCall, tool="local/say", id="the-mock")
    async def answer(event: BeforeToolCall) -> None:
        event.mock(ToolResult(content="faked", metadata={"cassette": 1}))

    @tool
    async def say() -> str:
        raise AssertionError("must not run")

    assert await run_one(say, call("say"), recorder) == "faked"
    (after,) = recorder.of(AfterToolCall)
    assert (after.mocked, after.answered_by, after.success) == (True, "the-mock", True)
    assert after.metadata == {"cassette": 1}


async def test_a_mocked_exception_counts_as_raised_by_the_tool() -> None:
    recorder = Recorder()
    recorder.hooks.on(BeforeToolCall, id="fault")(lambda event: event.mock(TimeoutError("too slow")))

    @tool
    async def say() -> str:
        raise AssertionError("must not run")

    assert await run_one(say, call("say"), recorder) == "TimeoutError: too slow"
    (error,) = recorder.of(OnToolCallError)
    assert (error.mocked, error.answered_by, error.error, error.error_type) == (
        True,
        "fault",
        "too slow",
        "TimeoutError",
    )


async def test_an_unknown_tool_and_wrong_arguments_can_be_mocked_too() -> None:
    recorder = Recorder()
    recorder.hooks.on(BeforeToolCall)(lambda event: event.mock("faked"))

    @tool
    async def say(word: str) -> str:
        raise AssertionError("must not run")

    assert await run_one(say, call("nowhere"), recorder) == "faked"
    assert await run_one(say, raw_call("say", "{broken")) != "faked"


async def test_a_tool_made_by_hand_gets_the_arguments_and_may_have_an_identifier() -> None:
    recorder = Recorder()

    async def run(args: Any) -> object:
        return {"got": args["x"]}

    by_hand = Tool(toolset="server", name="remote", run=run)

    assert await run_one(by_hand, call("remote", toolset="server", x=1), recorder) == '{"got":1}'
    assert recorder.of(BeforeToolCall)[0].toolset == "server"


@for_each("answer", [True, False])
@for_each("form", ["fact", "function", "async"])
async def test_needs_approval_is_a_fact_or_a_question_about_the_call(answer: bool, form: str) -> None:
    asked: list[ToolCall] = []

    def judge(about: ToolCall) -> bool:
        asked.append(about)
        return answer

    async def judge_later(about: ToolCall) -> bool:
        await anyio.lowlevel.checkpoint()
        return judge(about)

    @tool(needs_approval={"fact": answer, "function": judge, "async": judge_later}[form])
    async def pay(amount: int) -> str:
        return "paid"

    result = await exec_agent(agent_of(calls(call("pay", amount="5")), says(), tools=[pay]), "go")

    assert result.reason == ("waiting_for_human" if answer else "done")
    for about in asked:
        assert isinstance(about, ToolCall)
        assert (about.toolset, about.tool_name, about.args, about.tool_call_id) == (
            "local",
            "pay",
            {"amount": "5"},
            "t1",
        )
        assert about.operation_id == result.operation_id
    assert len(asked) == (form != "fact")


async def test_a_question_about_approval_that_raises_counts_as_yes() -> None:
    def judge(about: ToolCall) -> bool:
        raise RuntimeError("cannot say")

    @tool(needs_approval=judge)
    async def pay() -> str:
        raise AssertionError("must not run")

    result = await exec_agent(agent_of(calls(call("pay")), says(), tools=[pay]), "go")

    assert result.reason == "waiting_for_human"


async def test_a_call_with_broken_arguments_is_not_shown_to_a_person() -> None:
    @tool(needs_approval=True)
    async def pay(amount: int) -> str:
        raise AssertionError("must not run")

    assert "ToolArgumentsError" in await run_one(pay, raw_call("pay", "{broken"))


async def test_a_nested_run_inside_a_tool_is_an_operation_of_its_own() -> None:
    inner_recorder, recorder = Recorder(), Recorder()

    @tool
    async def delegate() -> str:
        inner = await exec_agent(agent_of(says("from inside"), id="inner"), "go", hooks=[inner_recorder.hooks])
        return inner.output

    assert await run_one(delegate, call("delegate"), recorder) == "from inside"
    assert inner_recorder.names() == ["beforeStep", "afterStep", "onComplete"]
    assert {event.agent_id for event in recorder.events} == {"tester"}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancelled_error_of_the_tools_own_is_a_failure_of_the_tool() -> None:
    import asyncio

    recorder = Recorder()

    @tool
    async def wait_for_nobody() -> str:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        future.cancel()
        return await future

    assert "CancelledError" in await run_one(wait_for_nobody, call("wait_for_nobody"), recorder)
    assert recorder.of(OnToolCallError)[0].error_type == "CancelledError"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_one_of_several_parallel_calls_that_is_cancelled_alone_is_told_to_the_model() -> None:
    import asyncio

    recorder = Recorder()

    @tool
    async def give_up() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return "unreachable"

    @tool
    async def good() -> str:
        return "fine"

    agent = agent_of(calls(call("give_up", "a"), call("good", "b")), says(), tools=[give_up, good])
    result = await exec_agent(agent, "go", hooks=[recorder.hooks])

    assert_order(recorder.events)
    assert_consistent(result.messages)
    assert result.reason == "done"
    assert tool_texts(result)[1] == "fine"


def test_errors_of_definition_are_hookline_errors() -> None:
    assert issubclass(AgentDefinitionError, HooklineError)


async def test_a_result_with_an_error_type_counts_as_raised() -> None:
    recorder = Recorder()

    @tool
    async def give() -> ToolResult:
        return ToolResult(content="too slow", error_type="Timeout")

    assert await run_one(give, call("give"), recorder) == "Timeout: too slow"
    (error,) = recorder.of(OnToolCallError)
    assert (error.error, error.error_type, error.mocked) == ("too slow", "Timeout", False)
    assert recorder.of(AfterStep)[0].tools_result[0].success is False


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_deep_copy_of_a_tool_runs_the_same_function(in_thread: bool) -> None:
    class Shop:
        def __init__(self) -> None:
            self.sold: list[str] = []

        def sell(self, item: str) -> str:
            self.sold.append(item)
            return item

    shop = Shop()

    copied = copy.deepcopy(tool(shop.sell, in_thread=in_thread))

    assert anyio.run(copied.run, {"item": "tea"}) == "tea"
    assert shop.sold == ["tea"]
