"""A cassette answers what was recorded, and nothing else."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import (
    AfterToolCall,
    Agent,
    BeforeToolCall,
    HookDispatcher,
    Hooks,
    ModelResponse,
    OnToolCallError,
    OperationResult,
    ScriptedModel,
    ToolRequest,
    ToolResult,
    exec_agent,
    interrupt,
    tool,
)
from hookline.evals import Cassette, EventRecorder
from hookline.evals._endings import _watching
from hookline.signals import operation_unregistered

pytestmark = pytest.mark.anyio

Step = list[tuple[str, dict[str, Any]]]


class Counter:
    """Tools that answer differently each time, so that a second real run could never be equal by chance."""

    def __init__(self) -> None:
        self.count = 0

    def tools(self) -> list[Any]:
        @tool(in_thread=False)
        def look(what: str = "", where: str = "") -> str:
            self.count += 1
            return f"look {what}{where} {self.count}"

        @tool(in_thread=False)
        def refuse() -> ToolResult:
            self.count += 1
            return ToolResult(content=f"refused {self.count}", success=False, metadata={"rule": "r1"})

        @tool(in_thread=False)
        def crash() -> str:
            self.count += 1
            raise LookupError(f"crashed {self.count}")

        return [look, refuse, crash]


async def run(tools: list[Any], steps: list[Step], *hooks: Hooks) -> OperationResult:
    turns = [
        ModelResponse(
            tool_calls=[
                ToolRequest(tool_name=name, args=args, tool_call_id=f"t{number}_{place}")
                for place, (name, args) in enumerate(step)
            ]
        )
        for number, step in enumerate(steps)
    ]
    agent = Agent(id="a", model=ScriptedModel([*turns, ModelResponse(content="end")]), tools=tools)
    return await exec_agent(agent, "go", hooks=hooks)


def told(result: OperationResult) -> list[str]:
    return [message.content for message in result.messages if message.role == "tool"]


async def test_a_replay_gives_the_same_results_without_the_tools() -> None:
    world, cassette = Counter(), Cassette("case")
    steps: list[Step] = [[("look", {"what": "a"})], [("refuse", {})], [("crash", {})], [("look", {"what": "a"})]]

    first = await run(world.tools(), steps, cassette.recorder())
    ran = world.count
    second = await run(world.tools(), steps, cassette.player())

    assert told(second) == told(first) == ["look a 1", "refused 2", "LookupError: crashed 3", "look a 4"]
    assert world.count == ran == len(cassette) == 4


async def test_an_answer_says_which_recording_it_came_from() -> None:
    cassette, seen = Cassette("case"), Hooks("seen")
    events: list[AfterToolCall | OnToolCallError] = []
    seen.on(AfterToolCall)(events.append)
    seen.on(OnToolCallError)(events.append)
    steps: list[Step] = [[("look", {})], [("look", {})], [("refuse", {})], [("crash", {})]]

    await run(Counter().tools(), steps, cassette.recorder())
    await run([], [[(name, args) for name, args in step] for step in steps], cassette.player(), seen)

    assert [event.metadata["recording"] for event in events] == [
        "local/look #1",
        "local/look #2",
        "local/refuse #1",
        "local/crash #1",
    ]
    assert {event.metadata["cassette"] for event in events} == {"case"}
    assert events[2].metadata["rule"] == "r1"
    assert isinstance(events[3], OnToolCallError)
    assert events[3].error_type == "LookupError"
    assert all(event.mocked and event.answered_by == "case.player.answer" for event in events)


async def test_the_order_of_arguments_does_not_matter() -> None:
    cassette = Cassette()

    await run(Counter().tools(), [[("look", {"what": "a", "where": "b"})]], cassette.recorder())
    second = await run([], [[("look", {"where": "b", "what": "a"})]], cassette.player())

    assert told(second) == ["look ab 1"]


@pytest.mark.parametrize("what", ["\ud800", "é\u2028", 2**80, 1.5, None, ["a", {"b": 1}]])
async def test_any_arguments_that_a_model_can_send_are_found_again(what: Any) -> None:
    cassette = Cassette()
    steps: list[Step] = [[("look", {"what": what})]]

    first = await run(Counter().tools(), steps, cassette.recorder())

    assert told(await run([], steps, cassette.player())) == told(first)
    assert len(cassette) == 1


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (("look", {"what": "other"}), 'was recorded with {"what":"a"}'),
        (("refuse", {}), "no call of local/refuse was recorded"),
        (("look", {"what": "a"}), "it was recorded 1 times, and this is call 2"),
    ],
)
async def test_a_call_that_was_not_recorded_fails_and_never_reaches_the_tool(
    asked: tuple[str, dict[str, Any]], reason: str
) -> None:
    cassette, world = Cassette("case"), Counter()
    await run(Counter().tools(), [[("look", {"what": "a"})]], cassette.recorder())

    second = await run(world.tools(), [[("look", {"what": "a"})], [asked]], cassette.player())

    assert world.count == 0
    assert second.reason == "done"
    assert told(second)[0] == "look a 1"
    assert reason in told(second)[1]
    assert "The real tool was not run." in told(second)[1]


async def test_what_a_hook_had_answered_is_not_recorded() -> None:
    first, second = Cassette("first"), Cassette("second")
    steps: list[Step] = [[("look", {})]]
    await run(Counter().tools(), steps, first.recorder())

    await run([], steps, first.player(), second.recorder())

    assert len(second) == 0


async def test_a_new_recording_replaces_the_old_one() -> None:
    cassette, world = Cassette(), Counter()
    steps: list[Step] = [[("look", {})], [("look", {})]]

    await run(world.tools(), steps, cassette.recorder())
    await run(world.tools(), steps, cassette.recorder())

    assert told(await run([], steps, cassette.player())) == ["look  3", "look  4"]


async def test_two_operations_that_replay_at_once_do_not_share_their_count() -> None:
    cassette = Cassette()
    steps: list[Step] = [[("look", {})], [("look", {})]]
    await run(Counter().tools(), steps, cassette.recorder())
    player = cassette.player()

    assert told(await run([], steps, player)) == told(await run([], steps, player)) == ["look  1", "look  2"]


CALLS = st.sampled_from([("look", {}), ("look", {"what": "a"}), ("refuse", {}), ("crash", {})])


@settings(deadline=None, max_examples=25)
@given(steps=st.lists(st.lists(CALLS, min_size=1, max_size=4), max_size=4))
async def test_any_run_replays_to_the_same_trajectory(steps: list[Step]) -> None:
    cassette, recorder = Cassette(), EventRecorder()

    first = await run(Counter().tools(), steps, recorder.hooks, cassette.recorder())
    second = await run([], steps, recorder.hooks, cassette.player())

    before, after = recorder[first.operation_id], recorder[second.operation_id]
    assert before.trajectory.encode() == after.trajectory.encode()
    assert (before.mocked, after.mocked) == (0, second.tool_calls)


@pytest.mark.parametrize("together", [False, True])
async def test_every_sub_agent_gets_what_it_got(together: bool) -> None:
    """The planner and its sub-agents all make the same calls, and the world answers each of them differently."""
    asks = [
        ToolRequest(toolset="agent", tool_name=name, args={"instruction": "go"}, tool_call_id=f"{name}{place}")
        for place, name in enumerate("aba")
    ]
    looks = ModelResponse(
        tool_calls=[ToolRequest(tool_name="look", args={"what": "x"}, tool_call_id=f"c{place}") for place in range(2)]
    )
    steps = [asks[:2], asks[2:]] if together else [[each] for each in asks]

    def planner(tools: list[Any]) -> Agent:
        subs = [
            Agent(id=name, model=ScriptedModel([looks, ModelResponse(content="done")] * 2), tools=tools)
            for name in ("a", "b")
        ]
        turns = [looks, *(ModelResponse(tool_calls=step) for step in steps), looks, ModelResponse(content="end")]
        return Agent(id="planner", model=ScriptedModel(turns), tools=tools, sub_agents=subs)

    async def results(*hooks: Hooks) -> list[tuple[str, int, int, str]]:
        seen = Hooks("seen", inherit=True)
        found: list[tuple[str, str, int, int, str]] = []

        @seen.on(AfterToolCall)
        def keep(event: AfterToolCall) -> None:
            found.append((event.agent_id, event.operation_id, event.step_index, event.call_index, event.content))

        await exec_agent(planner(world.tools()), "go", hooks=[*hooks, seen])
        runs = list(dict.fromkeys(operation for _, operation, *_ in found))
        return sorted((f"{who} {runs.index(run) if who == 'a' else ''}", *rest) for who, run, *rest in found)

    world, cassette = Counter(), Cassette("case")
    first = await results(cassette.hooks())
    ran = world.count

    cassette.mode = "none"
    second = await results(cassette.hooks())

    assert [each[1:] for each in second] == [each[1:] for each in first]
    assert world.count == ran == len(cassette) == 10
    assert {(each.agent, each.operation) for each in cassette.recordings} == {("", 1), ("a", 1), ("a", 2), ("b", 1)}
    assert cassette.misses == []
    assert len(cassette._scopes) == 0


async def test_parallel_replays_of_one_cassette_never_influence_each_other() -> None:
    cassette, world = Cassette(), Counter()
    steps: list[Step] = [[("look", {"what": "a"})] * 3, [("look", {})], [("refuse", {})], [("look", {"what": "a"})]]
    first = told(await run(world.tools(), steps, cassette.recorder()))
    player, answers = cassette.player(), []

    async def replayed() -> None:
        answers.append(told(await run([], steps, player)))

    async with anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(replayed)

    assert answers == [first] * 50


async def test_nothing_of_a_thousand_finished_operations_is_held() -> None:
    cassette, steps = Cassette(), [[("look", {"what": "a"})]]
    await run(Counter().tools(), steps, cassette.recorder())
    player, hooks = cassette.player(), cassette.hooks()

    def event(operation_id: str, parent: str | None = None) -> BeforeToolCall:
        return BeforeToolCall(
            operation_id=operation_id,
            parent_operation_id=parent,
            agent_id="sub" if parent else "",
            toolset="local",
            tool_name="look",
            args={"what": "a"},
            call_index=1,
            step_index=0,
            tool_call_id="c",
        )

    for _ in range(100):
        await run([], steps, player)
    async with HookDispatcher() as dispatcher:
        for number in range(900):  # operations of another runtime, of which nobody says that they are complete
            dispatcher.register(f"o{number}", [player])
            dispatcher.register(f"sub{number}", [hooks])
            assert await dispatcher.dispatch_before_tool_call(event(f"o{number}"))
            await dispatcher.dispatch_before_tool_call(
                event(f"sub{number}", f"o{number}" if number % 2 else "elsewhere")
            )
            assert len(cassette._scopes) == 2
            await dispatcher.unregister(f"sub{number}")
            await dispatcher.unregister(f"o{number}")

    endings = cassette._endings
    assert len(cassette._scopes) == len(endings._parents) == len(endings._waiting) == 0
    assert _watching == {}
    assert not operation_unregistered.receivers
    for _ in range(20):
        await run(Counter().tools(), steps, cassette.recorder())
    assert len(cassette._recordings.played) == len(cassette) == 1


async def test_of_two_recording_runs_at_the_same_time_one_is_kept_whole() -> None:
    cassette = Cassette(mode="all")

    def answered(operation_id: str, index: int) -> AfterToolCall:
        return AfterToolCall(
            operation_id=operation_id,
            toolset="local",
            tool_name="look",
            args={},
            call_index=index,
            step_index=0,
            tool_call_id="c",
            content=f"{operation_id} {index}",
            success=True,
        )

    for operation_id, index in [("first", 1), ("second", 1), ("first", 2), ("second", 2)]:
        cassette.keep(answered(operation_id, index))

    assert [recording.result for recording in cassette.recordings] == ["second 1", "second 2"]


async def test_a_miss_names_the_nearest_recording_and_shows_what_differs() -> None:
    cassette = Cassette("case")
    steps: list[Step] = [[("look", {"what": "far", "where": "away"})], [("look", {"what": "tea", "where": "shop"})]]
    await run(Counter().tools(), steps, cassette.recorder())

    second = await run([], [[("look", {"what": "tea", "where": "stop"})]], cassette.player())

    (text,) = told(second)
    assert text.splitlines()[1:] == [
        "The nearest recording has other arguments:",
        "--- recorded",
        "+++ asked",
        "@@ -1,4 +1,4 @@",
        " {",
        '   "what": "tea",',
        '-  "where": "shop"',
        '+  "where": "stop"',
        " }",
    ]
    assert cassette.misses == [text]


async def test_a_miss_stays_short_whatever_was_asked_and_recorded() -> None:
    cassette = Cassette("case")
    long = {"what": "x" * 20_000 + "a" + "y" * 20_000, "where": [{"n": number} for number in range(2_000)]}
    other = {"what": "x" * 20_000 + "b" + "y" * 20_000, "where": []}
    await run(
        Counter().tools(), [[("look", long)], *[[("look", {"what": str(n)})] for n in range(30)]], cassette.recorder()
    )

    second = await run([], [[("look", other)]], cassette.player())

    (text,) = told(second)
    assert len(text) < 6_000
    assert "xxxaxxx" not in text
    assert any(line.startswith("-") and "xay" in line for line in text.splitlines())
    assert any(line.startswith("+") and "xby" in line for line in text.splitlines())


async def test_arguments_that_cannot_be_written_down_are_a_miss_and_never_reach_the_tool() -> None:
    world = Counter()

    second = await run(world.tools(), [[("look", {"what": 10**5_000})]], Cassette(mode="none").hooks())

    assert "its arguments cannot be read (ValueError" in told(second)[0]
    assert world.count == 0


async def test_an_interrupted_call_is_not_recorded() -> None:
    cassette = Cassette()
    started = anyio.Event()

    @tool
    async def look() -> str:
        started.set()
        await anyio.sleep_forever()
        return "never"

    async with anyio.create_task_group() as group:

        async def interrupted() -> None:
            agent = Agent(
                id="a",
                model=ScriptedModel([ModelResponse(tool_calls=[ToolRequest(tool_name="look", tool_call_id="c")])]),
                tools=[look],
            )
            result = await exec_agent(agent, "go", hooks=[cassette.hooks()], operation_id="stopped")
            assert result.reason == "interrupted"

        group.start_soon(interrupted)
        await started.wait()
        interrupt("stopped")

    assert len(cassette) == 0
