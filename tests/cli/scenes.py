"""Recorded runs with times that are known, what is printed of spans, and the command itself."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from typer.testing import CliRunner, Result

from hookline import (
    AfterCallAgent,
    AfterHumanIntervention,
    AfterStep,
    AfterToolCall,
    BeforeCallAgent,
    BeforeHumanIntervention,
    BeforeStep,
    BeforeToolCall,
    Event,
    OnComplete,
    OnToolCallError,
    PendingTool,
)
from hookline.cli._app import app
from hookline.cli.trace._otlp import Tracing
from hookline.cli.trace._recorded import replay_events
from hookline.cli.trace._span_tree import show_spans
from hookline.evals import write_events

SPANS = {
    "invoke_agent agentdojo-banking",
    "agent_step",
    "chat ground-truth",
    "execute_tool read_file",
    "execute_tool send_money",
}
"""What the spans of banking's first task are called."""

START = 1_700_000_000_000_000_000
MS = 1_000_000


class Tape:
    """Events of one operation, at times in milliseconds."""

    def __init__(self, operation_id: str = "op", agent_id: str = "assistant", parent: str | None = None) -> None:
        self.events: list[Event] = []
        self._common = {"operation_id": operation_id, "agent_id": agent_id, "parent_operation_id": parent}
        self._calls = 0

    def add(self, kind: type[Event], at: float, **fields: Any) -> Tape:
        self.events.append(kind(**self._common, time_unix_nano=START + int(at * MS), **fields))
        return self

    def step(self, at: float, index: int = 0) -> Tape:
        return self.add(BeforeStep, at, step_index=index)

    def stepped(self, at: float, index: int = 0, tokens: tuple[int, int] = (0, 0)) -> Tape:
        return self.add(
            AfterStep,
            at,
            step_index=index,
            step_type="call_tool",
            content="",
            reasoning="",
            tools_calling=[],
            tools_result=[],
            should_continue=True,
            execution_time_ms=1.0,
            elapsed_ms=1.0,
            step_cost_usd=0.0,
            total_cost_usd=0.0,
            total_input_tokens=tokens[0],
            total_output_tokens=tokens[1],
            total_steps=index + 1,
            total_tool_calls=self._calls,
        )

    def tool(self, name: str, begin: float, end: float, step: int = 0, error: str | None = None, **after: Any) -> Tape:
        self._calls += 1
        call = {
            "toolset": "local",
            "tool_name": name,
            "args": {"q": f"argument of {name}"},
            "call_index": self._calls,
            "step_index": step,
            "tool_call_id": f"c{self._calls}",
        }
        self.add(BeforeToolCall, begin, **call)
        if error is not None:
            return self.add(OnToolCallError, end, **call, error="it says why", error_type=error, **after)
        answer = {"content": f"result of {name}", "success": True, "mocked": False, "execution_time_ms": 1.0}
        return self.add(AfterToolCall, end, **call, **{**answer, **after})

    def ask(self, at: float, step: int = 0) -> Tape:
        pending = [PendingTool(toolset="local", tool_name="pay", tool_call_id="p1", args={})]
        return self.add(BeforeHumanIntervention, at, step_index=step, pending_tools=pending)

    def decide(self, at: float, action: str = "approve") -> Tape:
        return self.add(AfterHumanIntervention, at, action=action, tool_call_id="p1")

    def call(self, callee: str, at: float) -> Tape:
        return self.add(BeforeCallAgent, at, callee_id=callee, instruction="go")

    def called(self, callee: str, child: str, at: float) -> Tape:
        return self.add(AfterCallAgent, at, callee_id=callee, sub_operation_id=child, thread_id="t", success=True)

    def done(self, at: float, reason: str = "done", steps: int = 1, error: str | None = None) -> Tape:
        return self.add(
            OnComplete,
            at,
            reason=reason,
            steps=steps,
            llm_calls=steps,
            tool_calls=self._calls,
            total_tokens=0,
            cost_usd=0.0,
            duration_ms=at,
            last_assistant_content="",
            error_type=error,
        )


def printed(tracing: Tracing, *, width: int = 80, encoding: str = "utf-8", titles: Mapping[str, str] = {}) -> str:
    """What a terminal, or a pipe, of some width gets to see of spans."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    show_spans(Console(file=file, width=width, highlight=False), tracing.spans, titles)
    return raw.getvalue().decode(encoding)


def shown(events: Iterable[Event], *, content: bool = False, **how: Any) -> str:
    """What is printed of a recorded run, whose events are put into the order of their times."""
    tracing = Tracing(None, content=content)
    replay_events(tracing.hooks, sorted(events, key=lambda event: event.time_unix_nano))
    return printed(tracing, **how)


def run(*args: str, width: int = 80, **env: str) -> Result:
    """The command, in this process."""
    return CliRunner().invoke(app, list(args), env={"COLUMNS": str(width), **env})


def a_recorded_run(folder: Path) -> Path:
    """A file of a run with a tool that fails."""
    tape = Tape().step(0).tool("search", 1, 2).tool("fetch", 2, 3, error="OSError").stepped(4).done(5)
    return write_events(folder / "run.jsonl", tape.events)
