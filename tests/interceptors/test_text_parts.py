"""What a chain says of hooks that judge text, and hooks that judge it in parts where nobody reads it meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from hookline.calls import Deny, ModelCall, ModelResponse, ToolCall
from hookline.hooks import TextParts
from hookline.interceptors import Chain, Interceptor
from tests.tables import for_each

from .calls import Tool, hook, replace, run, statuses

pytestmark = pytest.mark.anyio

CALL = ModelCall(messages=[])
EACH = TextParts(max_chars=1)


def of_model(kind: str, handler: Any = lambda *args: None, **options: Any) -> Interceptor:
    return hook(kind, handler, call=ModelCall, **options)


IN_PARTS = of_model("after", parts=EACH)

HELD: list[tuple[list[Interceptor], bool]] = [
    ([], False),
    ([of_model("before")], False),
    ([of_model("guard")], False),
    ([of_model("around")], True),
    ([of_model("after")], True),
    ([of_model("before"), of_model("after")], True),
    ([of_model("after", wait=False)], False),
    ([of_model("after", shadow=True)], False),
    ([of_model("around", shadow=True)], False),
    ([of_model("after", hold_text=False)], False),
    ([of_model("after", hold_text=False), of_model("around")], True),
    ([of_model("after", tenant_id="acme")], True),
    ([of_model("after", tenant_id="globex")], False),
    ([hook("after", lambda *args: None, call=ToolCall)], False),
    ([IN_PARTS], True),
]


@for_each(("hooks", "held"), HELD)
def test_text_is_held_where_a_hook_that_is_waited_for_judges_the_result(hooks: list[Any], *, held: bool) -> None:
    assert Chain(hooks).judges_result(ModelCall, "acme") is held


def test_text_is_held_for_the_tenant_of_the_hook_alone() -> None:
    chain = Chain([of_model("after", tenant_id="acme", parts=EACH)])

    assert [chain.judges_result(ModelCall, tenant) for tenant in ("acme", "globex", "")] == [True, False, False]
    assert [chain.judges_parts(ModelCall, tenant) for tenant in ("acme", "globex", "")] == [True, False, False]
    assert not chain.judges_result(ModelCall)
    assert not chain.judges_parts(ModelCall)


BESIDE: list[tuple[Interceptor | None, bool]] = [
    (None, True),
    (IN_PARTS, True),
    (of_model("before"), True),
    (of_model("guard"), True),
    (of_model("after", wait=False), True),
    (of_model("after", shadow=True), True),
    (of_model("around", shadow=True), True),
    (of_model("after", hold_text=False), True),
    (of_model("after", tenant_id="globex"), True),
    (of_model("after", tenant_id="acme"), False),
    (of_model("after"), False),
    (of_model("around"), False),
]


@for_each(("beside", "in_parts"), BESIDE)
def test_text_is_judged_in_parts_where_each_hook_that_can_withhold_it_does_so(beside: Any, *, in_parts: bool) -> None:
    hooks = [] if beside is None else [beside]

    assert Chain([IN_PARTS, *hooks]).judges_parts(ModelCall, "acme") is in_parts
    assert Chain([*hooks, IN_PARTS]).judges_parts(ModelCall, "acme") is in_parts
    assert not Chain([IN_PARTS, *hooks]).judges_parts(ToolCall, "acme")


@for_each("hooks", [[], [of_model("before")], [of_model("after")], [replace(IN_PARTS, shadow=True)]])
def test_nothing_is_judged_in_parts_where_no_hook_does_so(hooks: list[Any]) -> None:
    assert not Chain(hooks).judges_parts(ModelCall)


@for_each("is_async", [False, True])
async def test_where_nobody_reads_meanwhile_hooks_judge_the_whole_answer_one_after_the_other(*, is_async: bool) -> None:
    def adding(text: str) -> Any:
        async def later(call: Any, result: Any) -> Any:
            return replace(result, content=result.content + text)

        return later if is_async else lambda call, result: replace(result, content=result.content + text)

    hooks = [
        of_model("after", adding("1"), priority=3, parts=EACH, id="first"),
        of_model("after", adding("2"), priority=2, id="second"),
        of_model("after", adding("3"), priority=1, parts=EACH, id="third"),
    ]
    outcome = await run(hooks, CALL, Tool(ModelResponse(content="0")))

    assert outcome.result.content == "0123"
    assert statuses(outcome) == [("first", "ok"), ("second", "ok"), ("third", "ok")]


async def test_a_denial_of_the_whole_answer_keeps_hooks_further_out_from_it() -> None:
    hooks = [
        of_model("after", lambda call, result: Deny("no"), priority=2, parts=EACH, id="denies"),
        of_model("after", priority=1, parts=EACH, id="outer"),
    ]
    outcome = await run(hooks, CALL, Tool(ModelResponse(content="secret")))

    assert outcome.denied is not None
    assert outcome.result is None
    assert statuses(outcome) == [("denies", "denied")]
