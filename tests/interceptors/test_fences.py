"""Hooks that a fenced change puts in force judge the calls of operations that are running, on asyncio and on trio."""

from __future__ import annotations

import math
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hookline import Agent, Hooks, ScriptedModel, ToolRequest, exec_agent, tool
from hookline.calls import Deny, ModelCall, ModelResponse, ToolCall, ToolResult
from hookline.hooks import AnyHook, TextParts, copy_bundle
from hookline.interceptors import Fence, FencedHooks

pytestmark = pytest.mark.anyio


def stored(id: str, revision: int, *, point: str = "guard", says: str = "") -> Hooks:  # noqa: A002
    """The hook of a stored definition: a guard that denies with a text, or an `after` that adds one."""
    bundle = Hooks(id)
    bundle.from_definition = True
    if point == "guard":
        bundle.guard(ToolCall, id=id)(lambda call: Deny(says) if says else None)
    else:
        bundle.after(ToolCall, id=id)(lambda call, result: ToolResult(content=f"{result.content} {says}"))
    return copy_bundle(bundle, revision=revision, scope=None)


class Definitions:
    """Hooks in force, and the fence of a registry that has them."""

    def __init__(self, *hooks: Hooks) -> None:
        self.hooks: list[AnyHook] = list(hooks)
        self.fence = Fence(lambda tenant_id: self.hooks)
        self.fence.revision = 1
        self.fence.valid_until = math.inf

    def given(self) -> list[AnyHook]:
        return [FencedHooks(self.fence, "", self.fence.revision), *self.hooks]

    def change(self, *hooks: Hooks, fenced: dict[str, int], revision: int) -> None:
        self.hooks = list(hooks)
        self.fence.advance(revision, {("", id): each for id, each in fenced.items()})  # noqa: A001


async def run(definitions: Definitions, during: Any) -> list[str]:
    number = 0

    @tool
    async def pay() -> str:
        """Pay."""
        nonlocal number
        number += 1
        await during(number)
        return "paid"

    agent = Agent(id="payer", model=ScriptedModel([*[ToolRequest("pay", {})] * 3, "done"]), tools=[pay])
    result = await exec_agent(agent, "go", hooks=definitions.given())
    return [message.content for message in result.messages if message.role == "tool"]


async def test_the_next_call_is_judged_by_the_new_revision() -> None:
    definitions = Definitions(stored("a", 1))

    async def during(number: int) -> None:
        definitions.change(stored("a", 2, says="no"), fenced={"a": 2}, revision=2)

    assert [text == "paid" for text in await run(definitions, during)] == [True, False, False]


async def test_the_result_of_a_running_call_is_judged_by_the_new_hooks_in_their_order() -> None:
    definitions = Definitions(stored("a", 1, point="after", says="a1"), stored("b", 1, point="after", says="b1"))

    async def during(number: int) -> None:
        if number == 2:
            b1 = stored("b", 1, point="after", says="b1")
            definitions.change(stored("a", 2, point="after", says="a2"), b1, fenced={"a": 2}, revision=2)

    assert await run(definitions, during) == ["paid b1 a1", "paid b1 a2", "paid b1 a2"]


@pytest.mark.parametrize("parts", [None, TextParts(max_chars=1)], ids=["whole", "one in parts"])
async def test_the_answer_that_a_model_is_writing_is_judged_by_the_new_hooks_alone(parts: TextParts | None) -> None:
    def judging(id: str, revision: int, parts: TextParts | None = None) -> Hooks:  # noqa: A002
        bundle = Hooks(id)
        bundle.from_definition = True

        @bundle.after(ModelCall, id=id, parts=parts)
        def add(call: ModelCall, response: ModelResponse) -> ModelResponse:
            return msgspec.structs.replace(response, content=f"{response.content} {id}{revision}")

        return copy_bundle(bundle, revision=revision, scope=None)

    definitions = Definitions(judging("a", 1), judging("b", 1, parts))

    def write(call: ModelCall) -> str:
        definitions.change(judging("a", 2), judging("b", 1, parts), fenced={"a": 2}, revision=2)
        return "written"

    result = await exec_agent(Agent(id="writer", model=ScriptedModel(write)), "go", hooks=definitions.given())

    assert result.output == "written b1 a2"


async def test_a_fence_is_drained_while_the_calls_themselves_run() -> None:
    definitions = Definitions(stored("a", 1))
    drained: list[bool] = []

    async def during(number: int) -> None:
        definitions.change(stored("a", number + 1), fenced={"a": number + 1}, revision=number + 1)
        drained.append(definitions.fence.is_drained)

    await run(definitions, during)

    assert drained == [True, True, True]


async def test_a_fence_is_not_drained_while_a_guard_of_the_old_revision_judges() -> None:
    judging, judged = anyio.Event(), anyio.Event()
    slow = Hooks("a")
    slow.from_definition = True

    @slow.guard(ToolCall, id="a")
    async def judge(call: ToolCall) -> None:
        judging.set()
        await judged.wait()

    definitions = Definitions(copy_bundle(slow, revision=1, scope=None))
    results: list[str] = []

    async def nothing(number: int) -> None:
        pass

    async def go() -> None:
        results.extend(await run(definitions, nothing))

    async with anyio.create_task_group() as group:
        group.start_soon(go)
        await judging.wait()
        assert definitions.fence.is_drained
        definitions.change(stored("a", 2, says="no"), fenced={"a": 2}, revision=2)
        assert not definitions.fence.is_drained
        judged.set()

    assert definitions.fence.is_drained
    assert [text == "paid" for text in results] == [True, False, False]


async def test_calls_are_denied_when_the_lease_has_ended_and_others_run() -> None:
    definitions = Definitions(stored("a", 1))

    async def during(number: int) -> None:
        definitions.fence.valid_until = -math.inf

    texts = await run(definitions, during)

    assert texts[0] == "paid"
    assert all("lease" in text for text in texts[1:])


NAMES = ("a", "b", "c")
changes = st.tuples(st.sampled_from(NAMES), st.sampled_from(["change", "remove"]), st.booleans())


@given(st.lists(changes, max_size=12))
@example([("a", "remove", True), ("b", "remove", False), ("a", "change", True), ("b", "change", False)])
def test_a_run_has_what_it_began_with_but_for_fenced_changes(history: list[tuple[str, str, bool]]) -> None:
    definitions = Definitions(stored("a", 1), stored("b", 1))
    hooks = definitions.given()
    expected = {"a": 1, "b": 1}
    present: dict[str, Hooks] = {"a": definitions.hooks[0], "b": definitions.hooks[1]}  # type: ignore[dict-item]

    missing: set[str] = set()  # when a fence was passed last, so that nobody could say where they stand among others

    for revision, (name, what, fence) in enumerate(history, 2):
        if what == "change":
            present[name] = stored(name, revision)
        else:
            present.pop(name, None)
        in_order = [present[each] for each in NAMES if each in present]
        definitions.change(*in_order, fenced={name: revision} if fence else {}, revision=revision)
        if fence:
            expected.pop(name, None)
            if what == "change":
                expected[name] = revision
            missing = expected.keys() - present.keys()
        marker = hooks[0]
        assert isinstance(marker, FencedHooks)
        hooks = list(definitions.fence.renew(hooks, marker))
        found = {each.id: each.revision for each in hooks[1:] if isinstance(each, Hooks)}
        assert found == expected
        both = [each for each in found if each in present and each not in missing]
        assert both == sorted(both)
