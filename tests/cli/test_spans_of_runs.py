"""What the tree shows of real runs, for what no event tells of: model calls, hooks, denials, interrupts."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from cli.scenes import printed
from hookline import (
    Agent,
    Compaction,
    Deny,
    Hooks,
    ModelCall,
    ModelResponse,
    OnComplete,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    Usage,
    exec_agent,
    interrupt,
    tool,
)
from hookline.cli.trace._otlp import Tracing


def traced(
    run: Callable[[Tracing], Awaitable[Any]], *, content: bool = False, hook_spans: bool = False, width: int = 120
) -> str:
    tracing = Tracing(None, content=content, hook_spans=hook_spans)
    anyio.run(run, tracing)
    return printed(tracing, width=width)


@tool
async def search(query: str) -> str:
    """Search."""
    return f"results for {query}"


def searching(*answers: ModelResponse, **parts: Any) -> Agent:
    call = ToolRequest(tool_name="search", args={"query": "tea"}, tool_call_id="c1")
    asks = ModelResponse(
        tool_calls=[call], usage=Usage(input_tokens=1200, output_tokens=34), finish_reason="tool_calls"
    )
    return Agent(id="finder", model=ScriptedModel([asks, *answers]), tools=[search], **parts)


def test_model_calls_have_their_tokens_and_unusual_ends() -> None:
    agent = searching(
        ModelResponse(content="Ye", usage=Usage(input_tokens=1300, output_tokens=2), finish_reason="length")
    )

    text = traced(lambda tracing: exec_agent(agent, "Find tea", hooks=[tracing.hooks]))

    assert "✓ chat scripted  1,200→34 tokens" in text
    assert "✓ chat scripted  ended by length  1,300→2 tokens" in text
    assert "✓ invoke_agent finder  2 steps  1 tool call  2,500→36 tokens" in text


def test_what_model_and_tool_said_is_told_in_words() -> None:
    agent = searching(ModelResponse(content="There is tea."))

    text = traced(lambda tracing: exec_agent(agent, "Find tea", hooks=[tracing.hooks]), content=True)

    assert "asked: Find tea" in text
    assert 'said: search({"query": "tea"})' in text
    assert "asked: results for tea" in text
    assert "said: There is tea." in text


def test_a_hook_is_shown_with_its_decision_and_what_it_denied_counts_once() -> None:
    rules = Hooks("rules")

    @rules.guard(ToolCall)
    def never(call: ToolCall) -> Deny:
        return Deny("not today")

    @rules.before(ModelCall)
    def look(call: ModelCall) -> None:
        return None

    agent = searching(ModelResponse(content="No tea."))

    text = traced(lambda tracing: exec_agent(agent, "Find tea", hooks=[tracing.hooks, rules]), hook_spans=True)

    assert "⊘ hook rules.never  denied" in text
    assert "✓ hook rules.look " in text
    assert "⊘ execute_tool search  denied by rules.never" in text
    assert "⊘ 1 denied: execute_tool search" in text


def test_a_hook_that_fails_is_a_failure_and_told_to_be_the_reason() -> None:
    rules = Hooks("rules")

    @rules.guard(ToolCall)
    def broken(call: ToolCall) -> None:
        raise KeyError("secret")

    agent = searching(ModelResponse(content="No tea."))

    text = traced(lambda tracing: exec_agent(agent, "Find tea", hooks=[tracing.hooks, rules]), hook_spans=True)

    assert "✗ hook rules.broken  KeyError" in text
    assert "denied by rules.broken, which failed with KeyError" in text
    assert "secret" not in text


def test_a_result_that_a_hook_withheld_is_told_at_its_step() -> None:
    rules = Hooks("rules")

    @rules.after(ToolCall)
    def private(call: ToolCall, result: object) -> Deny:
        return Deny("too private")

    agent = searching(ModelResponse(content="No tea."))

    text = traced(lambda tracing: exec_agent(agent, "Find tea", hooks=[tracing.hooks, rules]))

    assert "rules.private withheld a result" in text


def test_hooks_that_run_after_the_end_stand_under_what_had_ended() -> None:
    rules = Hooks("rules")

    @rules.on(OnComplete)
    def goodbye(event: OnComplete) -> None:
        return None

    agent = searching(ModelResponse(content="Tea."))

    text = traced(lambda tracing: exec_agent(agent, "Find tea", hooks=[tracing.hooks, rules]), hook_spans=True)

    assert "✓ hook rules.goodbye  after the end" in text
    assert "traces" not in text


def test_a_run_that_was_interrupted_shows_in_what() -> None:
    @tool
    async def forever() -> str:
        """Wait."""
        interrupt("op")
        await anyio.sleep_forever()
        return ""

    call = ToolRequest(tool_name="forever", tool_call_id="c1")
    agent = Agent(id="a", model=ScriptedModel([ModelResponse(tool_calls=[call])]), tools=[forever])

    text = traced(lambda tracing: exec_agent(agent, "Wait", operation_id="op", hooks=[tracing.hooks]))

    assert "■ invoke_agent a  interrupted" in text
    assert "■ execute_tool forever  interrupted" in text
    assert "■ 1 stopped early: execute_tool forever" in text


def test_a_compaction_tells_how_many_messages_are_left() -> None:
    async def summarize(messages: object) -> str:
        return "They searched."

    answers = [ModelResponse(content="Tea.", usage=Usage(input_tokens=10))]
    agent = searching(*answers, compaction=Compaction(max_tokens=1000, summarize=summarize, keep_last=0))

    text = traced(lambda tracing: exec_agent(agent, "Find tea", hooks=[tracing.hooks]), content=True)

    assert re.search(r"✓ compact_context  \d+→\d+ messages", text)
    assert "summary: They searched." in text
    assert "chat scripted  after a compaction" in text
