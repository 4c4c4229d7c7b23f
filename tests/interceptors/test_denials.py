"""Law 4 and the denials of law 9: a refusal ends the way in, is sticky, and is told as a refusal and not as a failure."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest

from hookline.calls import Ask, Call, Denial, Deny, Respond, ToolCall, ToolResult
from hookline.errors import HookDenied
from hookline.interceptors import Chain
from tests.tables import for_each

from .calls import CALLS, Tool, after, around, before, guard, hook, lead, run, statuses, tool_call, with_args

pytestmark = pytest.mark.anyio

KINDS = ["before", "guard", "around", "after"]


def saying(value: Any) -> Any:
    """A handler for any kind of hook."""

    async def handler(*args: Any) -> Any:
        return value

    return handler


@for_each("kind", KINDS)
@for_each("on_error", ["open", "closed"])
async def test_every_kind_of_hook_can_refuse_the_call_with_a_reason(kind: str, on_error: str) -> None:
    tool = Tool()

    outcome = await run([hook(kind, saying(Deny("because")), id="judge", on_error=on_error)], terminal=tool)

    assert outcome.denied == Denial(hook_id="judge", reason="because")
    assert outcome.result is None
    assert outcome.asked is None
    assert len(tool.calls) == (kind == "after")
    assert statuses(outcome) == [("judge", "denied")]


@for_each("kind", KINDS)
@for_each(("call", "result"), CALLS, ids=lambda value: type(value).__name__)
async def test_every_class_of_calls_can_be_refused(kind: str, call: Call, result: Any) -> None:
    outcome = await run([hook(kind, saying(Deny("no")), call=type(call))], call, Tool(result))

    assert outcome.denied == Denial(hook_id=kind, reason="no")
    assert outcome.result is None


async def test_unwrap_of_a_denial_raises_who_and_why() -> None:
    outcome = await run([before(lambda call: Deny("because"), id="judge")])

    with pytest.raises(HookDenied, match="because") as caught:
        outcome.unwrap()
    assert (caught.value.hook_id, caught.value.reason) == ("judge", "because")
    assert caught.value.__cause__ is None
    with pytest.raises(HookDenied):
        outcome.unwrap()


async def test_unwrap_of_a_call_that_happened_is_its_result() -> None:
    outcome = await run([before(lambda call: None)], terminal=Tool("fine"))

    assert outcome.unwrap() == ToolResult(content="fine")


async def test_a_denial_is_not_logged_as_an_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "hookline")

    await run([before(lambda call: Deny("because"))])

    assert caplog.records == []


async def test_the_first_denial_ends_the_way_in() -> None:
    seen: list[str] = []
    tool = Tool()
    hooks = [
        before(lambda call: seen.append("outer"), priority=1),
        before(lambda call: Deny("first"), priority=2, id="first"),
        before(lambda call: Deny("second"), priority=3),
        around(lambda call, call_next: seen.append("around"), priority=4),
        guard(lambda call: seen.append("guard")),
        after(lambda call, result: seen.append("after"), priority=0),
    ]

    outcome = await run(hooks, terminal=tool)

    assert seen == ["outer"]
    assert tool.calls == []
    assert outcome.denied == Denial(hook_id="first", reason="first")


async def test_the_first_of_two_guards_that_refuse_is_the_one_that_did() -> None:
    hooks = [guard(lambda call: Deny("late"), priority=9, id="late"), guard(lambda call: Deny("early"), id="early", priority=1)]  # fmt: skip

    outcome = await run(hooks)

    assert outcome.denied == Denial(hook_id="early", reason="early")
    assert statuses(outcome) == [("early", "denied")]


@for_each("kind", ["before", "guard", "around", "after"])
async def test_call_next_raises_the_denial_in_the_arounds_that_wait_for_it(kind: str) -> None:
    caught: list[HookDenied] = []

    async def waiting(call: Any, call_next: Any) -> Any:
        try:
            return await call_next(call)
        except HookDenied as error:
            caught.append(error)
            raise

    hooks = [around(waiting, priority=1), around(waiting, priority=2), hook(kind, saying(Deny("no")), id="judge")]
    outcome = await run(hooks)

    assert [(error.hook_id, error.reason) for error in caught] == [("judge", "no")] * 2
    assert outcome.denied == Denial(hook_id="judge", reason="no")


@for_each("kind", ["before", "guard", "around", "after"])
@for_each("refusal", [Deny("no"), Ask("really?")], ids=["deny", "ask"])
@for_each(
    "instead",
    [
        ToolResult(content="overruled"),
        Respond("overruled"),
        None,
        Deny("mine"),
        Ask("mine?"),
        "wrong",
        ValueError("mine"),
    ],
    ids=["result", "respond", "none", "deny", "ask", "wrong value", "raises"],
)
@for_each("on_error", ["open", "closed"])
async def test_a_denial_is_not_cleared_by_an_outer_hook(kind: str, refusal: Any, instead: Any, on_error: str) -> None:
    async def overrule(call: Any, call_next: Any) -> Any:
        with pytest.raises(HookDenied):
            await call_next(call)
        if isinstance(instead, Exception):
            raise instead
        return instead

    tool = Tool()
    judge = around if kind == "after" else lambda handler, **options: hook(kind, handler, **options)
    outcome = await run(
        [
            after(lambda call, result: ToolResult(content="overruled"), priority=0),
            around(overrule, priority=1, on_error=on_error),
            judge(saying(refusal), id="judge") if kind != "after" else after(saying(Deny("no")), id="judge"),
        ],
        terminal=tool,
    )

    assert outcome.result is None
    assert outcome.denied is not None
    assert outcome.denied.hook_id == "judge"
    assert outcome.denied.reason in ("no", "really?")
    assert len(tool.calls) == (kind == "after")
    with pytest.raises(HookDenied, match="judge"):
        outcome.unwrap()


async def test_call_next_again_after_a_denial_raises_it_again() -> None:
    async def persistent(call: Any, call_next: Any) -> Any:
        for _ in range(3):
            with pytest.raises(HookDenied, match="no"):
                await call_next(call)
        with pytest.raises(HookDenied, match="no"):
            await call_next(with_args(call, q="something harmless"))
        return ToolResult(content="overruled")

    tool, asked = Tool(), []

    outcome = await run([around(persistent), guard(lambda call: asked.append(call) or Deny("no"))], terminal=tool)

    assert outcome.denied == Denial(hook_id="guard", reason="no")
    assert (len(asked), len(tool.calls)) == (1, 0)


async def test_no_after_hook_runs_after_a_denial() -> None:
    seen: list[str] = []
    hooks = [
        after(lambda call, result: seen.append("outer"), priority=0),
        guard(lambda call: Deny("no")),
        after(lambda call, result: seen.append("inner"), priority=999),
    ]

    await run(hooks)
    assert seen == []

    await run([hooks[0], hooks[2], after(lambda call, result: Deny("withheld"), priority=500)])
    assert seen == ["inner"]


async def test_cleaning_up_after_a_denial_is_possible() -> None:
    log: list[str] = []

    async def lock(call: Any, call_next: Any) -> Any:
        log.append("locked")
        try:
            return await call_next(call)
        finally:
            await anyio.sleep(0)
            log.append("unlocked")

    outcome = await run([around(lock, id="lock"), guard(lambda call: Deny("no"))])

    assert log == ["locked", "unlocked"]
    assert statuses(outcome) == [("lock", "ok"), ("guard", "denied")]


async def test_an_around_that_refuses_after_the_call_happened_withholds_the_result() -> None:
    async def censor(call: Any, call_next: Any) -> Any:
        await call_next(call)
        return Deny("secret")

    tool = Tool()
    outcome = await run([around(censor, id="censor")], terminal=tool)

    assert len(tool.calls) == 1
    assert outcome.denied == Denial(hook_id="censor", reason="secret")
    assert outcome.result is None


@for_each("stop", [True, False])
@for_each("kind", KINDS)
async def test_a_denial_may_ask_for_the_end_of_the_run(kind: str, *, stop: bool) -> None:
    outcome = await run([hook(kind, saying(Deny("enough", stop=stop)))])

    assert outcome.stop is stop


async def test_an_outer_hook_cannot_add_or_take_the_end_of_the_run() -> None:
    async def swallow(call: Any, call_next: Any) -> Any:
        with pytest.raises(HookDenied):
            await call_next(call)
        return Deny("mine", stop=True)

    outcome = await run([around(swallow), guard(lambda call: Deny("no"))])
    assert outcome.stop is False

    async def soften(call: Any, call_next: Any) -> Any:
        with pytest.raises(HookDenied):
            await call_next(call)
        return Deny("mine", stop=False)

    outcome = await run([around(soften), guard(lambda call: Deny("no", stop=True))])
    assert outcome.stop is True


async def test_the_call_of_a_denied_outcome_is_the_call_that_was_refused() -> None:
    hooks = [before(lambda call: with_args(call, q="rewritten")), guard(lambda call: Deny("no"))]

    outcome = await run(hooks)

    assert outcome.call.args == {"q": "rewritten"}


# --- asking


@for_each("kind", ["before", "guard", "around"])
async def test_an_ask_in_a_bare_chain_is_a_denial_that_says_what_to_ask(kind: str) -> None:
    tool = Tool()

    outcome = await run([hook(kind, saying(Ask("really?")), id="judge")], terminal=tool)

    assert outcome.asked == Ask("really?")
    assert outcome.denied == Denial(hook_id="judge", reason="really?")
    assert outcome.result is None
    assert tool.calls == []
    assert statuses(outcome) == [("judge", "denied")]
    with pytest.raises(HookDenied, match=r"really\?"):
        outcome.unwrap()


async def test_an_ask_after_the_call_happened_is_a_plain_denial() -> None:
    async def late(call: Any, call_next: Any) -> Any:
        await call_next(call)
        return Ask("really?")

    outcome = await run([around(late, id="late")])

    assert outcome.asked is None
    assert outcome.denied == Denial(hook_id="late", reason="really?")


async def test_nobody_but_a_person_lifts_an_ask() -> None:
    async def lift(call: Any, call_next: Any) -> Any:
        with pytest.raises(HookDenied):
            await call_next(call)
        return ToolResult(content="I say yes")

    outcome = await run([around(lift), guard(lambda call: Ask("really?"))])

    assert outcome.asked == Ask("really?")
    assert outcome.result is None


async def test_the_first_ask_ends_the_way_in_even_before_a_later_deny() -> None:
    outcome = await run([guard(lambda call: Ask("really?"), priority=1), guard(lambda call: Deny("no"), priority=2)])

    assert outcome.asked == Ask("really?")
    assert statuses(outcome) == [("guard", "denied")]


async def test_a_denial_is_no_ask() -> None:
    async def overrule(call: Any, call_next: Any) -> Any:
        with pytest.raises(HookDenied):
            await call_next(call)
        return Ask("but really?")

    outcome = await run([around(overrule), guard(lambda call: Deny("no"))])

    assert outcome.asked is None
    assert outcome.denied == Denial(hook_id="guard", reason="no")


# --- chains in chains


async def test_the_denial_of_a_chain_inside_of_the_terminal_passes_through_unblamed() -> None:
    inner = Chain([guard(lambda call: Deny("inner no"), id="inner guard")])
    seen: list[HookDenied] = []

    async def terminal(call: Any) -> Any:
        return (await inner.run(call, Tool())).unwrap()

    async def waiting(call: Any, call_next: Any) -> Any:
        try:
            return await call_next(call)
        except HookDenied as error:
            seen.append(error)
            raise

    outer = Chain([around(waiting, id="outer"), before(lambda call: None)])
    with pytest.raises(HookDenied, match="inner no") as caught:
        await lead(outer, terminal=terminal)

    assert seen == [caught.value]
    assert caught.value.hook_id == "inner guard"


async def test_an_outer_hook_may_answer_for_a_chain_inside_of_the_terminal() -> None:
    inner = Chain([guard(lambda call: Deny("inner no"))])

    async def terminal(call: Any) -> Any:
        return (await inner.run(call, Tool())).unwrap()

    async def fall_back(call: Any, call_next: Any) -> Any:
        try:
            return await call_next(call)
        except HookDenied as error:
            return ToolResult(content=error.reason)

    outcome = await run([around(fall_back)], terminal=terminal)

    assert outcome.denied is None
    assert outcome.result.content == "inner no"


async def test_a_hook_may_run_a_chain_of_its_own() -> None:
    inner = Chain([guard(lambda call: Deny("inner no"), id="inner")])

    async def consult(call: ToolCall) -> Deny | None:
        outcome = await inner.run(call, Tool())
        return Deny(f"I asked: {outcome.denied.reason}") if outcome.denied else None

    outcome = await run([before(consult, id="outer")])

    assert outcome.denied == Denial(hook_id="outer", reason="I asked: inner no")


async def test_a_chain_may_be_run_again_from_inside_of_itself() -> None:
    async def deeper(call: ToolCall, call_next: Any) -> Any:
        if call.args["depth"]:
            inner = await chain.run(with_args(call, depth=call.args["depth"] - 1), tool)
            return ToolResult(content=inner.unwrap().content + "+")
        return await call_next(call)

    chain, tool = Chain([around(deeper)]), Tool("x")
    outcome = await lead(chain, tool_call(args={"depth": 3}), tool)

    assert outcome.result.content == "x+++"
    assert len(tool.calls) == 1
