"""Which recordings are stale: schemas compared offline, and answers compared with those of the real tools."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import Agent, Ask, Deny, Hooks, ScriptedModel, Tool, ToolCall, ToolRequest, ToolResult, tool
from hookline.errors import HookUsageError
from hookline.evals import CassetteFileError, SuiteRunner, cases_of
from hookline.evals.cassette_checks import CassettesReport, LiveCheck, check_cassettes, compare_results
from hookline.evals.cassettes import RecordedCall
from hookline.evals.errors import CassetteFolderError
from hookline.evals.suites import Task, UserSuite, asks, says

pytestmark = pytest.mark.anyio


class Shop:
    """Tools whose answers can be changed, and that note when they run."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.answer: object = {"item": "tea", "eur": 3}
        self.hang = False

    def tools(self, **further: Any) -> list[Tool]:
        @tool(in_thread=False, read_only=True, **further)
        async def price(item: str) -> object:
            self.ran.append(f"price {item}")
            if self.hang:
                await anyio.sleep_forever()
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        @tool(in_thread=False)
        def pay(amount: int, token: str = "") -> str:
            self.ran.append(f"pay {amount}")
            return f"paid {amount}"

        return [price, pay]


def suite(shop: Shop, tools: Callable[[], Sequence[Any]] | None = None, **agent: Any) -> UserSuite:
    tasks = [
        Task(id="tea", prompt="?", script=[asks("price", item="tea"), asks("pay", amount=3), says("3")]),
        Task(id="milk", prompt="?", script=[asks("price", item="milk"), says("4")]),
    ]
    if agent:
        plain = Agent(id="shop", model=ScriptedModel([]), tools=(tools or shop.tools)(), **agent)
        return UserSuite("shop", agent=plain, tasks=tasks)
    return UserSuite("shop", tools=tools or shop.tools, tasks=tasks)


async def recorded(made: UserSuite, folder: Path) -> Path:
    run = await SuiteRunner(cases_of([made]), mode="record", cassettes=folder).run()
    assert run.totals.failed == 0
    return folder


async def checked(made: UserSuite, folder: Path, live: LiveCheck | None = None) -> CassettesReport:
    return await check_cassettes(cases_of([made]), cassettes=folder, live=live)


def statuses(report: CassettesReport) -> dict[str, str]:
    return {tool.tool: tool.status for cassette in report.cassettes for tool in cassette.tools}


# Offline.


async def test_nothing_is_stale_right_after_recording(tmp_path: Path) -> None:
    shop = Shop()
    await recorded(suite(shop), tmp_path)
    shop.ran.clear()

    report = await checked(suite(shop), tmp_path)

    assert statuses(report) == {"local/price": "same", "local/pay": "same"}
    assert (report.is_ok(), report.judged, report.stale, report.orphans) == (True, True, [], [])
    assert [(each.replayed, each.unused) for each in report.cassettes] == [(True, []), (True, [])]
    assert shop.ran == []


async def test_a_tool_that_changed_and_one_that_is_gone_are_named(tmp_path: Path) -> None:
    shop = Shop()
    await recorded(suite(shop), tmp_path)

    def tools() -> list[Tool]:
        @tool
        def price(item: str, currency: str) -> str:
            return ""

        @tool
        def pay_now(amount: int) -> str:
            return ""

        return [price, pay_now]

    report = await checked(suite(shop, tools), tmp_path)

    assert not report.is_ok()
    found = {tool.tool: (tool.status, tool.why, tool.recordings) for _, tool in report.stale}
    assert found == {
        "local/price": ("changed", "`currency` is new and required", 1),
        "local/pay": ("gone", "the agent has no such tool; is it local/pay_now now?", 1),
    }


async def test_recordings_and_files_that_no_task_uses_are_named(tmp_path: Path) -> None:
    shop = Shop()
    await recorded(suite(shop), tmp_path)
    file = tmp_path / "shop" / "milk.yaml"
    (tmp_path / "shop" / "sold-out.yaml").write_text(file.read_text())
    lines = file.read_text().replace("item: milk", "item: beer")
    file.write_text(lines)

    report = await checked(suite(shop), tmp_path)

    assert report.orphans == [str(tmp_path / "shop" / "sold-out.yaml")]
    assert [each.unused for each in report.cassettes] == [[], ['local/price with {"item":"beer"}']]
    assert report.is_ok()


async def test_a_version_that_changed_alone_is_said_and_is_not_stale(tmp_path: Path) -> None:
    shop = Shop()
    await recorded(suite(shop, lambda: shop.tools(version="1")), tmp_path)

    report = await checked(suite(shop, lambda: shop.tools(version="2")), tmp_path)

    assert report.cassettes[1].tools[0].why == "its version was '1' and is '2'"
    assert report.is_ok()


async def test_old_cassettes_are_unknown_and_nothing_is_judged(tmp_path: Path) -> None:
    shop = Shop()
    await recorded(suite(shop), tmp_path)
    for file in tmp_path.glob("shop/*.yaml"):
        text = file.read_text()
        file.write_text(text[: text.index("tools:")] + text[text.index("calls:") :])

    report = await checked(suite(shop), tmp_path)

    assert set(statuses(report).values()) == {"unknown"}
    assert (report.judged, report.is_ok()) == (False, True)


async def test_a_task_with_a_real_model_is_not_run(tmp_path: Path) -> None:
    shop = Shop()
    await recorded(suite(shop), tmp_path)

    class RealModel:
        name, provider = "real", "real"

        async def respond(self, call: Any) -> Any:
            raise AssertionError("the model was asked")

    real = UserSuite("shop", tools=shop.tools, tasks=[Task(id="tea", prompt="?", model=RealModel())])
    report = await checked(real, tmp_path)

    assert [each.why_not_replayed for each in report.cassettes] == ["its model is not scripted, and none is asked here"]
    assert statuses(report) == {"local/price": "same", "local/pay": "same"}


async def test_checks_of_a_task_do_not_run(tmp_path: Path) -> None:
    shop = Shop()
    await recorded(suite(shop), tmp_path)

    def judge(task: object) -> None:
        raise AssertionError("a judge was asked")

    tasks = [Task(id="tea", prompt="?", script=[asks("price", item="tea"), says("3")], checks=[judge])]
    report = await checked(UserSuite("shop", tools=shop.tools, tasks=tasks), tmp_path)

    assert report.cassettes[0].unused == ['local/pay with {"amount":3}']


async def test_a_missing_folder_and_a_broken_cassette_are_errors(tmp_path: Path) -> None:
    made = suite(Shop())

    with pytest.raises(CassetteFolderError, match="there is no folder"):
        await checked(made, tmp_path / "nowhere")
    with pytest.raises(CassetteFolderError, match="none is given"):
        await check_cassettes(cases_of([made]))
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "tea.yaml").write_text("hookline_cassette: 1\ntools: 3\n")
    with pytest.raises(CassetteFileError, match="line 1"):
        await checked(made, tmp_path)


async def test_a_folder_without_cassettes_judges_nothing(tmp_path: Path) -> None:
    report = await checked(suite(Shop()), tmp_path)

    assert (report.cassettes, report.without_cassette, report.judged) == ([], ["shop/tea", "shop/milk"], False)


# Live.


async def test_only_tools_that_are_declared_as_read_only_are_called_again(tmp_path: Path) -> None:
    shop = Shop()
    await recorded(suite(shop), tmp_path)
    shop.ran.clear()

    report = await checked(suite(shop), tmp_path, LiveCheck())

    assert sorted(shop.ran) == ["price milk", "price tea"]
    assert [(call.tool, call.status) for _, call in report.repeated] == [
        ("local/price", "same"),
        ("local/pay", "skipped"),
        ("local/price", "same"),
    ]
    assert report.repeated[1][1].why == (
        "it is not declared as read-only; if it changes nothing, confirm it with --tool local/pay"
    )
    assert report.is_ok(values=True)


@pytest.mark.parametrize("name", ["pay", "local/pay"])
async def test_a_tool_that_is_confirmed_by_name_is_called_too(tmp_path: Path, name: str) -> None:
    shop = Shop()
    await recorded(suite(shop), tmp_path)
    shop.ran.clear()

    report = await checked(suite(shop), tmp_path, LiveCheck(confirmed=[name]))

    assert sorted(shop.ran) == ["pay 3", "price milk", "price tea"]
    assert [call.status for _, call in report.repeated] == ["same"] * 3


async def test_a_name_that_no_recording_has_is_refused(tmp_path: Path) -> None:
    made = suite(Shop())
    await recorded(made, tmp_path)

    with pytest.raises(HookUsageError, match="no recording of a tool 'local/pey'; did you mean local/pay"):
        await checked(made, tmp_path, LiveCheck(confirmed=["local/pey"]))


@pytest.mark.parametrize(
    "options", [{"sample": 0}, {"sample": True}, {"confirmed": "pay"}, {"confirmed": ["*"]}, {"timeout": 0}]
)
def test_what_makes_no_sense_is_refused(options: Any) -> None:
    with pytest.raises(HookUsageError):
        LiveCheck(**options)


@pytest.mark.parametrize(
    ("answer", "kinds", "ok"),
    [
        ({"item": "tea", "eur": 5}, ["value changed"], True),
        ({"item": "tea", "eur": 3, "vat": 1}, ["new field"], False),
        ({"item": "tea"}, ["field gone"], False),
        ({"item": "tea", "eur": "3"}, ["type changed"], False),
        ([1], ["type changed"], False),
        ("sold out", ["type changed"], False),
        (ToolResult(content="no", success=False), ["outcome changed"], False),
        (LookupError("gone"), ["outcome changed"], False),
    ],
)
async def test_differences_are_graded(tmp_path: Path, answer: object, kinds: list[str], ok: bool) -> None:
    shop = Shop()
    await recorded(suite(shop), tmp_path)
    shop.answer = answer

    report = await checked(suite(shop), tmp_path, LiveCheck(sample=1))

    (call,) = [call for _, call in report.repeated if call.tool == "local/price"]
    assert [difference.kind for difference in call.differences] == kinds
    assert (call.status, report.is_ok(), report.is_ok(values=True)) == ("changed", ok, False)


async def test_a_sample_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    shop = Shop()
    script = [*(asks("price", item=f"i{number}") for number in range(20)), says("")]
    made = UserSuite("shop", tools=shop.tools, tasks=[Task(id="all", prompt="?", script=script)])
    await recorded(made, tmp_path)
    ran: list[list[str]] = []

    for seed in (0, 0, 1):
        shop.ran.clear()
        await checked(made, tmp_path, LiveCheck(sample=4, seed=seed))
        ran.append(list(shop.ran))

    assert [len(each) for each in ran] == [4, 4, 4]
    assert ran[0] == ran[1] != ran[2]


async def test_what_a_person_must_approve_or_what_was_redacted_is_never_called(tmp_path: Path) -> None:
    shop = Shop()
    secret = Task(id="tea", prompt="?", script=[asks("pay", amount=3, token="s3cret-token"), says("")])
    await recorded(UserSuite("shop", tools=shop.tools, tasks=[secret]), tmp_path)
    shop.ran.clear()

    def with_approval() -> list[Tool]:
        return [tool(each.function, name=each.name, needs_approval=True) for each in shop.tools() if each.function]

    redacted = UserSuite("shop", tools=shop.tools, tasks=[secret])
    approved = UserSuite("shop", tools=with_approval, tasks=[secret])
    reasons = [
        (await checked(made, tmp_path, LiveCheck(confirmed=["pay"]))).repeated[0][1].why
        for made in (redacted, approved)
    ]

    assert reasons == ["its arguments were redacted", "a person must approve its calls"]
    assert shop.ran == []


async def test_hooks_of_the_agent_hold_and_their_answers_are_not_the_tool_s(tmp_path: Path) -> None:
    shop = Shop()
    hooks = Hooks("rules")
    denies = False

    @hooks.guard(ToolCall, tool="price")
    def deny(call: ToolCall) -> Deny | None:
        return Deny("closed on Sundays") if denies else None

    made = suite(shop, hooks=[hooks])
    await recorded(made, tmp_path)
    shop.ran.clear()
    denies = True

    report = await checked(made, tmp_path, LiveCheck())

    skipped = [call for _, call in report.repeated if call.tool == "local/price"]
    assert [call.status for call in skipped] == ["skipped", "skipped"]
    assert "closed on Sundays" in skipped[0].why
    assert shop.ran == []


@pytest.mark.parametrize(
    ("decision", "why"),
    [
        (Ask("really?"), "a hook wants a person to approve it"),
        (Deny("closed", stop=True), "denied it: closed"),
    ],
)
async def test_a_hook_that_ends_a_call_ends_no_other_one(tmp_path: Path, decision: Ask | Deny, why: str) -> None:
    shop = Shop()
    hooks = Hooks("rules")
    decisions: list[Ask | Deny] = []
    hooks.guard(ToolCall, tool="price")(lambda call: decisions.pop() if decisions else None)
    made = suite(shop, hooks=[hooks])
    await recorded(made, tmp_path)
    decisions.append(decision)

    report = await checked(made, tmp_path, LiveCheck())

    prices = [call for _, call in report.repeated if call.tool == "local/price"]
    assert [call.status for call in prices] == ["skipped", "same"]
    assert why in prices[0].why


async def test_arguments_that_a_hook_changes_are_not_asked_with(tmp_path: Path) -> None:
    shop = Shop()
    hooks = Hooks("rules")

    @hooks.before(ToolCall, tool="price")
    def shout(call: ToolCall) -> ToolCall:
        return call.with_args(item=f"{call.args['item']}!")

    made = suite(shop, hooks=[hooks])
    await recorded(made, tmp_path)
    shop.ran.clear()

    report = await checked(made, tmp_path, LiveCheck())

    assert shop.ran == []
    assert "a hook of the agent has changed the recorded arguments" in report.repeated[0][1].why


async def test_a_tool_that_hangs_is_given_up(tmp_path: Path) -> None:
    shop = Shop()
    await recorded(suite(shop), tmp_path)
    shop.hang = True

    report = await checked(suite(shop), tmp_path, LiveCheck(timeout=0.05))

    failed = [call for _, call in report.repeated if call.status == "failed"]
    assert [call.why for call in failed] == ["it had not answered within 0.05 s"] * 2
    assert not report.is_ok()


class Server:
    """A source of tools, such as an MCP server."""

    toolset = "server"

    def __init__(self, listed: Sequence[Tool] = (), error: Exception | None = None) -> None:
        self.listed, self.error, self.opened = listed, error, 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[list[Tool]]:
        if self.error is not None:
            raise self.error
        self.opened += 1
        yield [
            Tool(toolset="server", name=each.name, schema=each.schema, run=each.run, read_only=each.read_only)
            for each in self.listed
        ]


def served(server: Server) -> UserSuite:
    call = ToolRequest("price", {"item": "tea"}, toolset="server")
    agent = Agent(id="shop", model=ScriptedModel([]), tools=[server])
    return UserSuite("shop", agent=agent, tasks=[Task(id="tea", prompt="?", script=[asks(call), says("")])])


async def test_a_server_is_opened_only_for_a_live_check(tmp_path: Path) -> None:
    shop = Shop()
    server = Server(shop.tools())
    await recorded(served(server), tmp_path)
    server.opened = 0

    offline = await checked(served(server), tmp_path)
    opened_offline, shop.ran = server.opened, []
    live = await checked(served(server), tmp_path, LiveCheck())

    assert opened_offline == 0
    assert statuses(offline) == {"server/price": "unknown"}
    assert "its agent opens sources" in offline.cassettes[0].why_not_replayed
    assert statuses(live) == {"server/price": "same"}
    assert shop.ran == ["price tea"]


async def test_a_server_that_cannot_be_opened_is_a_problem_and_not_a_pass(tmp_path: Path) -> None:
    await recorded(served(Server(Shop().tools())), tmp_path)

    report = await checked(served(Server(error=ConnectionError("down"))), tmp_path, LiveCheck())

    assert report.cassettes[0].problem == "its tools cannot be opened: ConnectionError: down"
    assert not report.is_ok()


async def test_a_suite_that_only_runs_tasks_is_compared_by_its_tools(tmp_path: Path) -> None:
    shop = Shop()
    made = suite(shop)
    await recorded(made, tmp_path)

    class Bare:
        name = "shop"
        tool_specs = made.tool_specs[:1]

        def select(self, names: Any = ()) -> list[str]:
            return ["tea"]

        async def run_task(self, task_id: str, **options: Any) -> Any:
            raise AssertionError("it was run")

    report = await checked(Bare(), tmp_path, LiveCheck())  # type: ignore[arg-type]

    assert statuses(report) == {"local/price": "same", "local/pay": "gone"}
    assert report.cassettes[0].problem == "its suite does not say which agent a task has"


# The comparison of answers.


def call(result: str, **further: Any) -> RecordedCall:
    return RecordedCall(tool="t/x", args={}, result=result, **further)


def differences(before: object, now: object, *ignore: str) -> list[tuple[str, str]]:
    found = compare_results(call(json.dumps(before)), call(json.dumps(now)), ignore=ignore)
    return [(each.kind, each.field) for each in found]


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 1.0}}, []),
        ({"a": {"b": 1}}, {"a": {"b": True}}, [("type changed", "a.b")]),
        ({"a": None}, {"a": 1}, [("type changed", "a")]),
        ({"items": [{"id": 1}, {"id": 2}]}, {"items": [{"id": 3}, {"id": 4}]}, [("value changed", "items.*.id")]),
        ({"items": [{"id": 1}]}, {"items": []}, [("value changed", "items")]),
        ([{"a": 1}], [{"b": 1}], [("field gone", "*.a"), ("new field", "*.b")]),
        ("plain", "other", [("value changed", "")]),
    ],
)
def test_answers_are_compared_field_by_field(before: object, now: object, expected: list[tuple[str, str]]) -> None:
    assert differences(before, now) == expected


def test_fields_that_do_not_count_are_left_out_with_all_that_is_below() -> None:
    before = {"at": 1, "items": [{"id": 1, "n": 1}], "meta": {"trace": {"x": 1}}}
    now = {"at": 2, "items": [{"id": 2, "n": 1}], "meta": {"trace": {"y": 1}}, "new": 1}

    assert differences(before, now, "at", "items.*.id", "meta.trace", "new") == []
    assert differences(before, now, "items.0.id", "meta") == [("new field", "new"), ("value changed", "at")]


def test_answers_that_are_nested_too_deeply_are_compared_as_texts() -> None:
    deep = "[" * 900 + "%d" + "]" * 900
    many = json.dumps([{"id": number, "n": {}} for number in range(5_000)])

    assert compare_results(call(deep % 1), call(deep % 1)) == []
    assert [each.kind for each in compare_results(call(deep % 1), call(deep % 2))] == ["value changed"]
    assert [each.kind for each in compare_results(call(many), call(many.replace("{}", "[]")))] == ["type changed"]


def test_a_difference_says_both_values() -> None:
    (found,) = compare_results(call('{"a": 1}'), call('{"a": "one"}'))

    assert str(found) == 'type changed, `a`: 1 → "one"'


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=1), inner, max_size=3),
    max_leaves=10,
)


@given(before=JSON, now=JSON)
@settings(max_examples=80, deadline=None)
def test_law_answers_differ_only_if_they_are_unequal_and_ignoring_everything_hides_all(before: Any, now: Any) -> None:
    assert differences(before, before) == []
    assert (differences(before, now) == []) == (
        json.dumps(before) == json.dumps(now) or (before == now and str(before) == str(now))
    )
    if isinstance(before, dict) and isinstance(now, dict):
        assert differences(before, now, "*") == []
