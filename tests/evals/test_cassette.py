"""A cassette answers what was recorded, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import (
    AfterToolCall,
    Agent,
    Hooks,
    ModelResponse,
    OnToolCallError,
    OperationResult,
    ScriptedModel,
    ToolCalling,
    ToolResult,
    exec_agent,
    tool,
)
from hookline.evals import Cassette, EventRecorder

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
                ToolCalling(api_name=name, args=args, tool_call_id=f"t{number}_{place}")
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
