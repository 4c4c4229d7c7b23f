"""`ToolMocks` answers in the tools' place, strikes with faults, and says what happened."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from hookline import (
    AfterToolCall,
    Agent,
    BeforeToolCall,
    Deny,
    HookDispatcher,
    Hooks,
    ModelResponse,
    OnToolCallError,
    OperationResult,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    ToolResult,
    exec_agent,
    tool,
)
from hookline.adapters.mcp import mcp_server
from hookline.errors import HookUsageError
from hookline.evals import EventRecorder, NeverMatchingRuleWarning, RealClock, ToolMocks, match
from hookline.evals.faults import EmptyResult, FailedResult, Latency, RaiseError, Timeout, TruncatedJson

pytestmark = pytest.mark.anyio

Step = list[tuple[str, dict[str, Any]]]


class World:
    """Real tools that say when they ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def agent(self, *steps: Step, **further: Any) -> Agent:
        @tool(in_thread=False)
        def search(q: str = "", limit: int = 3) -> str:
            self.ran.append(f"search {q}")
            return f"found {q}"

        @tool(in_thread=False)
        def send(to: str = "") -> str:
            self.ran.append(f"send {to}")
            return f"sent to {to}"

        turns = [
            ModelResponse(
                tool_calls=[
                    ToolRequest(tool_name=name, args=args, tool_call_id=f"t{number}_{place}")
                    for place, (name, args) in enumerate(step)
                ]
            )
            for number, step in enumerate(steps)
        ]
        model = ScriptedModel([*turns, ModelResponse(content="end")])
        return Agent(id="a", model=model, tools=[search, send], **further)


def searches(*texts: str) -> list[Step]:
    return [[("search", {"q": text})] for text in texts]


def told(result: OperationResult) -> list[str]:
    return [message.content for message in result.messages if message.role == "tool"]


async def run(mocks: ToolMocks, *steps: Step, world: World | None = None, hooks: Any = (), **further: Any) -> list[str]:
    result = await exec_agent((world or World()).agent(*steps), "go", hooks=[mocks, *hooks], **further)
    assert result.reason == "done"
    return told(result)


async def test_the_most_specific_rule_wins_else_the_last_registered() -> None:
    mocks = ToolMocks()
    mocks.tool("local/search", {"q": "x"}).returns("exact")
    mocks.tool("*").returns("any")
    mocks.tool("search").returns("name")
    mocks.when(match.tool("local/search") & match.fields({"q": "y"})).returns("first")
    mocks.when(match.tool("local/search") & match.fields({"limit": 1})).returns("last")

    steps: list[Step] = [[("search", {"q": q, "limit": n})] for q, n in (("y", 1), ("y", 2), ("z", 3))]
    answers = await run(mocks, *searches("x"), *steps, [("send", {"to": "me"})])

    assert answers == ["exact", "last", "first", "name", "any"]


@pytest.mark.parametrize(
    ("value", "content"),
    [("text", "text"), ("", ""), ({"a": [1, None]}, '{"a":[1,null]}'), (3, "3"), (ToolResult(content="r"), "r")],
)
async def test_a_value_is_answered_as_a_tool_would_return_it(value: object, content: str) -> None:
    mocks = ToolMocks()
    mocks.tool("search").returns(value)

    assert await run(mocks, *searches("x")) == [content]


async def test_functions_answer_as_the_tool_or_from_the_call() -> None:
    mocks = ToolMocks()

    @mocks.tool("search").runs
    async def search(q: str, limit: int = 7) -> dict[str, object]:
        await anyio.lowlevel.checkpoint()
        return {"q": q, "limit": limit}

    mocks.tool("send").answers(lambda call: f"call {call.call_index} in step {call.step_index}")

    assert await run(mocks, *searches("x"), [("send", {})]) == ['{"q":"x","limit":7}', "call 1 in step 1"]
    assert search.__name__ == "search"


async def test_a_fake_that_raises_counts_as_the_tool_raising() -> None:
    mocks, events = ToolMocks(), EventRecorder()

    @mocks.tool("search").runs
    def search(q: str) -> str:
        raise LookupError(q)

    mocks.tool("send").raises(ConnectionError)
    assert await run(mocks, *searches("x"), [("send", {})], hooks=[events.hooks]) == [
        "LookupError: x",
        "ConnectionError: ConnectionError",
    ]

    (recorded,) = events.operations.values()
    assert [(event.error_type, event.mocked) for event in recorded.answers if isinstance(event, OnToolCallError)] == [
        ("LookupError", True),
        ("ConnectionError", True),
    ]


@pytest.mark.parametrize(
    ("then", "answers"),
    [
        ("last", ["1", "ValueError: no", "call 3", "call 4", "call 5"]),
        ("cycle", ["1", "ValueError: no", "call 3", "1", "ValueError: no"]),
    ],
)
async def test_a_sequence_goes_on_as_it_says(then: Any, answers: list[str]) -> None:
    mocks = ToolMocks()
    mocks.tool("search").sequence([1, ValueError("no"), lambda call: f"call {call.call_index}"], then=then)

    assert await run(mocks, *searches(*"abcde")) == answers


async def test_a_used_up_sequence_is_an_error_that_names_its_rule() -> None:
    mocks, world = ToolMocks(), World()
    mocks.tool("search", name="two prices").sequence(["1", "2"], then="error")

    assert (await run(mocks, *searches(*"abc"), world=world))[-1] == (
        "Rule 'two prices' could not answer local/search: its 2 answers are used up; this is its call 3. "
        "The real tool was not run."
    )
    assert world.ran == []
    assert [call.outcome for call in mocks.calls] == ["mocked", "mocked", "refused"]


async def test_parallel_calls_get_the_sequence_in_the_models_order() -> None:
    mocks = ToolMocks()
    mocks.tool("search").sequence(list("12345678"))

    assert await run(mocks, [("search", {"q": str(n)}) for n in range(8)]) == list("12345678")


async def test_tables_and_templates_answer_by_arguments() -> None:
    mocks = ToolMocks()
    mocks.tool("search").table("q", {"rome": "sunny", "*": "unknown"})
    mocks.tool("send").template("{{to}} is {to}")

    assert await run(mocks, *searches("rome", "oslo"), [("send", {"to": "me"})]) == ["sunny", "unknown", "{to} is me"]


async def test_a_template_reads_arguments_and_never_attributes() -> None:
    mocks = ToolMocks()
    mocks.tool("search").template("{q.__class__}")

    (answer,) = await run(mocks, *searches("x"))
    assert "needs the argument 'q.__class__'" in answer


class Bank:
    def __init__(self) -> None:
        self.balance = 10

    def search(self, q: str) -> int:
        self.balance -= int(q)
        return self.balance

    async def send(self, to: str) -> str:
        return f"{to} has {self.balance}"


async def test_a_fake_keeps_its_state_within_an_operation_and_no_longer() -> None:
    for source in (Bank, Bank()):
        mocks = ToolMocks()
        fake = mocks.fake(source)

        for _ in range(2):
            assert await run(mocks, *searches("3", "4"), [("send", {"to": "me"})]) == ["7", "3", "me has 3"]
        await run(mocks, *searches("1"), operation_id="third")
        assert fake.of("third").balance == 9
        with pytest.raises(HookUsageError, match="3 operations"):
            fake.only


async def test_a_real_answer_can_be_changed_and_its_event_shows_the_tools_own() -> None:
    mocks, world, events = ToolMocks(strict=True), World(), EventRecorder()
    mocks.tool("search").passthrough()
    mocks.tool("send").passthrough_then(lambda call, result: result.content.upper())

    assert await run(mocks, *searches("x"), [("send", {"to": "me"})], world=world, hooks=[events.hooks]) == [
        "found x",
        "SENT TO ME",
    ]
    assert world.ran == ["search x", "send me"]
    (recorded,) = events.operations.values()
    assert [event.content for event in recorded.answers] == ["found x", "sent to me"]
    assert [(call.outcome, call.rule) for call in mocks.calls] == [("real", "search #1"), ("real", "send #2")]
    mocks.assert_no_unmocked()


async def test_a_strict_run_refuses_what_nothing_answers_and_names_the_nearest_rule() -> None:
    mocks, world = ToolMocks(strict=True), World()
    mocks.tool("local/search", {"q": "x"}, name="x only").returns("1")

    searched, sent = await run(mocks, *searches("y"), [("send", {"to": "me"})], world=world)

    assert world.ran == []
    assert "The nearest rule is 'x only': 'q' is 'y', not 'x'." in searched
    assert "mocks.tool('local/send').returns(...)" in sent
    assert [call.outcome for call in mocks.calls] == ["refused", "refused"]
    with pytest.raises(AssertionError, match=r"2 of 2 calls were not answered"):
        mocks.assert_no_unmocked()


async def test_a_spy_lets_everything_through_and_tells() -> None:
    mocks, world = ToolMocks(), World()

    assert await run(mocks, *searches("x"), world=world) == ["found x"]
    assert [(call.path, call.outcome) for call in mocks.calls] == [("local/search", "real")]


async def test_a_broken_matcher_never_lets_the_real_tool_run() -> None:
    mocks, world = ToolMocks(), World()
    mocks.when(match.where(lambda call: call.args["none"] > 1)).returns("1")

    (answer,) = await run(mocks, *searches("x"), world=world)

    assert "KeyError" in answer
    assert world.ran == []


async def test_what_another_hook_answered_or_denied_is_not_claimed() -> None:
    before, after, guard = Hooks("before"), ToolMocks("after"), Hooks("guard")
    first, second = ToolMocks("first"), ToolMocks("second")
    first.tool("search").returns("first")
    second.tool("*").returns("second")

    @guard.guard(ToolCall, tool="*/send")
    def never(call: ToolCall) -> Deny:
        return Deny("no")

    answers = await run(first, *searches("x"), [("send", {})], hooks=[second, before, after, guard])

    assert answers == ["first", "no"]
    assert [call.outcome for call in first.calls] == ["mocked", "elsewhere"]
    assert [call.outcome for call in second.calls] == ["elsewhere", "elsewhere"]


async def test_a_spy_before_another_mock_sees_that_the_tool_did_not_run() -> None:
    spy, mocks = ToolMocks("spy"), ToolMocks()
    mocks.tool("*").returns("mocked")

    await run(spy, *searches("x"), hooks=[mocks])

    assert [call.outcome for call in spy.calls] == ["elsewhere"]


async def test_an_equal_rule_replaces_the_earlier_one() -> None:
    mocks = ToolMocks()
    mocks.tool("search", {"q": "x"}).returns("default")
    mocks.tool("search", {"q": "x"}).returns("override")

    assert await run(mocks, *searches("x")) == ["override"]
    assert len(mocks.rules) == 1
    mocks.assert_all_mocks_used()


async def test_provenance_is_on_the_event() -> None:
    mocks, events = ToolMocks(), EventRecorder()
    mocks.tool("search", name="rule").returns(ToolResult(content="[1, 2]", metadata={"own": 1}))
    mocks.fault("search", TruncatedJson(), name="cut")
    mocks.fault("*", Latency(2.0))

    await run(mocks, *searches("x"), hooks=[events.hooks])

    (recorded,) = events.operations.values()
    (event,) = recorded.answers
    assert isinstance(event, AfterToolCall)
    assert event.mocked
    assert event.answered_by == "mocks.answer"
    assert event.metadata == {"own": 1, "rule": "rule", "fault": "cut,latency", "latency_ms": 2000.0}
    assert [strike.fault for strike in mocks.faults_struck] == ["cut", "latency"]


async def test_faults_strike_mocked_and_real_calls() -> None:
    mocks, world = ToolMocks(), World()
    mocks.tool("search", {"q": "mocked"}).returns("[1, 2, 3]")
    mocks.fault("search", EmptyResult(), args={"q": "real"})
    mocks.fault("search", EmptyResult(), args={"q": "mocked"})
    mocks.fault("send", RaiseError(ConnectionError("down")))

    assert await run(mocks, *searches("mocked", "real", "none"), [("send", {})], world=world) == [
        "",
        "",
        "found none",
        "ConnectionError: down",
    ]
    assert world.ran == ["search real", "search none"]


async def test_a_timeout_on_the_virtual_clock_waits_for_nobody() -> None:
    mocks = ToolMocks()
    mocks.fault("search", Timeout(3600))

    with anyio.fail_after(30):
        (answer,) = await run(mocks, *searches("x"))

    assert answer.startswith("TimeoutError")
    assert mocks.calls[0].latency_ms == 3_600_000


async def test_a_hanging_tool_on_the_real_clock_can_be_cancelled() -> None:
    mocks = ToolMocks(clock=RealClock())
    mocks.fault("search", Timeout(3600))
    before, asked = Hooks("before"), anyio.Event()
    before.on(BeforeToolCall)(lambda event: asked.set())

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: exec_agent(World().agent(*searches("x")), "go", hooks=[before, mocks]))
        await asked.wait()
        group.cancel_scope.cancel()

    assert [(call.outcome, call.fault) for call in mocks.calls] == [("mocked", "timeout")]


async def test_faults_of_a_case_are_the_same_in_any_order_of_execution() -> None:
    async def struck(case: int, order: Callable[[list[Step]], list[Step]]) -> set[tuple[str, int]]:
        mocks = ToolMocks(seed=7, case=f"case {case}")
        mocks.fault("*", FailedResult("down"), probability=0.3)
        await run(mocks, *order([[("search", {}), ("send", {})] for _ in range(5)]))
        return {(strike.tool, strike.call_index) for strike in mocks.faults_struck}

    alone = [await struck(case, lambda steps: steps) for case in range(20)]
    together: dict[int, set[tuple[str, int]]] = {}

    async def one(case: int) -> None:
        together[case] = await struck(case, lambda steps: [[call for step in steps for call in step]])

    async with anyio.create_task_group() as group:
        for case in reversed(range(20)):
            group.start_soon(one, case)

    assert [together[case] for case in range(20)] == alone
    assert len({frozenset(each) for each in alone}) > 10


async def test_nothing_of_a_finished_operation_is_held_but_its_calls() -> None:
    mocks = ToolMocks()
    mocks.tool("search").sequence(["1"])
    mocks.fault("search", Latency(1.0))
    mocks.fault("send", EmptyResult())

    async with HookDispatcher() as dispatcher, anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(lambda: run(mocks, *searches("x"), [("send", {})], dispatcher=dispatcher))

    assert len(mocks.calls) == 100
    assert mocks._decider.operations == {}
    assert getattr(mocks.clock, "_operations", {}) == {}


async def test_mocks_of_one_operation_never_answer_another() -> None:
    results: dict[str, list[str]] = {}

    async def one(name: str, dispatcher: HookDispatcher) -> None:
        mocks = ToolMocks(case=name)
        mocks.tool("search").sequence([f"{name} {number}" for number in range(5)], then="error")
        results[name] = await run(mocks, *searches(*"abcde"), dispatcher=dispatcher)

    async with HookDispatcher() as dispatcher, anyio.create_task_group() as group:
        for number in range(40):
            group.start_soon(one, f"case {number}", dispatcher)

    assert results == {name: [f"{name} {number}" for number in range(5)] for name in results}
    assert len(results) == 40


async def test_mocks_do_not_outlive_their_test() -> None:
    mocks = ToolMocks()
    mocks.tool("search").returns("1")
    await run(mocks, *searches("x"))
    gone = weakref.ref(mocks)

    del mocks
    gc.collect()

    assert gone() is None


async def test_sub_agents_are_mocked_along() -> None:
    world, mocks = World(), ToolMocks(strict=True)
    mocks.tool("search").returns("1")
    child = world.agent(*searches("x"))
    turn = ModelResponse(
        tool_calls=[ToolRequest(toolset="agent", tool_name="a", args={"instruction": "go"}, tool_call_id="t")]
    )
    parent = Agent(id="parent", model=ScriptedModel([turn, ModelResponse(content="end")]), sub_agents=[child])

    result = await exec_agent(parent, "go", hooks=[mocks])

    assert result.reason == "done"
    assert world.ran == []
    assert [call.path for call in mocks.calls] == ["local/search"]


async def test_assertions_show_what_happened() -> None:
    mocks = ToolMocks()
    mocks.tool("search", {"q": "x"}, name="used").returns("1")
    mocks.tool("search", {"q": "y"}, name="unused").returns("2")
    await run(mocks, *searches("x"))

    mocks.assert_called("search", times=1)
    mocks.assert_called_once_with("local/search", {"q": "x"})
    mocks.assert_not_called("send")
    with pytest.raises(AssertionError, match=r"(?s)'unused'.*'q' is 'x', not 'y'.*mocked by 'used'"):
        mocks.assert_all_mocks_used()
    with pytest.raises(AssertionError, match="not called"):
        mocks.assert_called_before("search", "send")
    assert "→ 'used' answers it" in mocks.explain(mocks.calls[0])
    mocks.reset()
    assert (mocks.calls, mocks.faults_struck, [rule.hits for rule in mocks.rules]) == ([], [], [0, 0])


def test_a_rule_that_can_never_match_is_warned_of() -> None:
    mocks = ToolMocks(tools=World().agent().tools)

    with pytest.warns(NeverMatchingRuleWarning, match="no tool matches"):
        mocks.tool("local/serch")
    with pytest.warns(NeverMatchingRuleWarning, match="no argument 'quest'"):
        mocks.tool("search", {"quest": "x"})
    with pytest.warns(NeverMatchingRuleWarning, match="exclude each other"):
        mocks.fault(match.nth(1) & match.nth(2), EmptyResult())


def test_with_a_source_of_tools_a_rule_may_match_a_tool_that_is_listed_later(recwarn: pytest.WarningsRecorder) -> None:
    mocks = ToolMocks(tools=[*World().agent().tools, mcp_server("files", command="files")])

    mocks.tool("files/read")

    assert not recwarn.list


async def test_a_rule_with_a_misspelt_tool_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    mocks = ToolMocks()
    mocks.tool("serch").returns("a mock")
    mocks.tool("search", {"q": "y"}, name="other arguments").returns("a mock")
    mocks.tool("weather", name="another tool").returns("a mock")

    await run(mocks, *searches("x"))
    await run(mocks, *searches("x"))

    (record,) = [each for each in caplog.records if each.name == "hookline"]
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        "Rule 'serch #1' of the mocks 'mocks' has matched no call, and no rule has answered local/search. If it is "
        "meant, write 'local/search'."
    )


async def test_a_rule_of_another_toolset_is_logged_and_one_that_is_used_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mocks = ToolMocks()
    mocks.tool("web/search").returns("a mock")
    await run(mocks, *searches("x"))
    assert "'local/search'" in caplog.text
    caplog.clear()

    mocks = ToolMocks()
    mocks.tool("local/search").returns("a mock")
    await run(mocks, *searches("x"))
    assert not caplog.records


def test_what_is_no_tool_is_refused_where_it_is_given() -> None:
    with pytest.raises(HookUsageError, match=r"`tools` must be the tools of the run.*got 'search'"):
        ToolMocks(tools=["search"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda mocks: mocks.tool(None),
        lambda mocks: mocks.when("search"),
        lambda mocks: mocks.tool("x").returns(object()),
        lambda mocks: mocks.tool("x").returns(KeyboardInterrupt()),
        lambda mocks: mocks.tool("x").sequence([]),
        lambda mocks: mocks.tool("x").sequence("abc"),
        lambda mocks: mocks.tool("x").sequence(["a"], then="stop"),
        lambda mocks: mocks.tool("x").runs("abc"),
        lambda mocks: mocks.tool("x").table("q", {}),
        lambda mocks: mocks.tool("x").template(3),
        lambda mocks: mocks.fake(object()),
        lambda mocks: mocks.fault("x", EmptyResult),
        lambda mocks: mocks.fault("x", EmptyResult(), probability=1.5),
        lambda mocks: mocks.fault("x", EmptyResult(), probability=float("nan")),
        lambda mocks: ToolMocks(seed="x"),
        lambda mocks: ToolMocks(case=3),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(wrong: Callable[[ToolMocks], object]) -> None:
    with pytest.raises((HookUsageError, TypeError, ValueError)):
        wrong(ToolMocks())
