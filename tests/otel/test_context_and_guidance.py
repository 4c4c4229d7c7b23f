"""What hooks have added for the model, and which answers they have sent back, in the trace."""

from __future__ import annotations

import pytest

from hookline import (
    Agent,
    AgentCall,
    Guide,
    Hooks,
    ModelCall,
    ModelResponse,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    exec_agent,
    tool,
)

from .capture import Sink

pytestmark = pytest.mark.anyio


def steering() -> Hooks:
    hooks, left = Hooks("steering"), ["be kind"]
    hooks.before(AgentCall, id="date")(lambda call: call.add_context("it is Tuesday"))
    hooks.before(ToolCall, id="currency")(lambda call: call.add_context("only EUR"))
    hooks.after(ModelCall, id="manners")(lambda call, answer: Guide(left.pop()) if left else None)
    return hooks


def payer() -> Agent:
    @tool(in_thread=False)
    def pay() -> str:
        return "paid"

    request = ToolRequest(tool_name="pay", tool_call_id="p1")
    turns = [ModelResponse(content="rude"), ModelResponse(tool_calls=[request]), ModelResponse(content="done")]
    return Agent(id="payer", model=ScriptedModel(turns), tools=[pay])


@pytest.mark.parametrize("content", [False, True])
async def test_each_text_and_each_guide_is_an_event_with_its_hook(content):
    sink = Sink()

    await exec_agent(payer(), "go", hooks=[sink.tracing(capture_content=content), steering()])

    events: dict[str, list[tuple[str, dict]]] = {}
    for span in sink.spans:
        for event in span.events:
            events.setdefault(event.name, []).append((span.name, dict(event.attributes)))
    added = {each["hookline.context.hook_id"]: (where, each) for where, each in events["hookline.context_added"]}
    assert {hook: (where, attributes["hookline.context.call"]) for hook, (where, attributes) in added.items()} == {
        "date": ("invoke_agent payer", "AgentCall"),
        "currency": ("agent_step", "ToolCall"),
    }
    assert added["currency"][1]["gen_ai.tool.call.id"] == "p1"
    ((where, guided),) = events["hookline.guided"]
    assert (where, guided["hookline.guide.hook_id"]) == ("agent_step", "manners")
    assert (added["date"][1].get("hookline.context.text"), guided.get("hookline.guide.feedback")) == (
        ("it is Tuesday", "be kind") if content else (None, None)
    )


async def test_each_asking_has_a_span_of_its_own():
    sink = Sink()

    await exec_agent(payer(), "go", hooks=[sink.tracing(), steering()])

    assert len([span for span in sink.spans if span.name.startswith("chat")]) == 3
    assert len([span for span in sink.spans if span.name.startswith("agent_step")]) == 2
    assert all(span.status.is_unset for span in sink.spans)
