"""The way of one tool call through the source: how many files it enters, and how often it goes from one to another.

Counted, not timed: every Python function of hookline that is called from the first to the last one of the module that
runs tool calls. A file is a room; a move is a call in another file than the one before.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import hookline
from benchmarks.harness import Row
from hookline import (
    AfterToolCall,
    Agent,
    Deny,
    HookDispatcher,
    Hooks,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    ToolResult,
    exec_agent,
    tool,
)

SOURCE = f"{Path(hookline.__file__).parent}/"
RUNS_TOOL_CALLS = "runtime/_tool_calls.py"
MOST_ROOMS, MOST_MOVES = 16, 40
MOST_CALLS = 22
"""Python calls of hookline that one `around` may add to a tool call."""


class Walk:
    """Notes the functions that are called between the model's answer and its next turn."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def note(self, frame: FrameType, event: str, argument: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(SOURCE):
            self.calls.append((file.removeprefix(SOURCE), frame.f_code.co_name))

    def clip(self) -> None:
        """Leave out what belongs to the model's turns, before and after the tool call."""
        places = [place for place, (file, _) in enumerate(self.calls) if file == RUNS_TOOL_CALLS]
        self.calls = self.calls[places[0] : places[-1] + 1]

    @property
    def rooms(self) -> int:
        return len({file for file, _ in self.calls})

    @property
    def moves(self) -> int:
        return sum(a != b for (a, _), (b, _) in zip(self.calls, self.calls[1:], strict=False))


@tool
async def add(a: int, b: int) -> str:
    return str(a + b)


def every_kind() -> Hooks:
    """A hook of each kind on the tool call, and one observer; none changes anything."""
    hooks = Hooks("walk")

    @hooks.before(ToolCall)
    def before(call: ToolCall) -> None: ...

    @hooks.around(ToolCall)
    async def around(call: ToolCall, call_next: Any) -> ToolResult:
        result: ToolResult = await call_next(call)
        return result

    @hooks.guard(ToolCall)
    def guard(call: ToolCall) -> Deny | None:
        return None

    @hooks.after(ToolCall)
    def after(call: ToolCall, result: ToolResult) -> None: ...

    @hooks.on(AfterToolCall)
    def observer(event: AfterToolCall) -> None: ...

    return hooks


def one_around() -> Hooks:
    """An `around` that passes the call on."""
    hooks = Hooks("around")

    @hooks.around(ToolCall)
    async def around(call: ToolCall, call_next: Any) -> ToolResult:
        result: ToolResult = await call_next(call)
        return result

    return hooks


async def walked(hooks: list[Hooks]) -> Walk:
    """Let an agent call its tool in three steps, and note the second one, when everything is warm."""
    walk = Walk()
    turns: list[Any] = [ToolRequest("add", {"a": 1, "b": 2}, tool_call_id=f"t{n}") for n in range(3)]
    played = 0

    def turn(call: Any) -> Any:
        nonlocal played
        played += 1
        sys.setprofile(walk.note if played == 2 else None)
        return turns[played - 1] if played <= len(turns) else "done"

    async with HookDispatcher() as dispatcher:
        try:
            await exec_agent(
                Agent(id="walk", model=ScriptedModel(turn), tools=[add]), "go", hooks=hooks, dispatcher=dispatcher
            )
        finally:
            sys.setprofile(None)
    walk.clip()
    return walk


async def bench(rounds: int) -> list[Row]:
    bare, whole, around = await walked([]), await walked([every_kind()]), await walked([one_around()])
    added = len(around.calls) - len(bare.calls)
    return [
        Row(case="rooms [hooks=0]", value=bare.rooms, unit="files", ratio=bare.rooms),
        Row(case="moves [hooks=0]", value=bare.moves, unit="moves", ratio=bare.moves),
        Row(case="rooms [hooks=5]", value=whole.rooms, unit="files", ratio=whole.rooms, at_most=MOST_ROOMS),
        Row(case="moves [hooks=5]", value=whole.moves, unit="moves", ratio=whole.moves, at_most=MOST_MOVES),
        Row(case="calls added by one around", value=added, unit="calls", ratio=added, at_most=MOST_CALLS),
    ]
