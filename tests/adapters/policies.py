"""What the tests of policies arrange with: an agent that asks for tools, and a policy that says what it was told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
from agent_hooks import Verdict

from hookline import Agent, ModelResponse, ScriptedModel, ToolRequest, tool

Context = dict[str, Any]
POINTS = [
    "agent_startup",
    "input",
    "pre_model_call",
    "post_model_call",
    "pre_tool_call",
    "post_tool_call",
    "output",
    "agent_shutdown",
]


class Policy:
    """Allows everything, but where it was told otherwise; remembers what it was asked.

    Args:
        name: Its name on records.
        answers: A verdict, a function of the context, or an exception to raise, by point.
    """

    def __init__(self, name: str = "policy", **answers: Verdict | Callable[[Context], Any] | Exception) -> None:
        self.name = name
        self.answers = answers
        self.asked: list[Context] = []

    @property
    def points(self) -> list[str]:
        return [context["interception_point"] for context in self.asked]

    def at(self, point: str) -> list[Context]:
        return [context for context in self.asked if context["interception_point"] == point]

    def intercept(self, context: Context) -> Any:
        self.asked.append(context)
        answer = self.answers.get(context["interception_point"], Verdict.allow())
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Verdict | dict) else answer(context)


class AsyncPolicy(Policy):
    """The same one, async."""

    async def intercept(self, context: Context) -> Any:
        await anyio.lowlevel.checkpoint()
        return super().intercept(context)


class Sums:
    """The tools of an agent, and what they were called with."""

    def __init__(self) -> None:
        self.paid: list[Any] = []

    def tools(self) -> list[Any]:
        @tool
        async def pay(to: str, amount: int) -> str:
            """Pay somebody."""
            self.paid.append((to, amount))
            return f"paid {amount} to {to}"

        @tool
        async def account(number: int) -> dict[str, Any]:
            """Look an account up."""
            return {"number": number, "owner": {"name": "Ada"}}

        return [pay, account]


def asks(name: str, call_id: str = "t1", **args: Any) -> ModelResponse:
    return ModelResponse(tool_calls=[ToolRequest(tool_name=name, args=args, tool_call_id=call_id)])


def says(text: str) -> ModelResponse:
    return ModelResponse(content=text)


def agent(sums: Sums, *turns: ModelResponse | Exception, **options: Any) -> Agent:
    return Agent(id=options.pop("id", "banker"), model=ScriptedModel(turns), tools=sums.tools(), **options)


def transform(path: str, value: Any) -> Verdict:
    return Verdict.from_wire({"decision": "transform", "transform": {"path": path, "value": value}})


def told(result: Any) -> list[str]:
    """What the model was told of its tool calls."""
    return [message.content for message in result.messages if message.role == "tool"]
