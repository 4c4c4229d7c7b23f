"""`ToolMocks` under what people do to it: hostile values, cancellation, pauses, many hooks, many runs at once."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import subprocess
import sys
import weakref
from collections.abc import Iterator
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import (
    Agent,
    AgentSession,
    Approve,
    BeforeToolCall,
    Deny,
    HookDispatcher,
    Hooks,
    InMemoryStore,
    ModelResponse,
    OperationResult,
    Respond,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    ToolResult,
    exec_agent,
    interrupt,
    resume_agent,
    tool,
)
from hookline.errors import HookUsageError
from hookline.evals import EventRecorder, Matcher, RealClock, ToolMocks, match
from hookline.evals.faults import EmptyResult, FailedResult, Latency
from hookline.evals.mocking import Rule
from hookline.evals.mocking._rules import RuleTable

pytestmark = pytest.mark.anyio

Step = list[tuple[str, dict[str, Any]]]


def agent_of(*steps: Step, ran: list[str] | None = None, **further: Any) -> Agent:
    """An agent with real tools that say when they ran."""
    heard = ran if ran is not None else []

    @tool(in_thread=False)
    def search(q: str = "", limit: int = 3) -> str:
        heard.append(f"search {q}")
        return f"found {q}"

    @tool(in_thread=False)
    def send(to: str = "") -> str:
        heard.append(f"send {to}")
        return f"sent to {to}"

    @tool(in_thread=False, needs_approval=True)
    def pay(to: str = "") -> str:
        heard.append(f"pay {to}")
        return f"paid {to}"

    turns = [
        ModelResponse(
            tool_calls=[
                ToolRequest(tool_name=name, args=args, tool_call_id=f"t{number}_{place}")
                for place, (name, args) in enumerate(step)
            ]
        )
        for number, step in enumerate(steps)
    ]
    return Agent(
        id="a", model=ScriptedModel([*turns, ModelResponse(content="end")]), tools=[search, send, pay], **further
    )


def searches(*texts: str) -> list[Step]:
    return [[("search", {"q": text})] for text in texts]


def told(result: OperationResult) -> list[str]:
    return [message.content for message in result.messages if message.role == "tool"]


async def run(mocks: Hooks, *steps: Step, ran: list[str] | None = None, hooks: Any = (), **further: Any) -> list[str]:
    result = await exec_agent(agent_of(*steps, ran=ran), "go", hooks=[mocks, *hooks], **further)
    assert result.reason == "done"
    return told(result)


def seen(args: dict[str, Any], path: str = "local/search", index: int = 1, step: int = 0) -> BeforeToolCall:
    toolset, _, name = path.rpartition("/")
    return BeforeToolCall(
        operation_id="op",
        toolset=toolset,
        tool_name=name,
        args=args,
        call_index=index,
        step_index=step,
        tool_call_id="t",
    )


def held(mocks: ToolMocks) -> dict[str, object]:
    return {**mocks._decider.operations, **getattr(mocks.clock, "_operations", {})}


class Raises:
    """Equals nothing, and says so loudly."""

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("cannot be compared")

    __hash__ = None  # type: ignore[assignment]


class Array:
    """Compares like an array: with an array of truths, which is itself no truth."""

    def __eq__(self, other: object) -> Any:
        return Array()

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise ValueError("the truth of an array is ambiguous")

    def __repr__(self) -> str:
        return "Array()"


# Hostile values and wrong types


@pytest.mark.parametrize("hostile", [Raises(), Array()])
async def test_a_value_that_cannot_be_compared_lets_no_real_tool_run(hostile: object) -> None:
    ran: list[str] = []
    mocks = ToolMocks()
    for _ in range(2):
        mocks.tool("search", {"q": hostile}).returns("1")

    (answer,) = await run(mocks, *searches("x"), ran=ran)

    assert "The real tool was not run." in answer
    assert ran == []
    assert "a matcher failed" in mocks.explain(mocks.calls[0])


async def test_a_refusal_is_told_although_the_nearest_rules_matcher_fails_on_the_call() -> None:
    mocks = ToolMocks(strict=True)
    mocks.tool("local/searching", where=lambda call: call.args["n"] > 1, name="near").returns("1")

    (answer,) = await run(mocks, *searches("x"))

    assert answer.startswith("No mock answers local/search")
    assert "The nearest rule is 'near': the tool is local/search, not 'local/searching'." in answer
    with pytest.raises(AssertionError, match="'near'"):
        mocks.assert_all_mocks_used()


def test_an_explanation_shows_the_winner_among_very_many_rules() -> None:
    mocks = ToolMocks()
    mocks.tool("*", name="winner").returns("1")
    for number in range(80):
        mocks.tool("local/search", {"q": number}).returns("2")

    assert "→ 'winner' answers it" in mocks.explain(seen({"q": "x"}))


async def test_either_of_two_matchers_is_enough_without_asking_the_other() -> None:
    mocks = ToolMocks()
    mocks.when(match.tool("search") | match.where(lambda call: call.args["none"])).returns("1")

    assert await run(mocks, *searches("x")) == ["1"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda mocks: mocks.tool("x").raises("down"), "raises an Exception"),
        (lambda mocks: mocks.tool("x").raises(int), "raises an Exception"),
        (lambda mocks: mocks.tool("x").raises(UnicodeDecodeError), "needs arguments; pass an instance"),
        (lambda mocks: mocks.tool("x").returns(object()), "text, a ToolResult or a JSON value"),
        (lambda mocks: mocks.tool("x").sequence([KeyboardInterrupt]), "raises an Exception"),
        (lambda mocks: mocks.tool("x", where=is_nice), "plain function"),
        (lambda mocks: mocks.tool(is_nice), "plain function"),
        (lambda mocks: mocks.fake(NeedsMore), "without arguments"),
        (lambda mocks: mocks.fake(lambda bank: bank), "without arguments"),
        (lambda mocks: mocks.tool("x", name=5), "name of a rule or of a fault is text; got 5"),
        (lambda mocks: mocks.fault("x", EmptyResult(), name=5), "name of a rule or of a fault is text; got 5"),
        (lambda mocks: mocks.fault("x", EmptyResult(), probability=10**400), "a number from 0 to 1; got 1000"),
        (lambda mocks: mocks.tool("x").replays("tapes/x.yaml"), "A cassette is needed here"),
        (lambda mocks: mocks.tool("x").table(None, {"a": "b"}), "the name of an argument; got None"),
        (lambda mocks: ToolMocks(cassette="tapes/x.yaml"), "A cassette is needed here"),  # type: ignore[arg-type]
        (lambda mocks: ToolMocks(clock=RealClock), "or a RealClock"),  # type: ignore[arg-type]
        (lambda mocks: ToolMocks(strict="no"), "`strict` is True or False"),  # type: ignore[arg-type]
    ],
)
def test_what_could_only_go_wrong_in_a_run_is_refused_when_it_is_said(wrong: Any, said: str) -> None:
    with pytest.raises(HookUsageError, match=said):
        wrong(ToolMocks())


async def is_nice(call: object) -> bool:
    return False


class NeedsMore:
    def __init__(self, size: int) -> None:
        self.size = size

    def search(self) -> str:
        return "1"


async def test_classes_of_exceptions_in_a_sequence_are_raised() -> None:
    mocks = ToolMocks()
    mocks.tool("search").sequence([ConnectionError, "1"])

    assert await run(mocks, *searches("x", "y")) == ["ConnectionError: ConnectionError", "1"]


async def test_huge_deep_and_strange_arguments_are_matched_and_shown() -> None:
    deep: Any = "end"
    for _ in range(60):
        deep = {"in": deep}
    mocks = ToolMocks(strict=True)
    for number in range(9):
        mocks.tool("search", {"q": number}).returns("number")
    mocks.tool("search", {"q": deep}).returns("deep")
    mocks.tool("search", {"q": "\ud800"}).returns("surrogate")
    strange: list[Any] = [deep, "\ud800", "x" * 1_000_000, [], {}, True, 1.0, None]

    answers = await run(mocks, *[[("search", {"q": value})] for value in strange])

    assert answers[0] == "deep"
    assert answers[1] == "surrogate"
    assert all("No mock answers" in answer and len(answer) < 1_000 for answer in (*answers[2:5], answers[7]))
    assert "No mock answers" in answers[5]  # `true` is not the number 1
    assert answers[6] == "number"


async def test_functions_that_do_not_take_the_arguments_are_named_as_broken() -> None:
    mocks = ToolMocks()

    @mocks.tool("search", name="typo").runs
    def search(query: str) -> str:
        return query

    @mocks.tool("send", name="inside").runs
    async def send(to: str) -> str:
        return len(3)  # type: ignore[arg-type]

    misfit, inside = await run(mocks, *searches("x"), [("send", {"to": "me"})])

    assert misfit.startswith("Rule 'typo' could not answer local/search: its function does not take these arguments:")
    assert inside == "TypeError: object of type 'int' has no len()"
    assert [call.outcome for call in mocks.calls] == ["refused", "mocked"]


async def test_rubbish_of_functions_and_faults_names_the_rule_and_lets_no_real_tool_run() -> None:
    class Rubbish:
        name, replaces = "rubbish", False

        def change(self, result: object, draw: object) -> object:
            return object()

        def delay_s(self, draw: object) -> float:
            return 0.0

        def strike(self, call: object, draw: object, clock: object) -> None: ...

    ran: list[str] = []
    mocks = ToolMocks()
    mocks.tool("send", name="odd").answers(lambda call: object())
    mocks.tool("search", name="even").returns("1")
    mocks.fault("search", Rubbish())  # type: ignore[arg-type]

    odd, even = await run(mocks, [("send", {}), ("search", {})], ran=ran)

    assert odd.startswith("Rule 'odd' could not answer local/send: its value cannot be shown to a model")
    assert "cannot be shown to a model" in even
    assert ran == []


# Fakes


async def test_what_a_fake_does_with_its_arguments_nobody_else_sees() -> None:
    class Shop:
        def search(self, q: dict[str, Any]) -> list[str]:
            q["tags"].append("seen")
            q.pop("name")
            tags: list[str] = q["tags"]
            return tags

    mocks, events = ToolMocks(), EventRecorder()
    mocks.fake(Shop)
    asked = {"q": {"name": "n", "tags": ["new"]}}

    assert await run(mocks, [("search", asked)], hooks=[events.hooks]) == ['["new","seen"]']

    (recorded,) = events.operations.values()
    assert recorded.answers[0].args == mocks.calls[0].args == {"q": {"name": "n", "tags": ["new"]}}


async def test_a_fakes_tools_are_its_methods_of_every_kind_and_nothing_else() -> None:
    @dataclasses.dataclass
    class Shop:
        stock: list[str] = dataclasses.field(default_factory=list)

        class Config:
            pass

        @property
        def broken(self) -> str:
            raise LookupError("a property is not to be read")

        @functools.cached_property
        def slow(self) -> object:
            raise LookupError

        @staticmethod
        def search(q: str) -> str:
            return f"static {q}"

        @classmethod
        def send(cls, to: str) -> str:
            return f"{cls.__name__} {to}"

        async def pay(self, to: str) -> list[str]:
            await anyio.lowlevel.checkpoint()
            self.stock.append(to)
            return self.stock

    for source in (Shop, Shop(stock=["old"]), functools.partial(Shop, ["old"])):
        mocks = ToolMocks(strict=True)
        mocks.fake(source)
        assert sorted(rule.name.partition(" #")[0] for rule in mocks.rules) == [
            "local/pay",
            "local/search",
            "local/send",
        ]
        first, second = [await run(mocks, *searches("x"), [("send", {"to": "me"})]) for _ in range(2)]
        assert first == second == ["static x", "Shop me"]


async def test_an_object_of_functions_is_a_fake_too() -> None:
    mocks = ToolMocks()
    mocks.fake(SimpleNamespace(search=lambda q: f"simple {q}", func="no function"))

    assert await run(mocks, *searches("x")) == ["simple x"]


async def test_a_fake_that_cannot_be_made_is_named_as_broken() -> None:
    made: list[int] = []

    class Bank:
        def search(self, q: str) -> str:
            return q

    def factory() -> Bank:
        made.append(1)
        if len(made) > 1:
            raise ConnectionError("no database")
        return Bank()

    mocks = ToolMocks()
    mocks.fake(factory)

    (answer,) = await run(mocks, *searches("x"))

    assert answer.endswith("its fake could not be made: ConnectionError: no database. The real tool was not run.")


# Cancellation and pauses


@pytest.mark.parametrize("how", ["cancel", "interrupt"])
@pytest.mark.parametrize("where", ["answer", "delay"])
async def test_a_run_that_is_stopped_while_a_mock_answers_leaves_nothing_behind(how: str, where: str) -> None:
    mocks = ToolMocks(clock=RealClock())
    started = anyio.Event()

    @mocks.tool("search", name="slow").answers
    async def slow(call: BeforeToolCall) -> str:
        started.set()
        await anyio.sleep_forever()
        return "never"

    if where == "delay":
        mocks.fault("search", Latency(3600.0))
        mocks.tool("search", where=lambda call: bool(started.set()) or False)
    results: list[OperationResult] = []

    async def one() -> None:
        results.append(await exec_agent(agent_of(*searches("x")), "go", hooks=[mocks], operation_id="stopped"))

    async with anyio.create_task_group() as group:
        group.start_soon(one)
        await started.wait()
        await anyio.lowlevel.checkpoint()
        if how == "cancel":
            group.cancel_scope.cancel()
        else:
            assert interrupt("stopped")

    assert [result.reason for result in results] == ([] if how == "cancel" else ["interrupted"])
    assert [(call.path, call.outcome) for call in mocks.calls] == [("local/search", "mocked")]
    assert held(mocks) == {}


async def test_a_reset_during_a_run_is_not_disturbed_by_what_was_asked_before() -> None:
    mocks = ToolMocks()
    waiting, go_on = anyio.Event(), anyio.Event()

    @mocks.tool("search", {"q": "slow"}, name="slow").answers
    async def slow(call: BeforeToolCall) -> str:
        waiting.set()
        await go_on.wait()
        return "late"

    mocks.tool("search", name="quick").returns("now")

    async with anyio.create_task_group() as group:
        group.start_soon(functools.partial(run, mocks, *searches("slow")))
        await waiting.wait()
        mocks.reset()
        await run(mocks, *searches("x"))
        go_on.set()

    assert [call.rule for call in mocks.calls] == ["quick"]
    assert held(mocks) == {}


async def test_a_paused_run_goes_on_where_its_mocks_were() -> None:
    mocks, store, ran = ToolMocks(), InMemoryStore(), list[str]()

    class Shop:
        def __init__(self) -> None:
            self.sent = 0

        def send(self, to: str) -> int:
            self.sent += 1
            return self.sent

    mocks.tool("search").sequence(["1", "2", "3"], then="error")
    mocks.tool("pay").returns("mocked pay")
    shop = mocks.fake(Shop)
    send: Step = [("send", {"to": "me"})]
    agent = agent_of(*searches("a"), send, [("pay", {}), ("search", {"q": "b"})], send, *searches("c"), ran=ran)

    paused = await exec_agent(agent, "go", hooks=[mocks], store=store)
    assert paused.reason == "waiting_for_human"
    seen_before = len(mocks.calls)
    decisions = [Approve(tool_call_id=each.tool_call_id) for each in paused.pending]
    result = await resume_agent(agent, paused.operation_id, decisions, hooks=[mocks], store=store)

    assert result.reason == "done"
    assert ran == []
    assert seen_before <= 3
    assert sorted(told(result)) == sorted(["1", "1", "mocked pay", "2", "2", "3"])
    assert sorted((call.path, call.call_index) for call in mocks.calls) == [
        ("local/pay", 1),
        *(("local/search", index) for index in (1, 2, 3)),
        *(("local/send", index) for index in (1, 2)),
    ]
    assert shop.only.sent == 2
    assert held(mocks) == {}


# With other hooks


async def test_a_sequence_does_not_count_calls_that_others_answer_or_deny() -> None:
    for guarded in (True, False):
        mocks, others = ToolMocks(), Hooks("others")
        mocks.tool("search").sequence(["1", "2", "3"])

        if guarded:

            @others.guard(ToolCall, tool="*/search")
            def never(call: ToolCall) -> Deny | None:
                return Deny("no") if call.args["q"] == "deny" else None
        else:

            @others.before(ToolCall, tool="*/search")
            def answers(call: ToolCall) -> Respond | None:
                return Respond("no") if call.args["q"] == "deny" else None

        assert await run(mocks, *searches("deny", "a", "deny", "b"), hooks=[others]) == ["no", "1", "no", "2"]


async def test_rewritten_calls_are_matched_and_changed_as_they_run() -> None:
    mocks, others, ran = ToolMocks(), Hooks("others"), list[str]()
    mocks.tool("search", {"q": "real"}).passthrough_then(lambda call, result: f"changed {result.content}")
    mocks.tool("search", {"q": "mocked"}).returns("mocked")

    @others.before(ToolCall, tool="*/send")
    def rewrite(call: ToolCall) -> ToolCall:
        return msgspec.structs.replace(call, tool_name="search", args={"q": call.args["to"]})

    for hooks in ([others, mocks], [mocks, others]):
        result = await exec_agent(
            agent_of(
                *searches("real", "mocked"),
                [("send", {"to": "real"}), ("send", {"to": "mocked"}), ("search", {"q": "real"})],
                ran=ran,
            ),
            "go",
            hooks=hooks,
        )
        real = "changed found real"
        assert told(result) == [real, "mocked", real, "mocked", real]
    assert ran == ["search real"] * 6


async def test_around_and_after_of_others_see_what_the_mock_answered() -> None:
    mocks, others, heard = ToolMocks(), Hooks("others"), list[str]()
    mocks.tool("search").returns("mock")

    @others.around(ToolCall)
    async def surround(call: ToolCall, call_next: Any) -> ToolResult:
        result: ToolResult = await call_next(call)
        return msgspec.structs.replace(result, content=f"<{result.content}>")

    @others.after(ToolCall)
    def listen(call: ToolCall, result: ToolResult) -> None:
        heard.append(f"{result.content} by {result.metadata.get('rule')}")

    assert await run(mocks, *searches("x"), hooks=[others]) == ["<mock>"]
    assert [each.rpartition(" by ")[2] for each in heard] == ["search #1"]


async def test_changes_are_not_made_to_what_another_hook_answers_after_all() -> None:
    first, second = ToolMocks("first"), ToolMocks("second")
    first.fault("search", EmptyResult())
    first.tool("send").passthrough_then(lambda call, result: "changed")
    second.tool("*").returns("second")

    answers = await run(first, *searches("x"), [("send", {})], hooks=[second])

    assert answers == ["second", "second"]
    assert [call.outcome for call in first.calls] == ["elsewhere", "elsewhere"]


async def test_handlers_of_ones_own_stay_on_the_bundle() -> None:
    mocks, heard = ToolMocks(), list[str]()

    @mocks.on(BeforeToolCall)
    def listen(event: BeforeToolCall) -> None:
        heard.append(event.tool_name)

    @mocks.tool("search").runs
    async def search(q: str) -> str:
        return q

    assert await run(mocks, *searches("x")) == ["x"]
    assert heard == ["search"]


@pytest.mark.parametrize(
    ("gives", "answer"),
    [
        ("text", "text"),
        ({"a": 1}, '{"a":1}'),
        (LookupError("no"), "LookupError: no"),
        (ToolResult(content="r", success=False), "r"),
    ],
)
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_real_answer_is_changed_by_plain_and_async_functions(kind: str, gives: Any, answer: str) -> None:
    mocks = ToolMocks()

    def plain(call: ToolCall, result: ToolResult) -> object:
        return gives

    async def waits(call: ToolCall, result: ToolResult) -> object:
        await anyio.lowlevel.checkpoint()
        return gives

    mocks.tool("search").passthrough_then(plain if kind == "plain" else waits)

    assert await run(mocks, *searches("x")) == [answer]


async def test_a_change_that_fails_counts_as_the_tool_failing() -> None:
    mocks = ToolMocks()

    @mocks.tool("search").passthrough_then
    async def fails(call: ToolCall, result: ToolResult) -> str:
        raise LookupError(result.content)

    mocks.tool("send").passthrough_then(lambda call, result: object())

    failed, rubbish = await run(mocks, *searches("x"), [("send", {})])

    assert failed == "LookupError: found x"
    assert "cannot be shown to a model" in rubbish


@pytest.mark.parametrize("kind", ["plain", "async", "fake", "change"])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_answer_that_somebody_else_cancelled_counts_as_the_tool_failing(kind: str) -> None:
    mocks, ran = ToolMocks(), list[str]()

    async def waits(*args: object, **named: object) -> None:
        gone = asyncio.get_running_loop().create_future()
        gone.cancel()
        await gone

    def plain(call: BeforeToolCall) -> None:
        raise asyncio.CancelledError

    if kind == "plain":
        mocks.tool("search").answers(plain)
    elif kind == "async":
        mocks.tool("search").runs(waits)
    elif kind == "fake":
        mocks.fake(SimpleNamespace(search=waits))
    else:
        mocks.tool("search").passthrough_then(waits)

    answers = await run(mocks, [("search", {"q": "x"}), ("search", {"q": "y"})], ran=ran)

    assert answers == ["CancelledError: CancelledError"] * 2
    assert (ran == []) is (kind != "change")


async def test_an_async_rule_made_in_the_middle_of_a_run_says_what_is_wrong() -> None:
    mocks, ran = ToolMocks(), list[str]()

    @mocks.tool("send").runs
    def send(to: str) -> str:
        mocks.tool("search", {"q": "plain"}).returns("plain")

        @mocks.tool("search", {"q": "async"}).runs
        async def search(q: str) -> str:
            return q

        return "sent"

    answers = await run(mocks, [("send", {"to": "me"})], *searches("plain", "async"), ran=ran)

    assert answers[:2] == ["sent", "plain"]
    assert "make its function `async def`, and add the rule before the run begins" in answers[2]
    assert ran == []


async def test_a_change_of_real_answers_made_in_the_middle_of_a_run_says_that_it_is_late() -> None:
    mocks, ran = ToolMocks(), list[str]()

    @mocks.tool("send").runs
    def send(to: str) -> str:
        if not mocks.faults:
            mocks.fault("search", EmptyResult())
        return "sent"

    for late in (True, False):
        _, searched = await run(mocks, [("send", {"to": "me"})], *searches("x"), ran=ran)
        assert ("was added after the run had begun" in searched) is late
        assert (searched == "") is not late
    assert ran == ["search x"]


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), None])
async def test_a_fault_that_takes_no_time_that_there_is_lets_no_real_tool_run(seconds: Any) -> None:
    class Odd:
        name, replaces = "odd", False

        def change(self, result: ToolResult, draw: object) -> ToolResult:
            return result

        def delay_s(self, draw: object) -> float:
            return seconds  # type: ignore[no-any-return]

        def strike(self, call: object, draw: object, clock: object) -> None: ...

    mocks, ran = ToolMocks(), list[str]()
    mocks.fault("search", Odd())  # type: ignore[arg-type]

    (answer,) = await run(mocks, *searches("x"), ran=ran)

    assert "delay_s" in answer
    assert ran == []


async def test_a_template_that_cannot_show_an_argument_names_its_rule() -> None:
    mocks = ToolMocks()
    mocks.tool("search", name="shows").template("{q}")

    (answer,) = await run(mocks, [("search", {"q": 10**5000})])

    assert answer.startswith("Rule 'shows' could not answer local/search: its template cannot show the argument 'q'")


async def test_an_answer_may_run_an_agent_with_the_same_mocks() -> None:
    mocks = ToolMocks(strict=True)

    @mocks.tool("search", {"q": "outer"}).answers
    async def outer(call: BeforeToolCall) -> str:
        return "+".join(await run(mocks, *searches("inner", "inner")))

    mocks.tool("search", {"q": "inner"}).sequence(["1", "2"], then="error")

    assert await run(mocks, *searches("outer", "inner")) == ["1+2", "1"]
    assert [call.rule for call in mocks.calls] == ["search #1", *["search #2"] * 3]
    assert held(mocks) == {}


# Many at once


async def test_hundreds_of_runs_of_two_tenants_share_mocks_and_nothing_else() -> None:
    mocks, other = ToolMocks("acme", tenant_id="acme"), ToolMocks("both")
    mocks.tool("search").sequence(["1", "2", "3"], then="error")
    other.when(match.tool("search") & match.run(tenant_id="umbrella")).sequence(["4", "5", "6"], then="error")
    other.fault("send", FailedResult("down"), probability=0.5)
    results: dict[int, list[str]] = {}

    async def one(number: int, dispatcher: HookDispatcher) -> None:
        tenant = "umbrella" if number % 2 else "acme"
        steps: list[Step] = [[("search", {"q": q}), ("send", {})] for q in "abc"]
        results[number] = await run(mocks, *steps, hooks=[other], dispatcher=dispatcher, tenant_id=tenant)

    async with HookDispatcher() as dispatcher, anyio.create_task_group() as group:
        for number in range(200):
            group.start_soon(one, number, dispatcher)

    assert all(results[number][::2] == list("456" if number % 2 else "123") for number in range(200))
    assert (len(mocks.calls), len(other.calls)) == (600, 1200)
    assert 200 < len(other.faults_struck) < 400
    assert held(mocks) == held(other) == {}


async def test_each_task_of_a_session_is_an_operation_of_its_own() -> None:
    mocks = ToolMocks()
    mocks.tool("search").sequence(["1", "2"], then="error")
    steps = searches("a", "b")
    turns = [
        ModelResponse(tool_calls=[ToolRequest(tool_name=name, args=args, tool_call_id=f"t{number}")])
        for number, ((name, args),) in enumerate(steps)
    ]
    script = [*turns, ModelResponse(content="end")]
    agent = Agent(id="a", model=ScriptedModel(script * 3), tools=agent_of().tools)

    async with AgentSession(agent, hooks=[mocks]) as session:
        results = [await session.run("go") for _ in range(3)]

    assert [result.reason for result in results] == ["done"] * 3
    assert [call.rule for call in mocks.calls] == ["search #1"] * 6
    assert [call.outcome for call in mocks.calls] == ["mocked"] * 6
    assert held(mocks) == {}


async def test_a_reset_gives_back_all_memory() -> None:
    mocks = ToolMocks()
    mocks.tool("*").returns("1")
    before = mocks._decide
    for index in range(1, 20_001):
        before(seen({"q": index}, index=index))
    first = mocks._decider.calls[0]
    assert first is not None
    assert len(mocks.calls) == 20_000

    class Marker:
        pass

    marker = Marker()
    gone = weakref.ref(marker)
    before(seen({"q": marker}, index=20_001))
    del marker
    mocks.reset()

    assert (mocks.calls, mocks.faults_struck, held(mocks)) == ([], [], {})
    assert gone() is None


FAULTS_IN_PARALLEL = """
import anyio, sys
from hookline import *
from hookline.evals import ToolMocks
from hookline.evals.faults import FailedResult, Latency, LogNormal

order = int(sys.argv[1])
struck = {}

async def one(case, dispatcher):
    mocks = ToolMocks(seed=3, case=f"case {case}")
    mocks.tool("*").returns("1")
    mocks.fault("*", FailedResult("down"), probability=0.3)
    mocks.fault("*/b", Latency(LogNormal(median=1.0, sigma=1.0)), probability=0.5)
    await anyio.lowlevel.checkpoint()
    for index in (1, 2, 3):
        for name in ("a", "b")[::order]:
            event = BeforeToolCall(operation_id=f"{order} {case}", toolset="x", tool_name=name, args={},
                call_index=index, step_index=index, tool_call_id=f"{index}{name}")
            mocks._decide(event)
            await anyio.lowlevel.checkpoint()
    struck[case] = sorted((call.path, call.call_index, call.fault, round(call.latency_ms, 6)) for call in mocks.calls)

async def main():
    async with anyio.create_task_group() as group:
        for case in range(300)[::order]:
            group.start_soon(one, case, None)

anyio.run(main, backend=sys.argv[2])
print(sorted(struck.items()))
"""


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_faults_are_the_same_in_any_process_and_any_order() -> None:
    async def output(seed: str, order: str, backend: str) -> str:
        done = await anyio.run_process(
            [sys.executable, "-c", FAULTS_IN_PARALLEL, order, backend],
            env={"PYTHONHASHSEED": seed},
            stderr=subprocess.STDOUT,
        )
        return done.stdout.decode()

    first, second = await output("1", "1", "asyncio"), await output("2", "-1", "trio")

    assert first == second
    assert 420 < first.count("failed_result") < 660


# The law of specificity


VALUES: list[Any] = [
    0,
    1,
    1.0,
    True,
    False,
    None,
    "1",
    "",
    [],
    [1],
    {},
    {"k": [1, {"k": True}]},
    {"k": [1.0, {"k": 1}]},
]
ARGUMENTS = st.dictionaries(st.sampled_from("abc"), st.sampled_from(VALUES), max_size=2)
PATTERNS = st.sampled_from(["x/a", "x/b", "a", "x/*", "*/a", "*"])


@st.composite
def matchers(draw: st.DrawFn) -> Matcher:
    matcher = match.tool(draw(PATTERNS))
    kind = draw(st.sampled_from(["none", "exact", "exact", "exact", "superset", "fields", "nth", "either", "not"]))
    if kind in ("exact", "superset"):
        matcher &= match.args(draw(ARGUMENTS), mode=kind)
    elif kind == "fields":
        matcher &= match.fields({"a": draw(st.sampled_from(VALUES))})
    elif kind == "nth":
        matcher &= match.nth(draw(st.integers(1, 2))) & match.args(draw(ARGUMENTS))
    elif kind == "either":
        matcher |= match.args(draw(ARGUMENTS)) & match.tool(draw(PATTERNS))
    elif kind == "not":
        matcher &= ~match.args(draw(ARGUMENTS))
    return matcher


@settings(max_examples=60, deadline=None)
@given(
    wanted=st.lists(matchers(), min_size=1, max_size=14),
    exact=st.lists(ARGUMENTS, min_size=8, max_size=12),
    asked=st.lists(st.tuples(st.sampled_from(["x/a", "x/b", "y/a"]), ARGUMENTS, st.integers(1, 2)), max_size=12),
)
def test_the_chosen_rule_is_the_most_specific_of_those_that_match_else_the_last(
    wanted: list[Matcher], exact: list[dict[str, Any]], asked: list[tuple[str, dict[str, Any], int]]
) -> None:
    table = RuleTable()
    every = [*wanted[::2], *(match.tool("x/a") & match.args(args) for args in exact), *wanted[1::2]]
    for number, matcher in enumerate(every):
        table.add(Rule(str(number), matcher, number, lambda rule: None))

    for path, args, index in [*asked, *(("x/a", args, 1) for args in exact)]:
        call = seen(args, path=path, index=index)
        fitting = [number for number, matcher in enumerate(every) if matcher.matches(call)]
        best = max(fitting, key=lambda number: (every[number].specificity, number), default=None)
        found = table.find(call)
        assert (None if found is None else found.number) == best


class Loose(dict[str, Any]):
    """A dict with an `==` of its own."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(("wanted", "given"), [(1, Decimal(1)), ((1,), (1,)), ([Loose()], ["any"])])
def test_values_that_are_no_plain_json_are_found_among_many_rules(wanted: Any, given: Any) -> None:
    mocks = ToolMocks()
    for number in range(2, 20):
        mocks.tool("local/search", {"q": number}).returns("other")
    mocks.tool("local/search", {"q": wanted}, name="wanted").returns("1")

    assert "→ 'wanted' answers it" in mocks.explain(seen({"q": given}))


@pytest.fixture
def spans() -> Iterator[Any]:
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    simple = pytest.importorskip("opentelemetry.sdk.trace.export")
    exporter = export.InMemorySpanExporter()
    provider = trace.TracerProvider()
    provider.add_span_processor(simple.SimpleSpanProcessor(exporter))
    yield provider, exporter
    provider.shutdown()


async def test_a_span_says_which_rule_and_fault_answered(spans: Any) -> None:
    tracing = pytest.importorskip("hookline.otel._tracing")
    provider, exporter = spans
    mocks = ToolMocks()
    mocks.tool("search", name="rule").returns("1")
    mocks.fault("search", EmptyResult())

    await run(mocks, *searches("x"), hooks=[tracing.TracingHooks(tracer_provider=provider)])

    attributes = [dict(span.attributes) for span in exporter.get_finished_spans()]
    (said,) = [each for each in attributes if "hookline.tool.mock.rule" in each]
    assert (said["hookline.tool.mock.rule"], said["hookline.tool.mock.fault"]) == (
        "rule",
        "empty_result",
    )
