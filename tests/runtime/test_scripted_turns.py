"""Scripts in few words: turns as texts and tool requests, requests by position, ids that a run gives."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hookline import (
    AfterStep,
    AfterToolCall,
    Agent,
    Deny,
    Hooks,
    ModelCall,
    ModelResponse,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    exec_agent,
    tool,
)
from hookline.errors import HookUsageError
from tests.tables import for_each

pytestmark = pytest.mark.anyio


@tool
async def price(item: str) -> str:
    return f"{item}: 4 EUR"


async def test_turns_are_texts_requests_and_lists_of_requests() -> None:
    seen: list[AfterToolCall] = []
    hooks = Hooks()
    hooks.on(AfterToolCall)(seen.append)
    turns = [
        ToolRequest("price", {"item": "tea"}),
        [ToolRequest("price", {"item": "milk"}), ToolRequest("price", {"item": "rum"}, tool_call_id="mine")],
        "Done.",
    ]

    result = await exec_agent(Agent(id="shop", model=ScriptedModel(turns), tools=[price]), "Go", hooks=[hooks])

    assert (result.reason, result.output) == ("done", "Done.")
    assert [(event.tool_call_id, event.content) for event in sorted(seen, key=lambda event: event.tool_call_id)] == [
        ("mine", "rum: 4 EUR"),
        ("t0.0", "tea: 4 EUR"),
        ("t1.0", "milk: 4 EUR"),
    ]


async def test_a_function_may_answer_with_a_turn() -> None:
    def turn(call: ModelCall) -> Any:
        return "enough" if call.messages[-1].role == "tool" else ToolRequest("price", {"item": "tea"})

    result = await exec_agent(Agent(id="shop", model=ScriptedModel(turn), tools=[price]), "Go")

    assert (result.output, result.tool_calls) == ("enough", 1)


async def test_a_given_id_is_kept_where_it_looks_like_one_that_a_run_would_give() -> None:
    calling: list[list[str]] = []
    hooks = Hooks()
    hooks.on(AfterStep)(lambda event: calling.append([each.tool_call_id for each in event.tools_calling]))
    requests = [ToolRequest("price", {"item": "a"}, tool_call_id="t0.1"), ToolRequest("price", {"item": "b"})]

    await exec_agent(Agent(id="shop", model=ScriptedModel([requests, "x"]), tools=[price]), "Go", hooks=[hooks])

    assert calling[0] == ["t0.1", "t0.1_1"]


@for_each("turn", [3, [], [3], None, {"content": "x"}])
async def test_a_turn_that_is_none_ends_the_run_with_an_error_that_shows_it(turn: Any) -> None:
    result = await exec_agent(Agent(id="shop", model=ScriptedModel([turn])), "Go")

    assert result.reason == "error"
    assert repr(turn) in str(result.error)


def test_a_text_is_no_script() -> None:
    with pytest.raises(HookUsageError, match="takes a list of turns"):
        ScriptedModel("hello")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "fields"),
    [(("a", {}, "local"), {}), ((3,), {}), (("a", "{}"), {}), (("a", [1]), {}), ((), {"tool_name": None})],
)
def test_a_request_that_is_made_wrongly_is_refused_with_the_right_spelling(given: Any, fields: Any) -> None:
    with pytest.raises(HookUsageError, match=r'Write ToolRequest\("search", \{"q": "tea"\}\)'):
        ToolRequest(*given, **fields)


def test_raw_text_of_a_model_is_kept_and_does_not_change_on_the_wire() -> None:
    raw = ToolRequest("a", args="{broken", toolset="mcp")

    assert msgspec.json.decode(msgspec.json.encode(raw), type=ToolRequest) == raw
    assert raw.args == "{broken"


def test_arguments_of_a_request_are_a_copy() -> None:
    args = {"item": "tea"}
    request = ToolRequest("price", args)

    args["item"] = "rum"

    assert request.args == {"item": "tea"}


def test_hooks_of_a_bundle_without_a_name_are_named_by_their_module() -> None:
    unnamed, named = Hooks(), Hooks("hooks")

    for bundle in (unnamed, named):

        @bundle.guard(ToolCall)
        def no_rm(call: ToolCall) -> Deny | None:
            return None

    assert unnamed.id == named.id == "hooks"
    assert unnamed.interceptors[0].id == f"{__name__}.no_rm"
    assert named.interceptors[0].id == "hooks.no_rm"


async def test_a_whole_response_is_still_a_turn() -> None:
    result = await exec_agent(Agent(id="shop", model=ScriptedModel([ModelResponse(content="x")])), "Go")

    assert result.output == "x"
