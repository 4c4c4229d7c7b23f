"""Ready-made hooks that only watch see an approved call again when it goes on."""

from __future__ import annotations

import pytest

from hookline import Agent, Approve, ModelResponse, ScriptedModel, ToolRequest, exec_agent, resume_agent, tool
from hookline.builtin import AuditLog, AuditRecord
from hookline.runtime import InMemoryStore

pytestmark = pytest.mark.anyio


async def test_the_audit_has_an_approved_call_as_it_waits_and_as_it_runs() -> None:
    records: list[AuditRecord] = []
    audit, store = AuditLog(records.append), InMemoryStore()

    @tool(in_thread=False, needs_approval=True)
    async def pay(amount: int) -> str:
        return "paid"

    asks = ModelResponse(tool_calls=[ToolRequest(tool_name="pay", args={"amount": 5}, tool_call_id="p1")])
    agent = Agent(id="payer", model=ScriptedModel([asks, ModelResponse(content="done")]), tools=[pay])
    await exec_agent(agent, "go", operation_id="op", store=store, hooks=[audit])

    await resume_agent(agent, "op", [Approve("p1")], store=store, hooks=[audit])

    assert [(each.outcome, each.args) for each in records if each.call == "ToolCall"] == [
        ("denied", {"amount": 5}),
        ("ok", {"amount": 5}),
    ]
