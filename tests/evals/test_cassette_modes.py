"""A mode says whether a cassette replays and whether it records."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from hookline import (
    AfterToolCall,
    Agent,
    Approve,
    Deny,
    Hooks,
    InMemoryStore,
    ModelResponse,
    OperationResult,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.errors import HookUsageError
from hookline.evals import EventRecorder, ToolMocks
from hookline.evals.cassettes import Cassette
from hookline.evals.cassettes._cassette import RecordMode
from hookline.evals.faults import EmptyResult

pytestmark = pytest.mark.anyio

Step = list[dict[str, Any]]


class World:
    """A tool that answers differently each time, and counts."""

    def __init__(self, mark: str = "") -> None:
        self.mark, self.count = mark, 0

    def tools(self) -> list[Any]:
        @tool(in_thread=False)
        def look(what: str = "", token: str = "", id: int = 0) -> str:  # noqa: A002
            self.count += 1
            return f"{self.mark}{what} {self.count}"

        return [look]


async def run(world: World, steps: list[Step], *hooks: Any, **options: Any) -> OperationResult:
    turns = [
        ModelResponse(
            tool_calls=[
                ToolRequest(tool_name="look", args=args, tool_call_id=f"t{number}_{place}")
                for place, args in enumerate(step)
            ]
        )
        for number, step in enumerate(steps)
    ]
    agent = Agent(id="a", model=ScriptedModel([*turns, ModelResponse(content="end")]), tools=world.tools())
    return await exec_agent(agent, "go", hooks=list(hooks), **options)


def told(result: OperationResult) -> list[str]:
    return [message.content for message in result.messages if message.role == "tool"]


async def recorded(path: Path, steps: list[Step]) -> None:
    with Cassette(path=path) as cassette:
        await run(World("old "), steps, cassette.hooks())


A, B, C = {"what": "a"}, {"what": "b"}, {"what": "c"}

EXPECTED: dict[str, tuple[list[str], int, list[str]]] = {
    # What a run of A and C is told, how often the tool runs, and what the file of A and B holds then.
    "none": (["old a 1", "miss"], 0, ["old a 1", "old b 2"]),
    "once": (["old a 1", "miss"], 0, ["old a 1", "old b 2"]),
    "new_episodes": (["old a 1", "new c 1"], 1, ["old a 1", "old b 2", "new c 1"]),
    "all": (["new a 1", "new c 2"], 2, ["new a 1", "old b 2", "new c 2"]),
    "rewrite": (["new a 1", "new c 2"], 2, ["new a 1", "new c 2"]),
}


@pytest.mark.parametrize("mode", get_args(RecordMode))
async def test_what_each_mode_does_with_a_file(tmp_path: Path, mode: RecordMode) -> None:
    path, world = tmp_path / "case.yaml", World("new ")
    await recorded(path, [[A], [B]])

    with Cassette(path=path, mode=mode) as cassette:
        result = await run(world, [[A], [C]], cassette.hooks())

    answers = ["miss" if text.startswith("No recording") else text for text in told(result)]
    held = sorted(recording.result for recording in Cassette.load(path).recordings)
    assert (answers, world.count, held) == (EXPECTED[mode][0], EXPECTED[mode][1], sorted(EXPECTED[mode][2]))
    assert [len(cassette.misses)] == [answers.count("miss")]


@pytest.mark.parametrize("mode", get_args(RecordMode))
async def test_what_each_mode_does_without_a_file(tmp_path: Path, mode: RecordMode) -> None:
    path, world = tmp_path / "folder" / "case.yaml", World()

    with Cassette(path=path, mode=mode) as cassette:
        result = await run(world, [[A]], cassette.hooks())

    if mode == "none":
        assert world.count == 0
        assert f"There is no file {path}: record it with mode='once'." in told(result)[0]
        assert not path.parent.exists()
    else:
        assert told(result) == ["a 1"]
        assert [recording.result for recording in Cassette.load(path).recordings] == ["a 1"]


async def test_what_was_recorded_is_replayed_from_the_file_without_the_tool(tmp_path: Path) -> None:
    path, world = tmp_path / "case.yaml", World()
    steps = [[A, A], [B], [A]]

    for _ in range(2):
        with Cassette(path=path) as cassette:
            result = await run(world, steps, cassette.hooks())
            assert sorted(told(result)) == ["a 1", "a 2", "a 4", "b 3"]

    assert world.count == 4


async def test_a_call_that_is_new_is_recorded_after_those_that_are_known(tmp_path: Path) -> None:
    path, world = tmp_path / "case.yaml", World("new ")
    await recorded(path, [[A]])

    for _ in range(2):
        with Cassette(path=path, mode="new_episodes") as cassette:
            assert told(await run(world, [[A], [A]], cassette.hooks())) == ["old a 1", "new a 1"]

    assert world.count == 1


async def test_a_rewrite_without_calls_leaves_an_empty_cassette(tmp_path: Path) -> None:
    path = tmp_path / "case.yaml"
    await recorded(path, [[A]])

    with Cassette(path=path, mode="rewrite"):
        pass
    assert len(Cassette.load(path)) == 1  # nothing ran at all
    with Cassette(path=path, mode="rewrite") as cassette:
        await run(World(), [], cassette.hooks())

    assert len(Cassette.load(path)) == 0


async def test_a_sequential_cassette_plays_in_order_whatever_the_arguments(tmp_path: Path) -> None:
    path, world = tmp_path / "case.yaml", World()
    with Cassette(path=path, matching="sequential") as cassette:
        await run(world, [[A], [B]], cassette.hooks())

    again = Cassette.load(path)
    result = await run(world, [[C], [A], [B]], again.hooks())

    assert again.matching == "sequential"
    assert told(result)[:2] == ["a 1", "b 2"]
    assert "it was recorded 2 times, and this is call 3" in told(result)[2]


async def test_ignored_fields_make_no_difference(tmp_path: Path) -> None:
    path, world = tmp_path / "case.yaml", World()
    await recorded(path, [[{"what": "a", "id": 1}]])

    result = await run(world, [[{"what": "a", "id": 2}]], Cassette.load(path, ignore=["id"]).hooks())
    missed = await run(world, [[{"what": "a", "id": 2}]], Cassette.load(path).hooks())

    assert told(result) == ["old a 1"]
    assert told(missed)[0].startswith("No recording")


async def test_a_call_with_a_secret_finds_its_recording_and_the_file_does_not_hold_it(tmp_path: Path) -> None:
    path, world = tmp_path / "case.yaml", World()
    steps = [[{"what": "a password=hunter2", "token": "hunter3"}]]

    await recorded(path, steps)
    again = Cassette(path=path)
    result = await run(world, steps, again.hooks())
    missed = await run(world, [[{"what": "b", "token": "hunter4"}]], again.hooks())

    assert told(result) == ["old a password=[redacted] 1"]
    assert "hunter" not in path.read_text() + repr(again.recordings) + told(missed)[0]
    assert world.count == 0


async def test_redaction_can_be_switched_off_and_extended(tmp_path: Path) -> None:
    steps: list[Step] = [[{"what": "IBAN DE1", "token": "t"}]]

    with Cassette(path=tmp_path / "off.yaml", redact=None) as off:
        await run(World(), steps, off.hooks())
    with Cassette(path=tmp_path / "more.yaml", redact=lambda text: text.replace("DE1", "***")) as more:
        await run(World(), steps, more.hooks())

    assert off.recordings[0].args == {"what": "IBAN DE1", "token": "t"}
    assert more.recordings[0].args == {"what": "IBAN ***", "token": "[redacted]"}
    assert more.recordings[0].result == "IBAN *** 1"


async def test_what_was_denied_is_not_recorded_and_uses_nothing_up(tmp_path: Path) -> None:
    path, world, guard = tmp_path / "case.yaml", World(), Hooks("guard")

    @guard.before(ToolCall)
    def refuse(call: ToolCall) -> Deny | None:
        return Deny("no") if call.call_index == 1 else None

    for _ in range(2):
        with Cassette(path=path) as cassette:
            result = await run(world, [[A], [A]], guard, cassette.hooks())
            assert told(result) == ["no", "a 1"]

    assert world.count == 1
    assert [recording.call_index for recording in Cassette.load(path).recordings] == [2]


async def test_what_another_hook_answers_uses_nothing_up(tmp_path: Path) -> None:
    path, mock = tmp_path / "case.yaml", ToolMocks()
    await recorded(path, [[A]])
    mock.tool("local/look", nth=1).returns("mocked")

    result = await run(World(), [[A], [A]], mock, Cassette(path=path).hooks())

    assert told(result) == ["mocked", "old a 1"]


async def test_mocks_and_a_cassette_share_the_calls(tmp_path: Path) -> None:
    path, world = tmp_path / "case.yaml", World()

    for _ in range(2):
        with Cassette("case", path=path) as cassette:
            mocks = ToolMocks(cassette=cassette)
            mocks.tool("local/look", args=B).returns("mocked")
            assert told(await run(world, [[A], [B], [C]], mocks)) == ["a 1", "mocked", "c 2"]

    assert world.count == 2
    assert [recording.args for recording in cassette.recordings] == [A, C]
    assert [call.cassette for call in mocks.calls] == ["case", None, "case"]


async def test_a_rule_that_replays_does_what_its_cassette_would_do(tmp_path: Path) -> None:
    world, path = World(), tmp_path / "case.yaml"

    with Cassette("case", path=path) as recording:
        mocks = ToolMocks(strict=True)
        mocks.tool("local/look").replays(recording)
        assert told(await run(world, [[A], [B]], mocks)) == ["a 1", "b 2"]
        assert [call.outcome for call in mocks.calls] == ["real", "real"]
    cassette = Cassette(path=path)
    mocks = ToolMocks(strict=True)
    mocks.tool("local/look").replays(cassette)
    for _ in range(2):
        assert told(await run(world, [[A], [B]], mocks, operation_id="again")) == ["a 1", "b 2"]

    assert world.count == 2
    assert [(call.outcome, call.cassette) for call in mocks.calls] == [("mocked", "case")] * 4
    assert len(cassette._scopes) == len(recording._scopes) == 0


async def test_a_call_that_no_recording_answers_is_refused_for_whoever_looks(tmp_path: Path) -> None:
    def by_rule(cassette: Cassette) -> ToolMocks:
        mocks = ToolMocks()
        mocks.tool("local/look").replays(cassette)
        mocks.fault("*", EmptyResult())
        return mocks

    for attach in (by_rule, lambda cassette: ToolMocks(cassette=cassette), Cassette.hooks, Cassette.player):
        cassette, recorder = Cassette("empty", mode="none"), EventRecorder()
        mocks = attach(cassette)

        (answer,) = told(await run(World(), [[A]], mocks, recorder.hooks))

        assert answer.startswith("No recording in 'empty'")
        with pytest.raises(AssertionError, match="not answered by a mock: local/look"):
            recorder.only.assert_no_unmocked()
        if isinstance(mocks, ToolMocks):
            assert [call.outcome for call in mocks.calls] == ["refused"]


async def test_a_paused_operation_goes_on_where_it_was(tmp_path: Path) -> None:
    path, store = tmp_path / "case.yaml", InMemoryStore()
    await recorded(path, [[A], [A]])
    cassette, count = Cassette(path=path), World()

    @tool(in_thread=False, needs_approval=True)
    def pay() -> str:
        return "paid"

    turns = [("look", A), ("pay", {}), ("look", A)]
    responses = [
        ModelResponse(tool_calls=[ToolRequest(tool_name=name, args=args, tool_call_id=f"t{number}")])
        for number, (name, args) in enumerate(turns)
    ]
    agent = Agent(id="a", model=ScriptedModel([*responses, ModelResponse(content="end")]), tools=[*count.tools(), pay])

    paused = await exec_agent(agent, "go", hooks=[cassette.hooks()], store=store, operation_id="paused")
    assert len(cassette._scopes) == 1
    result = await resume_agent(agent, "paused", [Approve(tool_call_id="t1")], hooks=[cassette.hooks()], store=store)

    assert paused.reason == "waiting_for_human"
    assert told(result)[0] == "old a 1"
    assert told(result)[-1] == "old a 2"
    assert len(cassette._scopes) == 0


async def test_what_was_not_used_is_told(tmp_path: Path) -> None:
    path = tmp_path / "case.yaml"
    await recorded(path, [[A], [B]])
    cassette = Cassette(path=path)

    await run(World(), [[A]], cassette.hooks())

    assert cassette.unused() == ['local/look with {"what":"b"}']


async def test_the_name_is_that_of_the_file_unless_given(tmp_path: Path) -> None:
    path = tmp_path / "case.yaml"
    with Cassette("shopping", path=path) as cassette:
        await run(World(), [[A]], cassette.hooks())

    assert (Cassette(path=path).name, Cassette("other", path=path).name) == ("shopping", "other")
    assert (Cassette().name, Cassette(path=tmp_path / "new.yaml").name) == ("cassette", "new")


@pytest.mark.parametrize(
    "wrong",
    [{"mode": "always"}, {"matching": "nth"}, {"ignore": "a.b"}, {"ignore": [1]}, {"redact": 3}, {"name": ""}],
)
async def test_an_argument_that_cannot_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(HookUsageError):
        Cassette(**wrong)


async def test_events_of_a_recorded_run_make_a_cassette() -> None:
    seen, events = Hooks("seen"), []
    seen.on(AfterToolCall)(events.append)
    await run(World(), [[A], [A], [B]], seen)

    cassette = Cassette.of_events("traced", events)

    assert told(await run(World("new "), [[A], [A], [B]], cassette.player())) == ["a 1", "a 2", "b 3"]


async def test_in_mode_all_an_equal_call_that_is_not_made_again_stays(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    twice, once = [[{"what": "tea"}], [{"what": "tea"}]], [[{"what": "tea"}]]
    with Cassette(path=path) as cassette:
        await run(World("old "), twice, cassette.hooks())

    with Cassette(path=path, mode="all") as cassette:
        await run(World("new "), once, cassette.hooks())

    assert [recording.result for recording in Cassette(path=path).recordings] == ["new tea 1", "old tea 2"]


async def test_repeats_that_are_allowed_get_the_last_answer_again(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    tea: Step = [{"what": "tea"}]
    with Cassette(path=path) as cassette:
        await run(World(), [tea, tea], cassette.hooks())
    world = World()

    cassette = Cassette(path=path, mode="none", allow_repeats=True)
    result = await run(world, [tea, tea, tea, tea], cassette.hooks())

    assert [message.content for message in result.messages if message.role == "tool"] == [
        *("tea 1", "tea 2", "tea 2", "tea 2")
    ]
    assert world.count == 0
    assert cassette.misses == []
    other = await run(world, [[{"what": "juice"}]], cassette.hooks())
    assert other is not None
    assert len(cassette.misses) == 1  # a call that was never recorded is still one
