"""MCP tools: a call of a tool in another process, by the bare client and in runs with and without hooks.

All sides call the same tool of the same program over stdio, each in a process of its own, which stays open.
"""

from __future__ import annotations

import sys

from mcp import Client, StdioServerParameters

from benchmarks.harness import Row, Samples, interleave, statement
from hookline import Agent, Hooks, ModelCall, ModelResponse, ScriptedModel, ToolCall, ToolRequest, exec_agent
from hookline.adapters.mcp import mcp_server
from hookline.events import EVENTS

CALLS = 20
"""Calls of one run, each in a step of its own, so that opening and closing a run count little."""

HOOKS_RATIO = 1.25
"""What a step with 16 observers, or also a guard, may take of one without hooks."""

TOOL_RATIO = 1.15
"""What the tool may take of the bare client's call: its timeout, its checks, and the connection that is made again."""

RUN_RATIO = 1.5
"""What a step with a call, its model call, the loop and 16 observers included, may take of the bare client's call."""

BARE = "call_tool of the bare client"
TOOL = "the tool of a server that is kept open"
RUN = "a step with a call"

SERVER = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    method, answer = request["method"], {"error": {"code": -32601, "message": "unknown"}}
    if method == "initialize":
        about = {"name": "adder", "version": "1"}
        answer = {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}}
    elif method == "tools/list":
        answer = {"result": {"tools": [{"name": "add", "inputSchema": {"type": "object"}}]}}
    elif method == "tools/call":
        total = sum(request["params"]["arguments"].values())
        answer = {"result": {"content": [{"type": "text", "text": str(total)}]}}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
"""

ASKS = ModelResponse(
    tool_calls=[ToolRequest(toolset="adder", tool_name="add", args={"a": 1, "b": 2}, tool_call_id="t")]
)
ANSWERS = ModelResponse(content="done")


def play(call: ModelCall) -> ModelResponse:
    return ASKS if sum(message.role == "tool" for message in call.messages) < CALLS else ANSWERS


async def bench(rounds: int) -> list[Row]:
    command = [sys.executable, "-S", "-c", SERVER]
    server = mcp_server("adder", command=command)
    agent = Agent(id="adder", model=ScriptedModel(play), tools=[server])
    observers, guard = Hooks("observers"), Hooks("guard")
    for event in EVENTS.values():
        observers.on(event)(lambda event: None)
    guard.guard(ToolCall)(lambda call: None)
    given = {"hooks=0": [], "hooks=16": [observers], "hooks=16, a guard": [observers, guard]}
    bare = Client(StdioServerParameters(command=command[0], args=command[1:]))
    async with bare, server, server.open() as (tool,):
        await bare.list_tools()
        assert (await tool.run({"a": 1, "b": 2})).content == "3"
        result = await exec_agent(agent, "Add.")
        assert (result.output, result.tool_calls) == ("done", CALLS)
        cases = {
            BARE: statement("await call('add', {'a': 1, 'b': 2})", call=bare.call_tool, unroll=CALLS),
            TOOL: statement("await run({'a': 1, 'b': 2})", run=tool.run, unroll=CALLS),
        }
        for name, hooks in given.items():
            cases[name] = statement(
                "await exec_agent(agent, 'Add.', hooks=hooks)",
                exec_agent=exec_agent,
                agent=agent,
                hooks=hooks,
                unroll=1,
            )
        samples = await interleave(cases, rounds)
    return build_delivery_rows(samples, list(given))


def build_delivery_rows(samples: Samples, given: list[str]) -> list[Row]:
    rows = [samples.row(BARE), samples.row(TOOL, BARE, at_most=TOOL_RATIO)]
    for name in given:
        samples.derive(f"{RUN} [{name}]", lambda run: run / CALLS, name)
    rows += [samples.row(f"{RUN} [{name}]", BARE, at_most=None if "guard" in name else RUN_RATIO) for name in given]
    rows += [samples.row(f"{RUN} [{name}]", f"{RUN} [{given[0]}]", at_most=HOOKS_RATIO) for name in given[1:]]
    return rows
