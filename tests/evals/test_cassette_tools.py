"""A cassette keeps the schema, version and date of each tool, and a replay says which have changed since."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import Agent, ModelResponse, OperationResult, ScriptedModel, Tool, ToolRequest, ToolSpec, exec_agent, tool
from hookline.errors import HookUsageError
from hookline.evals import Cassette, CassetteFileError, EventRecorder, ToolMocks
from hookline.evals.cassettes import RecordedTool, schema_changes
from hookline.hooks import AnyHook

pytestmark = pytest.mark.anyio


def price(cost: int = 3, **further: Any) -> Tool:
    @tool(in_thread=False, **further)
    def price(item: str) -> str:
        """Look up a price."""
        return f"{item} costs {cost} EUR"

    return price


def price_in(**further: Any) -> Tool:
    @tool(in_thread=False, **further)
    def price(item: str, currency: str) -> str:
        """Look up a price."""
        return f"{item} costs 3 {currency}"

    return price


@tool(in_thread=False)
def stock(item: str) -> str:
    return f"4 {item}"


def turns(*calls: ToolRequest) -> ScriptedModel:
    asked = [ModelResponse(tool_calls=[call]) for call in calls]
    return ScriptedModel([*asked, ModelResponse(content="done")])


TEA = ToolRequest("price", {"item": "tea"})
STOCK = ToolRequest("stock", {"item": "tea"})


async def ask(hooks: Sequence[AnyHook], tools: Sequence[Any], *calls: ToolRequest) -> OperationResult:
    return await exec_agent(Agent(id="a", model=turns(*(calls or (TEA,))), tools=tools), "go", hooks=hooks)


def told(result: OperationResult) -> str:
    return next(message.content for message in result.messages if message.role == "tool")


async def recorded(path: Path, tools: Sequence[Any], *calls: ToolRequest, mode: Any = "once") -> Path:
    with Cassette("shop", path=path, mode=mode) as cassette:
        await ask([cassette.hooks()], tools, *calls)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.yaml"


def made_earlier(path: Path, date: str = "2020-02-29") -> str:
    """Change the dates of a cassette, as if it were of an earlier day."""
    lines = [
        f'  recorded: "{date}"' if line.startswith("  recorded:") else line for line in path.read_text().splitlines()
    ]
    path.write_text("\n".join(lines) + "\n")
    return path.read_text()


async def test_the_file_says_what_each_called_tool_was_like(path: Path) -> None:
    await recorded(path, [price(version="1.2"), stock])

    (kept,) = Cassette.load(path).tools
    made_earlier(path)
    assert path.read_text() == (
        "hookline_cassette: 1\nname: shop\nmatching: keyed\ntools:\n"
        "- tool: local/price\n  parameters:\n    item: string\n"
        f'  schema: {kept.schema}\n  version: "1.2"\n  recorded: "2020-02-29"\n'
        "calls:\n"
        "- tool: local/price\n  args:\n    item: tea\n  result: tea costs 3 EUR\n  step: 0\n  call_index: 1\n"
    )


async def test_recording_the_same_again_changes_no_byte_and_no_date(path: Path) -> None:
    await recorded(path, [price(), stock], TEA, STOCK)
    before = made_earlier(path)

    for mode in ("rewrite", "all", "new_episodes", "once", "none"):
        await recorded(path, [price(), stock], TEA, STOCK, mode=mode)

        assert path.read_text() == before


async def test_another_answer_changes_the_date_of_its_tool_alone(path: Path) -> None:
    await recorded(path, [price(), stock], TEA, STOCK)
    made_earlier(path)

    await recorded(path, [price(cost=5), stock], TEA, STOCK, mode="all")

    dates = {each.tool: each.recorded for each in Cassette.load(path).tools}
    assert dates["local/stock"] == "2020-02-29"
    assert dates["local/price"] > "2020-02-29"


@pytest.mark.parametrize("further", [{"version": "2"}, {}])
async def test_another_version_or_schema_is_kept_though_the_answers_are_the_same(path: Path, further: Any) -> None:
    await recorded(path, [price(version="1"), stock], TEA, STOCK)
    made_earlier(path)
    now = price(**further) if further else price_in(version="1")

    await recorded(path, [now, stock], *([TEA] if further else []), STOCK, mode="all")

    by_tool = {each.tool: each for each in Cassette.load(path).tools}
    if further:
        assert (by_tool["local/price"].version, by_tool["local/price"].recorded > "2020-02-29") == ("2", True)
    else:
        # The old recording stands, and so does what is known of its tool.
        assert (by_tool["local/price"].parameters, by_tool["local/price"].recorded) == (
            {"item": "string"},
            "2020-02-29",
        )


async def test_recordings_of_an_earlier_schema_never_look_as_if_they_were_of_the_present_one(path: Path) -> None:
    await recorded(path, [price()])
    milk = ToolRequest("price", {"item": "milk", "currency": "EUR"})

    await recorded(path, [price_in()], milk, mode="new_episodes")

    (kept,) = Cassette.load(path).tools
    assert len(Cassette.load(path)) == 2
    assert kept.parameters == {"item": "string"}


async def test_an_old_file_is_read_and_gets_the_section_only_when_it_is_recorded_again(path: Path) -> None:
    await recorded(path, [price()])
    text = path.read_text()
    old = text[: text.index("tools:")] + text[text.index("calls:") :]
    path.write_text(old)

    replayed = Cassette(path=path)
    assert told(await ask([replayed.hooks()], [price_in()])) == "tea costs 3 EUR"
    assert (replayed.stale, replayed.tools) == ({}, [])

    await recorded(path, [price()], mode="new_episodes")
    assert path.read_text() == old
    await recorded(path, [price()], mode="rewrite")
    assert path.read_text() == text


async def test_calls_without_known_tools_are_recorded_without_the_section(path: Path) -> None:
    recorder = EventRecorder()
    await ask([recorder.hooks], [price()])

    cassette = Cassette.of_events("shop", recorder.only.events)

    assert (len(cassette), cassette.tools) == (1, [])
    cassette = Cassette("shop")
    cassette.note_tools([price()])
    for event in recorder.only.answers:
        cassette.keep(event)
    assert [each.tool for each in cassette.tools] == ["local/price"]


# A replay.


async def test_a_replay_names_a_tool_whose_schema_has_changed(path: Path) -> None:
    await recorded(path, [price()])
    made_earlier(path)
    recorder, cassette = EventRecorder(), Cassette.load(path)

    result = await ask([cassette.hooks(), recorder.hooks], [price_in()])

    why = "the schema of local/price has changed since it was recorded on 2020-02-29: `currency` is new and required"
    assert told(result) == "tea costs 3 EUR"
    assert cassette.stale == {"local/price": why}
    assert recorder.only.answers[0].metadata["stale"] == why
    assert cassette.misses == []


async def test_a_strict_replay_refuses_its_recordings(path: Path) -> None:
    await recorded(path, [price()])
    made_earlier(path)
    cassette = Cassette.load(path, changed_tools="refuse")

    result = await ask([cassette.hooks()], [price_in()])

    assert told(result) == cassette.misses[0]
    assert cassette.misses[0] == (
        "No recording in 'shop' answers local/price: the schema of local/price has changed since it was recorded on "
        "2020-02-29: `currency` is new and required. The real tool was not run. Record it again."
    )


@pytest.mark.parametrize("bundle", ["hooks", "player", "mocks", "rule"])
async def test_every_way_to_replay_notices_it(path: Path, bundle: str) -> None:
    await recorded(path, [price()])
    cassette = Cassette.load(path)
    hooks: dict[str, Callable[[], AnyHook]] = {
        "hooks": cassette.hooks,
        "player": cassette.player,
        "mocks": lambda: ToolMocks(strict=True, cassette=cassette),
        "rule": lambda: mocks_with_a_rule(cassette),
    }

    assert told(await ask([hooks[bundle]()], [price_in()])) == "tea costs 3 EUR"

    assert list(cassette.stale) == ["local/price"]


def mocks_with_a_rule(cassette: Cassette) -> ToolMocks:
    mocks = ToolMocks(strict=True)
    mocks.tool("price").replays(cassette)
    return mocks


async def test_what_was_recorded_in_this_run_is_not_stale(path: Path) -> None:
    await recorded(path, [price()])
    cassette = Cassette(path=path, mode="all")

    await ask([cassette.recorder()], [price_in()], ToolRequest("price", {"item": "tea", "currency": "EUR"}))
    again = await ask([cassette.player()], [price_in()], ToolRequest("price", {"item": "tea", "currency": "EUR"}))

    assert (told(again), cassette.stale) == ("tea costs 3 EUR", {})


async def test_a_tool_that_a_source_lists_in_the_run_is_known_too(path: Path) -> None:
    class Source:
        toolset = "server"

        def __init__(self, listed: Tool) -> None:
            self.listed = listed

        @asynccontextmanager
        async def open(self) -> AsyncIterator[list[Tool]]:
            yield [self.listed]

    def served(made: Tool) -> Source:
        return Source(Tool(toolset="server", name="price", schema=made.schema, run=made.run, version=made.version))

    call = ToolRequest("price", {"item": "tea"}, toolset="server")
    await recorded(path, [served(price(version="7"))], call)
    cassette = Cassette.load(path)

    await ask([cassette.hooks()], [served(price_in())], call)

    assert [(each.tool, each.version) for each in cassette.tools] == [("server/price", "7")]
    assert list(cassette.stale) == ["server/price"]


async def test_a_schema_that_is_no_json_is_unknown_and_the_recording_still_answers(path: Path) -> None:
    async def forbidden(args: Any) -> str:
        raise AssertionError("the real tool ran")

    await recorded(path, [price()])
    odd = Tool(name="price", schema={"properties": {1: {}, "item": {}}, "type": object()}, run=forbidden)
    cassette = Cassette.load(path)

    result = await ask([cassette.player()], [odd])

    assert (told(result), cassette.stale) == ("tea costs 3 EUR", {})


async def test_a_sub_agent_has_tools_of_its_own_under_the_same_names(path: Path) -> None:
    def boss(own: Tool, of_guide: Tool) -> Agent:
        guide = Agent(id="guide", model=turns(TEA), tools=[of_guide])
        call = ToolRequest("guide", {"instruction": "look"}, toolset="agent")
        return Agent(id="boss", model=turns(TEA, call), tools=[own], sub_agents=[guide])

    with Cassette(path=path) as cassette:
        await exec_agent(boss(price(), price(cost=9)), "go", hooks=[cassette.hooks()])
    replayed = Cassette.load(path, changed_tools="refuse")
    result = await exec_agent(boss(price(), price_in()), "go", hooks=[replayed.hooks()])

    assert [each.key for each in replayed.tools] == [("", "local/price"), ("guide", "local/price")]
    assert told(result) == "tea costs 3 EUR"
    assert len(replayed.misses) == 1


# The description of a tool.


@pytest.mark.parametrize(
    ("before", "now", "changes"),
    [
        ({"a": {"type": "string"}}, {"a": {"type": "string", "description": "An a.", "title": "A"}}, []),
        ({"a": {"type": "string"}}, {}, ["`a` is gone"]),
        ({}, {"a": {"type": "string"}}, ["`a` is new"]),
        (
            {"a": {"type": "string"}},
            {"a": {"type": "integer"}},
            ["`a` was string (optional) and is integer (optional)"],
        ),
        ({"a": {"enum": [1]}}, {"a": {"enum": [1, 2]}}, ["details of its parameters differ"]),
        (
            {"a": {"type": "array", "items": {"type": "string"}}},
            {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
            ["`a` was array of string (optional) and is string or null (optional)"],
        ),
        ({"a": {"$ref": "#/$defs/A"}}, {"a": {"type": "object"}}, ["details of its parameters differ"]),
        ({"title": {"type": "string"}}, {"title": {"type": "string", "examples": ["x"]}}, []),
        ({"title": {"type": "string"}}, {}, ["`title` is gone"]),
    ],
)
def test_what_changed_is_told_and_reworded_texts_are_no_change(before: Any, now: Any, changes: list[str]) -> None:
    def spec(properties: Any) -> RecordedTool:
        defs = {"A": {"type": "object", "properties": {"self": {"$ref": "#/$defs/A"}}}}
        return RecordedTool.of(ToolSpec(name="t", schema={"type": "object", "properties": properties, "$defs": defs}))

    assert schema_changes(spec(before), spec(now)) == changes


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("type", "properties", "items", "$ref", "anyOf", "enum", "required", "title", "x")),
            inner | st.just("#/properties") | st.just("#"),
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(schema=st.dictionaries(st.sampled_from(("properties", "required", "$defs", "anyOf")), JSON, max_size=4))
@settings(max_examples=60, deadline=None)
def test_law_any_schema_is_described_the_same_again_whatever_its_order(schema: dict[str, Any]) -> None:
    one = RecordedTool.of(ToolSpec(name="t", schema=schema))
    other = RecordedTool.of(ToolSpec(name="t", schema=dict(reversed(schema.items()))))

    assert schema_changes(one, other) == []
    assert all(isinstance(kind, str) for kind in one.parameters.values())


ENTRY = "- tool: local/price\n  schema: abc\n  recorded: 2020-02-29\n"
HEAD = "hookline_cassette: 1\nname: shop\n"


@pytest.mark.parametrize(
    ("tools", "line", "problem"),
    [
        ("tools: {}\n", 3, "`tools` is a list; got a mapping"),
        ("tools:\n- price\n", 4, "a tool is a mapping with tool, schema, recorded; got 'price'"),
        (f"tools:\n{ENTRY}  colour: red\n", 7, "`colour` is not a field of a tool"),
        (f"tools:\n{ENTRY.replace('abc', '12')}", 5, "`schema` is text; got 12. Put it in quotes"),
        (f"tools:\n{ENTRY.replace('2020-02-29', 'yesterday')}", 6, "`recorded` is a date such as 2026-01-31"),
        (f"tools:\n{ENTRY}  parameters: [a]\n", 7, "`parameters` is a mapping; got a list"),
        (f"tools:\n{ENTRY}  parameters: {{a: 1}}\n", 7, "the type of each parameter as text"),
        ("tools:\n- tool: local/price\n", 4, "this tool has no `schema` and no `recorded`"),
    ],
)
def test_a_section_edited_wrongly_is_refused_with_its_line(path: Path, tools: str, line: int, problem: str) -> None:
    path.write_text(f"{HEAD}{tools}calls: []\n")

    with pytest.raises(CassetteFileError) as caught:
        Cassette(path=path)

    assert problem in str(caught.value)
    assert caught.value.line == line


def test_what_a_changed_tool_means_is_one_of_two_words() -> None:
    with pytest.raises(HookUsageError, match="warn or refuse; got 'fail'"):
        Cassette(changed_tools="fail")  # type: ignore[arg-type]


async def test_tools_of_other_frameworks_are_known_too(path: Path, anyio_backend_name: str) -> None:
    if anyio_backend_name == "trio":
        pytest.skip("pydantic-ai needs asyncio")
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.function import FunctionModel

    from hookline.adapters.pydantic_ai import hooked

    def play(messages: list[Any], info: Any) -> Any:
        part = pydantic_ai.ToolCallPart("price", {"item": "tea"}) if len(messages) == 1 else pydantic_ai.TextPart("ok")
        return pydantic_ai.ModelResponse(parts=[part])

    def agent(function: Callable[..., str]) -> Any:
        return pydantic_ai.Agent(FunctionModel(play), tools=[pydantic_ai.Tool(function, name="price")])

    def price(item: str) -> str:
        return "3 EUR"

    def price_in(item: str, currency: str = "EUR") -> str:
        return "4 EUR"

    with Cassette(path=path) as cassette:
        await hooked(agent(price), hooks=[cassette.hooks()]).run("go")
    replayed = Cassette.load(path)
    await hooked(agent(price_in), hooks=[replayed.hooks()]).run("go")

    assert [each.parameters for each in replayed.tools] == [{"item": "string"}]
    assert list(replayed.stale) == ["local/price"]
