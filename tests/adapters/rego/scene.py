"""A run under a Rego policy, in an environment of its own: the engine wants another SDK than the tests have.

Prints what each run came to, as JSON.
"""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import sys
from typing import Any

import agent_control_spec
import anyio

from hookline import Agent, Approve, ModelResponse, ScriptedModel, ToolRequest, exec_agent, resume_agent, tool
from hookline.adapters.agent_hooks import PolicyHooks

MANIFEST = pathlib.Path(__file__).with_name("payments.yaml")


async def paid(policies: PolicyHooks, to: str, amount: int) -> dict[str, Any]:
    paid: list[Any] = []

    @tool
    async def pay(to: str, amount: int) -> str:
        """Pay somebody."""
        paid.append([to, amount])
        return f"paid {amount} to {to}"

    call = ToolRequest(tool_name="pay", args={"to": to, "amount": amount}, tool_call_id="t1")
    turns = [ModelResponse(tool_calls=[call]), ModelResponse(content=f"That is all for {to}.")]
    agent = Agent(id="banker", model=ScriptedModel(turns), tools=[pay])
    result = await exec_agent(agent, "Pay them", hooks=[policies])
    asked = [call.prompt for call in result.pending]
    if asked:
        assert not paid
        result = await resume_agent(agent, result.operation_id, [Approve("t1")], hooks=[policies])
    told = [message.content for message in result.messages if message.role == "tool"]
    return {"reason": result.reason, "output": result.output, "told": told, "paid": paid, "asked": asked}


async def main() -> None:
    points = ["pre_tool_call", "output"]
    plain = agent_control_spec.AcsInterceptor(str(MANIFEST))
    activated = agent_control_spec.ActivatedPolicy.activate(str(MANIFEST))
    runs = [("stranger", "Mallory", 5), ("friend", "Grace", 5), ("capped", "Ada", 500), ("asked", "Ada", 5000)]
    told: dict[str, Any] = {"sdk": importlib.metadata.version("agent-hooks-sdk")}
    async with agent_control_spec.AsyncAcsInterceptor(activated) as awaitable:
        for name, interceptor in (("plain", plain), ("async", awaitable)):
            policies = PolicyHooks(interceptor, at=points)
            told[name] = {run: await paid(policies, to, amount) for run, to, amount in runs}
            told[name]["records"] = len(policies.records)
    json.dump(told, sys.stdout)


anyio.run(main)
