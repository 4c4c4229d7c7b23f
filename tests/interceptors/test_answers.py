"""Law 11: answering in the call's place, and what an `around` may give back."""

from __future__ import annotations

import dataclasses
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from hookline.calls import (
    AgentCall,
    AgentResult,
    Call,
    CompactResult,
    Deny,
    MemoryCall,
    MemoryResult,
    Message,
    ModelCall,
    ModelResponse,
    RequestCall,
    RequestResult,
    Respond,
    StepCall,
    StepResult,
    ToolCall,
    ToolResult,
)
from hookline.errors import HookDenied, HookReturnError
from tests.tables import for_each

from .calls import CALLS, Tool, after, around, before, guard, hook, run, statuses, tool_call, turns, until, with_args

pytestmark = pytest.mark.anyio

ANSWERING = pytest.mark.parametrize("kind", ["before", "around"])


def saying(value: Any) -> Any:
    async def handler(*args: Any) -> Any:
        return value

    return handler


TOOL_ANSWERS = {
    "text": ("42", ToolResult(content="42")),
    "empty text": ("", ToolResult(content="")),
    "result": (ToolResult(content="r", metadata={"rule": 1}), ToolResult(content="r", metadata={"rule": 1})),
    "mapping": ({"content": "m"}, ToolResult(content="m")),
    "whole mapping": (
        {"content": "m", "success": False, "metadata": {"a": 1}},
        ToolResult(content="m", success=False, metadata={"a": 1}),
    ),
    "exception": (ValueError("broken"), ToolResult(content="broken", success=False, error_type="ValueError")),
    "silent exception": (KeyError(), ToolResult(content="KeyError", success=False, error_type="KeyError")),
}


@ANSWERING
@for_each("name", TOOL_ANSWERS)
async def test_a_tool_call_is_answered_with_whatever_mock_takes(kind: str, name: str) -> None:
    answer, result = TOOL_ANSWERS[name]
    tool = Tool()

    outcome = await run([hook(kind, saying(Respond(answer)), id="mock")], terminal=tool)

    assert outcome.result == result
    assert outcome.denied is None
    assert tool.calls == []
    assert statuses(outcome) == [("mock", "mocked")]


OTHER_ANSWERS: dict[str, tuple[int, Any, Any]] = {
    "agent text": (0, "out", AgentResult(output="out")),
    "agent mapping": (0, {"output": "out"}, AgentResult(output="out")),
    "step mapping": (1, {"should_continue": True}, StepResult(should_continue=True)),
    "model text": (2, "said", ModelResponse(content="said")),
    "model empty text": (2, "", ModelResponse(content="")),
    "compact text": (4, "short", CompactResult(summary="short")),
    "sub-agent text": (5, "out", AgentResult(output="out")),
    "request mapping": (6, {"status": 403}, RequestResult(status=403)),
    "memory mapping": (7, {"stored": False}, MemoryResult(stored=False)),
}


@ANSWERING
@for_each("name", OTHER_ANSWERS)
async def test_other_calls_are_answered_with_text_or_a_mapping_of_their_results_fields(kind: str, name: str) -> None:
    index, answer, result = OTHER_ANSWERS[name]
    call, _ = CALLS[index]

    outcome = await run([hook(kind, saying(Respond(answer)), call=type(call))], call)

    assert outcome.result == result
    assert statuses(outcome) == [(kind, "mocked")]


@ANSWERING
@for_each(("call", "result"), CALLS, ids=lambda value: type(value).__name__)
async def test_every_call_is_answered_with_its_result_type(kind: str, call: Call, result: Any) -> None:
    outcome = await run([hook(kind, saying(Respond(result)), call=type(call))], call)

    assert outcome.result == result


@ANSWERING
@for_each(("call", "result"), [pair for pair in CALLS if not isinstance(pair[0], ToolCall)], ids=lambda value: type(value).__name__)  # fmt: skip
async def test_an_exception_that_answers_a_call_without_room_for_it_counts_as_raised(kind: str, call: Call, result: Any) -> None:  # fmt: skip
    broken = ValueError("broken")
    seen: list[BaseException] = []

    async def outer(call: Any, call_next: Any) -> Any:
        try:
            return await call_next(call)
        except ValueError as error:
            seen.append(error)
            raise

    with pytest.raises(ValueError, match="broken") as caught:
        await run([around(outer, call=type(call)), hook(kind, saying(Respond(broken)), call=type(call))], call)

    assert caught.value is broken
    assert seen == [broken]


WRONG_ANSWERS: dict[str, Any] = {
    "none": None,
    "number": 42,
    "list": ["text"],
    "exception class": ValueError,
    "base exception": KeyboardInterrupt(),
    "mapping without content": {"success": True},
    "mapping with unknown keys": {"content": "x", "sucess": False},
    "bytes": b"x",
    "another call's result": AgentResult(output="x"),
    "a decision": Deny("no"),
    "content that is no text": {"content": 3},
}


@ANSWERING
@for_each("name", WRONG_ANSWERS)
@for_each("on_error", ["open", "closed"])
async def test_a_tool_call_cannot_be_answered_with_anything_else(kind: str, name: str, on_error: str) -> None:
    tool = Tool()

    outcome = await run([hook(kind, saying(Respond(WRONG_ANSWERS[name])), on_error=on_error)], terminal=tool)

    assert statuses(outcome) == [(kind, "error")]
    assert (outcome.denied is None) == (on_error == "open")
    assert len(tool.calls) == (on_error == "open")


UNFIT: list[tuple[type, Any, str]] = [
    (ModelCall, 42, "must be a ModelResponse, a str, a mapping of its fields, or an Exception instance; got int"),
    (AgentCall, ["x"], "must be a AgentResult, a str, a mapping of its fields, or an Exception instance; got list"),
    (StepCall, "text", "must be a StepResult, a mapping of its fields, or an Exception instance; got str"),
    (MemoryCall, ToolResult(content="x"), "must be a MemoryResult, a mapping of its fields"),
    (RequestCall, ValueError, "must be a RequestResult, a mapping of its fields"),
    (RequestCall, {"status": "fine"}, "These are not fields of a RequestResult"),
    (ModelCall, ModelResponse(content=None), "gave a ModelResponse whose `content` is None"),  # type: ignore[arg-type]
    (MemoryCall, MemoryResult(stored="yes"), "gave a MemoryResult whose `stored` is 'yes'"),  # type: ignore[arg-type]
]


@ANSWERING
@for_each(("of", "answer", "problem"), UNFIT, ids=lambda value: getattr(value, "__name__", str(value)[:30]))
async def test_an_answer_that_does_not_fit_the_call_says_what_would(
    kind: str, of: type, answer: Any, problem: str
) -> None:
    call, result = next(pair for pair in CALLS if type(pair[0]) is of)
    tool = Tool(result)
    closed = await run([hook(kind, saying(Respond(answer)), call=of)], call, tool)
    assert tool.calls == []
    opened = await run([hook(kind, saying(Respond(answer)), call=of, on_error="open")], call, tool)

    assert closed.denied is not None
    assert problem in closed.denied.reason
    assert opened.result is result
    assert statuses(closed) == statuses(opened) == [(kind, "error")]


@for_each("same", [False, True])
async def test_an_around_may_give_its_result_before_call_next_has_ended(*, same: bool) -> None:
    tool = Tool()
    given = tool.answer if same else ToolResult(content="other")

    async def terminal(call: Any) -> Any:
        result = await tool(call)
        await turns(5)
        return result

    async with anyio.create_task_group() as group:

        async def early(call: Any, call_next: Any) -> Any:
            group.start_soon(call_next, call)
            await until(lambda: tool.calls)
            return given

        outcome = await run([around(early)], terminal=terminal)

    assert outcome.result is given
    assert len(tool.calls) == 1
    assert [(each.status, each.decision) for each in outcome.executions] == [("ok", "" if same else "changed")]


# --- who sees an answer


async def test_an_answer_ends_the_way_in_and_hooks_outside_of_it_see_it() -> None:
    seen: list[Any] = []
    tool = Tool()

    async def waiting(call: Any, call_next: Any) -> Any:
        result = await call_next(call)
        seen.append(("around", result.content))
        return result

    hooks = [
        after(lambda call, result: seen.append(("after", result.content)), priority=0),
        around(waiting, priority=1),
        before(lambda call: Respond("42"), priority=2, id="mock"),
        after(lambda call, result: seen.append("inner after"), priority=3),
        before(lambda call: seen.append("inner before"), priority=4),
        guard(lambda call: seen.append("guard")),
    ]
    outcome = await run(hooks, terminal=tool)

    assert seen == [("around", "42"), ("after", "42")]
    assert outcome.result.content == "42"
    assert tool.calls == []
    assert statuses(outcome) == [("around", "ok"), ("mock", "mocked"), ("after", "ok")]


async def test_the_first_answer_wins() -> None:
    outcome = await run([before(lambda call: Respond("1"), priority=1), before(lambda call: Respond("2"), priority=2)])

    assert outcome.result.content == "1"
    assert len(outcome.executions) == 1


async def test_a_hook_outside_of_an_answer_may_change_or_refuse_it() -> None:
    mock = before(lambda call: Respond("secret"))

    changed = await run([after(lambda call, result: ToolResult(content="public"), priority=0), mock])
    refused = await run([after(lambda call, result: Deny("secret"), priority=0), mock])

    assert changed.result.content == "public"
    assert refused.denied is not None
    assert refused.result is None


async def test_the_call_of_an_answered_outcome_is_the_call_that_was_answered() -> None:
    hooks = [before(lambda call: with_args(call, n=1)), before(lambda call: Respond("x"))]

    outcome = await run(hooks)

    assert outcome.call.args == {"q": "x", "n": 1}


# --- around


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_an_around_that_returns_a_result_without_call_next_has_answered(*, is_async: bool) -> None:
    answer = ToolResult(content="42")
    tool, seen = Tool(), []

    handler = saying(answer) if is_async else lambda call, call_next: answer
    outcome = await run([around(handler), guard(lambda call: seen.append("guard"))], terminal=tool)

    assert outcome.result is answer
    assert (tool.calls, seen) == ([], [])
    assert statuses(outcome) == [("around", "mocked")]


async def test_an_around_gives_what_call_next_gave() -> None:
    async def transparent(call: Any, call_next: Any) -> Any:
        return await call_next(call)

    tool = Tool()
    outcome = await run([around(transparent)], terminal=tool)

    assert outcome.result is tool.answer
    assert statuses(outcome) == [("around", "ok")]


async def test_a_forgotten_return_after_call_next_means_unchanged_and_runs_nothing_again() -> None:
    async def forgetful(call: Any, call_next: Any) -> None:
        await call_next(with_args(call, q="changed"))

    tool = Tool()
    outcome = await run([around(forgetful, on_error="open", priority=n) for n in range(3)], terminal=tool)

    assert outcome.result is tool.answer
    assert len(tool.calls) == 1
    assert statuses(outcome) == [("around", "ok")] * 3


@pytest.mark.parametrize("on_error", ["open", "closed"])
async def test_an_around_that_forgets_call_next_does_not_skip_the_guards_silently(on_error: str) -> None:
    judged: list[Any] = []
    tool = Tool()

    async def forgetful(call: Any, call_next: Any) -> None:
        return None

    outcome = await run([around(forgetful, on_error=on_error), guard(lambda call: judged.append(call))], terminal=tool)

    assert outcome.executions[0].status == "error"
    if on_error == "open":
        assert len(judged) == len(tool.calls) == 1
        assert outcome.result is tool.answer
    else:
        assert judged == tool.calls == []
        with pytest.raises(HookDenied) as caught:
            outcome.unwrap()
        cause = caught.value.__cause__
        assert cause is not None
        assert isinstance(cause.__cause__, HookReturnError)


async def test_another_result_after_call_next_replaces_the_first() -> None:
    async def other(call: Any, call_next: Any) -> ToolResult:
        await call_next(call)
        return ToolResult(content="other")

    tool = Tool()
    outcome = await run([around(other)], terminal=tool)

    assert outcome.result.content == "other"
    assert len(tool.calls) == 1
    assert statuses(outcome) == [("around", "ok")]


async def test_an_around_may_respond_after_call_next() -> None:
    async def other(call: Any, call_next: Any) -> Respond:
        await call_next(call)
        return Respond({"content": "other", "success": False})

    tool = Tool()
    outcome = await run([around(other)], terminal=tool)

    assert outcome.result == ToolResult(content="other", success=False)
    assert len(tool.calls) == 1


async def test_a_plain_around_that_returns_call_next_unawaited_is_awaited() -> None:
    tool = Tool()

    outcome = await run([around(lambda call, call_next: call_next(with_args(call, n=1)))], terminal=tool)

    assert outcome.result is tool.answer
    assert tool.calls[0].args == {"q": "x", "n": 1}
    assert statuses(outcome) == [("around", "ok")]


async def test_a_second_call_next_gives_the_first_outcome() -> None:
    results: list[Any] = []
    tool, seen = Tool(), []

    async def twice(call: Any, call_next: Any) -> Any:
        results.extend([await call_next(with_args(call, n=n)) for n in range(3)])
        return results[-1]

    inner = [before(lambda call: seen.append("before")), guard(lambda call: seen.append("guard")), after(lambda call, result: seen.append("after"))]  # fmt: skip
    outcome = await run([around(twice), *inner], terminal=tool)

    assert results == [tool.answer] * 3
    assert seen == ["before", "guard", "after"]
    assert [call.args["n"] for call in tool.calls] == [0]
    assert outcome.call is tool.calls[0]


async def test_a_second_call_next_after_a_failed_one_raises_the_first_error() -> None:
    broken = ValueError("tool broke")

    async def retry(call: Any, call_next: Any) -> Any:
        with pytest.raises(ValueError, match="tool broke"):
            await call_next(call)
        return await call_next(call)

    tool = Tool(error=broken)
    with pytest.raises(ValueError, match="tool broke") as caught:
        await run([around(retry)], terminal=tool)

    assert caught.value is broken
    assert len(tool.calls) == 1


@for_each("times", [1, 2])
@for_each("on_error", ["open", "closed"])
async def test_a_terminal_that_gives_none_runs_once_all_the_same(times: int, on_error: str) -> None:
    calls: list[Any] = []

    async def nothing(call: Any) -> None:
        calls.append(call)

    async def again(call: Any, call_next: Any) -> Any:
        result = None
        for _ in range(times):
            result = await call_next(call)
        return result

    outcome = await run([around(again, on_error=on_error)], terminal=nothing)

    assert len(calls) == 1
    assert outcome.denied is None
    assert statuses(outcome) == [("around", "ok")]


@dataclasses.dataclass
class Anything:
    value: int


async def test_a_result_that_is_of_no_known_class_passes_through_untouched() -> None:
    async def transparent(call: Any, call_next: Any) -> Any:
        return await call_next(call)

    strange = Anything(3)
    outcome = await run([around(transparent), after(lambda call, result: None)], terminal=Tool(strange))

    assert outcome.result is strange
    assert outcome.denied is None


async def test_a_rate_limiter_a_cache_and_a_retry_free_fallback_can_be_written_as_arounds() -> None:
    cache: dict[str, ToolResult] = {}

    async def remember(call: ToolCall, call_next: Any) -> ToolResult:
        key = repr(sorted(call.args.items()))
        if key not in cache:
            cache[key] = await call_next(call)
        return cache[key]

    tool = Tool()
    outcomes = [await run([around(remember)], tool_call(args={"n": n}), tool) for n in (1, 2, 1, 2)]

    assert len(tool.calls) == 2
    assert [outcome.executions[0].status for outcome in outcomes] == ["ok", "ok", "mocked", "mocked"]


async def test_an_agent_call_is_not_answered_by_a_continue() -> None:
    from hookline.calls import Continue

    call, result = CALLS[0]
    outcome = await run([around(saying(Continue("more")), call=AgentCall)], call, Tool(result))

    assert outcome.denied is not None
    assert outcome.continues == []


def test_the_input_of_a_run_may_be_given_as_text() -> None:
    call = AgentCall(input="hi")  # type: ignore[arg-type]

    assert call == AgentCall(input=[Message(role="user", content="hi")])
    assert replace(call, input="more").input == [Message(role="user", content="more")]
