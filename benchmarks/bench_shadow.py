"""Shadow hooks: whether they change anything, and the time that they add to a run, beside the same hooks enforced.

The agent calls one tool that waits for 5 ms, thirty times, and the hook is one guard of these calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import msgspec

from benchmarks.harness import Row, interleave, statement
from hookline import (
    Agent,
    Deny,
    HookDispatcher,
    Hooks,
    ModelCall,
    ModelResponse,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    ToolResult,
    exec_agent,
    tool,
)

CALLS = 30
TOOL_SECONDS = 0.005
HOOK_SECONDS = 0.001
JUDGED = 10_000
"""Calls that hooks of every bad kind judge in the shadow."""


@tool
async def look(number: int) -> str:
    """Look something up."""
    await asyncio.sleep(TOOL_SECONDS)
    return f"seen {number}"


def searcher(used: Any, calls: int) -> Agent:
    """An agent that calls a tool some times, one call in each step."""

    def play(call: ModelCall) -> ModelResponse:
        done = sum(message.role == "tool" for message in call.messages)
        if done == calls:
            return ModelResponse(content="done")
        return ModelResponse(tool_calls=[ToolRequest(used.name, {"number": done}, tool_call_id=f"c{done}")])

    return Agent(id="searcher", model=ScriptedModel(play), tools=[used], max_steps=calls + 2)


async def bench(rounds: int) -> list[Row]:
    return [*await time_added(rounds), *await calls_changed()]


async def time_added(rounds: int) -> list[Row]:
    async def waits(call: ToolCall) -> None:
        await asyncio.sleep(HOOK_SECONDS)

    def plain(call: ToolCall) -> None:
        pass

    agent = searcher(look, CALLS)
    cases = {"run [hooks=0]": run_of(agent, [])}
    for name, handler in (("waits 1 ms", waits), ("does nothing", plain)):
        for how, shadow in (("enforced", False), ("shadow", True)):
            hooks = Hooks("policy", shadow=shadow)
            hooks.guard(ToolCall)(handler)
            cases[f"run [guard {name}, {how}]"] = run_of(agent, [hooks])
    samples = await interleave(cases, rounds, times=1)
    rows = [samples.row("run [hooks=0]")]
    for name, goal in (("waits 1 ms", 1.0), ("does nothing", None)):
        shadow, enforced = f"run [guard {name}, shadow]", f"run [guard {name}, enforced]"
        rows += [samples.row(enforced, "run [hooks=0]"), samples.row(shadow, enforced, at_most=goal)]
    return rows


def run_of(agent: Agent, hooks: list[Hooks]) -> Any:
    async def run() -> None:
        result = await exec_agent(agent, "Look", hooks=hooks)
        assert result.tool_calls == CALLS

    return statement("await run()", run=run, unroll=1)


async def calls_changed() -> list[Row]:
    """Count the calls that shadow hooks of every bad kind have changed, denied, answered or lost."""
    seen: list[int] = []

    @tool
    async def note(number: int) -> str:
        """Note a number."""
        seen.append(number)
        return f"noted {number}"

    agent, each = searcher(note, 100), 100
    wrong = 0
    async with HookDispatcher(hook_timeout=0.01) as dispatcher:
        for _ in range(JUDGED // each):
            seen.clear()
            result = await exec_agent(agent, "Note", hooks=bad_hooks(), dispatcher=dispatcher, drain_timeout=60)
            texts = [message.content for message in result.messages if message.role == "tool"]
            expected = list(range(each))
            kept = sum(a == b for a, b in zip(seen, expected, strict=False))
            read = sum(text == f"noted {number}" for number, text in zip(expected, texts, strict=False))
            wrong += each - min(kept, read) + (result.reason != "done" or len(seen) != each)
    return [Row(case=f"calls that shadow hooks have changed, of {JUDGED:,}", value=wrong, unit="calls", at_most=0)]


def bad_hooks() -> list[Hooks]:
    """Make one bundle for each thing that a shadow hook may do wrong, so that none waits for another."""

    async def hangs(call: ToolCall) -> None:
        if call.args["number"] % 50 == 0:  # each holds its lane for the whole timeout
            await anyio.sleep_forever()

    def raises(call: ToolCall) -> None:
        raise RuntimeError("broken")

    async def cancels(call: ToolCall) -> None:
        raise asyncio.CancelledError

    def denies(call: ToolCall) -> Deny:
        return Deny("no", stop=True)

    def rewrites(call: ToolCall) -> ToolCall:
        return call.with_args(number=-1)

    def replaces(call: ToolCall, result: ToolResult) -> ToolResult:
        return msgspec.structs.replace(result, content="hidden")

    async def answers(call: ToolCall, call_next: Callable[..., Any]) -> ToolResult:
        return ToolResult(content="mine")

    bundles = []
    for kind, handler in (
        *(("guard", each) for each in (hangs, raises, cancels, denies)),
        ("before", rewrites),
        ("after", replaces),
        ("around", answers),
    ):
        hooks = Hooks(handler.__name__, shadow=True)
        getattr(hooks, kind)(ToolCall)(handler)
        bundles.append(hooks)
    return bundles
