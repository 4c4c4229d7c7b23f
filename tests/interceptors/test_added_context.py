"""`add_context`: whose text it is, what replaces it, what it survives, and where it is refused."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.calls import AddedContext, AgentCall, AgentResult, Ask, Deny, Message, Respond, ToolCall, ToolResult
from hookline.errors import HookUsageError
from hookline.hooks import Hooks
from hookline.interceptors import Chain
from tests.tables import for_each

from .calls import Tool, after, around, before, guard, lead, replace, run, statuses, tool_call, turns

pytestmark = pytest.mark.anyio


def texts(outcome: Any) -> list[tuple[str, str]]:
    return [(each.hook_id, each.text) for each in outcome.context]


def adds(*given: str) -> Any:
    """A handler that adds these, one after the other."""

    def handler(call: ToolCall, *rest: Any) -> None:
        for text in given:
            call.add_context(text)

    return handler


async def test_hooks_of_each_kind_add_context_in_their_own_name() -> None:
    async def surround(call: ToolCall, call_next: Any) -> ToolResult:
        result: ToolResult = await call_next(call)
        call.add_context("from around")
        return result

    hooks = [around(surround), before(adds("from before")), guard(adds("from guard")), after(adds("from after"))]

    outcome = await run(hooks)

    assert texts(outcome) == [
        ("before", "from before"),
        ("guard", "from guard"),
        ("after", "from after"),
        ("around", "from around"),
    ]
    assert outcome.result.content == "result"  # the chain leaves the result as it is; who runs the call shows the texts


async def test_a_second_text_of_the_same_hook_replaces_the_first_one() -> None:
    outcome = await run([before(adds("one"), id="a"), before(adds("first", "second"), id="b")])

    assert texts(outcome) == [("a", "one"), ("b", "second")]


async def test_an_around_replaces_on_its_way_out_what_it_added_on_its_way_in() -> None:
    async def surround(call: ToolCall, call_next: Any) -> ToolResult:
        call.add_context("in")
        result: ToolResult = await call_next(call)
        call.add_context("out")
        return result

    outcome = await run([around(surround), before(adds("inner"))])

    assert texts(outcome) == [("around", "out"), ("before", "inner")]


async def test_two_hooks_with_the_same_id_do_not_replace_each_others_texts() -> None:
    added = ("one", "two", "three")

    outcome = await run([before(adds(text), id=f"same {len(added)}") for text in added])

    assert texts(outcome) == [("same 3", text) for text in added]
    assert [each.nth for each in outcome.context] == [0, 1, 2]


async def test_copies_of_a_call_share_its_context() -> None:
    def rewrite(call: ToolCall) -> ToolCall:
        changed = replace(call, args={"q": "y"}, metadata={**call.metadata, "seen": True})
        call.with_args(q="z").add_context("on another copy")
        return changed

    def judge(call: ToolCall) -> None:
        assert call.args == {"q": "y"}
        call.add_context("on the changed call")

    outcome = await run([before(rewrite), guard(judge)])

    assert texts(outcome) == [("before", "on another copy"), ("guard", "on the changed call")]


@for_each("ending", ["denies", "asks", "raises", "answers", "raises, open"])
async def test_a_text_survives_what_becomes_of_its_hook_and_of_the_call(ending: str) -> None:
    def handler(call: ToolCall) -> Any:
        call.add_context("why")
        if ending.startswith("raises"):
            raise RuntimeError("broken")
        return {"denies": Deny("no"), "asks": Ask("may it?"), "answers": Respond("mine")}[ending]

    outcome = await run([before(handler, on_error="open" if ending.endswith("open") else "closed")])

    assert texts(outcome) == [("before", "why")]
    assert (outcome.result is None) is (ending in ("denies", "asks", "raises"))


async def test_a_text_survives_a_hook_that_takes_too_long() -> None:
    async def handler(call: ToolCall) -> None:
        call.add_context("before the timeout")
        await anyio.sleep_forever()

    outcome = await run([before(handler, timeout=0.01, on_error="open")])

    assert texts(outcome) == [("before", "before the timeout")]
    assert statuses(outcome) == [("before", "timeout")]


async def test_an_empty_text_takes_one_back() -> None:
    (added,) = (await run([before(adds("one", ""))])).context

    assert added == AddedContext(hook_id="before", text="")


@pytest.mark.parametrize(
    "call", [ToolCall(tool_name="search"), AgentCall(input=[Message(role="user", content="hi")])], ids=["tool", "agent"]
)
async def test_a_call_that_no_chain_runs_refuses_context(call: Any) -> None:
    with pytest.raises(HookUsageError, match="not running"):
        call.add_context("text")

    async def terminal(final: Any) -> Any:
        return ToolResult(content="x") if isinstance(final, ToolCall) else AgentResult(output="x")

    kept: list[Any] = []
    await Chain([before(kept.append, call=type(call))]).run(call, terminal)
    with pytest.raises(HookUsageError, match="not running"):
        kept[0].add_context("text")


async def test_a_chain_without_hooks_for_the_call_does_not_take_context() -> None:
    async def terminal(call: ToolCall) -> ToolResult:
        with pytest.raises(HookUsageError, match="not running"):
            call.add_context("text")
        return ToolResult(content="x")

    await Chain([]).run(tool_call(), terminal)


async def test_what_the_chain_surrounds_is_no_hook() -> None:
    async def terminal(call: ToolCall) -> ToolResult:
        with pytest.raises(HookUsageError, match="no hook was running"):
            call.add_context("text")
        return ToolResult(content="x")

    assert texts(await run([before(lambda call: None)], terminal=terminal)) == []


@for_each("text", [None, 3, b"text", ["text"]])
async def test_a_text_that_is_none_is_an_error_of_the_hook(text: Any) -> None:
    outcome = await run([before(lambda call: call.add_context(text))])

    assert outcome.denied is not None
    assert "add_context takes a text" in outcome.denied.reason
    assert outcome.context == []


@for_each("kind", ["before", "after"])
@for_each("is_async", [False, True], ids=["sync", "async"])
async def test_a_hook_that_nobody_waits_for_cannot_add_context_to_its_call(kind: str, *, is_async: bool) -> None:
    """Another hook has its turn meanwhile, and the text must not come in its name."""

    def add(call: ToolCall, *rest: Any) -> None:
        call.add_context("too late")

    async def add_later(call: ToolCall, *rest: Any) -> None:
        call.add_context("too late")

    async def slow(call: ToolCall, result: ToolResult) -> None:
        await turns()

    hooks = Hooks("beside")
    getattr(hooks, kind)(ToolCall, wait=False, id="beside")(add_later if is_async else add)

    outcome = await lead(Chain([hooks, after(slow, id="slow")]))

    assert texts(outcome) == []
    assert ("beside", "error") in statuses(outcome)


async def test_a_chain_inside_of_a_hook_does_not_take_over_the_call() -> None:
    async def asks_another_chain(call: ToolCall) -> None:
        inner = await Chain([guard(adds("inner"), id="inner")]).run(call, Tool())
        assert texts(inner) == [("inner", "inner")]
        call.add_context("outer")

    outcome = await run([before(asks_another_chain, id="outer"), guard(adds("guarded"))])

    assert texts(outcome) == [("outer", "outer"), ("guard", "guarded")]


async def test_calls_that_run_at_once_keep_their_context_apart() -> None:
    async def add(call: ToolCall) -> None:
        await turns(int(call.args["n"]))
        call.add_context(call.tool_call_id)

    chain, outcomes = Chain([before(add)]), {}

    async def one(n: int) -> None:
        outcomes[f"t{n}"] = await chain.run(tool_call(tool_call_id=f"t{n}", args={"n": 5 - n}), Tool())

    async with anyio.create_task_group() as group:
        for n in range(5):
            group.start_soon(one, n)

    assert {name: texts(outcome) for name, outcome in outcomes.items()} == {
        f"t{n}": [("before", f"t{n}")] for n in range(5)
    }


async def test_a_call_has_no_trace_of_its_context() -> None:
    """Calls are compared, shown and sent to other processes as their fields are."""
    outcome = await run([before(adds("text"))])

    assert outcome.call == tool_call()
    assert outcome.call.metadata == {}


STEPS = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["", "a", "b", "c"])), max_size=12)


@given(STEPS)
def test_the_last_text_of_each_hook_stands_where_the_hook_first_added_one(steps: list[tuple[int, str]]) -> None:
    added: dict[int, list[str]] = {}
    for hook, text in steps:
        added.setdefault(hook, []).append(text)

    outcome = anyio.run(run, [before(adds(*added[n]), id=f"h{n}") for n in sorted(added)])

    assert texts(outcome) == [(f"h{n}", added[n][-1]) for n in sorted(added)]
