"""Text that a model writes while a fenced change takes effect: what was not given yet is held for the new hooks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import accumulate
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hookline import Agent, Hooks, exec_agent, tool
from hookline.calls import AgentCall, Call, Deny, ModelCall, ModelResponse, StepCall, ToolCall, ToolRequest
from hookline.hooks import copy_bundle
from hookline.runtime import AdapterRun, Capabilities
from tests.interceptors.test_fences import Definitions

pytestmark = pytest.mark.anyio

KINDS: list[type[Call]] = [ModelCall, StepCall, AgentCall]
WRITTEN: dict[type[Call], str] = {ModelCall: "content", StepCall: "content", AgentCall: "output"}
DENIES = "denied"


def judge_of(kind: type[Call], seen: list[str], revision: int, *, verdict: str | None) -> Hooks:
    """The hook of a stored definition that judges results: it denies them, replaces their text, or lets them pass."""
    bundle = Hooks("judge")
    bundle.from_definition = True

    @bundle.after(kind, id="judge")
    def judge(call: Any, result: Any) -> Any:
        seen.append(getattr(result, WRITTEN[kind]))
        if verdict is None:
            return None
        return Deny("no") if verdict == DENIES else msgspec.structs.replace(result, **{WRITTEN[kind]: verdict})

    return copy_bundle(bundle, revision=revision, scope=None)


class Writer:
    """A model that streams turns of pieces, and does something before one piece of all that it writes.

    Attributes:
        waiting: How many pieces it has begun to write.
    """

    name, provider = "writer", "test"

    def __init__(self, turns: list[list[str]], at: int, act: Any) -> None:
        self._turns, self._at, self._act = turns, at, act
        self.waiting, self.turn = 0, 0

    async def respond(self, call: ModelCall) -> ModelResponse:
        raise AssertionError("nobody reads the stream")

    async def stream(self, call: ModelCall) -> AsyncIterator[str | ModelResponse]:
        pieces = self._turns[self.turn]
        self.turn += 1
        for piece in pieces:
            if self.waiting == self._at:
                self._act()
            self.waiting += 1
            await anyio.lowlevel.checkpoint()
            yield piece
        is_last = self.turn == len(self._turns)
        yield ModelResponse(content="".join(pieces), tool_calls=[] if is_last else [ToolRequest("look", {})])


@tool
async def look() -> str:
    """Look around."""
    return "seen"


def stream_with_change(
    turns: list[list[str]], at: int, kind: type[Call], verdict: str | None, *, held_by: type[Call] | None = None
) -> tuple[str, str, str, list[str]]:
    """Run an agent while whose stream a fenced change brings a hook that judges results.

    Returns:
        What the reader got before the change and in all, what the run says, and what the hook has judged.
    """
    seen: list[str] = []
    got: list[str] = []
    before: list[str] = []
    first = [] if held_by is None else [judge_of(held_by, [], 1, verdict=None)]
    definitions = Definitions(*first)

    def change() -> None:
        before.extend(got)
        definitions.change(judge_of(kind, seen, 2, verdict=verdict), fenced={"judge": 2}, revision=2)
        assert definitions.fence.is_drained

    agent = Agent(id="writer", model=Writer(turns, at, change), tools=[look])

    async def main() -> Any:
        return await exec_agent(agent, "go", hooks=definitions.given(), on_token=got.append)

    result = anyio.run(main)
    return "".join(before), "".join(got), result.output or "", seen


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_new_hook_denies_is_given_to_nobody_from_the_change_on(kind: type[Call]) -> None:
    before, got, _, seen = stream_with_change([["one ", "two ", "three"]], 1, kind, DENIES)

    assert (before, got) == ("one ", "one ")
    assert seen == ["one two three"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_new_hook_lets_pass_is_given_whole_and_once(kind: type[Call]) -> None:
    before, got, output, seen = stream_with_change([["one ", "two ", "three"]], 1, kind, None)

    assert (before, got, output) == ("one ", "one two three", "one two three")
    assert seen == ["one two three"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_hook_that_was_brought_before_holds_the_text_of_later_calls(kind: type[Call]) -> None:
    before, got, _, seen = stream_with_change([["a"], ["b ", "c"], ["d ", "e"]], 2, kind, "f")

    assert (before, got) == ("ab ", "ab cf" if kind is AgentCall else "ab f")
    assert seen == (["d e"] if kind is AgentCall else ["b c", "d e"])


def expect_text(
    turns: list[list[str]], at: int, kind: type[Call], verdict: str | None, held_by: type[Call] | None
) -> str:
    """Return what a reader gets in all."""
    texts = ["".join(turn) for turn in turns]
    ends = list(accumulate(len(turn) for turn in turns))
    changed = next((nth for nth, end in enumerate(ends) if at < end), None)
    if changed is None:
        return "".join(texts)
    given = "" if held_by else "".join(turns[changed][: at - ends[changed] + len(turns[changed])])
    earlier = "".join(texts[:changed])
    if verdict == DENIES:
        # A step that is denied ends the run, and takes along what was held for the hooks of the run.
        return given if held_by is AgentCall and kind is not ModelCall else earlier + given
    said = [
        verdict if verdict is not None and (kind is not AgentCall or nth == len(turns) - 1) else text
        for nth, text in enumerate(texts)
    ]
    rest = said[changed].removeprefix(given) if said[changed].startswith(given) else ""
    return "".join([earlier, given, rest, *said[changed + 1 :]])


TURNS = st.lists(st.lists(st.text("ab ", min_size=1, max_size=4), min_size=1, max_size=5), min_size=1, max_size=3)


@settings(max_examples=200, deadline=None)
@example(turns=[["a", "b"]], at=0, kind=AgentCall, verdict=None, held_by=None)
@example(turns=[["a"], ["b", "a"]], at=2, kind=StepCall, verdict=None, held_by=None)
@example(turns=[["a", "b"]], at=1, kind=AgentCall, verdict=None, held_by=ModelCall)
@example(turns=[["a", "b"]], at=1, kind=ModelCall, verdict="ab a", held_by=None)
@given(
    turns=TURNS,
    at=st.integers(0, 8),
    kind=st.sampled_from(KINDS),
    verdict=st.sampled_from([None, DENIES, "b", "ab ab"]),
    held_by=st.sampled_from([None, *KINDS]),
)
def test_readers_get_no_text_after_a_change_that_its_hook_has_not_let_pass(
    turns: list[list[str]], at: int, kind: type[Call], verdict: str | None, held_by: type[Call] | None
) -> None:
    _, got, _, _ = stream_with_change(turns, at, kind, verdict, held_by=held_by)

    assert got == expect_text(turns, at, kind, verdict, held_by)


def drives() -> Capabilities:
    return Capabilities(framework="a loop", calls={ModelCall: frozenset({"after"}), ToolCall: frozenset({"guard"})})


@pytest.mark.parametrize("streams", [True, False])
async def test_a_change_waits_for_the_stream_of_a_framework_that_is_not_held(streams: bool) -> None:
    seen: list[str] = []
    definitions = Definitions()
    drained: list[bool] = []
    held: list[bool] = []

    async def ask(call: ModelCall) -> ModelResponse:
        if not drained:
            definitions.change(judge_of(ModelCall, seen, 2, verdict=None), fenced={"judge": 2}, revision=2)
        drained.append(definitions.fence.is_drained)
        return ModelResponse(content="text")

    async with AdapterRun(definitions.given(), drives()) as run:
        for _ in range(2):
            run.begin_step()
            if streams:
                held.append(run.hold_stream(ModelCall))
            await run.ask_model([], ask)
            run.end_step(should_continue=False)
            assert definitions.fence.is_drained
        assert run.may_change_result(ModelCall)

    assert drained == [not streams, True]
    assert held == ([False, True] if streams else [])
    assert seen == ["text", "text"]


async def test_a_change_of_other_calls_does_not_wait_for_a_stream() -> None:
    definitions = Definitions()
    drained: list[bool] = []

    async def ask(call: ModelCall) -> ModelResponse:
        definitions.change(judge_of(StepCall, [], 2, verdict=None), fenced={"judge": 2}, revision=2)
        drained.append(definitions.fence.is_drained)
        return ModelResponse(content="text")

    async with AdapterRun(definitions.given(), drives()) as run:
        run.begin_step()
        assert not run.hold_stream(ModelCall)
        await run.ask_model([], ask)
        run.end_step(should_continue=False)

    assert drained == [True]
