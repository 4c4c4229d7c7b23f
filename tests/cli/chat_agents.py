"""An agent that does on request what is hard for a chat, and hooks for it."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio

from hookline import (
    Agent,
    BeforeToolCall,
    Hooks,
    ModelCall,
    ModelResponse,
    ScriptedModel,
    ToolRequest,
    Usage,
    tool,
)
from hookline.errors import ModelError

HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31mred\r\x08\u202egpj.exe"


def opened() -> None:
    """Wait until somebody has opened the named pipe `gate` of the current folder for writing, and closed it again."""
    Path("gate").read_bytes()


async def gate() -> None:
    await anyio.to_thread.run_sync(opened, abandon_on_cancel=True)


@tool
async def note(text: str) -> str:
    """Write something down."""
    return f"noted {text}"


@tool(needs_approval=True)
async def send(text: str, to: str = "everybody") -> str:
    """Send something."""
    return f"sent {text} to {to}"


@tool
def wait() -> str:
    """Wait in a thread."""
    opened()
    return "waited"


@tool
async def cling() -> str:
    """Wait, and let nobody end it."""
    with anyio.CancelScope(shield=True):
        await gate()
    return "clung"


@tool
async def leave() -> str:
    """End the program, as code that was written for a command line does."""
    sys.exit("no arguments")


def calls(*calls: tuple[str, dict[str, object]]) -> ModelResponse:
    return ModelResponse(
        tool_calls=[
            ToolRequest(tool_name=name, args=args, tool_call_id=f"call_{number}")
            for number, (name, args) in enumerate(calls)
        ],
        usage=Usage(input_tokens=1000, output_tokens=20, cost_usd=0.01),
    )


class Actor:
    """Does what the last word of the user says."""

    name = "actor"
    provider = "tests"

    async def respond(self, call: ModelCall) -> ModelResponse:
        last = call.messages[-1]
        if last.role == "tool":
            return ModelResponse(
                content=f"Done: {last.content}", usage=Usage(input_tokens=2000, output_tokens=30, cost_usd=0.02)
            )
        match last.content:
            case "fail":
                raise ModelError(f"no\nsuch {HOSTILE} model")
            case "hostile":
                return ModelResponse(content=f"before{HOSTILE}after\n")
            case "hostile call":
                return calls((f"no{HOSTILE}te", {HOSTILE: HOSTILE}))
            case "send late":
                await gate()
                return calls(("send", {"text": "late"}))
            case "send two":
                return calls(("send", {"text": HOSTILE}), ("send", {"text": "second", "to": "Ada"}))
            case "note":
                return calls(("note", {"text": "x" * 300}))
            case "wait" | "cling" | "leave" as name:
                return calls((name, {}))
            case "delegate":
                return ModelResponse(
                    tool_calls=[
                        ToolRequest(
                            toolset="agent", tool_name="helper", args={"instruction": "note it"}, tool_call_id="h"
                        )
                    ]
                )
            case "log":
                try:
                    raise ValueError("a cause")
                except ValueError:
                    logging.getLogger("somebody").exception("Something went wrong")
                return ModelResponse(content="logged")
            case "how many":
                return ModelResponse(content=f"{sum(message.role == 'user' for message in call.messages)} messages")
        return ModelResponse(content=f"You said {last.content}")

    async def stream(self, call: ModelCall) -> AsyncIterator[str | ModelResponse]:
        if call.messages[-1].content != "story":
            response = await self.respond(call)
            yield response.content
            yield response
            return
        yield "Once upon "
        await gate()
        yield "a time."
        yield ModelResponse(content="Once upon a time.")


def helper() -> Agent:
    turns = [calls(("note", {"text": "of the helper"})), ModelResponse(content="helped")]
    return Agent(id="helper", model=ScriptedModel(turns), tools=[note])


agent = Agent(id="actor", model=Actor(), tools=[note, send, wait, cling, leave], sub_agents=[helper()])

stand_in = Hooks("stand-in")


@stand_in.on(BeforeToolCall, tool="*/note")
def answers(event: BeforeToolCall) -> None:
    event.mock({"content": "noted by nobody", "metadata": {"rule": "no notes"}})


def made_hooks() -> list[Hooks]:
    return [stand_in]


def made_agent() -> Agent:
    return agent


def broken() -> Agent:
    raise OSError("no disk")
