"""A server as it is published, installed from its package."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookline import Agent, ModelResponse, ScriptedModel, ToolRequest, exec_agent
from hookline.adapters.mcp import mcp_server
from tests.forks import forking_python

package = pytest.importorskip("mcp_server_time", reason="needs the package mcp-server-time")
pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]  # trio talks to our own servers


async def test_the_time_server_converts_a_time() -> None:
    arguments = ["-m", "mcp_server_time", "--local-timezone", "UTC"]
    server = mcp_server("time", command=[forking_python("hookline"), *arguments], cwd=Path(package.__file__).parents[1])
    args = {"source_timezone": "Asia/Tokyo", "time": "12:00", "target_timezone": "UTC"}
    calls = [
        ToolRequest(toolset="time", tool_name="convert_time", args=args, tool_call_id="t1"),
        ToolRequest(toolset="time", tool_name="convert_time", args={**args, "time": "noon"}, tool_call_id="t2"),
    ]
    model = ScriptedModel([ModelResponse(tool_calls=calls), ModelResponse(content="done")])

    result = await exec_agent(Agent(id="clock", model=model, tools=[server]), "When?")

    right, wrong = [message.content for message in result.messages if message.role == "tool"]
    assert "T03:00:00+00:00" in right
    assert "Invalid time format" in wrong
