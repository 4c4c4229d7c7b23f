"""What these tests arrange with: calls of a model, agents that play a script, and calls led through a bare chain."""

from __future__ import annotations

from typing import Any

from hookline import Agent, ModelResponse, OperationResult, ScriptedModel, ToolCall, ToolRequest, Usage, tool
from hookline.calls import ToolResult
from hookline.interceptors import Chain, Outcome
from hookline.runtime import ModelRetry


@tool
async def search(query: str = "") -> str:
    """Search."""
    return f"found {query}"


@tool
async def bash(command: str = "") -> str:
    """Run a command."""
    return f"ran {command}"


@tool
async def broken(query: str = "") -> str:
    """Fail."""
    raise RuntimeError("out of order")


def asks(*names: str, id: str = "t", cost: float = 0.0, tokens: int = 0, **args: Any) -> ModelResponse:  # noqa: A002
    """A turn that calls these tools, each as `tool_name` or `toolset/tool_name`."""
    callings = []
    for position, name in enumerate(names):
        toolset, _, tool_name = name.rpartition("/")
        given = {"instruction": "go"} if toolset == "agent" else args
        callings.append(
            ToolRequest(toolset=toolset or "local", tool_name=tool_name, args=given, tool_call_id=f"{id}{position}")
        )
    return ModelResponse(tool_calls=callings, usage=Usage(cost_usd=cost, input_tokens=tokens))


def says(content: str = "done", *, cost: float = 0.0, tokens: int = 0) -> ModelResponse:
    return ModelResponse(content=content, usage=Usage(cost_usd=cost, output_tokens=tokens))


def agent_of(*turns: Any, id: str = "tester", **parts: Any) -> Agent:  # noqa: A002
    parts.setdefault("tools", [search, bash, broken])
    return Agent(id=id, model=ScriptedModel(turns), retry=ModelRetry(attempts=1), **parts)


def told(result: OperationResult) -> list[str]:
    """What the model was told of its tool calls."""
    return [message.content for message in result.messages if message.role == "tool"]


def called(name: str = "local/search", **fields: Any) -> ToolCall:
    toolset, _, tool_name = name.rpartition("/")
    return ToolCall(toolset=toolset, tool_name=tool_name, **fields)


async def through(chain: Chain, call: Any, result: Any = None) -> Outcome:
    async def terminal(final: Any) -> Any:
        return ToolResult(content="real") if result is None else result

    return await chain.run(call, terminal)


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now
