"""Tools of a server made with the installed package, called by runs: hooks, mocks, guards and people see every call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from adapters.mcp_servers import raw, shop
from hookline import (
    AfterToolCall,
    Agent,
    Approve,
    BeforeToolCall,
    Deny,
    Hooks,
    ModelResponse,
    OnToolCallError,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    exec_agent,
    resume_agent,
)
from hookline.adapters.mcp import McpServer, McpTool
from hookline.evals import ToolMocks
from hookline.otel import TracingHooks
from hookline.runtime import OperationResult
from tests.tables import for_each

pytestmark = pytest.mark.anyio


def asking(server: McpServer, *calls: tuple[str, dict[str, Any]], together: bool = False) -> Agent:
    """An agent that makes these calls, each in a step of its own unless together, and is done."""
    wanted = [
        ToolRequest(toolset=server.toolset, tool_name=name, args=args, tool_call_id=f"c{number}")
        for number, (name, args) in enumerate(calls)
    ]
    turns = [wanted] if together else [[calling] for calling in wanted]
    model = ScriptedModel([*(ModelResponse(tool_calls=turn) for turn in turns), ModelResponse(content="done")])
    return Agent(id="buyer", model=model, tools=[server])


def told(result: OperationResult) -> list[str]:
    return [message.content for message in result.messages if message.role == "tool"]


def seen(*events: type) -> tuple[Hooks, list[Any]]:
    hooks, heard = Hooks("ears"), []
    for event in events:
        hooks.on(event)(heard.append)
    return hooks, heard


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # trio talks to `raw`, which starts in a tenth of the time
async def test_a_real_server_answers_a_run_with_text_structure_failures_and_other_contents() -> None:
    hooks, heard = seen(BeforeToolCall, AfterToolCall, OnToolCallError)
    calls = [
        ("echo", {"value": [2**70, -(2**64), 0.1, None, "ä\u2028"]}),
        ("order", {"item": "pear", "amount": 3}),
        ("order", {"amount": "many"}),
        ("stock", {}),
        ("picture", {}),
        ("fail", {"why": "because"}),
        ("nothing", {}),
    ]

    result = await exec_agent(asking(shop(), *calls), "Go", hooks=[hooks])

    assert result.reason == "done", result.error
    big, ordered, invalid, stock, picture, failed, unknown = told(result)
    assert big == repr([2**70, -(2**64), 0.1, None, "ä\u2028"])
    assert ordered == "ordered 3 pear"
    assert "item" in invalid
    assert json.loads(stock) == {"apples": 2**60, "pears": [1, 2]}
    assert picture.splitlines() == [
        "see",
        "[image: image/png, 8 bytes]",
        "[resource 'a': file:///tmp/a.txt, text/plain]",
        "[resource: memo://1]",
        "remember",
    ]
    assert "because" in failed
    assert "There is no tool" in unknown
    events = [event for event in heard if not isinstance(event, BeforeToolCall)]
    assert [event.toolset for event in heard[:-2]] == ["shop"] * 12
    assert [type(event).__name__ for event in events] == ["AfterToolCall"] * 6 + ["OnToolCallError"]
    assert [event.success for event in events[:-1]] == [True, True, False, True, True, False]


async def test_tools_carry_what_the_server_says_about_them() -> None:
    async with raw("hints", tools=["a*", "look"], needs_approval="destructive").open() as tools:
        pass

    act, look, add = tools
    assert [tool.name for tool in tools] == ["act", "look", "add"]
    assert (look.description, look.title, look.schema) == ("Looks.", "Have a look", {"type": "object"})
    assert [tool.read_only for tool in (act, look, add)] == [False, True, False]
    assert {tool.version for tool in tools} == {"1"}
    assert [tool.destructive for tool in (act, look, add)] == [True, False, False]
    assert [tool.needs_approval for tool in (act, look, add)] == [True, False, False]
    assert [tool.idempotent for tool in (act, look, add)] == [False, True, True]
    assert [tool.open_world for tool in (act, look, add)] == [True, True, False]


async def test_a_mocked_or_denied_call_does_not_reach_the_server(tmp_path: Any) -> None:
    notes = tmp_path / "notes"
    mocks = ToolMocks()
    mocks.tool("raw/act", {"a": 1}).returns("mocked")
    guard = Hooks("guard")
    guard.guard(ToolCall, tool="raw/*")(lambda call: Deny("not two") if call.args == {"a": 2} else None)

    agent = asking(raw(notes=notes), ("act", {"a": 1}), ("act", {"a": 2}), ("act", {"a": 3}))
    result = await exec_agent(agent, "Go", hooks=[mocks, guard])

    assert told(result)[:2] == ["mocked", "not two"]
    assert told(result)[2].startswith('did act {"a": 3}')
    assert [line for line in notes.read_text().splitlines() if line.startswith("call")] == ['call act {"a": 3}']


@for_each(
    ("needs_approval", "pending"),
    [
        (True, ["act", "look"]),
        (["a*"], ["act"]),
        (lambda call: call.tool_name == "look", ["look"]),
    ],
)
async def test_a_person_approves_the_calls_that_were_asked_for(
    needs_approval: bool | Sequence[str], pending: list[str]
) -> None:
    agent = asking(raw(needs_approval=needs_approval), ("act", {}), ("look", {}), together=True)

    result = await exec_agent(agent, "Go")

    assert [call.tool_name for call in result.pending] == pending
    assert [call.toolset for call in result.pending] == ["raw"] * len(pending)
    approved = await resume_agent(agent, result.operation_id, [Approve(c.tool_call_id) for c in result.pending])
    assert approved.reason == "done", approved.error
    assert [text.split()[1] for text in told(approved)] == ["act", "look"]


async def test_the_current_span_goes_along_with_a_call() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    result = await exec_agent(asking(raw("meta"), ("act", {})), "Go", hooks=[TracingHooks(provider)])

    _, trace_id, span_id, _ = json.loads(told(result)[0])["traceparent"].split("-")
    (tool,) = [span for span in exporter.get_finished_spans() if span.name == "execute_tool act"]
    assert (int(trace_id, 16), int(span_id, 16)) == (tool.context.trace_id, tool.context.span_id)


async def test_one_that_reads_only_is_asked_again_when_its_server_has_just_gone(tmp_path: Any) -> None:
    notes = tmp_path / "notes"
    async with raw("leaves", notes).open() as (act, look):
        first = await look.run({})
        again = [await look.run({}) for _ in range(3)]

    assert isinstance(act, McpTool)
    assert first.content.startswith("last words")
    assert [result.success for result in again] == [True, True, True]
